"""How real causes are planted and judged, on steps and shares that are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

import causes
import verdicts
from causes import CAUSES, Cause, Found
from sweeps.record import bottleneck
from sweeps.record.bottleneck import Part, Share, Shares, Verdict
from tests.unit.records import config

SURE = Share(0.3, 0.02)


def run(name: str, says: Part | None, told: float = 0.3, removed: float = 0.3) -> Found:
    """Of a step of 100 ms, whose trial names a part, or none."""
    said = Verdict(says, ((says or "input", SURE),))
    return Found(CAUSES[name], "", Share(told, 0.02), said, 100.0, 100.0 * (1 - removed))


@pytest.mark.parametrize("name", CAUSES)
def test_only_the_part_that_is_planted_may_be_named(name: str) -> None:
    planted = CAUSES[name].planted
    assert not run(name, None).is_misnamed
    assert not run(name, planted).is_misnamed
    for other in bottleneck.NAMES:
        assert run(name, other).is_misnamed == (other != planted)


def test_computing_may_be_named_where_the_planted_wait_is_less_than_a_tenth() -> None:
    assert not run("a long cycle", "compute", removed=0.09).is_misnamed
    assert run("a long cycle", "compute", removed=0.11).is_misnamed
    assert run("a long cycle", "input", removed=0.09).is_misnamed


def unmet(*runs: Sequence[Found]) -> list[str]:
    every = {str(n): of_cause for n, of_cause in enumerate(runs)}
    return verdicts.unmet(causes.figures(every), causes.BOUNDS)


def test_one_run_that_names_another_part_does_not_meet_the_bounds_however_near_its_share() -> None:
    good, other = run("large images", "input"), run("large images", "comm")
    assert unmet([good] * 10, [run("a long cycle", "comm")] * 10) == []
    assert unmet([good] * 10, [good] * 9 + [other]) == ["misnamed"]
    assert unmet([good] * 10, [good] * 8 + [run("large images", None, told=0.4)] * 2) == ["least_near"]
    found = causes.figures({"it": [good] * 6 + [run("large images", None)] * 3 + [other]})
    assert (found["named"], found["misnamed"]) == (0.6, 1)


def test_what_shares_say_that_a_heavier_network_computes_more_is_what_the_lighter_one_saves() -> None:
    """Of 80 ms of computing and 20 of reducing, and of 30 and 20; each trial's share with an interval of its own."""
    found = causes.more(Share(0.8, 0.03), Share(0.6, 0.08), shorter=50 / 100)
    assert found.value == pytest.approx(1 - 50 / 100)
    assert found.half_width == pytest.approx(0.05)


def test_a_share_of_computing_that_is_a_tenth_too_large_is_off_by_a_tenth_of_what_the_lighter_network_saves() -> None:
    found = causes.more(Share(0.8 * 1.1, 0.0), Share(0.6 * 1.1, 0.0), shorter=50 / 100)
    assert found.value - (1 - 50 / 100) == pytest.approx(0.05)


def test_a_cause_asks_for_the_share_of_its_part() -> None:
    found = Shares(input=Share(0.3, 0.01), comm=Share(0.1, 0.02), compute=Share(0.55, 0.03))
    assert Cause(part="compute", share=0.5, having=causes.heavier).share_of_part(found) == found.compute
    assert Cause(part="waits", share=0.5, having=causes.heavier).share_of_part(found).value == pytest.approx(0.45)


def after(layers: int, side: int) -> int:
    for _ in range(layers):
        side = -(-side // 2)
    return side


def test_a_heavier_network_has_as_many_weights_and_computes_so_much_more(tmp_path: Path) -> None:
    """`tiny` halves its images three times and pools what is left in halves: these are as many for both."""
    cause = CAUSES["a heavier network"]
    side = causes.heavier(tmp_path, cause, step_ms=20.0)["image_size"]
    assert isinstance(side, int)
    assert 1 - (causes.SIDE / side) ** 2 == pytest.approx(cause.share, abs=0.05)
    pooled = [after(3, one) // (after(3, one) // 2) for one in (causes.SIDE, side)]
    assert pooled == [2, 2]


@pytest.mark.parametrize("step_ms", [5.0, 20.0, 80.0])
def test_large_images_take_a_thread_as_long_as_the_share_asks_for(
    step_ms: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an image takes as long as it has pixels. A batch takes no less than the step and what it is to wait."""
    made: list[int] = []
    small_s = 0.25e-3
    monkeypatch.setattr(causes, "decoding_s", lambda folder, ranks, threads: small_s)
    monkeypatch.setattr(causes.dataset, "make", lambda folder, recipe: made.append(recipe.width_px))
    cause = CAUSES["large images"]
    having = causes.large(tmp_path, cause, step_ms)
    batch_ms = 1e3 * small_s * (made[0] / causes.STORED_SIDE) ** 2 * causes.BATCH
    assert having == {"data": str(tmp_path / f"images-{made[0]}")}
    wanted_ms = step_ms / (1 - cause.share)
    assert wanted_ms <= batch_ms <= max(wanted_ms, 1e3 * small_s * causes.BATCH) * 1.8


def test_decoders_may_take_the_ranks_cores_in_one_cause_and_in_no_run_of_ranks_alone() -> None:
    assert not CAUSES["large images"].is_pinned
    assert all(not cause.is_pinned for cause in CAUSES.values() if not cause.is_joined)


@pytest.mark.parametrize("name", CAUSES)
def test_what_a_cause_asks_for_are_fields_of_a_trial(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "decoding_s", lambda folder, ranks, threads: 1e-3)
    monkeypatch.setattr(causes.dataset, "make", lambda folder, recipe: "")
    cause = CAUSES[name]
    having = causes.SMALL | cause.having(tmp_path, cause, 20.0)
    assert dataclasses.replace(config(gpus=cause.ranks), **having).gpus == cause.ranks
