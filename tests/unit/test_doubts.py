"""What is doubtful about planted studies, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from sweeps.analysis.findings import Finding, doubts
from tests.unit.planted import frame, repeats, trial


def found(*parts: Any, is_strong: bool = False, rank: str = "GPU") -> dict[str, Finding]:
    return {doubt.rule: doubt for doubt in doubts.of_throughput(frame(*parts), is_strong, rank=rank)}


def learned(*parts: Any, has_target: bool = True) -> dict[str, Finding]:
    return {doubt.rule: doubt for doubt in doubts.of_convergence(frame(*parts), has_target)}


def training(hours: list[float], reached: int | None = None, **columns: Any) -> list[dict[str, Any]]:
    """Repeats of a convergence cell; the first ones reached the target, each an epoch an hour."""
    count = len(hours) if reached is None else reached
    to_target = [{"hours_to_target": at, "epochs_to_target": at} if n < count else {} for n, at in enumerate(hours)]
    return [trial(100.0, repeat=n, top1=0.75, **columns, **to_target[n]) for n in range(len(hours))]


def steady(rate: float, **columns: Any) -> list[dict[str, Any]]:
    return repeats([rate * 0.999, rate, rate * 1.001], **columns)


def test_a_sound_study_raises_no_doubt() -> None:
    assert not found(
        steady(100.0, batch_size=32), steady(110.0, batch_size=64), steady(210.0, batch_size=64, gpus=2),
        steady(410.0, batch_size=64, gpus=4),
    )  # fmt: skip


def test_a_line_that_is_neither_weak_nor_strong_is_mixed() -> None:
    line = [(1, 64), (2, 64), (4, 32)]
    doubt = found(*(steady(100.0 * g, gpus=g, batch_size=b) for g, b in line))["mixed scaling"]
    assert "64 on 1, 64 on 2, 32 on 4 GPUs" in doubt.says
    assert len(doubt.cells) == 3


@pytest.mark.parametrize("rank", ["GPU", "rank"])
def test_a_doubt_calls_a_rank_what_the_sweep_does(rank: str) -> None:
    line = [(1, 64), (2, 64), (4, 32)]
    mixed = found(*(steady(100.0 * g, gpus=g, batch_size=b) for g, b in line), rank=rank)["mixed scaling"]
    assert f"the batch of a {rank} nor" in mixed.says
    assert f"on 4 {rank}s" in mixed.says
    tried = [steady(100.0, batch_size=32), steady(150.0, batch_size=64), steady(400.0, batch_size=32, gpus=4)]
    for parts in (tried, [steady(100.0), steady(390.0, gpus=4)]):
        assert f"over one {rank} " in found(*parts, rank=rank)["untuned base"].says


@pytest.mark.parametrize("line", [[(1, 64), (2, 64), (4, 64)], [(1, 64), (2, 32), (4, 16)]])
def test_weak_alone_and_strong_alone_are_not_mixed(line: list[tuple[int, int]]) -> None:
    assert "mixed scaling" not in found(*(steady(100.0 * g, gpus=g, batch_size=b) for g, b in line))


def test_a_grid_of_batches_has_lines_of_each_kind_and_mixes_none() -> None:
    assert "mixed scaling" not in found(*(steady(100.0 * g, gpus=g, batch_size=b) for g in (1, 2, 4) for b in (32, 64)))


def test_a_single_repeat_is_named_by_cell() -> None:
    alone = trial(50.0, batch_size=16)
    doubt = found(steady(100.0), alone)["single repeat"]
    assert doubt.cells == (alone["cell"],)
    assert doubt.plain.startswith("Single repeat: 1 of 2 cells have")
    assert "every cell has" in found(trial(1.0))["single repeat"].says


def test_a_figure_known_to_no_better_than_a_tenth_is_named_by_cell() -> None:
    loose = repeats([80.0, 100.0, 120.0], batch_size=64)
    doubt = found(steady(100.0, batch_size=32), loose)["wide interval"]
    assert doubt.says.startswith("1 of 2 cells have an interval of their images/s wider than ±10%")
    assert doubt.cells == (loose[0]["cell"],)


def test_a_speedup_over_a_slow_single_gpu_is_untuned() -> None:
    doubt = found(
        steady(100.0, batch_size=32), steady(150.0, batch_size=64), steady(400.0, batch_size=32, gpus=4),
        steady(590.0, batch_size=64, gpus=4),
    )["untuned base"]  # fmt: skip
    assert "1 of 2 speed-ups" in doubt.says
    assert "1.50 times" in doubt.says
    only = found(steady(100.0), steady(390.0, gpus=4))["untuned base"]
    assert "one setting only" in only.says


def test_another_precision_or_machine_is_no_fairer_base() -> None:
    fair = found(
        steady(100.0, batch_size=32), steady(101.0, batch_size=64), steady(390.0, batch_size=64, gpus=4),
        steady(300.0, batch_size=64, precision="bf16"), steady(300.0, batch_size=64, hardware="other"),
    )  # fmt: skip
    assert "untuned base" not in fair


def test_simulated_and_cached_figures_are_named_among_fresh_ones() -> None:
    made_up = trial(90.0, repeat=3, hardware="simulated:v100", software="simulated")
    both = found(steady(100.0), made_up)
    assert "1 of 4 figures are simulated" in both["mixed sources"].says
    assert "nothing was measured" in found(made_up)["mixed sources"].says
    cached = found(steady(100.0), trial(90.0, batch_size=16, kind="cached"))["mixed sources"]
    assert "1 of 4 figures were measured by earlier sweeps" in cached.says
    assert "mixed sources" not in found(trial(1.0, kind="cached"))


def test_two_machines_are_named_and_which_cells_have_both() -> None:
    old = trial(90.0, repeat=3, hardware="bbbb")
    doubt = found(steady(100.0), old)["pooled"]
    assert doubt.cells == (old["cell"],)
    assert "aaaa, bbbb" in doubt.says
    apart = found(steady(100.0), steady(90.0, batch_size=16, software="tttt"))["pooled"]
    assert apart.cells == ()
    assert "2 software fingerprints" in apart.says


def test_repeats_on_different_numbers_of_nodes_are_named() -> None:
    spread = {"gpus": 2, "placement": "spread"}
    whole = steady(100.0, **spread, nodes=2)
    assert "mixed nodes" not in found(whole, steady(100.0, nodes=1))
    late = trial(60.0, **spread, repeat=3, nodes=1)
    doubt = found(whole, late)["mixed nodes"]
    assert doubt.cells == (late["cell"],)
    assert "1 and 2, such as" in doubt.says


def test_nothing_measured_claims_nothing() -> None:
    assert not found(trial(outcome="failed"))


def test_a_sound_convergence_study_raises_no_doubt() -> None:
    assert not learned(training([10.0, 10.1, 9.9]), training([12.0, 12.1, 11.9], batch_size=64))


def test_a_time_to_the_target_that_some_repeats_did_not_reach_is_named() -> None:
    some, none = training([10.0, 10.1, 9.9], 2), training([10.0, 10.0], 0, batch_size=64)
    assert "1 of 3 repeats of 1 cells did not come to the target" in learned(some)["missed target"].says
    doubt = learned(training([10.0, 10.1, 9.9], batch_size=16), none)["missed target"]
    assert doubt.says.startswith("no repeat of 1 of 2 cells came to the target")
    assert doubt.cells == (none[0]["cell"],)
    assert "missed target" not in learned(none, has_target=False)


def test_a_wide_spread_of_convergence_repeats_is_named() -> None:
    assert "epochs to the target wider than ±10%" in learned(training([8.0, 10.0, 12.0]))["wide interval"].says
    spread = [row | {"top1": top1} for row, top1 in zip(training([10.0, 10.1, 9.9]), (0.70, 0.75, 0.80), strict=True)]
    assert (
        "1 of 1 cells have a top-1 interval of ±1 point or wider, the widest ±12"
        in learned(spread)["wide interval"].says
    )


def test_trials_that_the_search_stopped_are_named_and_where_others_of_their_cell_went_on() -> None:
    pruned = trial(outcome="pruned", repeat=2)
    doubt = learned(training([10.0, 10.1]), pruned, trial(outcome="pruned", batch_size=64))["pruned"]
    assert "stopped 2 trials of 2 cells" in doubt.says
    assert "1 of these cells have figures" in doubt.says
    assert "pruned" in learned(trial(outcome="pruned"))


def test_convergence_trials_of_unlike_machines_or_of_one_repeat_are_named() -> None:
    apart = learned(training([10.0, 10.1]), training([9.0, 9.1], batch_size=64, hardware="bbbb"))
    assert "2 hardware fingerprints" in apart["pooled"].says
    assert "single repeat" in learned(training([10.0]))
