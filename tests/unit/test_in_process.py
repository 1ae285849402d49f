"""`run`, `resume` and `retry` from the sweep file to the report, on clusters that are made up: without Ray, without
MLflow. What carries trials out is the product's own; only the store is a stand-in."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeps import errors, report
from sweeps.cli import main
from sweeps.cluster.site import Simulated
from sweeps.errors import InputError, RefusedError
from sweeps.record import ledger, ownership
from sweeps.record.ledger import TrialRecord
from sweeps.run import driver, ending, executor, forecast, tracker
from sweeps.run.in_process import InProcess
from sweeps.run.progress import SweepProgress
from sweeps.run.terms import Terms
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.engine import NODES_MAY_COME_BACK_S, Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.observer import Observer
from sweeps.scheduling.search import Listed
from sweeps.simulator import cluster as simulated
from sweeps.spec import plan, sweep_file
from sweeps.store import tracking

SHAPE = "nodes=2,gpus=4,gpu=v100"
TEXT = """
name: small
model: resnet50_v1.5
device: gpu
explain: false
space: {batch_size: [32, 64], gpus: [1, 8]}
repeats: 2
"""
NAME = "small-simulated"
SIMULATED = Terms(simulate=SHAPE)
FILE = Path("small.yaml")
CONCLUDE, ATTACH = ending._conclude, report.attach


class Store(Observer):
    """In place of the tracking store's process."""

    refusal, is_closed, leaves_run, late = "", True, False, 0
    told: list[str] = []  # noqa: RUF012  (of all sweeps of a test)
    begins: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, _: object) -> None: ...

    def ready(self) -> None:
        Store.begins()

    def close(self, is_complete: bool, is_discarded: bool = False) -> int:
        Store.told.append("discarded" if is_discarded else "FINISHED" if is_complete else "KILLED")
        return 0


