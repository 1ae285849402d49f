"""What stands in the ledger comes to the store, whatever the store, the sweep or its driver do meanwhile."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sweeps.record import ownership
from sweeps.record.ledger import Ledger, Tail, TrialRecord
from sweeps.run.tracker import StoreWriter, Tracker
from sweeps.spec import plan, sweep_file
from tests.unit.records import record

SWEEP = "{name: told, model: tiny, device: cpu, repeats: 3, space: {batch_size: 8, gpus: 1}}"
TRIALS = plan.plan(sweep_file.parse(SWEEP, "told")).trials


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    made = ownership.create(plan.plan(sweep_file.parse(SWEEP, "told")), SWEEP)
    yield made
    made.end("complete")


class Store:
    """Refuses the first few times."""

    def __init__(self, refusals: int = 0, at_once: int = 1) -> None:
        self.refusals = refusals
        self.at_once = at_once
        self.taken: list[Any] = []
        self.calls = 0

    def log(self, records: Sequence[TrialRecord]) -> dict[str, str]:
        assert 0 < len(records) <= self.at_once
        self.describe(*records)
        return {}

    def describe(self, *what: Any) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError("away")
        self.calls += 1
        self.taken += what

    close = describe


def told(store: Store, *lines: str, patience_s: float = 60.0, stored: Mapping[str, float] | None = None) -> StoreWriter:
    """A scribe to whom the driver has said all this, and that has done its work; the driver has gone after that."""
    theirs, ours = os.pipe()
    os.write(ours, "".join(f"{line}\n" for line in lines).encode())
    known = stored or {}
    scribe = StoreWriter(store, Tail("told"), theirs, known, retry_s=0.01, patience_s=patience_s)  # type: ignore[arg-type]
    if not any(lines):
        os.close(ours)
    scribe.work()
    return scribe


def test_trials_and_nodes_come_in_order_and_the_sweep_last(book: Ledger) -> None:
    records = [record(trial) for trial in TRIALS]
    node = {"kind": "node", "id": "a"}
    book.write(records[0])
    book.note("node", {"id": "a"})
    book.write_attempt(records[1])
    for one in records[1:]:
        book.write(one)
    store = Store()
    assert told(store, "", "", "FINISHED").left == 0
    assert store.taken == [records[0], node, *records[1:], "FINISHED"]


def test_a_store_that_was_away_for_a_while_gets_everything(book: Ledger) -> None:
    records = [record(trial) for trial in TRIALS]
    for one in records:
        book.write(one)
    store = Store(refusals=5)
    scribe = told(store, "", "KILLED")
    assert store.taken == [*records, "KILLED"]
    assert (scribe.left, scribe.refusal) == (0, "away")


def test_a_trial_that_the_store_will_not_have_is_counted_and_the_next_ones_come(book: Ledger) -> None:
    class Choosy(Store):
        def log(self, taken: Sequence[TrialRecord]) -> dict[str, str]:
            super().log(taken)
            return {TRIALS[1].trial: "no such name"} if taken[0].config == TRIALS[1] else {}

    for trial in TRIALS:
        book.write(record(trial))
    scribe = told(store := Choosy(refusals=2), "", "FINISHED")
    assert (scribe.left, scribe.refusal) == (1, "no such name")
    assert store.taken[-1] == "FINISHED"
    assert len(store.taken) == len(TRIALS) + 1


@pytest.mark.parametrize("refusals", [0, 3])
def test_what_has_piled_up_is_written_at_once_as_far_as_the_store_likes(book: Ledger, refusals: int) -> None:
    records = [record(trial) for trial in TRIALS]
    for one in records:
        book.write(one)
    store = Store(refusals, at_once=2)
    assert told(store, "", "FINISHED").left == 0
    assert store.taken == [*records, "FINISHED"]
    assert store.calls == math.ceil(len(records) / 2) + 1


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_is_written_while_it_writes_is_written_though_the_end_is_said_meanwhile(
    book: Ledger, at_once: int
) -> None:
    records = [record(trial) for trial in TRIALS[:2]]
    book.write(records[0])
    theirs, ours = os.pipe()

    class Slow(Store):
        def log(self, taken: Sequence[TrialRecord]) -> dict[str, str]:
            super().log(taken)
            if len(self.taken) == 1:
                book.write(records[1])
                os.write(ours, b"FINISHED\n")
            return {}

    store = Slow(at_once=at_once)
    os.write(ours, b"\n")
    StoreWriter(store, Tail("told"), theirs).work()  # type: ignore[arg-type]
    assert store.taken == [*records, "FINISHED"]


def test_what_an_earlier_tracker_has_brought_is_not_written_again_and_what_came_after_it_is(book: Ledger) -> None:
    first, second, third = (record(trial) for trial in TRIALS[:3])
    again = [dataclasses.replace(one, ended_at=one.ended_at - 100) for one in (second, third)]  # on a virtual clock
    for one in (first, second, third, *again):
        book.write(one)
    store = Store(at_once=2)
    stored = {first.config.trial: first.ended_at, second.config.trial: again[0].ended_at}
    stored |= {third.config.trial: third.ended_at}
    assert told(store, "FINISHED", stored=stored).left == 0
    assert store.taken == [again[1], "FINISHED"]


def test_a_store_that_stays_away_is_given_up_once_the_sweep_is_over(book: Ledger) -> None:
    for trial in TRIALS:
        book.write(record(trial))
    store = Store(refusals=1000)
    scribe = told(store, "FINISHED", patience_s=0.1)
    assert (scribe.left, scribe.refusal, store.taken) == (len(TRIALS), "away", [])
    assert store.refusals > 900, "what comes after is not tried for as long"


def test_a_store_that_goes_away_before_the_sweeps_own_run_is_ended_is_told_of(book: Ledger) -> None:
    book.write(record(TRIALS[0]))

    class Gone(Store):
        def close(self, status: str) -> None:
            raise OSError("gone")

    scribe = told(Gone(), "FINISHED", patience_s=0.05)
    assert (scribe.left, scribe.is_closed, scribe.refusal) == (0, False, "gone")
    assert told(Store(), "FINISHED").is_closed


def test_it_ends_with_its_driver(book: Ledger) -> None:
    book.write(record(TRIALS[0]))
    store = Store(refusals=1000)
    with pytest.raises(SystemExit):
        told(store, "")
    assert store.refusals > 900


def test_the_tail_of_a_ledger_is_read_once_and_not_before_its_line_is_whole(book: Ledger) -> None:
    tail = Tail("told")
    assert list(tail.news()) == []
    one, other = (record(trial) for trial in TRIALS[:2])
    book.write(one)
    assert list(tail.news()) == [one]
    path = book.paths.ledger
    book.write(other)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert list(tail.news()) == []
    path.write_bytes(whole)
    assert list(tail.news()) == [other]
    assert list(tail.news()) == []


STAND_IN = f"""#!{sys.executable} -S
import json, os, select, time
time.sleep(0.2)  # it loads what it needs
print(json.dumps({{"refusal": ""}}), flush=True)
heard = os.read(0, 1 << 16)
time.sleep(0.3)
if select.select([0], [], [], 0)[0]:
    heard += os.read(0, 1 << 16)
