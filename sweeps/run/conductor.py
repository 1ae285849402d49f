"""What happens to trials, in one place: to the engine, to the ledger first, and then to whoever wants to know.

An executor asks for trials and tells of their epochs and ends. On a simulated cluster they end at once; their epochs
and their ends count when the virtual clock has come to their time: it jumps to the next of them whenever nothing else
can start. So trials are judged there by what had happened by then on that clock, in whatever order they were computed.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sweeps.errors import SweepError
from sweeps.record.ledger import Ledger, Note, TrialRecord
from sweeps.scheduling.changes import Sameness
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.observer import Observer
from sweeps.scheduling.packing import Start
from workers.checks import self_test
from workers.contract import messages
from workers.contract.messages import EpochRecord, Progress, TrialConfig, TrialOutcome

PART_FOR_FORETELLING = 0.01  # of the time
UNTIL_LOOKED_AGAIN_S = 60.0  # of a virtual clock on which nothing happens by itself


@dataclasses.dataclass(frozen=True)
class _Finished:
    """An epoch of a simulated trial."""

    config: TrialConfig
    epoch: EpochRecord
    started_at: float  # its trial


class Conductor:
    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        observers: Sequence[Observer],
        is_virtual: bool = False,
        before: Sameness | None = None,
    ) -> None:
        """`before`: what an earlier driver of this sweep measured with."""
        self.engine = engine
        self._sameness = before or Sameness()
        self.error: SweepError | None = None  # the ledger could not be written: nothing more counts
        self._ledger = ledger
        self._observers = observers
        self._is_virtual = is_virtual
        self._virtual_now = time.time()
        self._away: dict[str, float] = {}  # trials that were started and have not answered: since when
        self._held: dict[str, float] = {}  # by trial, since when its last attempt holds its GPUs, once it does
        self._ahead: list[tuple[float, int, TrialRecord | _Finished]] = []  # a heap, by their virtual time
        self._numbers = itertools.count()
        self._set_aside: set[str] = set()
        self._probes: list[dict[str, Any]] = []
        self._spent_again_at = 0.0
        self._pinning_notes: set[str] = set()  # that were told
        self._begun_anew: set[tuple[str, str]] = set()  # trials, and why, that were told of
        self._spared: set[str] = set()  # likewise
        self._tested: set[str] = set()  # trials before which nodes were tested

    @property
    def now(self) -> float:
        return self._virtual_now if self._is_virtual else time.time()

    def ready(self) -> None:
        """Have whoever wants to know prepare; raises `RefusedError` where results can't be taken."""
        for observer in self._observers:
            observer.ready()

    def next(self) -> Start | None:
        """Return a trial to start; None where none may start now."""
        while not self.error:
            now = self.now
            found = self.engine.next(now)
            if isinstance(found, Start):
                self._away[found.trial.trial] = now
                self._held.pop(found.trial.trial, None)
                if self._is_virtual:
                    self.held(found.trial)
                for observer in self._observers:
                    observer.started(found.trial)
                return found
            if found:
                self._count(found)
            elif self._ahead and not self._away:
                self._virtual_now, _, happens = heapq.heappop(self._ahead)
                self._happens(happens)
            else:
                return None
        return None

    def let_pass(self) -> None:
        """Let the virtual clock go on where nothing runs on it, and nothing can start yet."""
        self._virtual_now += UNTIL_LOOKED_AGAIN_S

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.engine.is_over

    def is_running(self, config: TrialConfig) -> bool:
        return config.trial in self._away

    def held(self, config: TrialConfig) -> None:
        """Note that its gang has its GPUs from now on, if that is not known: before, it waited for them."""
        if config.trial in self._away and config.trial not in self._held:
            now = self._held[config.trial] = self.now
            self.engine.held(config, now)
            self._write(self._ledger.start, config, now, self.engine.holds(config))

    def waited(self, gpus: int, since: float) -> None:
        """Note that the gang of a trial that has ended has held its GPUs since then, and until now, for nobody."""
        if not self._is_virtual:
            now = self.now
            self.engine.waited(gpus, now - since)
            self._write(self._ledger.wait, gpus, since, now)

    def begun(self, config: TrialConfig) -> None:
        """Note that its ranks start now: before, its gang was brought together and its nodes were tested."""
        self.held(config)
        if not self._is_virtual:
            self._away[config.trial] = time.time()

    def progressed(self, config: TrialConfig, progress: Progress) -> None:
        self._look_at_beginning(config, progress.note)
        for observer in self._observers:
            observer.progressed(config, progress)

    def judged(self, config: TrialConfig, epochs: Sequence[EpochRecord]) -> TrialOutcome | None:
        """Hear of epochs that a running trial has finished: the outcome with which it should be stopped, if it should.

        In the ledger first: a rung is the same for whoever goes on with the sweep."""
        verdict = self.engine.judge(config, epochs)
        for arrival in verdict.arrivals:
            self.note("rung", messages.to_json(arrival))
        return TrialOutcome(status="pruned", kind="hopeless", message=verdict.why) if verdict.why else None

    def answered(
        self,
        config: TrialConfig,
        outcome: TrialOutcome,
        took_s: float | None = None,
        timeline: Sequence[tuple[float, EpochRecord]] = (),
    ) -> None:
        """Note that a trial has ended: on a simulated cluster after so many virtual seconds, with epochs on the way."""
        started_at = self._away.pop(config.trial)
        ended_at = started_at + (took_s or 0.0) if self._is_virtual else time.time()
        record = self._ended(config, outcome, started_at, ended_at)
        if not self._is_virtual:
            self._end(record)
            return
        for after_s, epoch in timeline:
            self._will_happen(started_at + after_s, _Finished(config, epoch, started_at))
        self._will_happen(ended_at, record)

    def _will_happen(self, at: float, what: TrialRecord | _Finished) -> None:
        heapq.heappush(self._ahead, (at, next(self._numbers), what))

    def _happens(self, what: TrialRecord | _Finished) -> None:
        """Tell what happens on the virtual clock."""
        if isinstance(what, TrialRecord):
            self._end(what)
        elif outcome := self.judged(what.config, [what.epoch]):
            self._ahead = [one for one in self._ahead if one[2].config.trial != what.config.trial]
            heapq.heapify(self._ahead)
            self._end(self._ended(what.config, outcome, what.started_at, self.now))

    def stopped(self) -> None:
        """Cancel all that runs, and all that the virtual clock has not reached."""
        for config in self.engine.running:
            started_at = self._away.pop(config.trial, self.now)
            outcome = TrialOutcome(status="cancelled", kind="stopped")
            record = self._ended(config, outcome, started_at, self.now)
            self.engine.cancelled(record, self.now)
            self._count(dataclasses.replace(record, attempts=self.engine.attempts[config.trial]))

    def _ended(self, config: TrialConfig, outcome: TrialOutcome, started_at: float, ended_at: float) -> TrialRecord:
        """Return what is known of an attempt that is over; one that never had its GPUs took no time."""
        held_since = self._held.get(config.trial)
        if held_since is None:
            started_at = held_since = ended_at
        return TrialRecord(
            config=config,
            outcome=outcome,
            started_at=started_at,
            ended_at=ended_at,
            held_since=held_since,
            gpus_held=self.engine.holds(config),
        )

    def _end(self, record: TrialRecord) -> None:
        if record.outcome.measurement:  # the last epochs come with the end
            self.judged(record.config, record.outcome.measurement.epochs)
        blamed = self.engine.to_blame(record)
        counted = self.engine.ended(record, self.now)
        if record.config.trial in self._tested:
            self._added_up(record)
        if counted:
            self._count(counted)
        else:
            self._write(self._ledger.write_attempt, dataclasses.replace(record, blamed=tuple(sorted(blamed))))
            for observer in self._observers:
                observer.tried_again(record)
        for node, trials in self.engine.set_aside.items():
            if node not in self._set_aside:
                self._set_aside.add(node)
                self.note("aside", {"node": node, "trials": trials, "at": self.now})
                self.warn(f"{node} gets no more trials: {trials} ended badly there, one after the other")

    def _count(self, record: TrialRecord) -> None:
        self._look_at_pins(record)
        if measured := record.outcome.measurement:
            self._look_at_beginning(record.config, measured.ranks[0].begun_anew)
        for line in self._sameness.ended(record):
            self.warn(line)
        if self._write(self._ledger.write, record):
            for observer in self._observers:
                observer.ended(record)
            self._look_at_spared()
            self._tell_spent()

    def _tell_spent(self) -> None:
        """Predict the rest seldom enough to take little time: thousands of trials take a while."""
        began = time.monotonic()
        if began < self._spent_again_at:
            return
        spent = self.engine.spent(self.now)
        for observer in self._observers:
            observer.spent(spent)
        ended = time.monotonic()
        self._spent_again_at = ended + (ended - began) / PART_FOR_FORETELLING

    def _write(self, write: Any, *what: Any) -> bool:
        try:
            write(*what)
        except SweepError as error:
            self.error = error
        return self.error is None

    def passed(self) -> None:
        if self._away:
            self._tell_spent()
        for observer in self._observers:
            observer.passed()

    def note(self, kind: Note, facts: Mapping[str, Any]) -> None:
        self._write(self._ledger.note, kind, facts)

    def met(self, node: Mapping[str, Any]) -> None:
        """Note what a node has just said that it is made of."""
        self.note("node", node)
        for observer in self._observers:
            observer.met(node)
        for line in self._sameness.met(node):
            self.warn(line)

    def tested(self, config: TrialConfig, probes: Sequence[dict[str, Any]]) -> None:
        """Judge nodes and GPUs that were just tested before a trial: are they as fast as their peers, those of their
        kind, and as they were themselves?"""
        self._tested.add(config.trial)
        for probe in probes:
            if trouble := probe.get("trouble"):
                self.note("probe", probe)
                self.warn(f"{probe['node']} could not be tested: {trouble}")
                continue
            known = [one for one in [*self._probes, *probes] if one.get("kind") == probe.get("kind")]
            latest = {one["node"]: one["figures"] for one in known if one["node"] != probe["node"]}
            self._judge(probe, list(latest.values()))

    def _added_up(self, record: TrialRecord) -> None:
        """Judge a gang whose nodes were tested: does it add up as fast as before, joined alike?"""
        measured, joined_by = record.outcome.measurement, record.config.joined_by
        if measured and (speed := measured.ranks[0].allreduce_mib_per_s):
            nodes = "+".join(sorted({place.node for place in record.outcome.granted}))
            gang = f"{nodes} ×{record.config.gpus}" + (f" {joined_by}" if joined_by != "horovod" else "")
            self._judge({"node": gang, "at": time.time(), "figures": {"allreduce_mib_per_s": speed}}, [])

    def _look_at_pins(self, record: TrialRecord) -> None:
        """Warn of ranks without cores of their own, once for each reason."""
        measured = record.outcome.measurement
        for rank in measured.ranks if measured else ():
            if (note := rank.pinning_note) and note not in self._pinning_notes:
                self._pinning_notes.add(note)
                self.warn(f"{'ranks are pinned' if rank.pinned else 'ranks are not pinned'}: {note}")

    def _look_at_beginning(self, config: TrialConfig, why: str) -> None:
        """Warn of a trial that begins anew although it has a checkpoint, once for each reason."""
        if why and (config.trial, why) not in self._begun_anew:
            self._begun_anew.add((config.trial, why))
            self.warn(f"{config.trial}: {why}")

    def _look_at_spared(self) -> None:
        """Say why a trial runs again; of one that the budget does not hold, only once it does."""
        news = self.engine.spared.keys() - self._spared
        beyond = {config.trial for config in self.engine.beyond} if news else set()
        for trial, needed_for in self.engine.spared.items():
            if trial in news - beyond:
                self._spared.add(trial)
                self.warn(
                    f"{trial} was stopped as hopeless, and runs again, to its end: it is the base on one rank"
                    f" of {needed_for}, whose efficiency would not be known without it"
                )

    def _judge(self, probe: dict[str, Any], peers: list[dict[str, float]]) -> None:
        before = [one["figures"] for one in self._probes if one["node"] == probe["node"]]
        slow = self_test.slow(probe["figures"], peers, before)
        self._probes.append(probe)
        self.note("probe", {**probe, "slow": slow})
        if slow:
            differs = "differs from the one other node" if len(peers) == 1 and not before else "is slower"
            self.warn(f"{probe['node']} {differs}: {'; '.join(slow)}")

    def warn(self, message: str) -> None:
        for observer in self._observers:
            observer.warned(message)
