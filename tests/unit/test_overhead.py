"""What benchmarks/overhead.py makes of a sweep's records: which of a trial's time is measuring."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest

import verdicts
from sweeps.record.ledger import TrialRecord
from sweeps.spec import sweep_file
from tests.unit import sources
from tests.unit.records import config, record, report
from workers.contract.messages import ROUNDS, Granted, Measurement, TrialOutcome
from workers.measure import step_shares

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # it imports its neighbour `verdicts`
found = importlib.util.spec_from_file_location("benchmarks_overhead", BENCHMARKS / "overhead.py")
assert found
assert found.loader
overhead = importlib.util.module_from_spec(found)
sys.modules["benchmarks_overhead"] = overhead
found.loader.exec_module(overhead)
sys.path.remove(str(BENCHMARKS))

PLACE = (Granted(rank=0, node="a"),)


def measured(at: float, gpus: int = 1) -> TrialRecord:
    """A trial of 10 s: built after 2, its window from 3 to 7, then blocks of 2 s of which 1.5 count."""
    ranks = tuple(
        dataclasses.replace(
            report(rank, 100, [400.0] * 10),
            entered_at=at + 1.0,
            build_s=1.0,
            window_at=(at + 3.0, at + 7.0),
            without_ms={"nothing": ((500.0,), (500.0,)), "input": ((250.0,), (250.0,))},  # 4 steps
        )
        for rank in range(gpus)
    )
    outcome = TrialOutcome(status="completed", measurement=Measurement(ranks=ranks), granted=PLACE)
    return dataclasses.replace(record(config(gpus=gpus), outcome=outcome), started_at=at, ended_at=at + 10.0)


def infeasible(at: float, took_s: float, granted: tuple[Granted, ...]) -> TrialRecord:
    outcome = TrialOutcome(status="infeasible", kind="precision not supported here", granted=granted)
    return dataclasses.replace(record(config(), outcome=outcome), started_at=at, ended_at=at + took_s)


def test_warm_up_window_and_counted_blocks_are_measuring_and_all_else_is_not() -> None:
    first, second = overhead.spent([measured(100.0), measured(111.0)])
    assert first.turnaround_s is None
    assert (first.window_s, first.measuring_s) == (4.0, 6.5)
    assert (second.turnaround_s, second.measuring_s) == (3.0, 6.5)


def test_trials_that_do_not_run_on_this_machine_measure_nothing_and_come_before_the_next() -> None:
    found_there, inferred = infeasible(110.5, 0.5, PLACE), infeasible(111.0, 0.0, ())
    records = [measured(100.0, gpus=2), found_there, inferred, measured(112.0)]
    first, second = overhead.spent(records)
    assert first.record is records[0]
    assert second.turnaround_s == pytest.approx(3.0), "after the trial that was tried on a gang, not after the first"
    assert second.follows_alike


def test_a_trial_that_failed_is_no_measure_of_anything() -> None:
    failed = dataclasses.replace(measured(100.0), outcome=TrialOutcome(status="failed", kind="killed", granted=PLACE))
    with pytest.raises(AssertionError):
        overhead.spent([failed])


def test_a_trial_is_as_long_as_its_warm_up_its_window_and_the_steps_that_explain_it() -> None:
    (one,) = overhead.spent([measured(100.0)])
    asked = one.record.config
    assert one.steps == asked.warmup_steps + asked.measured_steps + 4


def longest(monkeypatch: pytest.MonkeyPatch, **settings: int) -> int:
    """Steps of the demo's longest trial: two ranks that wait for images."""
    for name, value in settings.items():
        monkeypatch.setattr(step_shares, name, value)
    steps = sweep_file.load(overhead.DEMO).steps
    parts = step_shares.parts(dataclasses.replace(config(gpus=2), data="demo"), 2)
    blocks = ["nothing", *parts]
    counted = [step_shares.FEWEST_WAITING if part in ("nothing", "comm") else step_shares.FEWEST for part in blocks]
    assert steps
    return steps.warmup + steps.measured + ROUNDS * sum(counted)


def test_the_bound_of_a_trials_length_is_what_the_product_takes_now_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert verdicts.unmet({"trial_steps": longest(monkeypatch)}, {"trial_steps": overhead.BOUNDS["trial_steps"]}) == []
    for longer in ({"FEWEST": 6}, {"FEWEST_WAITING": 8}):
        with monkeypatch.context() as patch:
            steps = longest(patch, **longer)
            assert verdicts.unmet({"trial_steps": steps}, {"trial_steps": overhead.BOUNDS["trial_steps"]})


def observers() -> set[str]:
    """The product's classes that hear of a sweep."""
    files = (Path(__file__).parents[2] / "sweeps").rglob("*.py")
    classes = [node for file in files for node in sources.nodes(file) if isinstance(node, ast.ClassDef)]
    return {
        one.name for one in classes if any(isinstance(base, ast.Name) and base.id == "Observer" for base in one.bases)
    }


def test_all_observers_of_a_driver_take_part_in_the_instant_trials() -> None:
    calls = [node.func for node in sources.nodes(BENCHMARKS / "instant.py") if isinstance(node, ast.Call)]
    made = {name.id for name in calls if isinstance(name, ast.Name)}
    assert observers() >= {"SweepProgress", "Tracker", "StatusWriter", "Meter"}
    assert observers() <= made


def test_memory_over_thousands_of_trials_is_as_flat_as_a_test_has_it_over_hundreds() -> None:
    assert verdicts.unmet({"memory_growth": 1.02}, {"memory_growth": overhead.BOUNDS["memory_growth"]}) == []
    assert verdicts.unmet({"memory_growth": 1.05}, {"memory_growth": overhead.BOUNDS["memory_growth"]})
