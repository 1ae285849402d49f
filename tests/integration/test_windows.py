"""Which steps count: decided alike by all ranks; and where their data came from."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from tests.integration.bottlenecks import COMPUTE_S, DECODE_S, ENOUGH, HELD_S, ends
from tests.integration.gangs import gang, history
from workers.contract.messages import CALM_STEPS, Measurement
from workers.inputs import storage
from workers.launch import verdict
from workers.measure import earlier_windows
from workers.measure.steady import NOTHING, Known

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("fork_server")]

UNTIL_SURE = {"measured_steps": 0, "warmup_steps": 10, "env": {COMPUTE_S: "0.05"}, "explain": False}


def measured(log: Path, **fields: object) -> Measurement:
    outcome = verdict.outcome(gang(2, log, "tests.integration.bottlenecks:run", **UNTIL_SURE | fields), ())
    assert outcome.measurement, outcome
    return outcome.measurement


def test_a_trial_stops_at_its_interval_and_all_ranks_at_one_step(tmp_path: Path) -> None:
    earlier_windows.save(str(history(tmp_path)), CALM)
    found = measured(tmp_path, ci=0.1, max_steps=300)
    first, second = found.ranks
    assert first.window
    assert second.window is None
    assert first.window.warmup_steps >= 10
    assert len(first.steps) == len(second.steps)
    assert first.window.stopped_by == "interval" or first.window.withheld  # what a busy machine shows is withheld
    mean_ms = found.window_s * 1e3 / len(first.steps)
    assert first.window.withheld or 0 < first.window.half_width_ms <= 0.1 * mean_ms


def test_a_trial_that_is_never_sure_stops_at_its_last_step(tmp_path: Path) -> None:
    found = measured(tmp_path, ci=1e-6, max_steps=47)
    window = found.ranks[0].window
    assert window
    assert window.stopped_by == "max_steps"
    assert window.warmup_steps + len(found.ranks[0].steps) == 47


def test_a_fixed_window_has_an_interval_once_earlier_ones_have_earned_it(tmp_path: Path) -> None:
    found = measured(tmp_path, measured_steps=30, warmup_steps=5)
    window = found.ranks[0].window
    assert window
    assert (window.stopped_by, window.warmup_steps, len(found.ranks[0].steps)) == ("steps", 5, 30)
    assert window.withheld == "too short to know"
    mean_ms = 1e3 * statistics.fmean(step_s(found))
    earlier_windows.save(str(history(tmp_path)), Known(calm_steps=1000, calm_ms=1000 * mean_ms, steps=1000))
    window = measured(tmp_path, measured_steps=30, warmup_steps=5).ranks[0].window
    assert window
    assert window.withheld or window.half_width_ms > 0  # a busy machine's second window may be unlike its first


BOTH_MODES = pytest.mark.parametrize(
    "steps", [{"max_steps": 500}, {"measured_steps": 60}], ids=["until it is sure", "so many steps"]
)
CALM = Known(calm_steps=1000, calm_ms=1e6, steps=1000)


def stopped_by(found: Measurement) -> str:
    assert found.ranks[0].window
    return found.ranks[0].window.stopped_by


def test_a_first_window_is_long_and_earns_shorter_ones(tmp_path: Path) -> None:
    """A busy machine's times stall or drift; then the next has to earn it anew."""
    first, *later = (measured(tmp_path, ci=0.5, max_steps=300, env={COMPUTE_S: "0.02"}) for _ in range(4))
    assert len(first.ranks[0].steps) >= CALM_STEPS - 20
    shown = earlier_windows.load(str(history(tmp_path)))
    assert shown.steps >= CALM_STEPS
    if shown.calm_steps >= CALM_STEPS:
        assert min(len(step_s(one)) for one in later) < CALM_STEPS / 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"calm": 1}', '{"calm_steps": "x"}'])
