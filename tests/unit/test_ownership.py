"""A sweep has one driver: whoever takes it reads it then, and whoever comes second is told who has it."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeps import report
from sweeps.cli import main
from sweeps.cluster import ray_jobs
from sweeps.errors import InputError, RefusedError, SweepError
from sweeps.record import ledger, ownership, processes
from sweeps.run import driver, ending, terms
from sweeps.run.terms import Terms
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.store import query, tracking
from tests.unit.records import record
from workers.contract.messages import TrialOutcome

ROUNDS = 100
TEXT = "{name: NAME, model: tiny, device: cpu, repeats: 1, space: {batch_size: [8, 16, 32], gpus: 1}}"
FORK = multiprocessing.get_context("fork")
ENDED = {8: TrialOutcome(status="failed", kind="killed"), 16: TrialOutcome(status="lost", kind="node lost")}


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("os.fsync", lambda _: None)  # no machine dies here
    return tmp_path / "results"


def begun(name: str = "study") -> ledger.Ledger:
    text = TEXT.replace("NAME", name)
    return ownership.create(plan.plan(sweep_file.parse(text, "x")), text)


def stopped(name: str) -> None:
    """A sweep of three trials, of which one has failed, one was lost, and one has not run."""
    book = begun(name)
    for config in book.facts.trials:
        if outcome := ENDED.get(config.batch_size):
            book.write(record(config, outcome=outcome))
    book.end("stopped")
    book.close()


def lines(name: str, kind: str) -> list[dict[str, Any]]:
    entries = map(json.loads, ledger.paths(name).ledger.read_text().splitlines())
    return [entry for entry in entries if entry["kind"] == kind]


def completed(name: str) -> Counter[int]:
    """How often each trial was measured, by its batch."""
    ends = lines(name, "trial")
    return Counter(end["config"]["batch_size"] for end in ends if end["outcome"]["status"] == "completed")


@contextlib.contextmanager
def soon(*_: object) -> Iterator[SimpleNamespace]:
    """A cluster that takes a moment to be there."""
    time.sleep(random.uniform(0, 0.004))
    yield SimpleNamespace(nodes=[Node("here", 8, 0)], guarded=contextlib.nullcontext)


def measured(planned: plan.Plan, book: ledger.Ledger, _: object, before: Any) -> int:
    """Planted in place of measuring: every trial that is left completes."""
    done = {trial.config.trial for trial in before.done}
    for config in planned.trials:
        if config.trial not in done:
            time.sleep(random.uniform(0, 0.001))
            book.write(record(config))
    book.end("complete")
    book.close()
    return 0


def resume(name: str) -> int:
    return driver.resume(name, Terms())


def retry(name: str) -> int:
    return driver.retry(name, ["failed", "lost"], Terms())


def exit_code(call: Callable[[], int]) -> int:
    try:
        return call()
    except SweepError as error:
        return error.exit_code


def together(*calls: Callable[[int], int], rounds: int = ROUNDS) -> list[tuple[int, ...]]:
    """Make calls in processes of their own, all at the same instant, round after round; their exit codes by round."""
    start, found = FORK.Barrier(len(calls)), FORK.SimpleQueue()

    def work(place: int, call: Callable[[int], int]) -> None:
        codes = []
        for number in range(rounds):
            start.wait(300)
            codes.append(exit_code(functools.partial(call, number)))
        found.put((place, codes))

    workers = [FORK.Process(target=work, args=one) for one in enumerate(calls)]
    for worker in workers:
        worker.start()
    told = dict(found.get() for _ in calls)
    for worker in workers:
        worker.join()
    return list(zip(*(told[place] for place in range(len(calls))), strict=True))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "open_site", soon)
    monkeypatch.setattr(driver, "_conduct", measured)
    monkeypatch.setattr(ending, "summarize", lambda *_: 0)
    monkeypatch.setattr(tracking, "sync", lambda *_, **__: None)
    monkeypatch.setattr("sweeps.store.query.finished", lambda _: [])


@pytest.mark.usefixtures("planted")
def test_of_two_that_resume_a_sweep_at_the_same_instant_one_runs_each_trial_that_is_left() -> None:
    for number in range(ROUNDS):
        stopped(f"study{number}")
    codes = together(*[lambda number: resume(f"study{number}")] * 2)
    assert {tuple(sorted(pair)) for pair in codes} <= {(0, 0), (0, 3)}  # the second came after the first, or beside it
    assert [completed(f"study{number}") for number in range(ROUNDS)] == [{16: 1, 32: 1}] * ROUNDS


@pytest.mark.usefixtures("planted")
def test_of_two_that_retry_at_the_same_instant_one_runs_each_trial_again() -> None:
    for number in range(ROUNDS):
        stopped(f"study{number}")
    codes = together(*[lambda number: retry(f"study{number}")] * 2)
    assert {tuple(sorted(pair)) for pair in codes} <= {(0, 2), (0, 3)}  # the second finds nothing to retry
    assert [completed(f"study{number}") for number in range(ROUNDS)] == [{8: 1, 16: 1}] * ROUNDS


@pytest.mark.usefixtures("planted")
def test_a_resume_beside_a_retry_runs_no_trial_twice() -> None:
    for number in range(ROUNDS):
        stopped(f"study{number}")
    codes = together(lambda number: resume(f"study{number}"), lambda number: retry(f"study{number}"))
    for number, (resumed, retried) in enumerate(codes):
        assert 0 in (resumed, retried)
        wanted = ({16, 32} if resumed == 0 else set()) | ({8, 16} if retried == 0 else set())
        assert completed(f"study{number}") == dict.fromkeys(wanted, 1), (resumed, retried)


@pytest.mark.parametrize("leave", ["close", "discard"])
def test_two_sweeps_of_a_name_that_begin_at_the_same_instant_never_share_a_folder(results: Path, leave: str) -> None:
    def run(number: int, does_leave: bool) -> int:
        book = begun(f"study{number}")
        time.sleep(random.uniform(0, 0.001))
        if does_leave:
            getattr(book, leave)()
        else:
            book.write(record(book.facts.trials[0]))
            kept.append(book)
        return 0

    kept: list[ledger.Ledger] = []
    codes = together(*(functools.partial(run, does_leave=does) for does in (True, False)))
    assert codes == [(0, 0)] * ROUNDS
    for number in range(ROUNDS):
        there = {path.name for path in results.glob(f"study{number}*") if path.name.split("-")[0] == f"study{number}"}
        count = 2 if leave == "close" else 1
        assert len(there) == count
        assert there <= {f"study{number}", f"study{number}-2"}
        assert sum(len(ledger.read(name).trials) for name in there) == 1
        for name in there:
            assert (len(lines(name, "sweep")), len(lines(name, "driver"))) == (1, 1)


def test_a_name_that_another_has_taken_and_left_since_one_looked_is_not_taken_again(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_stillborn, others = ownership._is_stillborn, []

    def too_early(at: Any) -> bool:
        told = is_stillborn(at)
        if told and not others:
            others.append("soon")
            begun().close()
        return told

    (results / "study").mkdir(parents=True)
    monkeypatch.setattr(ownership, "_is_stillborn", too_early)
    assert begun().facts.name == "study-2"
    assert len(lines("study", "sweep")) == 1


def test_who_reads_a_sweep_keeps_nobody_from_taking_it() -> None:
    stopped("study")
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            ownership.is_driven("study")
            with ownership.undriven("study"):
                ledger.read("study")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(ROUNDS):
            ownership.reopen("study").close()
    finally:
        is_over.set()
        for reader in readers:
            reader.join()


def test_a_sweep_is_brought_to_the_store_by_one_at_a_time_and_by_nobody_beside_its_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of two that write the same runs would make its own."""
    beside: list[int] = []

    def brought(record: ledger.SweepRecord, _: object) -> None:
        assert len(record.trials) == 2
        beside.append(exit_code(lambda: resume("study")))
        if len(beside) == 1:
            beside.append(exit_code(sync))

    def sync() -> int:
        return main.main(["sync", "study"])

    monkeypatch.setattr(tracking, "sync", brought)
    monkeypatch.setattr(report, "conclusion", lambda _: None)
    monkeypatch.setattr(ownership, "SIGNS_WITHIN_S", 0.05)
    stopped("study")
    assert sync() == 0
    assert beside == [3, 3]
    with contextlib.closing(ownership.reopen("study")):
        assert exit_code(sync) == 3
    assert len(beside) == 2