@pytest.fixture(autouse=True)
def store(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the tracking store is told of each driver's end."""
    told: list[str] = []
    monkeypatch.setattr(Store, "told", told)
    monkeypatch.setattr(tracker, "Tracker", Store)
    monkeypatch.setattr("sweeps.report.attach", lambda *_: None)
    monkeypatch.setattr("sweeps.store.tracking.sync", lambda *_, **__: None)
    FILE.write_text(TEXT)
    return told


@pytest.fixture(autouse=True)
def _found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is worked out, said and written only where a test reads it: it takes ten times as long as all
    else that a driver does here."""
    monkeypatch.setattr(ending, "_conclude", lambda *_: None)


@pytest.fixture
def concluded(_found_nothing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is worked out, said and written."""
    monkeypatch.setattr(ending, "_conclude", CONCLUDE)


def outcomes(name: str = NAME) -> Counter[str]:
    return Counter(one.outcome.status for one in ledger.read(name).trials)


def interrupted_at(count: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal to the driver when so many trials have ended."""
    ended, whole = [0], SweepProgress.ended

    def ends(self: SweepProgress, record: TrialRecord) -> None:
        whole(self, record)
        ended[0] += 1
        if ended[0] == count:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(SweepProgress, "ended", ends)


@pytest.mark.usefixtures("concluded")
def test_a_sweep_is_run_from_its_file_to_its_report(store: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    named: list[str] = []
    assert driver.drive(FILE, (), SIMULATED, named.append) == errors.DONE
    assert named == [NAME]
    assert outcomes() == {"completed": 8}
    record = ledger.read(NAME)
    assert record.is_complete
    kinds = Counter(json.loads(line)["kind"] for line in ledger.paths(NAME).ledger.read_text().splitlines())
    assert (kinds["start"], kinds["wait"]) == (8, 0), "a gang that is made up keeps nothing between two trials"
    assert record.spent == pytest.approx(sum(one.gpu_hours for one in record.trials))
    assert store == ["FINISHED"]
    assert f"{NAME}: what was found on a simulated cluster ({SHAPE})" in " ".join(capsys.readouterr().out.split())
    assert "SIMULATED" in (ledger.paths(NAME).folder / "report.html").read_text()


@pytest.mark.usefixtures("concluded")
def test_the_last_words_name_what_deletes_runs_that_the_store_may_make_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Store, "late", 1)
    assert driver.drive(FILE, (), SIMULATED) == errors.DONE
    told = capsys.readouterr().err.rstrip().splitlines()
    assert "has not answered a call for a run" in told[-2]
    assert told[-1].endswith(f"sweep sync {NAME}")


def test_a_resume_that_brings_a_sweep_to_the_store_and_a_report_say_so_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert driver.drive(FILE, (), SIMULATED) == errors.DONE
    assert "for a run" not in capsys.readouterr().err
    monkeypatch.setattr(tracking, "sync", lambda *_, **__: 2)
    assert main.main(["resume", NAME]) == errors.DONE
    assert "has not answered 2 calls for a run" in capsys.readouterr().err
    monkeypatch.setattr(report, "attach", ATTACH)
    monkeypatch.setattr(tracking, "attach", lambda *_: 1)
    assert main.main(["report", NAME]) == errors.DONE
    assert "has not answered a call for a run" in capsys.readouterr().err


def test_a_store_that_refused_is_said_once_to_be_brought_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Store, "late", 1)
    monkeypatch.setattr(Store, "is_closed", False)
    assert driver.drive(FILE, (), SIMULATED) == errors.REFUSED
    told = capsys.readouterr().err
    assert told.count(f"sweep sync {NAME}") == 1
    assert told.rstrip().endswith(f"once that is mended: sweep sync {NAME}")


@contextlib.contextmanager
def heard(number: signal.Signals) -> Iterator[None]:
    """Though these tests were started by nohup, say, which has it ignored."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_and_a_resume_runs_what_is_left(
    number: signal.Signals, store: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as once, heard(signal.SIGHUP):
        once.setattr(ending, "_conclude", CONCLUDE)
        interrupted_at(3, number, once)
        assert driver.drive(FILE, (), SIMULATED) == errors.INTERRUPTED
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    first = ledger.read(NAME)
    assert first.has_ended
    assert not first.is_complete
    done = {one.config.trial: one for one in first.trials if one.outcome.status == "completed"}
    assert 3 <= len(done) < 8
    assert outcomes()["cancelled"], "what ran on the virtual clock"
    assert driver.resume(NAME, Terms()) == errors.DONE
    last = {one.config.trial: one for one in ledger.read(NAME).trials}
    assert outcomes() == {"completed": 8}
    assert {trial: last[trial] for trial in done} == done, "nothing was measured twice"
    assert store == ["KILLED", "FINISHED"]
    assert f"sweep resume {NAME}" in capsys.readouterr().out


@pytest.mark.usefixtures("concluded")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["before the first trial", "behind the last"])
def test_a_signal_outside_of_the_trials_lets_a_driver_end_in_order(
    where: str, number: signal.Signals, store: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(5)

    if where == "behind the last":
        monkeypatch.setattr("sweeps.report.written", signalled)
    else:
        monkeypatch.setattr(Store, "begins", staticmethod(signalled))
    with pytest.raises(KeyboardInterrupt):
        driver.drive(FILE, (), SIMULATED)
    if where == "behind the last":
        assert ledger.read(NAME).is_complete
        assert store == ["FINISHED"]
    else:
        assert not ledger.names(), "nothing has begun"
        assert store == ["discarded"]


@pytest.mark.parametrize(
    "place",
    [
        "sweeps.record.ledger.Ledger._sign",
        "sweeps.run.driver._named",
        "sweeps.run.forecast.learned",
        "sweeps.run.status.StatusWriter.__init__",
        "tests.unit.test_in_process.Store.__init__",
    ],
)
def test_a_signal_before_the_first_trial_leaves_nothing_wherever_it_comes(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    with monkeypatch.context() as once:
        once.setattr(place, signalled)
        with pytest.raises(KeyboardInterrupt):
            driver.drive(FILE, (), SIMULATED)
    assert not ledger.names()
    assert driver.drive(FILE, (), SIMULATED) == errors.DONE
    assert ledger.names() == [NAME], "the name is free"


def test_a_store_that_does_not_answer_holds_up_no_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, answers = threading.Event(), threading.Event()

    def finished(cells: object) -> list[Any]:
        is_asked.set()
        answers.wait(60)
        return []

    def interrupts(*_: object) -> None:
        assert is_asked.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr("sweeps.store.query.finished", finished)
    monkeypatch.setattr("sweeps.run.preflight.await_nodes", interrupts)
    monkeypatch.setattr(Terms, "machine", None)
    monkeypatch.setattr(
        "sweeps.run.terms.open_site", lambda *_: contextlib.nullcontext(Simulated(simulated.parse(SHAPE).nodes))
    )
    with pytest.raises(KeyboardInterrupt):
        driver.drive(FILE, (), Terms())
    assert not answers.is_set(), "it was not waited for"
    answers.set()


@pytest.mark.usefixtures("concluded")
def test_a_terminal_that_is_closed_ends_a_sweep_in_order() -> None:
    """Nothing can be said any more, and all is written down."""
    FILE.write_text(TEXT.replace("[32, 64]", "{range: [1, 200]}"))
    child, terminal = os.forkpty()
    if not child:
        code = 70
        try:
            sys.stdout = sys.stderr = os.fdopen(1, "w")
            with heard(signal.SIGHUP):
                code = driver.drive(FILE, (), SIMULATED)
        finally:
            os._exit(code)
    try:
        give_up = time.monotonic() + 60
        while lines_written() < 6 and time.monotonic() < give_up:
            if select.select([terminal], [], [], 0.01)[0]:
                os.read(terminal, 1 << 16)
        os.close(terminal)
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    assert os.waitstatus_to_exitcode(status) == errors.INTERRUPTED
    record = ledger.read(NAME)
    assert record.has_ended
    assert not record.is_complete
    assert outcomes()["cancelled"]


@pytest.mark.parametrize("how", ["ignored", "blocked"])
def test_a_driver_that_can_t_hear_ctrl_c_hears_sigterm(
    how: str, store: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is ignored behind a shell's `&`, and blocked in what Ray starts."""

    def terminated(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(Store, "begins", staticmethod(terminated))
    before = signal.getsignal(signal.SIGINT)
    try:
        if how == "ignored":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        else:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with pytest.raises(KeyboardInterrupt):
            driver.drive(FILE, (), SIMULATED)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
    assert store == ["discarded"]


def test_a_retry_runs_exactly_what_had_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver.drive(FILE, (), SIMULATED) == errors.DONE
    book = ledger.paths(NAME).ledger
    lines = [json.loads(line) for line in book.read_text().splitlines()]
    first = next(line for line in lines if line["kind"] == "trial")
    first["outcome"] = {"status": "failed", "kind": "killed"}
    book.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))
    assert outcomes() == {"completed": 7, "failed": 1}
    monkeypatch.setattr(ending, "_conclude", CONCLUDE)
    assert driver.retry(NAME, (), Terms()) == errors.DONE
    assert outcomes() == {"completed": 8}
    ends = [line["trial"] for line in map(json.loads, book.read_text().splitlines()) if line["kind"] == "trial"]
    assert [trial for trial, times in Counter(ends).items() if times == 2] == [first["trial"]]


def test_a_retry_of_what_has_not_failed_says_so_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert driver.drive(FILE, (), SIMULATED) == errors.DONE
    before = ledger.paths(NAME).ledger.read_text()
    capsys.readouterr()
    assert driver.retry(NAME, (), Terms()) == errors.DONE
    assert "no trial failed or was lost (ended: completed)" in capsys.readouterr().err
    entries = ledger.paths(NAME).ledger.read_text().removeprefix(before)
    assert '"kind":"trial"' not in entries
    with pytest.raises(InputError, match=r"--status: must be how a trial of .* ended \(completed\), but got lost"):
        driver.retry(NAME, ("lost",), Terms())


def test_a_budget_ends_it_and_a_larger_one_lets_it_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as once:
        once.setattr(ending, "_conclude", CONCLUDE)
        assert driver.drive(FILE, (), dataclasses.replace(SIMULATED, budget=0.05)) == errors.INTERRUPTED
    before = ledger.read(NAME)
    assert 0 < len(before.trials) < 8
    assert before.spent <= 0.05
    assert "nothing else fits in the budget" in capsys.readouterr().err
    assert driver.resume(NAME, Terms(budget=100.0)) == errors.DONE
    assert outcomes() == {"completed": 8}
    assert ledger.read(NAME).spent > before.spent


@pytest.mark.usefixtures("concluded")
@pytest.mark.parametrize("search", ["{method: tpe, trials: 4}", "{method: frontier}", "{method: random, trials: 2}"])
def test_every_search_comes_to_its_end(search: str) -> None:
    one = TEXT.replace("repeats: 2", f"repeats: 1\nsearch: {search}").replace("[32, 64]", "{log2: [32, 512]}")
    FILE.write_text(one.replace("gpus: [1, 8]", "gpus: 1"))
    assert driver.drive(FILE, (), SIMULATED) == errors.DONE
    assert ledger.read(NAME).is_complete
    assert outcomes()["completed"]
    assert outcomes()["infeasible"] or "frontier" not in search


@pytest.mark.usefixtures("concluded")
def test_trials_that_are_lost_are_tried_again() -> None:
    assert driver.drive(FILE, (), Terms(simulate=f"{SHAPE},loss=40%,seed=2")) in (errors.DONE, errors.SOME_FAILED)
    record = ledger.read(NAME)
    assert record.attempts, "which do not count"
    assert all(one.blamed for one in record.attempts)
    assert sum(one.attempts for one in record.trials) == len(record.trials) + len(record.attempts) or outcomes()["lost"]


def test_nobody_waits_for_nodes_of_a_cluster_that_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    FILE.write_text(TEXT.replace("repeats", "wait_for_nodes_min: 15\nrepeats").replace("[1, 8]", "[1, 16]"))

    def slept(_: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr("sweeps.run.preflight.time.sleep", slept)
    with pytest.raises(InputError, match="skip them with --skip-impossible"):
        driver.drive(FILE, (), SIMULATED)
    assert driver.drive(FILE, (), dataclasses.replace(SIMULATED, skips_impossible=True)) == errors.DONE
    assert outcomes() == {"completed": 4}


@pytest.mark.parametrize("address", [None, "auto", "head:6379"])
def test_a_shape_that_is_none_is_told_before_all_else(address: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="nodes"):
        driver.drive(FILE, (), Terms(simulate="nodes=x", address=address))
    assert capsys.readouterr() == ("", "")


def test_what_no_node_is_left_for_is_lost_when_the_virtual_clock_has_waited_for_it() -> None:
    """The sweep was planned for two nodes and goes on with one."""
    planned = plan.plan(sweep_file.parse(TEXT, "x"), "x", simulated.parse(SHAPE).nodes)
    book = ownership.create(planned, TEXT, simulated=SHAPE)
    machine = simulated.parse("nodes=1,gpus=4,gpu=v100")
    durations = forecast.learned(machine, is_real=False)
    engine = Engine(lambda _: Listed(planned.trials), durations, Feasibility(), Cache())
    with contextlib.closing(book):
        assert executor.carry_out(engine, book, InProcess(machine))
    record = ledger.read(NAME)
    assert outcomes() == {"completed": 4, "lost": 4}
    assert {one.config.gpus for one in record.trials if one.outcome.status == "lost"} == {8}
    last = max(one.ended_at for one in record.trials if one.outcome.status == "completed")
    given_up = {one.ended_at for one in record.trials if one.outcome.status == "lost"}
    assert all(at - last >= NODES_MAY_COME_BACK_S for at in given_up)


def looks(found: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[Collection[str]]:
    """What a driver asks the store for is kept, and answered so."""
    asked: list[Collection[str]] = []

    def look(cells: Collection[str]) -> Any:
        asked.append(cells)
        return type("Found", (), {"result": staticmethod(lambda timeout=None: found)})

    monkeypatch.setattr(driver, "_earlier", lambda _: look)
    return asked


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_what_a_retry_was_to_measure_is_measured_whatever_ended_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next resume, here: a result from elsewhere is not what was asked for."""
    assert driver.drive(FILE, (), SIMULATED) == errors.DONE
    before = len(ledger.paths(NAME).ledger.read_text().splitlines())
    if how == "killed":
        child = forked(lambda: driver.retry(NAME, ("completed",), Terms()))
        while lines_written() < before + 4:  # it has signed, and a trial has begun
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    else:
        with monkeypatch.context() as once:
            interrupted_at(1, signal.SIGINT, once)
            assert driver.retry(NAME, ("completed",), Terms()) == errors.INTERRUPTED
    due = ledger.read(NAME).due
    assert 0 < len(due) < 8
    assert not ledger.read(NAME).is_complete
    asked = looks([], monkeypatch)
    assert driver.resume(NAME, Terms()) == errors.DONE
    assert asked == [set()]
    record = ledger.read(NAME)
    assert (record.is_complete, record.due) == (True, {})
    entries = [json.loads(line) for line in ledger.paths(NAME).ledger.read_text().splitlines()[before:]]
    measured = Counter(
        one["trial"] for one in entries if one["kind"] == "trial" and one["outcome"]["status"] == "completed"
    )
    assert measured == dict.fromkeys((config.trial for config in record.facts.trials), 1), "each anew, and once"


def test_a_retry_that_nothing_began_of_leaves_a_complete_sweep_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver.drive(FILE, (), SIMULATED) == errors.DONE

    def refuses() -> None:
        raise RefusedError("the tracking store must answer")

    with monkeypatch.context() as once:
        once.setattr(Store, "begins", staticmethod(refuses))
        with pytest.raises(RefusedError):
            driver.retry(NAME, ("completed",), Terms())
    assert ledger.read(NAME).is_complete
    assert not ledger.read(NAME).due


def test_what_a_run_had_to_cancel_is_looked_for_in_other_sweeps_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as once:
        interrupted_at(1, signal.SIGINT, once)
        assert driver.drive(FILE, (), SIMULATED) == errors.INTERRUPTED
    left = {one.config.cell for one in ledger.read(NAME).trials if one.outcome.status == "cancelled"}
    assert left
    asked = looks([], monkeypatch)
    assert driver.resume(NAME, Terms()) == errors.DONE
    (cells,) = asked
    assert left <= {*cells}


KILLS = 25  # each of two drivers


def instants(seed: int) -> list[tuple[int, float]]:
    """When to kill: so many lines of the ledger after the start, and then so many seconds. In turn while a driver
    starts, as a line goes to the ledger, and somewhere behind it."""
    draw = random.Random(seed)
    kinds: list[Callable[[], tuple[int, float]]] = [
        lambda: (0, draw.uniform(0, 0.2)),
        lambda: (draw.randint(1, 3), 0.0),
        lambda: (draw.randint(1, 3), draw.uniform(0, 0.02)),
    ]
    return [kinds[n % len(kinds)]() for n in range(KILLS)]


def lines_written() -> int:
    try:
        return ledger.paths(NAME).ledger.read_bytes().count(b"\n")
    except (InputError, OSError):
        return 0


def goes_on() -> int:
    """One that goes on, or the first, and another first where that one was killed before it had begun."""
    return driver.resume(NAME, Terms()) if lines_written() else driver.drive(FILE, (), SIMULATED)


def forked(drives: Callable[[], int] = goes_on) -> int:
    """A driver in a process of its own."""
    if child := os.fork():
        return child
    code = 70
    try:
        code = drives()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@pytest.mark.parametrize("seed", [5, 6])
def test_a_driver_that_is_killed_again_and_again_loses_and_doubles_nothing(seed: int) -> None:
    """As tests/integration/test_chaos.py does with real ranks and MLflow, less often."""
    FILE.write_text(TEXT.replace("small", "first"))
    assert driver.drive(FILE, (), SIMULATED) == errors.DONE  # has all imported, of which each fork has its own
    short = "steps: {warmup: 2, measured: 5}\n"  # a driver that goes on reads all that there is of earlier trials
    FILE.write_text(TEXT.replace("[32, 64]", "{range: [1, 40]}") + short)
    for lines, seconds in instants(seed):
        wanted, child = lines_written() + lines, forked()
        has_ended, status = 0, 0
        try:
            while not has_ended and lines_written() < wanted:
                has_ended, status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.002)
            assert not has_ended, f"status {status}: it crashed, or there are too few trials for so many kills"
            until = time.monotonic() + seconds
            while time.monotonic() < until and lines_written() <= wanted + 2:  # a fast machine would run out of trials
                time.sleep(0.001)
        finally:
            if not has_ended:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
        assert status == signal.SIGKILL
    assert os.waitpid(forked(), 0)[1] == errors.DONE
    record = ledger.read(NAME)
    assert record.is_complete
    planned = sorted(config.trial for config in record.facts.trials)
    entries = map(json.loads, ledger.paths(NAME).ledger.read_text().splitlines())
    assert sorted(entry["trial"] for entry in entries if entry["kind"] == "trial") == planned
    assert outcomes() == {"completed": len(planned)}
