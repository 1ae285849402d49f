"""What is doubtful about planted studies, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from sweeps import claims
from sweeps.claims import Claim
from tests.unit.planted import frame, repeats, trial


def found(*parts: Any, is_strong: bool = False) -> dict[str, Claim]:
    return {claim.rule: claim for claim in claims.check(frame(*parts), is_strong)}


def steady(rate: float, **columns: Any) -> list[dict[str, Any]]:
    return repeats([rate * 0.999, rate, rate * 1.001], **columns)


def test_a_sound_study_raises_no_doubt() -> None:
    assert not found(
        steady(100.0, batch_size=32), steady(110.0, batch_size=64), steady(210.0, batch_size=64, gpus=2),
        steady(410.0, batch_size=64, gpus=4),
    )  # fmt: skip


def test_a_line_that_is_neither_weak_nor_strong_is_mixed() -> None:
    line = [(1, 64), (2, 64), (4, 32)]
    claim = found(*(steady(100.0 * g, gpus=g, batch_size=b) for g, b in line))["mixed scaling"]
    assert "64 on 1, 64 on 2, 32 on 4 GPUs" in claim.says
    assert len(claim.cells) == 3


@pytest.mark.parametrize("line", [[(1, 64), (2, 64), (4, 64)], [(1, 64), (2, 32), (4, 16)]])
def test_weak_alone_and_strong_alone_are_not_mixed(line: list[tuple[int, int]]) -> None:
    assert "mixed scaling" not in found(*(steady(100.0 * g, gpus=g, batch_size=b) for g, b in line))


def test_a_grid_of_batches_has_lines_of_each_kind_and_mixes_none() -> None:
    assert "mixed scaling" not in found(*(steady(100.0 * g, gpus=g, batch_size=b) for g in (1, 2, 4) for b in (32, 64)))


def test_a_single_repeat_is_named_by_cell() -> None:
    alone = trial(50.0, batch_size=16)
    claim = found(steady(100.0), alone)["single repeat"]
    assert claim.cells == (alone["cell"],)
    assert str(claim).startswith("single repeat: 1 of 2 cells have")
    assert "every cell has" in found(trial(1.0))["single repeat"].says


def test_a_lead_within_the_interval_is_no_lead() -> None:
    near = found(repeats([98.0, 100.0, 102.0], batch_size=32), repeats([97.0, 99.5, 102.0], batch_size=64))
    assert "in batch_size" in near["wide interval"].says
    assert len(near["wide interval"].cells) == 2
    assert "wide interval" not in found(steady(100.0, batch_size=32), steady(90.0, batch_size=64))


def test_a_speedup_over_a_slow_single_gpu_is_untuned() -> None:
    claim = found(
        steady(100.0, batch_size=32), steady(150.0, batch_size=64), steady(400.0, batch_size=32, gpus=4),
        steady(590.0, batch_size=64, gpus=4),
    )["untuned base"]  # fmt: skip
    assert "1 of 2 speed-ups" in claim.says
    assert "1.50 times" in claim.says
    only = found(steady(100.0), steady(390.0, gpus=4))["untuned base"]
    assert "one setting only" in only.says


def test_another_precision_or_machine_is_no_fairer_base() -> None:
    fair = found(
        steady(100.0, batch_size=32), steady(101.0, batch_size=64), steady(390.0, batch_size=64, gpus=4),
        steady(300.0, batch_size=64, precision="bf16"), steady(300.0, batch_size=64, hardware="other"),
    )  # fmt: skip
    assert "untuned base" not in fair


def test_simulated_and_cached_figures_are_named_among_fresh_ones() -> None:
    made_up = trial(90.0, repeat=3, hardware="simulated:v100")
    both = found(steady(100.0), made_up)
    assert "1 of 4 figures are simulated" in both["mixed sources"].says
    assert "nothing was measured" in found(made_up)["mixed sources"].says
    cached = found(steady(100.0), trial(90.0, batch_size=16, kind="cached"))["mixed sources"]
    assert "1 of 4 figures were measured by earlier sweeps" in cached.says
    assert "mixed sources" not in found(trial(1.0, kind="cached"))


def test_two_machines_are_named_and_which_cells_have_both() -> None:
    old = trial(90.0, repeat=3, hardware="bbbb")
    claim = found(steady(100.0), old)["pooled"]
    assert claim.cells == (old["cell"],)
    assert "aaaa, bbbb" in claim.says
    apart = found(steady(100.0), steady(90.0, batch_size=16, software="tttt"))["pooled"]
    assert apart.cells == ()
    assert "2 software fingerprints" in apart.says


def test_repeats_on_different_numbers_of_nodes_are_named() -> None:
    spread = {"gpus": 2, "placement": "spread"}
    whole = steady(100.0, **spread, nodes=2)
    assert "mixed nodes" not in found(whole, steady(100.0, nodes=1))
    late = trial(60.0, **spread, repeat=3, nodes=1)
    claim = found(whole, late)["mixed nodes"]
    assert claim.cells == (late["cell"],)
    assert "1 and 2, such as" in claim.says


def test_nothing_measured_claims_nothing() -> None:
    assert not found(trial(outcome="failed"))
