"""What benchmarks/overhead.py makes of a sweep's records: which of a trial's time is measuring."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest

from sweeps.record.ledger import TrialRecord
from tests.unit.records import config, record, report
from workers.contract.messages import Granted, Measurement, TrialOutcome

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
            without_ms={"nothing": ((500.0,), (500.0,)), "input": ((250.0,), (250.0,))},
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