def test_a_sweep_that_is_being_deleted_is_waited_for_and_then_is_not_there() -> None:
    stopped("study")
    has_begun = threading.Event()

    def delete() -> None:
        with ownership.undriven("study") as is_free:
            assert is_free
            has_begun.set()
            time.sleep(0.2)
            folder = ledger.paths("study").folder
            (folder / "ledger.jsonl").unlink()
            folder.rmdir()

    deleting = threading.Thread(target=delete)
    deleting.start()
    has_begun.wait()
    with pytest.raises(InputError, match=r"must hold the sweep named \(there: none yet\), but got study"):
        ownership.reopen("study")
    deleting.join()


def test_who_waits_long_for_a_sweep_that_is_being_deleted_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped("study")
    has_begun = threading.Event()

    def delete(lasts_s: float) -> None:
        with ownership.undriven("study"):
            has_begun.set()
            time.sleep(lasts_s)

    for says_after_s, lasts_s in ((2.0, 0.1), (0.1, 0.3)):
        monkeypatch.setattr(ownership, "SAYS_AFTER_S", says_after_s)
        has_begun.clear()
        deleting = threading.Thread(target=delete, args=(lasts_s,))
        deleting.start()
        has_begun.wait()
        ownership.reopen("study").close()
        deleting.join()
        said = capsys.readouterr().err
        assert said.count("study is being deleted or looked at (`sweep gc`): waiting for that") == (lasts_s == 0.3)


