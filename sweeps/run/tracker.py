"""Brings a running sweep's trials to the tracking store, in a process of its own beside it.

    python -m sweeps.run.tracker SWEEP

It reads them from the ledger, so that a slow or absent store never holds a trial up, nor takes the driver's time or
memory. The driver says a line whenever there is news, and how the sweep ended as its last. It ends with its driver.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sweeps.record import ledger
from sweeps.record.ledger import SweepFacts, Tail, TrialRecord
from sweeps.scheduling.observer import Observer
from sweeps.store import access, tracking
from workers.contract.libc import die_with_parent

RETRY_S = 2.0
PATIENCE_S = 60.0  # with a store that does not answer, once the sweep is over
NICENESS = 10  # it can wait; trials are being measured
PART_OF_A_CORE = 0.1  # at most, while they are
LONGEST_REST_S = 1.0
HELD_BACK_S = 2.0  # a result, for that; what is written later was waiting for the store


class Tracker(Observer):
    """What a driver knows of the process that writes its trials to the store."""

    def __init__(self, facts: SweepFacts) -> None:
        """Start the process; the sweep's ledger must stand."""
        command = [sys.executable, "-m", "sweeps.run.tracker", facts.name, str(os.getpid())]
        with _deaf():
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._to.fileno(), False)
        self._said: dict[str, Any] = {}
        self._trials = 0
        self._closes = threading.Lock()  # as the sweep is over, and as Ray's head goes

    def ready(self) -> None:
        """Wait until the store is open."""
        self._hear(self._from.readline())
        if self.refusal:
            raise access.refused("be writable", self.refusal)

    def ended(self, record: TrialRecord) -> None:
        self._trials += 1
        self._say("")

    def met(self, node: Mapping[str, Any]) -> None:
        self._say("")

    def close(self, is_complete: bool, is_discarded: bool = False) -> int:
        """Wait for what is under way; the number of trials that the store did not take."""
        with self._closes:
            if not self._to.closed:
                self._say(tracking.DISCARDED if is_discarded else "FINISHED" if is_complete else "KILLED")
                try:
                    for line in self._from:
                        self._hear(line)
                except BaseException:  # a Ctrl-C: it must not write on while another driver has the sweep
                    self._process.kill()
                    raise
                finally:
                    self._process.wait()
                self._to.close()
                self._from.close()
        return int(self._said.get("left", self._trials))

    @property
    def is_closed(self) -> bool:
        """Once it has ended: does the store say of the sweep's own run that it has?"""
        return bool(self._said.get("is_closed"))

    @property
    def leaves_run(self) -> bool:
        """Of a new sweep, once it has been closed: may the store have a run of it that is open, or make one late?"""
        return not (self.is_closed or self._said.get("is_unopened")) or self.late > 0

    @property
    def late(self) -> int:
        """Once it has ended: runs that the store may make yet, of calls that it has not answered."""
        return int(self._said.get("late", 0))

    @property
    def refusal(self) -> str:
        """What the store said last when it would not take a trial, or the sweep's end."""
        return str(self._said.get("refusal", "what writes to it has ended"))

    def _say(self, line: str) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it has news enough; it is gone
            os.write(self._to.fileno(), f"{line}\n".encode())

    def _hear(self, line: bytes) -> None:
        self._said |= json.loads(line or "{}")


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Keep what is started within the block from the signals that reach all of a job's processes: its driver tells
    it. This process hears them behind the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StoreWriter:
    """What runs in that process."""

    def __init__(
        self,
        store: tracking.Store,
        tail: Tail,
        driver: int,
        stored: Mapping[str, float] = MappingProxyType({}),
        retry_s: float = RETRY_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`driver` is the file that the driver's lines come by; `stored` are the trials that an earlier one's tracker
        has brought there, with the end of the last attempt at each."""
        self._store, self._tail, self._driver = store, tail, driver
        self._stored = dict(stored)
        self._retry_s, self._patience_s = retry_s, patience_s
        self._status = ""  # that the sweep has ended with
        self._has_given_up = False
        self._behind_since = 0.0  # that it last had written all that there was
        self.refusal = ""
        self.left = 0
        self.is_closed = False  # the sweep's own run

    def work(self) -> None:
        """Until the sweep is over, or its driver has gone."""
        is_last = False
        while not is_last:
            if not self._status:
                self._listen()
            is_last = bool(self._status)  # what was written before the end was said is read after it
            self._behind_since = time.monotonic()
            waiting: list[TrialRecord] = []
            for news in self._tail.news():
                if not isinstance(news, TrialRecord):
                    self._is_done(self._store.describe, news)
                elif not self._is_stored(news):
                    waiting.append(news)
                if len(waiting) >= self._store.at_once:
                    self._log(waiting)
            self._log(waiting)
        self.end()

    def end(self) -> None:
        """Have the store know how the sweep ended, once it has."""
        while not self._status:
            self._listen()
        self.is_closed = self._is_done(self._store.close, self._status)

    def _log(self, waiting: list[TrialRecord]) -> None:
        if waiting and not self._is_done(self._write, [*waiting]):
            self.left += len(waiting)
        waiting.clear()

    def _write(self, trials: Sequence[TrialRecord]) -> None:
        unwanted = self._store.log(trials)
        self.left += len(unwanted)
        self.refusal = next(iter(unwanted.values()), self.refusal)

    def _is_stored(self, record: TrialRecord) -> bool:
        """Return whether the store has had it, or a later attempt at it, before this one began."""
        last = self._stored.get(record.config.trial)
        if last == record.ended_at:
            del self._stored[record.config.trial]
        return last is not None

    def _is_done(self, write: Callable[[Any], None], what: Any) -> bool:
        """Try until it works, or until the sweep is over and the patience with the store too."""
        give_up = math.inf
        while not self._has_given_up:
            began = time.monotonic()
            try:
                write(what)
                self._rest(time.monotonic() - began)
                return True
            except Exception as error:  # MLflow raises whatever its database driver raises
                self.refusal = access.first_line(error)
            if self._status:
                give_up = min(give_up, time.monotonic() + self._patience_s)
            self._has_given_up = time.monotonic() + self._retry_s > give_up
            self._listen(0 if self._has_given_up else self._retry_s)
        return False

    def _rest(self, worked_s: float) -> None:
        """Whoever measures short trials one after the other would have it running all the time."""
        if self._status:
            return
        if time.monotonic() - self._behind_since < HELD_BACK_S:
            time.sleep(min(worked_s * (1 / PART_OF_A_CORE - 1), LONGEST_REST_S))
        self._listen(0)

    def _listen(self, timeout_s: float | None = None) -> None:
        if select.select([self._driver], [], [], timeout_s)[0]:
            said = os.read(self._driver, 1 << 16)
            if not said:
                sys.exit()  # whoever resumes the sweep tells the rest
            self._status = (said.split() or [b""])[-1].decode()


def main(name: str, driver: int) -> None:
    die_with_parent(driver)
    os.nice(NICENESS)
    with os.fdopen(os.dup(1), "w", buffering=1) as voice:
        os.dup2(2, 1)  # MLflow may print
        try:
            record = ledger.read(name)
            store = tracking.Store(record.facts, opens=False)
        except Exception as error:  # it was asked for no run: it has none of the sweep by this driver
            print(json.dumps({"refusal": access.first_line(error), "is_unopened": True}), file=voice)
            return
        try:
            store.open()
            tracking.once_more(store.go_on)
        except Exception as error:  # it may have done, or do late, what it has not answered: a run may be open there
            is_unopened = not store.may_be_open  # it was not even found out whether there is one
            print(json.dumps({"refusal": access.first_line(error), "is_unopened": is_unopened}), file=voice)
            if is_unopened:
                return
            scribe = StoreWriter(store, Tail(name), sys.stdin.fileno())
            scribe.end()
        else:
            print(json.dumps({"refusal": ""}), file=voice)
            store.show()
            stored = {trial.config.trial: trial.ended_at for trial in record.trials if store.has(trial)}
            del record
            scribe = StoreWriter(store, Tail(name), sys.stdin.fileno(), stored)
            scribe.work()
        state = {"left": scribe.left, "refusal": scribe.refusal, "is_closed": scribe.is_closed, "late": store.may_come}
        print(json.dumps(state), file=voice)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
