"""A sweep whose name was handed out can be found by it, however its driver ended; any other leaves nothing."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeps import errors
from sweeps.cli import main
from sweeps.cluster import ray_jobs
from sweeps.errors import InputError, RefusedError
from sweeps.record import discarded, ledger, ownership, processes
from sweeps.run import driver, executor, status, tracker
from sweeps.run.terms import Terms
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.observer import Observer
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.unit.driving import FAILED, TEXT, WAITS, Place, ended, interrupted, opens_the_store, terminated
from tests.unit.records import record


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What MLflow is told of the sweep's own run."""
    told: list[str] = []

    class Tracker:
        refusal, is_closed, leaves_run, late = "", True, False, 0

        def __init__(self, _: object) -> None: ...

        def close(self, is_complete: bool, is_discarded: bool = False) -> int:
            told.append("discarded" if is_discarded else "FINISHED" if is_complete else "KILLED")
            return 0

    monkeypatch.setattr(tracker, "Tracker", Tracker)
    return told


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("ends", ["nodes do not come", "stopped"])
def test_a_submitted_sweep_that_ends_while_it_waits_is_there_to_be_asked_for_and_to_go_on(
    ends: str, there: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there.asked = interrupted if ends == "stopped" else there.asked
    code, reason = (
        (errors.INTERRUPTED, "interrupted") if ends == "stopped" else (errors.WRONG_INPUT, "--skip-impossible")
    )
    assert main.main(["run", "mine.yaml", "--address", "auto"]) == code
    assert ledger.names() == ["mine"]
    assert ledger.read("mine").has_ended
    assert status.look("mine")["state"] == "stopped"
    capsys.readouterr()
    assert ray_jobs.logs("mine", False) == errors.DONE
    log = capsys.readouterr().out
    assert reason in log
    assert "mine ends before its first trial; to go on: sweep resume mine" in log
    there.asked, there.nodes = lambda: None, [Node("here", 2, 0)]
    went_on: list[plan.Plan] = []
    monkeypatch.setattr(driver, "_conduct", lambda planned, *_: went_on.append(planned) or errors.DONE)
    assert main.main(["resume", "mine", "--address", "auto"]) == errors.DONE
    assert len(went_on[0].trials) == 4
    assert ledger.read("mine").facts.nodes == (there.nodes[0],)


@pytest.mark.parametrize("end", [interrupted, terminated])
@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_sweep_that_ends_before_its_first_trial_stays_if_it_was_submitted(
    is_submitted: bool,
    end: Callable[..., Any],
    there: Place,
    mlflow: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there.nodes = [Node("here", 2, 0)]
    if is_submitted:
        monkeypatch.setenv(ledger.JOB, "sweep-mine-1")
    monkeypatch.setattr(executor, "carry_out", end)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert ledger.names() == ["mine"] * is_submitted
    assert mlflow == (["KILLED"] if is_submitted else ["discarded"])
    if is_submitted:
        assert ledger.read("mine").has_ended


@pytest.mark.parametrize("is_impatient", [True, False])
def test_a_discarded_sweep_that_the_store_was_not_told_of_leaves_what_gc_needs_to_delete_its_run(
    is_impatient: bool,
    there: Place,
    workplace: Path,
    mlflow: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def close(*_: object) -> int:
        if is_impatient:  # Ctrl-C, while the store does not answer
            raise KeyboardInterrupt
        return 0

    there.nodes = [Node("here", 2, 0)]
    monkeypatch.setattr(tracker.Tracker, "leaves_run", True)
    monkeypatch.setattr(tracker.Tracker, "close", close)
    monkeypatch.setattr(executor, "carry_out", interrupted)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hush@head:5000")
    with pytest.raises(KeyboardInterrupt):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert not ledger.names()
    (folder,) = (workplace / "results").iterdir()
    assert folder.name.startswith(".mine.")
    run = discarded.open_run(folder)
    assert run
    assert run.store == "http://me:***@head:5000"
    assert run.sweep == json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])["id"]
    told = capsys.readouterr().err
    assert "mine leaves nothing, but its run may be open in the tracking store" in told
    assert "http://me:***@head:5000\n  once that answers: sweep gc --yes" in told


@pytest.mark.usefixtures("mlflow")
def test_a_sweep_stays_where_what_gc_would_need_to_delete_its_run_cannot_be_written(
    there: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    there.nodes = [Node("here", 2, 0)]
    monkeypatch.setattr(tracker.Tracker, "leaves_run", True)
    monkeypatch.setattr(discarded, "note", full)
    monkeypatch.setattr(executor, "carry_out", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert ledger.read("mine").has_ended
    assert "mine ends before its first trial; to go on: sweep resume mine" in capsys.readouterr().err


@pytest.mark.usefixtures("mlflow")
def test_hours_that_a_full_disk_did_not_let_a_driver_write_are_spent_all_the_same(
    there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial has held its ranks for an hour when the disk is full: neither its end nor the driver's is written."""

    def fills(engine: Engine, book: ledger.Ledger, _: object, observers: list[Observer], *__: object) -> bool:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        now = time.time()
        monkeypatch.setattr(status.time, "time", lambda: now - 3600)
        book.start(book.facts.trials[0], now - 3600)
        writer = next(one for one in observers if isinstance(one, status.StatusWriter))
        writer.passed()
        monkeypatch.setattr(book._file, "flush", full)
        monkeypatch.setattr(status, "written_whole", full)
        monkeypatch.setattr(status.time, "time", lambda: now)
        writer.passed()
        book.write(record(book.facts.trials[0]))
        return True

    there.nodes = [Node("here", 2, 0)]
    monkeypatch.setattr(executor, "carry_out", fills)
    with pytest.raises(RefusedError, match="No space left"):
        driver.drive(Path("mine.yaml"), (), Terms())
    found = ledger.read("mine")
    assert not found.trials
    assert found.spent == pytest.approx(found.facts.trials[0].gpus, abs=0.01)


@pytest.mark.usefixtures("mlflow")
def test_hours_count_until_a_driver_gives_up_whose_head_has_gone(there: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends where it stands, without a line: a trial has held its ranks for an hour by then."""
    spent: list[float] = []

    def exits(code: int) -> None:
        spent.append(ledger.read("mine").spent)
        raise SystemExit(code)

    def run(_: object, book: ledger.Ledger, __: object, observers: list[Observer], *___: object) -> Any:
        now = time.time()
        monkeypatch.setattr(status.time, "time", lambda: now - 3600)
        book.start(book.facts.trials[0], now - 3600)
        writer = next(one for one in observers if isinstance(one, status.StatusWriter))
        writer.passed()
        monkeypatch.setattr(status.time, "time", lambda: now)
        there.gone[-1]("the head has gone")

    there.nodes = [Node("here", 2, 0)]
    monkeypatch.setattr(executor, "carry_out", run)
    monkeypatch.setattr(driver.os, "_exit", exits)
    with pytest.raises(SystemExit, match=str(errors.REFUSED)):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert spent == [pytest.approx(ledger.read("mine").facts.trials[0].gpus, abs=0.01)]


@pytest.mark.parametrize("end", [interrupted, terminated, lambda: None])
def test_a_sweep_in_a_terminal_that_ends_while_it_waits_leaves_nothing(
    end: Callable[[], Any], there: Place, workplace: Path
) -> None:
    there.asked = end
    with pytest.raises((KeyboardInterrupt, SystemExit, InputError)):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert [*(workplace / "results").iterdir()] == []


def test_to_stop_a_sweep_in_a_terminal_of_which_nothing_has_begun_is_to_end_it(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)
    monkeypatch.setattr(ray_jobs.processes, "end", lambda *_: book.discard())
    monkeypatch.setattr(ownership, "_has_gone", lambda _: False)
    assert ray_jobs.stop("mine") == errors.DONE
    assert capsys.readouterr().out.startswith("mine is stopped; nothing of it had been measured")


def test_to_stop_another_users_sweep_is_refused_and_says_whose_it_is(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_ours(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(ledger, "_user", lambda: "ada")
    with contextlib.closing(ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)):
        monkeypatch.setattr(processes.signal, "pidfd_send_signal", not_ours)
        with pytest.raises(RefusedError, match=f"by who runs it, but mine is that of process {os.getpid()} of ada"):
            ray_jobs.stop("mine")
        assert ownership.is_driven("mine")


@pytest.mark.parametrize(("before", "why"), [("FINISHED", "complete"), ("KILLED", "stopped")])
def test_a_retry_that_ends_before_its_first_trial_leaves_the_sweep_as_it_was(
    before: str, why: str, there: Place, mlflow: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object, book: ledger.Ledger, *__: object) -> Any:
        book.note("node", {"node": "here"})
        raise KeyboardInterrupt

    there.nodes = [Node("here", 2, 0)]
    ended([FAILED, None, None, None], why=why)
    monkeypatch.setattr(executor, "carry_out", run)
    with pytest.raises(KeyboardInterrupt):
        driver.retry("mine", (), Terms())
    assert mlflow == [before]
    assert ledger.read("mine").is_complete == (why == "complete")


PLANTED = f"""#!{sys.executable}
import functools, pathlib, sys
from sweeps.run import tracker
from sweeps.store import tracking

class Store:
    may_come = 0
    may_be_open = not pathlib.Path("unasked").exists()

    def __init__(self, *_, **__): ...

    def open(self): ...

    def go_on(self):
        raise TimeoutError("no answer")

    def close(self, status):
        with open("told", "a") as told:
            print(status, file=told)
        if pathlib.Path("stays-away").exists():
            raise TimeoutError("no answer")

tracking.Store = Store
tracker.StoreWriter = functools.partial(tracker.StoreWriter, retry_s=0.1, patience_s=0.2)
tracker.main(sys.argv[-2], int(sys.argv[-1]))
"""


@pytest.fixture(params=[False, True])
def stays_away(request: pytest.FixtureRequest, there: Place, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A store that does not open to the process that writes to it; then it can be told of the end, or stays away."""
    there.nodes = [Node("here", 2, 0)]
    if request.param:
        (workplace / "stays-away").touch()
    (script := workplace / "python").write_text(PLANTED)
    script.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hush@head:5000")
    monkeypatch.setattr(executor, "carry_out", opens_the_store)
    begin = tracker.Tracker.__init__

    def begins(self: tracker.Tracker, facts: ledger.SweepFacts) -> None:
        with monkeypatch.context() as once:
            once.setattr(sys, "executable", str(script))
            begin(self, facts)

    monkeypatch.setattr(tracker.Tracker, "__init__", begins)
    return bool(request.param)


OPEN = "! the run of mine may be open in the tracking store\n  http://me:***@head:5000\n"


@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_new_sweep_to_which_the_store_does_not_open_is_ended_there_or_its_user_is_told_that_it_may_be_open(
    is_submitted: bool, stays_away: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_submitted:
        monkeypatch.setenv(ledger.JOB, "sweep-mine-1")
    with pytest.raises(RefusedError, match="must be writable, but it says: no answer"):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert ledger.names() == ["mine"] * is_submitted
    assert {*Path("told").read_text().split()} == {"KILLED" if is_submitted else "DISCARDED"}
    told = capsys.readouterr().err
    assert ((OPEN + "  once that answers: sweep sync mine") in told) == (stays_away and is_submitted)
    assert ("once that answers: sweep gc --yes" in told) == (stays_away and not is_submitted)


@pytest.mark.parametrize("stays_away", [True], indirect=True)
def test_a_store_that_was_asked_for_no_run_is_refused_at_once_and_told_of_no_end(
    stays_away: bool, workplace: Path
) -> None:
    (workplace / "unasked").touch()
    with pytest.raises(RefusedError, match="no answer"):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert not Path("told").exists()


@pytest.mark.parametrize("verb", ["resume", "retry"])
@pytest.mark.parametrize(("before", "why"), [("FINISHED", "complete"), ("KILLED", "stopped")])
def test_a_sweep_that_goes_on_to_which_the_store_does_not_open_is_ended_there_as_it_was_or_its_user_is_told(
    before: str, why: str, verb: str, stays_away: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ended([FAILED, None, None, None] if verb == "retry" else [FAILED], why=why)
    with pytest.raises(RefusedError, match="must be writable, but it says: no answer"):
        driver.retry("mine", (), Terms()) if verb == "retry" else driver.resume("mine", Terms())
    assert ledger.read("mine").is_complete == (why == "complete")
    assert {*Path("told").read_text().split()} == {before}
    assert ((OPEN + "  once that answers: sweep sync mine") in capsys.readouterr().err) == stays_away


@pytest.mark.usefixtures("there")
def test_a_retry_of_a_complete_sweep_that_is_stopped_halfway_is_no_longer_complete(
    there: Place, mlflow: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object, book: ledger.Ledger, *__: object) -> Any:
        book.start(book.facts.trials[0], at=1.0)
        raise KeyboardInterrupt

    there.nodes = [Node("here", 2, 0)]
    ended([FAILED, None, None, None])
    monkeypatch.setattr(executor, "carry_out", run)
    with pytest.raises(KeyboardInterrupt):
        driver.retry("mine", (), Terms())
    assert mlflow == ["KILLED"]
    assert not ledger.read("mine").is_complete


@pytest.mark.parametrize("verb", ["run", "submit", "resume", "retry"])
def test_a_head_that_goes_before_the_first_trial_ends_the_sweep_in_words(
    verb: str,
    there: Place,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While it waits for nodes, say: for hours."""
    if verb == "submit":
        monkeypatch.setenv(ledger.JOB, "sweep-mine-1")
    if verb in ("resume", "retry"):
        ended([FAILED] * 3, WAITS, why="stopped")
    monkeypatch.setattr(driver.os, "_exit", sys.exit)
    there.asked = lambda: there.gone[-1]("the Ray head at a:1 has gone")
    begins = {"resume": functools.partial(driver.resume, "mine"), "retry": functools.partial(driver.retry, "mine", ())}
    drives = begins.get(verb, functools.partial(driver.drive, Path("mine.yaml"), ()))
    with pytest.raises(SystemExit) as left:
        drives(Terms(address="a:1"))
    assert left.value.code == errors.REFUSED
    told = capsys.readouterr().err
    goes_on = "the same command once more" if verb == "run" else "sweep resume mine"
    assert f"the Ray head at a:1 has gone\n  once it is back, or with another head's address: {goes_on}" in told
    assert ledger.names() == ["mine"] * (verb != "run")
    assert verb == "run" or ledger.read("mine").has_ended


@pytest.mark.usefixtures("mlflow")
@pytest.mark.parametrize("verb", ["run", "resume"])
def test_a_sweep_that_is_cut_short_has_an_end_in_its_ledger(
    verb: str, there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a second Ctrl-C, which comes out of what carries the trials out, and leaves what runs without an end."""

    def run(_: object, book: ledger.Ledger, *__: object) -> Any:
        book.start(book.facts.trials[-1], at=time.time() - 3600)
        raise KeyboardInterrupt

    there.nodes = [Node("here", 2, 0)]
    if verb == "resume":
        ended([FAILED], why="stopped")
    monkeypatch.setattr(executor, "carry_out", run)
    with pytest.raises(KeyboardInterrupt):
        driver.resume("mine", Terms()) if verb == "resume" else driver.drive(Path("mine.yaml"), (), Terms())
    record = ledger.read("mine")
    assert record.has_ended
    assert not record.is_complete
    gpus = record.facts.trials[-1].gpus
    assert record.spent == pytest.approx(gpus, abs=0.01), "an hour, until it has said that it stops"
    with contextlib.closing(ownership.reopen("mine")) as book:
        assert book.before.spent == record.spent