def test_a_report_is_logged_by_who_has_the_sweep_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two that look for the sweep's own run at once would each make one."""
    beside: list[int] = []

    def attach(*_: object) -> int:
        beside.append(exit_code(lambda: resume("study")))
        return 0

    monkeypatch.setattr(tracking, "attach", attach)
    monkeypatch.setattr(ownership, "SIGNS_WITHIN_S", 0.05)
    stopped("study")
    assert main.main(["report", "study"]) == 0
    assert beside == [3]
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main.main(["report", "study"]) == 0
    assert "the report is not logged to MLflow: the owner of study can do that" in capsys.readouterr().err
    assert beside == [3]


def test_the_second_driver_is_told_who_has_the_sweep_since_when_and_what_to_do() -> None:
    book = begun()
    with pytest.raises(RefusedError) as refused:
        ownership.reopen("study")
    (signed,) = lines("study", "driver")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(signed["at"]))
    who = f"process {os.getpid()} on {os.uname().nodename} (user {signed['user']}, since {since})"
    assert str(refused.value).startswith(f"a sweep has one driver at a time, but {who} drives study\n")
    assert "sweep status study -f" in str(refused.value)
    assert "sweep stop study" in str(refused.value)
    assert refused.value.exit_code == 3
    book.close()


def test_a_driver_that_has_gone_is_not_named_for_one_that_has_not_signed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "SIGNS_WITHIN_S", 0.05)
    gone = subprocess.Popen(["true"])
    gone.wait()
    book = begun()
    text = book.paths.ledger.read_text()
    book.paths.ledger.write_text(text.replace(f'"pid":{os.getpid()}', f'"pid":{gone.pid}'))
    with pytest.raises(RefusedError, match=r"but study is being brought to the store .*, or its driver is about to"):
        ownership.reopen("study")
    with pytest.raises(RefusedError, match="a sweep is stopped by ending its driver, but study is being brought"):
        ray_jobs.stop("study")
    book.close()


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that has nothing to do with any sweep."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        assert process.poll() is None, "somebody has ended it"
        process.kill()


def driven_by(pid: int, **changes: Any) -> None:
    """Have the driver line name another process."""
    at = ledger.paths("study").ledger
    entries = [json.loads(line) for line in at.read_text().splitlines()]
    entries = [{**one, "pid": pid, **changes} if one["kind"] == "driver" else one for one in entries]
    at.write_text("".join(json.dumps(one) + "\n" for one in entries))


@pytest.mark.parametrize("has_said_so", [True, False])
def test_a_stranger_with_the_number_of_a_driver_that_ended_is_not_stopped_nor_named(
    has_said_so: bool, stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "SIGNS_WITHIN_S", 0.05)
    monkeypatch.setattr(ray_jobs, "STOPPED_WITHIN_S", 0.05)
    with contextlib.closing(begun()) as book:
        if has_said_so:
            book.end("complete")
    driven_by(stranger)
    with ownership.resting("study"):  # as `sweep sync` has it
        with pytest.raises(RefusedError, match="but study is being brought to the store") as refused:
            ray_jobs.stop("study")
        assert "sweep stop study" in str(refused.value)
        with pytest.raises(RefusedError, match="but study is being brought to the store"):
            ownership.reopen("study")


