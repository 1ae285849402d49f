"""Which waiting trial starts next, and where. Pure: events in, decisions out; time is an argument.

1. Trials go in rounds, a repeat each, and within one in the plan's random order, as far as that does not drain the
   cluster at every start: a round has `PARTS` parts, and in a part the same arrangement comes in a row, those with the
   most ranks on a node first, of these those on the most nodes; or the other way round. In the first part of a round
   a coin decides, later what balances: small ones first if large ones have started earlier in this round so far. So
   small ones stand in the middle of one round and at the ends of another, and a drift that rises and falls within
   rounds falls on no size in the mean of many.
2. If the first has no room yet, seats are kept for it where they are predicted to be free the soonest.
3. Meanwhile others start in the same order if they leave these seats alone then, or are predicted to end before;
   those of a later part only while the small ones of their round have not started earlier than the large ones.
4. Once `PATIENCE` have started on its nodes nobody else may: it starts at the latest when what runs there has ended,
   whatever was predicted.
5. A node in other hands is one whose trial ends when it is expected back.
6. What is added later goes into the next round, so that nothing waits for ever behind larger ones that keep coming.

Why this order: a machine that drifts must not look like an effect of the gangs' size, so that over a round size and
start may not go together. A gang that follows on one like it starts at once, and small ones fill what both leave: in
the plan's own order the cluster would drain at every change of size, and small ones, which fit sooner, would start
before large ones all the same. Where gangs exclude each other in any case, such as exclusive ones on a single node,
they have one arrangement, and so the plan's order stands. `benchmarks/packing.py` has what that costs.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import zlib
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from sweeps.scheduling.leases import Need
from sweeps.spec import arrangements
from sweeps.spec.arrangements import Node, Room, Seats
from workers.contract.messages import TrialConfig

PATIENCE = 20
PARTS = 2
LATE = 0.25  # of the time that it has taken: what a trial that has outlived its prediction is expected to take yet
NOBODY: Mapping[str, Collection[str]] = {}

Predicted = Callable[[TrialConfig], float]  # seconds from start to end


@dataclasses.dataclass(frozen=True)
class Start:
    trial: TrialConfig
    seats: Seats


@dataclasses.dataclass(frozen=True)
class _Waiting:
    trial: TrialConfig
    id: str
    round: int
    place: int  # among those that were added to the round
    size: int

    @property
    def turn(self) -> tuple[int, int]:
        return self.round, self.place


@dataclasses.dataclass
class _Round:
    """What says whether small gangs have started before large ones in it so far, or after them."""

    added: int = 0
    count: int = 0  # less those that need not start any more
    size: int = 0  # of these
    started: int = 0
    started_size: int = 0
    sum_of_started: int = 0  # of `started_size` after each start

    def counts(self, size: int, sign: int) -> None:
        self.count += sign
        self.size += sign * size

    def starts(self, size: int) -> None:
        self.started += 1
        self.started_size += size
        self.sum_of_started += self.started_size

    @property
    def tilt(self) -> int:
        """Above zero where small ones came first: it goes with the covariance of size and place among the starts."""
        return self.size * self.started * (self.started + 1) - 2 * self.count * self.sum_of_started


@dataclasses.dataclass(frozen=True)
class _Occupied:
    start: Start
    at: float

    def end(self, now: float, predicted: Predicted) -> float:
        return max(self.at + predicted(self.start.trial), now + LATE * (now - self.at))


@dataclasses.dataclass
class _Shape:
    """The waiting trials that need the same seats, in their turn."""

    queue: list[_Waiting]
    ranks: tuple[int, ...] = ()  # on each node
    blocked: tuple[int, ...] = ()  # slots of each node that nobody else can use; empty if the cluster can't hold it

    def turn(self, is_largest_first: bool) -> tuple[int, int, list[int], int]:
        """Return where its first one stands in its part of a round."""
        sign = -1 if is_largest_first else 1
        slots = [sign * count for count in self.blocked]
        return slots[0], sign * len(slots), slots, self.queue[0].place


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Seats for the first of the order, from when they are predicted to be free, and what is left beside them then."""

    seats: Seats
    at: float
    beside: Mapping[str, Node]
    used: frozenset[str]  # nodes in use then, its own among them


