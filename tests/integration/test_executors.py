"""What carries out trials, one contract for both: Ray Tune, and the loop in this process. The same sweeps on the same
simulated clusters must come to the same ledger, whoever carried them out. Tune's part with real ranks is in test_sweep,
test_asha, test_faults and their like."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeps.cluster import interrupt, ray_cluster
from sweeps.cluster.site import Simulated
from sweeps.errors import RefusedError
from sweeps.record import ledger, ownership
from sweeps.record.ledger import Ledger, SweepRecord, TrialRecord
from sweeps.run import driver, executor, forecast
from sweeps.run.executor import Executor
from sweeps.run.in_process import InProcess
from sweeps.run.ray_tune import RayTune
from sweeps.scheduling import search
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.observer import Observer
from sweeps.simulator import cluster as simulated
from sweeps.spec import plan, sweep_file
from tests.unit import hopeless

pytestmark = pytest.mark.timeout(300)

GRID = """
name: grid
model: resnet50_v1.5
data: synthetic
device: gpu
space: {batch_size: [32, 256], gpus: [1, 4, 8], placement: [pack, spread], precision: [fp32, fp16]}
repeats: 2
"""
SWEEPS = {
    "grid": (GRID, "nodes=2,gpus=4,gpu=v100", 1e9),  # fp32 does not fit at a batch of 256: most of it is inferred
    "retries": (GRID, "nodes=2,gpus=4,gpu=v100,loss=0.3,seed=4", 1e9),
    "budget": (GRID, "nodes=2,gpus=4,gpu=v100", 0.5),
    "rungs": (hopeless.FILE, "nodes=2,gpus=4,gpu=v100", 1e9),
    "frontier": (
        GRID.replace("repeats: 2", "repeats: 1\nsearch: {method: frontier}").replace("[1, 4, 8]", "[1, 4]"),
        "nodes=1,gpus=4,gpu=v100",
        1e9,
    ),
}


@pytest.fixture(scope="module")
def one_ray() -> Iterator[None]:
    with ray_cluster.connected(None, cpus=1):
        yield


@pytest.fixture
def ray_here(one_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ray_cluster.QUIET.items():  # each test has its variables anew
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["ray tune", "in process"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "ray tune":
        request.getfixturevalue("ray_here")
    return str(request.param)


def executor_of(kind: str, book: Ledger) -> Executor:
    machine = simulated.parse(book.facts.simulated)
    if kind == "ray tune":
        return RayTune(book.facts, book.paths, Simulated(machine.nodes))
    return InProcess(machine, executor.folders(book.facts.spec))


def begun(text: str, shape: str, budget: float = 1e9) -> tuple[Engine, Ledger]:
    machine = simulated.parse(shape)
    planned = plan.plan(sweep_file.parse(text, "x"), "x", machine.nodes)
    spec = planned.spec
    engine = Engine(
        functools.partial(search.strategy, planned),
        forecast.learned(machine, is_real=False),
        Feasibility(spec.seed),
        Cache(),
        budget_gpu_hours=budget,
        rungs=driver._rungs(spec),
        bases=driver._bases(spec),
    )
    return engine, ownership.create(planned, text, simulated=shape)


def came_to(record: SweepRecord) -> dict[str, Any]:
    """Return what of a sweep's ledger must not depend on who carried it out: all but the clock and the order of
    lines."""
    since = min(one.started_at for one in record.trials if one.outcome.measurement)

    def after(at: float | None) -> float | None:
        return at and round(at - since, 3)

    def one(trial: TrialRecord) -> tuple[Any, ...]:
        outcome = trial.outcome
        steps = outcome.measurement and [rank.steps for rank in outcome.measurement.ranks]
        times = tuple(map(after, (trial.started_at, trial.held_since, trial.ended_at)))
        return (
            outcome.status,
            outcome.kind,
            outcome.message,
            trial.attempts,
            trial.blamed,
            outcome.granted,
            steps,
            times,
        )

    return {
        "trials": {trial.config.trial: one(trial) for trial in record.trials},
        "attempts": sorted(((trial.config.trial, one(trial)) for trial in record.attempts), key=repr),
        "rungs": sorted(map(repr, record.rungs)),
        "spent": round(record.spent, 6),
    }


@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_comes_to_the_same_ledger_whoever_carries_it_out(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for kind in ("ray tune", "in process"):
        monkeypatch.setenv("SWEEP_RESULTS", str(workplace / kind))  # each learns from its own trials alone
        engine, book = begun(*SWEEPS[name])
        before = signal.getsignal(signal.SIGINT)
        assert executor.carry_out(engine, book, executor_of(kind, book)) == (name != "budget")
        assert signal.getsignal(signal.SIGINT) == before, "the driver goes on, and hears its own"
        book.close()
        found.append(ledger.read(book.facts.name))
    through_tune, in_process = found
    assert came_to(in_process) == came_to(through_tune)
    statuses = {one.outcome.status for one in in_process.trials}
    assert bool(in_process.attempts) == (name == "retries"), "some were lost, and tried again"
    assert ("pruned" in statuses) == (name == "rungs") == bool(in_process.rungs)
    assert ("infeasible" in statuses) == (name != "rungs")


class Interrupts(Observer):
    """Presses Ctrl-C, or has the process terminated, when the third trial has ended."""

    def __init__(self, number: signal.Signals) -> None:
        self._number, self._ended = number, 0

    def ended(self, record: TrialRecord) -> None:
        self._ended += 1
        if self._ended == 3:
            os.kill(os.getpid(), self._number)


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_with_what_runs_cancelled_and_the_rest_left(number: signal.Signals, kind: str) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    engine, book = begun(GRID, "nodes=2,gpus=4,gpu=v100")
    with interrupt.terminate_as_interrupt():  # as a driver does
        assert not executor.carry_out(engine, book, executor_of(kind, book), [Interrupts(number)])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    record = ledger.read("grid-simulated")
    ended = [one for one in record.trials if one.outcome.status != "cancelled"]
    assert 3 <= len(ended) < len(record.facts.trials)
    assert len(record.trials) > len(ended), "what ran is cancelled"
    assert not engine.running


class Full(Observer):
    """A disk that is full once a trial has ended."""

    def __init__(self, book: Ledger) -> None:
        self._book = book

    def ended(self, record: TrialRecord) -> None:
        self._book._file = open("/dev/full", "w")  # noqa: SIM115


@pytest.mark.usefixtures("workplace")
def test_a_ledger_that_can_not_be_written_ends_the_sweep(kind: str) -> None:
    engine, book = begun(GRID, "nodes=2,gpus=4,gpu=v100")
    with pytest.raises(RefusedError, match="No space left"):
        executor.carry_out(engine, book, executor_of(kind, book), [Full(book)])
    kinds = [json.loads(line)["kind"] for line in book.paths.ledger.read_text().splitlines()]
    assert kinds.count("trial") == 1


class Refuses(Observer):
    def ready(self) -> None:
        raise RefusedError("the store must answer")


@pytest.mark.usefixtures("workplace")
def test_an_observer_that_refuses_at_the_beginning_ends_it_before_the_first_trial(kind: str) -> None:
    engine, book = begun(GRID, "nodes=2,gpus=4,gpu=v100")
    with pytest.raises(RefusedError, match="the store must answer"):
        executor.carry_out(engine, book, executor_of(kind, book), [Refuses()])
    assert not ledger.read("grid-simulated").trials


@pytest.mark.usefixtures("workplace")
def test_a_simulated_sweep_needs_no_ray() -> None:
    Path("grid.yaml").write_text(GRID)
    call = "main(['run', 'grid.yaml', '--simulate', 'nodes=2,gpus=4,gpu=v100'])"
    resume = "main(['resume', 'grid-simulated'])"
    needs = "assert 'ray' not in sys.modules"
    code = f"import sys; from sweeps.cli.main import main; assert {call} == 0; assert {resume} == 0; {needs}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ledger.read("grid-simulated").trials) == len(ledger.read("grid-simulated").facts.trials)