def test_on_a_file_system_without_locks_no_sweep_begins_or_goes_on_and_the_system_s_words_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As NFS answers where no lock daemon runs. Who would begin without a lock might be the second."""
    begun().close()

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(ownership.fcntl, "flock", no_locks)
    with pytest.raises(RefusedError, match="the system says: No locks available"):
        begun()
    with pytest.raises(RefusedError, match="the system says: No locks available"):
        ownership.reopen("study")
    assert ownership.is_driven("study"), "nobody deletes what may be driven"


def test_a_stranger_that_gets_the_number_just_before_the_signal_is_not_stopped(
    stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "STOPPED_WITHIN_S", 0.05)
    with contextlib.closing(begun()):
        driven_by(stranger, birth="of the driver that had it")
        monkeypatch.setattr(ownership, "_has_gone", lambda _: False)  # it had been looked at before
        with pytest.raises(RefusedError, match="a driver must end within"):
            ray_jobs.stop("study")


def test_one_that_gets_the_number_between_the_look_and_the_signal_is_not_stopped(
    stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver ends while it is looked at; whoever would have its number then is not who was bound."""
    with subprocess.Popen(["sleep", "60"]) as driver:
        born, look = processes.birth(driver.pid), processes.birth

        def look_as_it_ends(pid: int) -> str:
            seen = look(pid)
            driver.kill()
            driver.wait()
            kill = os.kill
            monkeypatch.setattr(os, "kill", lambda _, number: kill(stranger, number))  # it has the number now
            return seen

        monkeypatch.setattr(processes, "birth", look_as_it_ends)
        with pytest.raises(ProcessLookupError):
            processes.end(driver.pid, born)


def test_a_driver_that_is_asked_to_end_by_its_number_and_birth_ends() -> None:
    for tell in (True, False):
        with subprocess.Popen(["sleep", "60"]) as driver:
            processes.end(driver.pid, processes.birth(driver.pid) if tell else "")
            assert driver.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("has_said_so", [True, False])
def test_of_a_ledger_that_does_not_tell_when_its_driver_began_its_number_alone_counts_until_it_ended(
    has_said_so: bool, stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "SIGNS_WITHIN_S", 0.05)
    with contextlib.closing(begun()) as book:
        if has_said_so:
            book.end("complete")
        driven_by(stranger, birth="")
        assert bool(ownership.holder("study")) is not has_said_so


def test_who_only_looks_whether_anything_is_left_leaves_a_complete_sweep_complete() -> None:
    book = begun()
    book.end("complete")
    book.close()
    ownership.reopen("study").close()
    assert ledger.read("study").is_complete


@pytest.mark.usefixtures("planted")
def test_a_sweep_whose_driver_was_killed_after_its_last_trial_is_complete_once_it_is_resumed() -> None:
    book = begun()
    for config in book.facts.trials:
        book.write(record(config))
    book.close()
    assert not ledger.read("study").is_complete
    assert resume("study") == 0
    assert ledger.read("study").is_complete
    assert not ownership.is_driven("study")


def test_a_ledger_that_may_not_be_written_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    stopped("study")
    monkeypatch.setattr(ownership, "_locked", locked)
    with pytest.raises(RefusedError, match="must be writable to go on, but the system says: Permission denied"):
        ownership.reopen("study")


def test_of_a_sweep_whose_driver_was_killed_list_says_what_status_says(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run in MLflow, which is planted here, is as the driver left it: running."""
    book = begun()
    row = {"sweep": "study", "id": book.facts.id, "study": "study", "status": "running", "simulated": ""}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://nobody")
    for name, body in {"_read": lambda *_: None, "_sweeps": lambda _: [row]}.items():
        monkeypatch.setattr(query, name, body)

    def listed() -> str:
        return str(query.list_sweeps()["status"][0])

    assert listed() == "running", "it has a driver"
    book.close()  # as a kill does
    assert main.main(["status", "study", "--format", "json"]) == 0
    assert listed() == json.loads(capsys.readouterr().out)["state"] == "stopped"
    row["id"] = "of another of that name, or of one elsewhere"
    assert listed() == "running"
    row["id"] = book.facts.id
    shutil.rmtree(results)
    assert listed() == "running", "nothing is known of it but what the store says"