class _Left:
    """What is left of the nodes at a moment. How many ranks have room is found once for all trials of one kind."""

    def __init__(self, nodes: Sequence[Node], left: Mapping[str, Node]) -> None:
        self.of = left
        self._nodes = nodes
        self._rooms: dict[tuple[object, ...], list[Room]] = {}

    def rooms(self, trial: TrialConfig, avoid: Collection[str]) -> list[Room]:
        if avoid:
            return arrangements.rooms(trial, self._nodes, self.of, avoid)
        kind = trial.isolation, trial.device, trial.cores_per_worker
        if kind not in self._rooms:
            self._rooms[kind] = arrangements.rooms(trial, self._nodes, self.of)
        return self._rooms[kind]


def _coin(name: str) -> bool:
    """Heads or tails, the same for a name each time."""
    return zlib.crc32(name.encode()) % 2 == 0


class Packing:
    """A cluster's nodes, what runs there and what waits."""

    def __init__(self, nodes: Sequence[Node] = (), most_nodes: int | None = None) -> None:
        """`most_nodes` may be in use at a time."""
        self._most = sys.maxsize if most_nodes is None else most_nodes
        self._waiting: dict[str, _Waiting] = {}
        self._running: dict[str, _Occupied] = {}
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._rounds: dict[int, _Round] = {}
        self._round = -1  # of the latest trial that started as the first of the order
        self._part = (-1, 0)  # of a round, that is on
        self._is_largest_first = True  # in that part
        self._first = ""  # of the order, when there was no room for it
        self._kept: Seats | None = None  # for it
        self._passed = 0  # trials that have started on their nodes since
        self._taken: dict[str, float] = {}
        self._sizes: dict[tuple[object, ...], int] = {}  # by shape
        self._holds: dict[tuple[object, ...], int] = {}  # likewise
        self.nodes = nodes

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: Sequence[Node]) -> None:
        """Nodes may join and leave at any time; what runs on one that left ends when the caller says so."""
        self._nodes = tuple(nodes)
        self._named = arrangements.idle(nodes)
        self._free = dict(self._named)
        self._sizes.clear()
        self._holds.clear()
        self._kept = None
        for running in self._running.values():
            self._change(self._free, running.start, -1)
        for group in self._shapes.values():
            self._weigh(group)

    @property
    def taken(self) -> Mapping[str, float]:
        """Nodes that are there and in other hands, and when they are expected to be free."""
        return self._taken

    @taken.setter
    def taken(self, until: Mapping[str, float]) -> None:
        if until.keys() != self._taken.keys():
            self._kept = None  # it was chosen without knowing which come first
        self._taken = dict(until)

    @property
    def free(self) -> dict[str, Node]:
        """What is left of each node."""
        return dict(self._free)

    @property
    def running(self) -> dict[str, Start]:
        """What runs, by trial."""
        return {trial: running.start for trial, running in self._running.items()}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def stranded(self) -> list[TrialConfig]:
        """What waits and could not start if nothing ran; nodes may come that can hold it."""
        return [one.trial for group in self._shapes.values() if not group.blocked for one in group.queue]

    def add(self, trial: TrialConfig) -> None:
        """Let a trial wait, after those added before; one that was lost too."""
        number = max(trial.repeat, self._round + 1)
        its = self._rounds.setdefault(number, _Round())
        one = _Waiting(trial, trial.trial, number, its.added, self._size(trial))
        its.added += 1
        its.counts(one.size, +1)
        self._waiting[one.id] = one
        group = self._shapes.setdefault(_key(trial), _Shape([]))
        insort(group.queue, one, key=lambda waiting: waiting.turn)
        if len(group.queue) == 1:
            self._weigh(group)

    def remove(self, trial_id: str) -> None:
        """Forget a trial that need not start any more."""
        one = self._taken_out(trial_id)
        self._rounds[one.round].counts(one.size, -1)

    def _taken_out(self, trial_id: str) -> _Waiting:
        one = self._waiting.pop(trial_id)
        queue = self._shapes[_key(one.trial)].queue
        del queue[bisect_left(queue, one.turn, key=lambda waiting: waiting.turn)]
        return one

    def ended(self, trial_id: str, now: float) -> None:
        self._change(self._free, self._running.pop(trial_id).start, +1)

    def start(self, now: float, predicted: Predicted, avoid: Mapping[str, Collection[str]] = NOBODY) -> Start | None:
        """Return the next trial, its seats taken; None if nothing should start before something ends or comes.

        `avoid` has the nodes that a trial should not use; they are used all the same if the others could not hold it.
        """
        order = self._order()
        free = _without(self._free, self._taken) if self._taken else self._free
        if not order or not any(node.cpus for node in free.values()):
            return None
        first, *others = order
        open_now = _Left(self._nodes, free)
        shunned = self._shunned(first, avoid)
        used = _used(running.start for running in self._running.values()) if self._is_limited else set()
        if seats := self._place(first.trial, open_now, shunned, used):
            self._round = first.round
            return self._begin(first, seats, now)
        kept = self._keep(first, now, predicted, shunned)
        theirs = _names(kept.seats)
        is_patient = self._passed < PATIENCE
        beside = _Left(self._nodes, _common(free, kept.beside) if is_patient else _without(free, theirs))
        used_then = kept.used if is_patient else used | theirs
        for other in others:
            shunned = self._shunned(other, avoid)
            seats = self._place(other.trial, beside, shunned, used, used_then)
            if not seats and is_patient and now + predicted(other.trial) <= kept.at:
                seats = self._place(other.trial, open_now, shunned, used)
            if seats:
                self._passed += self._is_in_its_way(seats, used, theirs)
                return self._begin(other, seats, now)
        return None

    def foreseen(self, now: float, predicted: Predicted, count: int) -> list[tuple[TrialConfig, float]]:
        """Return the next starts and their times, if every trial takes as long as is predicted and nothing comes
        between."""
        ahead = self._copied()
        found: list[tuple[TrialConfig, float]] = []
        while len(found) < count:
            while len(found) < count and (start := ahead.start(now, predicted)):
                found.append((start.trial, now))
            if not ahead._running:
                break
            now, trial = min((running.end(now, predicted), trial) for trial, running in ahead._running.items())
            ahead.ended(trial, now)
        return found

    def _copied(self) -> Packing:
        other = copy.copy(self)
        other._waiting, other._running, other._free = dict(self._waiting), dict(self._running), dict(self._free)
        other._shapes = {
            key: _Shape(list(group.queue), group.ranks, group.blocked) for key, group in self._shapes.items()
        }
        other._rounds = {number: copy.copy(its) for number, its in self._rounds.items()}
        return other

    def held(self, start: Start) -> int:
        """Return the GPUs that nobody else has while it runs there; of a CPU trial its slots."""
        return arrangements.held(start.trial, start.seats, self._named)

    def would_hold(self, trial: TrialConfig) -> int:
        """Return what it would hold if nothing else ran; as many as its ranks where the nodes can't hold it."""
        key = _key(trial)
        if key not in self._holds:
            seats = arrangements.place(trial, self._nodes, self._named)
            self._holds[key] = self.held(Start(trial, seats)) if seats else trial.gpus
        return self._holds[key]

    def needs(self, avoid: Mapping[str, Collection[str]] = NOBODY) -> list[Need]:
        """Return the nodes that the next starts need beside those in use, in their order."""
        busy = _used(running.start for running in self._running.values()) & self._named.keys()
        found: dict[Need, None] = {}
        for one in self._order():
            shunned = self._shunned(one, avoid)
            rooms = sorted(self._room(one, name, self._free) for name in busy - set(shunned))
            would_do: dict[int, frozenset[str]] = {}  # nodes, by the ranks that they are to hold
            need = []
            for ranks in arrangements.arrangement(one.trial, self._nodes):
                if (tightest := bisect_left(rooms, ranks)) < len(rooms):
                    del rooms[tightest]
                    continue
                if ranks not in would_do:
                    fit = (node.name for node in self._nodes if arrangements.slots(one.trial, node) >= ranks)
                    would_do[ranks] = frozenset(fit).difference(shunned)
                need.append(would_do[ranks])
            found[tuple(need)] = None
        return list(found)

    def busy(self, now: float, predicted: Predicted) -> dict[str, float]:
        """Return the nodes in use, and when they are expected to be free."""
        until: dict[str, float] = {}
        for running in self._running.values():
            for name, _ in running.start.seats:
                until[name] = max(until.get(name, now), running.end(now, predicted))
        return until

    def _order(self) -> list[_Waiting]:
        """Return the first of each shape, in the order in which they may start."""
        parts: dict[tuple[int, int], list[_Shape]] = {}
        for group in self._shapes.values():
            if group.queue and group.blocked:
                parts.setdefault(self._part_of(group.queue[0]), []).append(group)
        if not parts:
            return []
        first, *later = sorted(parts)
        if first != self._part:
            self._part, tilt = first, self._rounds[first[0]].tilt
            self._is_largest_first = tilt > 0 if tilt else _coin(min(group.queue[0].id for group in parts[first]))
        order = sorted(parts[first], key=lambda group: group.turn(self._is_largest_first))
        for part in later:
            if self._rounds[part[0]].tilt <= 0:
                order += sorted(parts[part], key=lambda group: group.turn(True))
        return [group.queue[0] for group in order]

    def _size(self, trial: TrialConfig) -> int:
        """Return the nodes that it sits on and those that it would fill, in units that make it whole."""
        key = _key(trial)
        if key not in self._sizes:
            slots = sum(arrangements.slots(trial, node) for node in self._nodes)
            sat_on = len(arrangements.arrangement(trial, self._nodes))
            self._sizes[key] = sat_on * slots + trial.gpus * len(self._nodes)
        return self._sizes[key]

    def _part_of(self, one: _Waiting) -> tuple[int, int]:
        """Return the round, and the part of it."""
        return one.round, one.place * PARTS // self._rounds[one.round].added

    def _begin(self, one: _Waiting, seats: Seats, now: float) -> Start:
        if one.id == self._first:
            self._first, self._passed, self._kept = "", 0, None
        self._taken_out(one.id)
        self._rounds[one.round].starts(one.size)
        start = Start(one.trial, seats)
        self._running[one.id] = _Occupied(start, now)
        self._change(self._free, start, -1)
        return start

    def _keep(self, one: _Waiting, now: float, predicted: Predicted, avoid: Collection[str]) -> _Kept:
        """Seats for a trial when the running ones have ended, one after another as predicted; the same from then on."""
        if one.id != self._first:
            self._first, self._passed, self._kept = one.id, 0, None
        ranks = self._shapes[_key(one.trial)].ranks
        wide: set[str] = set()  # nodes with room for the fewest of its ranks: while they are too few it has no seats
        missing: Seats | None = None  # of its seats, those that are not free by then
        for at, left, freed, used in self._ends(now, predicted):
            wide |= {name for name in freed if self._room(one, name, left) >= ranks[-1]}
            if self._kept is None and len(wide) >= len(ranks):
                self._kept = self._place(one.trial, _Left(self._nodes, left), avoid, used)
            if self._kept:
                missing = tuple(
                    (name, held)
                    for name, held in (self._kept if missing is None else missing)
                    if name not in left or self._room(one, name, left) < held
                )
                if not missing and self._is_allowed(self._kept, used):
                    beside = dict(left)
                    self._change(beside, Start(one.trial, self._kept), -1)
                    return _Kept(self._kept, at, beside, frozenset(used | _names(self._kept)))
        raise AssertionError("an idle cluster holds it")

    def _ends(self, now: float, predicted: Predicted) -> Iterator[tuple[float, Mapping[str, Node], set[str], set[str]]]:
        """Yield when each running trial will have ended, and others have given back a node; what is open then, which
        nodes are so or have more room since the last, and which are in use."""
        ends = [(running.end(now, predicted), trial, "") for trial, running in self._running.items()]
        ends += [(max(now, until), "", node) for node, until in self._taken.items()]
        left, freed = dict(self._free), {*self._free}
        running, taken = {trial: one.start for trial, one in self._running.items()}, set(self._taken)
        for end, trial, node in sorted(ends):
            taken.discard(node)
            if trial:
                ended = running.pop(trial)
                self._change(left, ended, +1)
                freed |= _names(ended.seats) & left.keys()
            else:
                freed |= {node} & left.keys()
            used = _used(running.values()) if self._is_limited else set()
            yield end, _without(left, taken) if taken else left, freed - taken, used
            freed = set()

    def _room(self, one: _Waiting, name: str, left: Mapping[str, Node]) -> int:
        return arrangements.room(one.trial, self._named[name], left[name])

    def _place(self, trial: TrialConfig, free: _Left, avoid: Collection[str], *used: Collection[str]) -> Seats | None:
        """Seats that together with the nodes used, now as well as later, are no more than there may be."""
        ranks, rooms = self._shapes[_key(trial)].ranks, free.rooms(trial, avoid)
        seats = arrangements.seats(ranks, rooms)
        if seats and not self._is_allowed(seats, *used):
            seats = arrangements.seats(ranks, [room for room in rooms if all(room[2] in names for names in used)])
        return seats if seats and self._is_allowed(seats, *used) else None

    @property
    def _is_limited(self) -> bool:
        return self._most < len(self._nodes)

    def _is_allowed(self, seats: Seats, *used: Collection[str]) -> bool:
        return not self._is_limited or all(len({*names, *_names(seats)}) <= self._most for names in used)

    def _is_in_its_way(self, seats: Seats, used: Collection[str], theirs: Collection[str]) -> bool:
        """Could these seats hold up the first of the order if they are taken for longer than predicted?"""
        return not _names(seats).isdisjoint(theirs) or not self._is_allowed(seats, {*used, *theirs})

    def _shunned(self, one: _Waiting, avoid: Mapping[str, Collection[str]]) -> Collection[str]:
        shunned = avoid.get(one.id, ())
        return shunned if shunned and arrangements.place(one.trial, self._nodes, self._named, shunned) else ()

    def _change(self, left: dict[str, Node], start: Start, sign: int) -> None:
        """Give a trial's part of its nodes back, or take it."""
        for name, (cpus, gpus) in arrangements.taken(start.trial, start.seats, self._named).items():
            node = left[name]
            left[name] = Node(name, node.cpus + sign * cpus, node.gpus + sign * gpus, node.kind)

    def _weigh(self, group: _Shape) -> None:
        if group.queue:
            trial = group.queue[0].trial
            group.ranks = arrangements.arrangement(trial, self._nodes)
            seats = arrangements.seats(group.ranks, arrangements.rooms(trial, self._nodes, self._named)) or ()
            if len(seats) > self._most:
                seats = ()
            is_alone = trial.isolation == "exclusive"
            slots = (arrangements.slots(trial, self._named[name]) if is_alone else ranks for name, ranks in seats)
            group.blocked = tuple(sorted(slots, reverse=True))


def _key(trial: TrialConfig) -> tuple[object, ...]:
    """Equal for trials that can sit on the same seats."""
    return trial.isolation, trial.device, trial.cores_per_worker, trial.gpus, trial.arrangement or trial.placement


def _used(starts: Iterable[Start]) -> set[str]:
    """Nodes."""
    return {name for start in starts for name in _names(start.seats)}


def _names(seats: Seats) -> set[str]:
    return {name for name, _ in seats}


def _common(one: Mapping[str, Node], other: Mapping[str, Node]) -> dict[str, Node]:
    """Return what is left of each node in both."""
    return {
        name: Node(name, min(node.cpus, other[name].cpus), min(node.gpus, other[name].gpus), node.kind)
        for name, node in one.items()
    }


def _without(left: Mapping[str, Node], names: Collection[str]) -> dict[str, Node]:
    return {name: node for name, node in left.items() if name not in names}
