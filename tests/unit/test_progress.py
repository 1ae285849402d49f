"""What a user sees while a sweep runs, and the cells of its tables."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import pytest
from rich.console import Console

from sweeps.record.ledger import TrialRecord
from sweeps.run import status
from sweeps.run.progress import SweepProgress, figure, stage
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import namer
from sweeps.text import tables
from tests.unit.records import config, converged, record
from workers.contract.messages import EpochRecord, Progress, TrialConfig, TrialOutcome


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def progress(*trials: TrialConfig, earlier: Sequence[TrialRecord] = ()) -> tuple[SweepProgress, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    spec = SweepSpec.model_validate(
        {"name": "x", "model": "tiny", "device": "cpu", "space": {"batch_size": [8, 16], "gpus": 1}}
    )
    return (
        SweepProgress(len(trials), namer(spec), Console(file=out, width=120), "GPU-hours", earlier, clock),
        out,
        clock,
    )


def test_plain_lines_where_there_is_no_terminal() -> None:
    made, out, clock = progress(config(), config(batch_size=16))
    with made:
        made.started(config())
        clock.now = 10
        made.ended(record(config(), 1234.5))
        clock.now = 20
        made.ended(record(config(batch_size=16), 99.0))
    first, second = out.getvalue().splitlines()
    assert first == "1/2  b8 ×1 fp32 #0    1,234.5 images/s  0:10 left"
    assert second == "2/2  b16 ×1 fp32 #0       99.0 images/s"
    assert made.best
    assert made.best.config == config()


def test_what_an_earlier_driver_has_done_counts_but_not_for_the_pace() -> None:
    trials = [config(repeat=n) for n in range(4)]
    made, out, clock = progress(*trials, earlier=[record(one) for one in trials[:2]])
    made.started(trials[2])
    clock.now = 10
    made.ended(record(trials[2], 99.0))
    assert out.getvalue() == "3/4  b8 ×1 fp32 #2       99.0 images/s  0:10 left\n"


def test_a_trial_whose_first_end_did_not_stand_is_one_more_of_all() -> None:
    trials = [config(repeat=n) for n in range(2)]
    made, out, _ = progress(*trials, earlier=[record(trials[0])])
    for trial in (trials[1], trials[1], trials[0]):
        made.ended(record(trial, 99.0))
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["2/2", "3/3", "4/4"]


def test_a_failure_says_rank_step_cause_and_log() -> None:
    made, out, _ = progress(config())
    outcome = TrialOutcome(status="failed", kind="killed", message="by signal 9", rank=1, step=7, log="/l/rank-1.log")
    made.ended(record(config(), outcome=outcome))
    assert f"trial {config().trial}: rank 1, step 7: killed: by signal 9" in out.getvalue()
    assert "log: /l/rank-1.log" in out.getvalue()


def test_a_trial_that_never_ran_is_a_line_with_the_one_that_shows_why() -> None:
    made, out, _ = progress(config(), config(repeat=1))
    witness = TrialOutcome(status="infeasible", kind="out of memory", message="3 GiB", rank=0, step=0)
    made.ended(record(config(), outcome=witness))
    inferred = TrialOutcome(status="infeasible", kind="out of memory", message="3 GiB", inferred_from=config().trial)
    made.ended(record(config(repeat=1), outcome=inferred))
    *_, explained, last = out.getvalue().splitlines()
    assert explained == f"    trial {config().trial}: rank 0, step 0: out of memory: 3 GiB"
    assert last.startswith("2/2  b8 ×1 fp32 #1  infeasible, as " + config().trial)


def test_time_left_is_unknown_until_a_trial_has_ended() -> None:
    made, _, clock = progress(config(), config(repeat=1))
    made.started(config())
    clock.now = 5
    assert made.left_s is None


def test_a_convergence_trial_shows_its_epochs_and_its_accuracy() -> None:
    trial = converged([0.5, 0.9, 0.96], reached_target=True)
    assert figure(trial) == "target after 3 epochs, top-1 96.00%"
    assert figure(converged([0.5])) == "top-1 50.00%"
    assert stage(trial.config, Progress("step", 7)) == "epoch 1/6"
    last = EpochRecord(epoch=2, images=10, loss=0.25, rate=0.1, train_s=1, top1=0.9, top5=1.0)
    assert stage(trial.config, Progress("step", 40, last)) == "epoch 3/6, loss 0.25, top-1 90.00%"
    assert stage(trial.config, Progress("evaluate", 40, last)) == "validating epoch 3/6, loss 0.25, top-1 90.00%"


def test_a_trial_that_counts_its_records_says_how_far_it_is() -> None:
    assert stage(config(), Progress("count", 1_281_167)) == "counting its records: 1,281,167"


def test_only_steps_make_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(status.time, "time", clock)
    running = status._RunningStatus(config())
    rates = []
    told = [
        ("count", 1000),
        ("count", 900_000),
        ("build", 3),
        ("step", 10),
        ("step", 60),
        ("evaluate", 80),
        ("step", 90),
    ]
    for phase, step in told:
        clock.now += 5.0
        running.progressed(Progress(phase, step))
        rates.append(running.images_per_s)
    assert rates == [None, None, None, None, 8 * 50 / 5.0, 80.0, 80.0]


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65.4, "1:05"), (3725, "1:02:05")])
def test_clock_times(seconds: float, text: str) -> None:
    assert tables.clock_time(seconds) == text


def test_figures_and_intervals_in_tables() -> None:
    assert tables.plus_minus(1234.5, 56.4) == "1,234 ± 56"
    assert tables.plus_minus(12.345, 0.0567) == "12.35 ± 0.057"
    assert tables.plus_minus(1234.5, math.nan) == "1,234"
    assert tables.plus_minus(math.nan, math.nan) == "–"
    assert tables.percent(0.5, 0.04) == "50% ± 4%"
    assert tables.percent(1.0, 0.0) == "100%"
    assert tables.accuracy(0.97123, 0.004) == "97.12% ± 0.40%"
    assert [tables.duration(s) for s in (3.21, 246, 26_100, math.nan)] == ["3.21 s", "4.1 min", "7.25 h", "–"]
    assert tables.duration(246, 12) == "4.1 ± 0.2 min"


@pytest.mark.parametrize(("value", "digits", "text"), [(1234.5, 3, "1,234"), (999.6, 3, "1,000"), (12.345, 4, "12.35")])
def test_a_number_has_so_many_digits_and_never_an_exponent_for_a_large_one(
    value: float, digits: int, text: str
) -> None:
    assert tables.number(value, digits) == text
    assert tables.duration(3600 * 1234.5) == "1,234 h"
