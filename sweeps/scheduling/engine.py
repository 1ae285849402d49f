"""Which trial runs next and where, and what its end means for the others. No Ray, no clock, no files.

An executor asks `next` until it says None, and tells of every end and of every change of the nodes. A trial that was
measured before, or that another's end rules out, needs no run: `next` gives its record instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence

from sweeps.record.ledger import TrialRecord
from sweeps.scheduling import cache, growth
from sweeps.scheduling.asha import Arrival, Equals, Judgement, Rungs, equals
from sweeps.scheduling.baselines import Bases
from sweeps.scheduling.cache import Cache, Fingerprints, NodeContents
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.leases import Need
from sweeps.scheduling.observer import Spent
from sweeps.scheduling.packing import Packing, Start
from sweeps.scheduling.retries import Faults
from sweeps.scheduling.search import Strategy
from sweeps.spec import arrangements
from sweeps.spec.arrangements import Node, Seats
from workers.contract.messages import EpochRecord, Granted, TrialConfig, TrialOutcome

NODES_MAY_COME_BACK_S = 600.0


@dataclasses.dataclass(frozen=True)
class _RunningTrial:
    config: TrialConfig
    seats: Seats
    gpus: int  # that its gang holds: all of its nodes', where it excludes others
    since: float | None = None  # that its gang holds them; until then it waits for them and costs nothing

    def gpu_hours(self, now: float) -> float:
        """So far."""
        return 0.0 if self.since is None else self.gpus * max(0.0, now - self.since) / 3600


class Engine:
    def __init__(
        self,
        strategy: Callable[[Callable[[TrialConfig], bool]], Strategy],
        durations: Durations,
        feasible: Feasibility,
        cache: Cache,
        budget_gpu_hours: float = math.inf,
        wait_for_nodes_s: float = NODES_MAY_COME_BACK_S,
        max_nodes: int | None = None,
        rungs: Rungs | None = None,
        bases: Bases | None = None,
        unjudged: Collection[str] = (),
    ) -> None:
        """`strategy` is made from the question whether a trial is ruled out already. With `rungs`, hopeless trials are
        stopped, but for the `bases` of others and those that go to their end `unjudged`."""
        self._strategy = strategy(self._is_ruled_out)
        self._durations = durations
        self._feasible = feasible
        self._cache = cache
        self.budget = budget_gpu_hours
        self._patience_s = wait_for_nodes_s
        self._most_nodes = max_nodes
        self._packing = Packing(most_nodes=max_nodes)
        self._faults = Faults()
        self._nodes: Sequence[Node] = ()
        self._made: Mapping[str, NodeContents] = {}  # by node
        self._alike: dict[tuple[str, str], Fingerprints | None] = {}  # by what a trial reads, and its framework: what
        # all nodes are made of
        self._waiting: dict[str, TrialConfig] = {}
        self._beyond: set[str] = set()  # of these, the trials that what is left of the budget does not hold
        self._running: dict[str, _RunningTrial] = {}
        self._rungs = rungs
        self._bases = bases or Bases()
        self._unjudged = frozenset(unjudged)
        self.spared: dict[str, str] = {}  # trials that were stopped and run again, and what needs them as its base
        self._equals: dict[str, Equals] = {}  # of those that run
        self._has_earlier_witnesses = False
        self.attempts: Counter[str] = Counter()  # by trial, those that are over
        self._settled: deque[tuple[TrialConfig, TrialOutcome]] = deque()
        self._stuck_since: float | None = None
        self._spent = self._spent_before = 0.0  # GPU-hours of attempts that are over
        self.set_aside: dict[str, str] = {}  # nodes, and why

    def nodes_are(self, nodes: Sequence[Node], made: Mapping[str, NodeContents]) -> None:
        """Take in the cluster as it is now, and what those nodes are made of that have said so."""
        self._made = made
        self._alike.clear()
        if nodes != self._nodes:
            self._nodes = list(nodes)
            self._packing.nodes = [node for node in nodes if node.name not in self.set_aside]

    def others_have(self, nodes: Mapping[str, float], now: float = 0.0) -> None:
        """Other sweeps' nodes: they are there, and taken until about then."""
        is_news = nodes.keys() != self._packing.taken.keys()
        self._packing.taken = nodes
        if is_news:
            self._reconsider(now)

    def needs(self) -> list[Need]:
        """Return the nodes that its next starts need beside those it uses, one after the other."""
        self._queue()
        return self._packing.needs(self._avoid)

    def wanted(self) -> list[dict[str, float]]:
        """Return what a cluster that grows is to hold so that trials can start which wait for nodes that have gone."""
        if not self._patience_s:
            return []
        lacking = [config for config in self._packing.stranded if not self._is_beyond_alone(config)]
        return growth.wanted(lacking, self._packing.nodes, self._most_nodes)

    def busy(self, now: float) -> dict[str, float]:
        """Return the nodes that it uses, and when each is expected to be free."""
        return self._packing.busy(now, self.predicted_s)

    def resumed(
        self,
        records: Sequence[TrialRecord],
        attempts: Sequence[TrialRecord] = (),
        arrivals: Sequence[Arrival] = (),
        spent: float = 0.0,
        kept: Sequence[TrialRecord] = (),
    ) -> None:
        """Take what was measured before the driver stopped, what had been tried again, who stood at which rung, and the
        GPU-hours that all of it has held. Of what is `kept`, and teaches nothing, trials may be run again as bases."""
        self._spent = self._spent_before = spent
        for record in kept:
            self._may_be_base(record)
        for attempt in attempts:
            self.attempts[attempt.config.trial] += 1
            self._faults.resumed(attempt.config.trial, attempt.outcome, attempt.blamed)
        if self._rungs:
            self._rungs.resumed(arrivals)
        for record in records:
            self._has_earlier_witnesses |= record.outcome.status == "infeasible"
            self._may_be_base(record)
            self._learn(record)
        self._reconsider(0.0)  # whatever waits by now was foretold by a part of the records

    def _may_be_base(self, record: TrialRecord) -> None:
        """One that was stopped may be run again, as another attempt."""
        self._bases.tell(record)
        if record.outcome.status == "pruned":
            self.attempts[record.config.trial] = record.attempts

    def next(self, now: float) -> Start | TrialRecord | None:
        """Return a trial to start, the record of one that needs no run, or nothing for the moment."""
        self._queue()
        if self._settled:
            config, outcome = self._settled.popleft()
            record = TrialRecord(config=config, outcome=outcome, started_at=now, ended_at=now)
            self._learn(record)
            return record
        while start := self._packing.start(now, self.predicted_s, self._avoid):
            self._stuck_since = None
            config = start.trial
            gpus = self._packing.held(start)
            is_affordable = self._is_affordable(config, now, gpus)
            known = self._certain_on(config, self._made_of(config, start.seats))
            if known := known or (None if is_affordable else self._known_elsewhere(config)):
                self._packing.ended(config.trial, now)
                del self._waiting[config.trial]
                self._settle(config, known)
                return self.next(now)
            if is_affordable:
                del self._waiting[config.trial]
                self._running[config.trial] = _RunningTrial(config, start.seats, gpus)
                self._equals[config.trial] = equals(config, start.seats, self._made)
                return start
            self._packing.ended(config.trial, now)
            self._beyond.add(config.trial)
            if self._is_beyond_alone(config):
                self._strategy.passed_over(config)
                self._queue()
        if self._settled:  # something that was proposed in its place
            return self.next(now)
        return self._wait_for_lost_nodes(now) if self._packing.waiting and not self._running else None

    @property
    def _avoid(self) -> Mapping[str, Collection[str]]:
        """By trial: nodes on which it has ended badly, and those that are unlike the ones that its search goes by."""
        avoid, kinds = self._faults.avoid, {made.hardware for made in self._made.values()} - {""}
        if len(kinds) < 2:
            return avoid
        unlike = {
            trial: {name for name, made in self._made.items() if made.hardware != hardware}
            for trial, config in self._waiting.items()
            if (hardware := self._strategy.hardware(config)) in kinds
        }
        return {**avoid, **{trial: nodes | {*avoid.get(trial, ())} for trial, nodes in unlike.items()}}

    def held(self, config: TrialConfig, now: float) -> None:
        """Note that a trial that was started has its GPUs from now on."""
        self._running[config.trial] = dataclasses.replace(self._running[config.trial], since=now)

    def holds(self, config: TrialConfig) -> int:
        """Return how many GPUs the gang of a trial that was started holds, once it does."""
        return self._running[config.trial].gpus

    @property
    def is_judging(self) -> bool:
        """Running trials are judged by their epochs."""
        return self._rungs is not None

    def judge(self, config: TrialConfig, epochs: Sequence[EpochRecord]) -> Judgement:
        """Hear of epochs that a running trial has finished: should it be stopped?"""
        if not self._rungs:
            return Judgement("")
        is_spared = config.trial in self._unjudged or bool(self._bases.needed_for(config))
        return self._rungs.judge(config, self._equals[config.trial], epochs, is_spared)

    def ended(self, record: TrialRecord, now: float) -> TrialRecord | None:
        """Take in that an attempt is over. Return the trial's record, or None if it is tried again and this end does
        not count."""
        blamed = self.to_blame(record)
        record = dataclasses.replace(record, outcome=self._signed(record))
        config = self._over(record, now)
        is_again = self._faults.tell(record, blamed)
        if is_again:
            self._wait(config)
        self._set_bad_nodes_aside()
        if not is_again:
            record = dataclasses.replace(record, attempts=self.attempts[config.trial])
            self._learn(record)
        self._reconsider(now)
        return None if is_again else record

    def cancelled(self, record: TrialRecord, now: float) -> None:
        """Take in that an attempt was ended since the sweep stops: its trial waits for whoever goes on."""
        self._wait(self._over(record, now))

    def waited(self, gpus: int, took_s: float) -> None:
        """Count what a gang has held for no trial."""
        self._spent += gpus * max(0.0, took_s) / 3600

    def _over(self, record: TrialRecord, now: float) -> TrialConfig:
        """Take in that an attempt is over, however it ended."""
        config = self._running.pop(record.config.trial).config
        self.attempts[config.trial] += 1
        self._packing.ended(config.trial, now)
        del self._equals[config.trial]
        if self._rungs:
            self._rungs.forget(config.trial)
        self._spent += record.gpu_hours
        return config

    @property
    def asks_what_nodes_are_made_of(self) -> bool:
        """True until that is known: nothing that was measured before can be used again before, and nobody be judged."""
        return bool(self._cache) or self.is_judging or self._has_earlier_witnesses

    @property
    def running(self) -> list[TrialConfig]:
        return [one.config for one in self._running.values()]

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    @property
    def taken(self) -> Mapping[str, float]:
        """Other sweeps' nodes, and until about when."""
        return self._packing.taken

    @property
    def seated(self) -> list[Start]:
        """What runs, and where."""
        return [Start(one.config, one.seats) for one in self._running.values()]

    def queue(self, now: float, count: int) -> list[tuple[TrialConfig, float]]:
        """Return the next trials to start, and when, if all goes as predicted."""
        return self._packing.foreseen(now, self.predicted_s, count)

    @property
    def is_over(self) -> bool:
        if self._running or self._settled or len(self._waiting) > len(self._beyond):
            return False
        if self._packing.taken and any(map(self._is_affordable, self.beyond)):
            return False  # on nodes that others have, whose gangs would hold less
        return bool(self._beyond) or self._strategy.is_over

    @property
    def beyond(self) -> list[TrialConfig]:
        """The trials that wait and that what is left of the budget does not hold."""
        return [config for trial, config in self._waiting.items() if trial in self._beyond] if self._beyond else []

    def spent(self, now: float = 0.0) -> Spent:
        """`now` matters while something runs."""
        held = self._spent + sum(one.gpu_hours(now) for one in self._running.values())
        waiting = sum(self.predicted_gpu_hours(config) for config in self._waiting.values())
        beyond = sum(self.predicted_gpu_hours(config) for config in self.beyond)
        return Spent(held, self._committed(now) + waiting, self._strategy.total, self._spent_before, beyond)

    def predicted_s(self, config: TrialConfig) -> float:
        return self._durations.predict(config).seconds

    def predicted_gpu_hours(self, config: TrialConfig, gpus: int | None = None) -> float:
        """`gpus` that its gang holds, where it is known on which nodes."""
        return (self._packing.would_hold(config) if gpus is None else gpus) * self.predicted_s(config) / 3600

    def _committed(self, now: float) -> float:
        """GPU-hours that will have been spent once what runs has ended, as far as can be foretold."""
        running = (
            max(self.predicted_gpu_hours(one.config, one.gpus), one.gpu_hours(now)) for one in self._running.values()
        )
        return self._spent + sum(running)

    def _is_affordable(self, config: TrialConfig, now: float = 0.0, gpus: int | None = None) -> bool:
        return self._committed(now) + self.predicted_gpu_hours(config, gpus) <= self.budget

    def _is_beyond_alone(self, config: TrialConfig) -> bool:
        """Even if what runs had cost nothing."""
        return math.isfinite(self.budget) and self._spent + self.predicted_gpu_hours(config) > self.budget

    def _reconsider(self, now: float) -> None:
        """Look at what fits now: an attempt took less than predicted, or others are predicted to take less since."""
        is_so: dict[str, bool] = {}  # by cell
        for config in self.beyond:
            if config.cell not in is_so:
                is_so[config.cell] = self._is_affordable(config, now)
            if is_so[config.cell]:
                self._beyond.remove(config.trial)
                self._packing.add(config)
            elif self._is_beyond_alone(config):
                self._strategy.passed_over(config)

    def _queue(self) -> None:
        """Take what the search proposes."""
        while proposed := self._strategy.propose():
            for config in proposed:
                if outcome := self._certain(config):
                    self._settle(config, outcome)
                else:
                    self._wait(config)

    def _certain(self, config: TrialConfig) -> TrialOutcome | None:
        """Return what a trial comes to, if that is certain wherever it would run."""
        return self._certain_on(config, self._everywhere(config))

    def _certain_on(self, config: TrialConfig, nodes: Sequence[tuple[Fingerprints, int]]) -> TrialOutcome | None:
        """Return what a trial comes to with so many ranks on such nodes, if it was measured there or is ruled out."""
        return self._cache.outcome(config, nodes) or self._inferred(config, nodes)

    def _known_elsewhere(self, config: TrialConfig) -> TrialOutcome | None:
        """Return what a trial came to that can't be paid for, if it was measured on any nodes of the cluster that are
        alike, whatever runs there: a result takes no seat."""
        kinds: dict[Fingerprints, list[Node]] = {}
        for node in self._packing.nodes if self._cache.has(config) else ():
            kinds.setdefault(self._made.get(node.name, NodeContents()).fingerprints(config), []).append(node)
        fitting = (arrangements.place(config, nodes, arrangements.idle(nodes)) for nodes in kinds.values())
        found = (self._cache.outcome(config, self._made_of(config, seats)) for seats in fitting if seats)
        return next(filter(None, found), None)

    def _inferred(self, config: TrialConfig, nodes: Sequence[tuple[Fingerprints, int]]) -> TrialOutcome | None:
        here = cache.fingerprints(config, nodes)
        return self._feasible.inferred(config, here) if here else None

    def _is_ruled_out(self, config: TrialConfig) -> bool:
        """Wherever it would run."""
        here = cache.fingerprints(config, self._everywhere(config))
        return here is not None and self._feasible.is_ruled_out(config, here)

    def _everywhere(self, config: TrialConfig) -> list[tuple[Fingerprints, int]]:
        """Return what a trial's ranks find on every node, where all are alike; else nothing that is certain."""
        kind = config.data, config.framework
        if kind not in self._alike:
            unlike = {self._made.get(node.name, NodeContents()).fingerprints(config) for node in self._nodes}
            self._alike[kind] = unlike.pop() if len(unlike) == 1 else None
        found = self._alike[kind]
        return [(found, config.gpus)] if found else []

    def _wait(self, config: TrialConfig) -> None:
        self._waiting[config.trial] = config
        if self._is_beyond_alone(config) and not self._cache.has(config):  # no seats are kept: it can't cost nothing
            self._beyond.add(config.trial)
            self._strategy.passed_over(config)
        else:
            self._packing.add(config)

    def _settle(self, config: TrialConfig, outcome: TrialOutcome) -> None:
        if self._waiting.pop(config.trial, None):
            if config.trial in self._beyond:
                self._beyond.remove(config.trial)
            else:
                self._packing.remove(config.trial)
        self._settled.append((config, outcome))

    def _learn(self, record: TrialRecord) -> None:
        """Learn from an end that counts."""
        self._strategy.tell(record)
        self._durations.learn(record)
        self._feasible.tell(record)
        self._bases.tell(record)
        for config in self._feasible.freed():  # ruled out by what has turned out to be wrong
            self._wait(config)
        for config in self._bases.again() if self._rungs else ():
            self.spared[config.trial] = self._bases.needed_for(config)
            self._wait(config)
        if record.outcome.status == "infeasible":
            for config in list(self._waiting.values()):
                if outcome := self._inferred(config, self._everywhere(config)):
                    self._settle(config, outcome)

    def _signed(self, record: TrialRecord) -> TrialOutcome:
        """Return the outcome of a trial that ran and reported nothing, with what its nodes said that they are made of:
        as far as its ranks have not said themselves. What it decides about others goes by that."""
        outcome, running = record.outcome, self._running[record.config.trial]
        if outcome.status not in ("infeasible", "pruned"):
            return outcome
        names = [node for node, ranks in running.seats for _ in range(ranks)]
        places = outcome.granted or [Granted(rank=rank, node=name) for rank, name in enumerate(names)]
        made = [self._made.get(name, NodeContents()).fingerprints(running.config) for name in names]
        return dataclasses.replace(outcome, granted=tuple(_as_made(place, made[place.rank]) for place in places))

    def _made_of(self, config: TrialConfig, seats: Seats) -> list[tuple[Fingerprints, int]]:
        """Return what all nodes are made of that it would run on, with its ranks there; nothing where one has not
        said."""
        known = [(self._made[node].fingerprints(config), ranks) for node, ranks in seats if node in self._made]
        return known if len(known) == len(seats) else []

    def to_blame(self, record: TrialRecord) -> set[str]:
        """Return the nodes that a running trial's end speaks of: that of the rank that ended badly, or those that have
        gone; else all of them."""
        seats = self._running[record.config.trial].seats
        names = [node for node, ranks in seats for _ in range(ranks)]
        if record.outcome.rank is not None:
            return {names[record.outcome.rank]}
        gone = set(names) - {node.name for node in self._nodes}
        return gone or set(names)

    def _set_bad_nodes_aside(self) -> None:
        """Set nodes aside that keep failing, as long as the others can hold every trial that waits."""
        for bad, why in self._faults.bad_nodes.items():
            rest = [node for node in self._packing.nodes if node.name != bad]
            refused = arrangements.check_capacity(self._waiting.values(), rest, self._most_nodes)
            can_rest_do = self._waiting and not refused
            if bad not in self.set_aside and can_rest_do:
                self.set_aside[bad] = why
                self._packing.nodes = rest

    def _wait_for_lost_nodes(self, now: float) -> Start | TrialRecord | None:
        """Wait a while for nodes that have gone, where nothing runs and nothing fits; then give up what needs them."""
        if len(self._packing.stranded) < self._packing.waiting:  # the nodes are there: others have them
            self._stuck_since = None
            return None
        if self._stuck_since is None:
            self._stuck_since = now
        if now - self._stuck_since < self._patience_s:
            return None
        for config in self._packing.stranded:
            why = arrangements.impossible(config, self._packing.nodes, self._most_nodes)
            self._settle(config, TrialOutcome(status="lost", kind="no node left", message=why))
        return self.next(now) if self._settled else None


def _as_made(place: Granted, made: Fingerprints) -> Granted:
    """Return a place with what its node is made of, as far as that is not known."""
    hardware, software, files = made
    return dataclasses.replace(
        place,
        hardware=place.hardware or hardware,
        software=place.software or software,
        data_files=place.data_files or files,
    )