def test_a_history_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "history.json"
    assert earlier_windows.load(str(file)) == NOTHING
    file.write_text(text)
    assert earlier_windows.load(str(file)) == NOTHING
    earlier_windows.save(str(file), CALM)
    assert earlier_windows.load(str(file)) == CALM
    earlier_windows.save("/proc/nowhere/history.json", CALM)  # no trial fails for want of a place


@BOTH_MODES
def test_images_per_s_is_what_a_stopwatch_beside_the_loop_says(tmp_path: Path, steps: dict[str, object]) -> None:
    earlier_windows.save(str(history(tmp_path)), CALM)
    found = measured(tmp_path, env={ENOUGH: "80"}, batch_size=16, **steps)
    assert stopped_by(found) == ("steps" if "measured_steps" in steps else "interval")
    counted = len(found.ranks[0].steps)
    window_s = max(ends(tmp_path, rank)[-1] - ends(tmp_path, rank)[-1 - counted] for rank in (0, 1))
    assert found.images_per_s == pytest.approx(2 * 16 * counted / window_s, rel=0.02)


@BOTH_MODES
# The network's own step of 15 to 20 ms comes to what is planted: with 85 ms it was the slower of the two at times.
@pytest.mark.parametrize(("decode_s", "compute_s"), [("0.05", "0"), ("0.1", "0.075")], ids=["far", "hardly"])
def test_a_pipeline_of_a_known_rate_that_is_too_slow_gives_that_rate(
    tmp_path: Path, decode_s: str, compute_s: str, steps: dict[str, object]
) -> None:
    """What it had made while the first step was built would last for 60 steps and more that are hardly quicker. The
    machine may stop a decoder, which can't catch up: so the better of two windows counts."""
    found = []
    for n in range(2):
        (tmp_path / str(n)).mkdir()
        earlier_windows.save(str(history(tmp_path / str(n))), CALM)
        env = {DECODE_S: decode_s, COMPUTE_S: compute_s, ENOUGH: "80"}
        found.append(measured(tmp_path / str(n), env=env, **steps))
        assert stopped_by(found[-1]) == ("steps" if "measured_steps" in steps else "interval")
        if found[-1].images_per_s == pytest.approx(2 * 8 / float(decode_s), rel=0.02):
            return
    raise AssertionError([one.images_per_s for one in found])


def test_a_pipeline_that_is_fast_enough_costs_nothing_from_the_first_step_that_counts(tmp_path: Path) -> None:
    """Though nothing is left ahead of the step before."""
    env = {DECODE_S: "0.02", COMPUTE_S: "0.05"}
    times = step_s(measured(tmp_path, env=env, warmup_steps=3, measured_steps=30))
    assert statistics.median(times[:3]) == pytest.approx(statistics.median(times[3:]), rel=0.2)


def step_s(found: Measurement) -> list[float]:
    return [step.step_ms / 1e3 for step in found.ranks[0].steps]


@pytest.mark.parametrize(
    "steps", [{"ci": 0.001, "max_steps": 60}, {"measured_steps": 50}], ids=["until it is sure", "so many steps"]
)
def test_a_rank_held_up_behind_a_step_costs_images_per_s_just_that(tmp_path: Path, steps: dict[str, object]) -> None:
    found = measured(tmp_path, env={COMPUTE_S: "0.02", HELD_S: "1"}, **steps)
    step_ms = sorted(step.step_ms for step in found.ranks[0].steps)
    undisturbed_s = len(step_ms) * step_ms[len(step_ms) // 2] / 1e3
    assert found.window_s - undisturbed_s == pytest.approx(1.0, abs=0.2)
    assert found.images_per_s == pytest.approx(found.images / (undisturbed_s + 1), rel=0.1)


def test_what_a_cold_cache_costs_is_counted_and_a_warm_one_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(32 << 20))
    os.sync()

    def read_mib() -> float:
        before = storage.read_mib()
        storage.read(path)
        return storage.read_mib() - before

    storage.drop(path)
    cold = read_mib()
    if not cold:
        pytest.skip("this file system is in memory")
    assert cold == pytest.approx(32, abs=2)
    assert read_mib() == 0