print(json.dumps({{"left": 0, "is_closed": True, "late": 2, "heard": heard.decode().split()}}))
"""


@pytest.fixture
def process(book: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracker]:
    """Has a driver's end of it; in its place a process that has no store, and tells what it heard."""
    (script := tmp_path / "python").write_text(STAND_IN)
    script.chmod(0o755)
    with monkeypatch.context() as once:
        once.setattr(sys, "executable", str(script))
        made = Tracker(book.facts)
    yield made
    made.close(is_complete=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_writes_to_the_store_is_deaf_to_signals_from_its_first_instant_on(
    number: signal.Signals, process: Tracker
) -> None:
    """They reach all of a job's processes; it is its driver that tells it how the sweep ended."""
    os.kill(process._process.pid, number)
    process.ready()
    assert process.close(is_complete=True) == 0
    assert process.is_closed
    assert process.late == 2
    assert process.leaves_run, "one may come"
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "its driver hears them as before"


def test_how_a_sweep_ended_is_told_once_though_ray_goes_as_it_ends(process: Tracker) -> None:
    process.ready()
    ends = threading.Thread(target=process.close, args=(True,))
    ends.start()
    time.sleep(0.1)
    assert process.close(is_complete=False) == 0
    ends.join()
    assert process._said["heard"] == ["FINISHED"]
