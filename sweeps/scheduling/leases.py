"""Which sweep may use which node, where several run on one cluster. Pure; time is an argument.

1. A node is leased whole, to one sweep at a time. A trial is never stopped for another sweep's.
2. A sweep's clock counts the GPU-seconds of its leases, divided by its priority. One that joins, or wants nodes again
   after a while without, starts at the least of the others' clocks: nobody saves up time.
3. A node that comes free goes to the sweep that wants it and whose clock is behind, as it would be if what each holds
   lasted `GRAIN_S` more: so they share at once, and not only in the long run.
4. The first of them has its turn until its next start has all of its nodes: for a large gang they are kept idle as
   they come free, whatever the clocks say meanwhile. What is beyond that others may use.
5. What a sweep does not use is free again when it asks the next time. One that is silent for `SILENT_S` has gone.

With a turn that lasts, no gang starves: all that comes free goes to it, and what runs comes to its end. With clocks
that decide whose turn is next, no sweep does.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

GRAIN_S = 60.0
SILENT_S = 60.0
UNKNOWN_S = 60.0  # until a node comes free of which nobody has foretold it

Need = tuple[frozenset[str], ...]  # a start's: for each node that it lacks those that would do, hardest to find first


@dataclasses.dataclass(frozen=True)
class LeaseTerms:
    """The terms on which a sweep shares a cluster."""

    priority: float = 1.0
    max_nodes: int | None = None

    @property
    def most(self) -> int:
        """Nodes at a time."""
        return sys.maxsize if self.max_nodes is None else self.max_nodes


@dataclasses.dataclass
class _Sweep:
    number: int  # in the order in which they came
    clock: float
    terms: LeaseTerms = LeaseTerms()
    heard_at: float = 0.0
    busy: dict[str, float] = dataclasses.field(default_factory=dict)  # nodes, and when they are expected to be free
    idle: set[str] = dataclasses.field(default_factory=set)  # nodes leased for its next start
    spare: set[str] = dataclasses.field(default_factory=set)  # leased because nobody else wants them: not charged
    needs: Sequence[Need] = ()

    @property
    def charged(self) -> set[str]:
        return self.busy.keys() | self.idle

    @property
    def leased(self) -> set[str]:
        return self.charged | self.spare

    @property
    def room(self) -> int:
        """Nodes that it may have yet."""
        return self.terms.most - len(self.charged)


class Leases:
    """The leases of a cluster's nodes."""

    def __init__(self, opens_at: float = -math.inf) -> None:
        """Before it opens it leases only what is in use: for one that was lost, and learns what there was."""
        self._opens_at = opens_at
        self._sweeps: dict[str, _Sweep] = {}
        self._gpus: dict[str, int] = {}
        self._numbers = itertools.count()
        self._turn = ""  # of the sweep that nodes are collected for
        self._charged_at = 0.0

    @property
    def by_sweep(self) -> dict[str, frozenset[str]]:
        """Nodes, by sweep."""
        return {name: frozenset(sweep.leased) for name, sweep in self._sweeps.items()}

    def ask(
        self,
        name: str,
        terms: LeaseTerms,
        busy: Mapping[str, float],
        needs: Sequence[Need],
        nodes: Mapping[str, int],
        now: float,
    ) -> dict[str, float]:
        """Return the nodes that a sweep may not use now, each with the seconds until it is expected to come free.

        It has trials on the `busy` ones for so many seconds, and its next starts, one of them after the other, have
        `needs`. `nodes` are all that are there, with their GPUs. What is not in the answer is leased to it.
        """
        self._charge(now)
        for silent in [other for other, sweep in self._sweeps.items() if now - sweep.heard_at > SILENT_S]:
            self.release(silent)
        self._gpus = dict(nodes)
        me = self._sweeps.setdefault(name, _Sweep(next(self._numbers), -math.inf))
        others = [sweep for sweep in self._sweeps.values() if sweep is not me]
        if not me.needs:
            me.clock = max(me.clock, min((sweep.clock for sweep in others), default=0.0))
        before = me.idle | me.spare
        elsewhere = {node for sweep in others for node in sweep.leased}
        me.terms, me.heard_at = terms, now
        me.needs = [need for need in needs if self._is_possible(need, terms)]
        me.busy = {node: now + seconds for node, seconds in busy.items() if node in nodes.keys() - elsewhere}
        me.idle, me.spare = set(), set()
        free = nodes.keys() - elsewhere - me.busy.keys()
        if now >= self._opens_at:
            self._grant(name, sorted(free, key=lambda node: (node not in before, node)))
        ends = {node: end for sweep in others for node, end in sweep.busy.items()}
        return {
            node: max(0.0, ends[node] - now) if node in ends else UNKNOWN_S for node in nodes if node not in me.leased
        }

    def release(self, name: str) -> bool:
        """Free the nodes of a sweep that is over; say whether there is another one."""
        self._sweeps.pop(name, None)
        if self._turn == name:
            self._turn = ""
        return bool(self._sweeps)

    def _charge(self, now: float) -> None:
        for sweep in self._sweeps.values():
            sweep.clock += self._rate(sweep) * max(0.0, now - self._charged_at)
        self._charged_at = now

    def _rate(self, sweep: _Sweep) -> float:
        """Return the rate of its clock. A node without a GPU counts as one."""
        return sum(max(1, self._gpus.get(node, 0)) for node in sweep.charged) / sweep.terms.priority

    def _is_possible(self, need: Need, terms: LeaseTerms) -> bool:
        """Could it be met, if nobody else were there? What waits for nodes that have gone holds up nobody."""
        return bool(need) and len(_nodes_for(need, self._gpus, terms.most)) == len(need)

    def _line(self) -> list[str]:
        """Who wants nodes and may have some, the first in line first."""
        waiting = [name for name, sweep in self._sweeps.items() if sweep.needs and (sweep.idle or sweep.room > 0)]
        return sorted(waiting, key=lambda name: self._place(self._sweeps[name]))

    def _place(self, sweep: _Sweep) -> tuple[float, int]:
        return sweep.clock + GRAIN_S * self._rate(sweep), sweep.number

    def _grant(self, name: str, free: Sequence[str]) -> None:
        """Lease a sweep what it needs, after what is kept for those before it."""
        me, line = self._sweeps[name], self._line()
        if self._turn not in line:
            self._turn = line[0] if line else ""
        kept = self._kept(free) if self._turn else set()
        left = [node for node in free if node not in kept]
        is_enough = bool(kept) and len(kept) == len(self._sweeps[self._turn].needs[0])
        for other in line:
            sweep = self._sweeps[other]
            if other != self._turn:
                found = _met(sweep.needs, left, sweep.room)
            else:
                found = set() if is_enough else _met(sweep.needs[1:], left, sweep.room - len(kept - sweep.idle))
            if other == name:
                me.idle = found | (kept if name == self._turn else set())
                break
            left = [node for node in left if node not in found]
        if name == self._turn and is_enough:
            self._turn = ""
        if not [other for other in line if other != name]:
            me.spare = set([node for node in free if node not in me.idle][: me.terms.most - len(me.charged)])

    def _kept(self, free: Sequence[str]) -> set[str]:
        """Return the nodes kept for the next start of the sweep whose turn it is: those that it has of it, and those
        that it lacks and are free."""
        sweep = self._sweeps[self._turn]
        return set(_nodes_for(sweep.needs[0], [*sorted(sweep.idle), *free], sweep.room + len(sweep.idle)))


def _met(needs: Iterable[Need], free: Collection[str], room: int) -> set[str]:
    """Return the nodes of the first that can be met as a whole."""
    for need in needs:
        if len(found := _nodes_for(need, free, room)) == len(need):
            return set(found)
    return set()


def _nodes_for(need: Need, free: Iterable[str], room: int) -> list[str]:
    """Nodes for as many of its parts as there are; the hardest to find first, since what suits it suits the others."""
    left, found = list(free), list[str]()
    for part in need:
        node = next((node for node in left if node in part), None)
        if node is not None and len(found) < room:
            left.remove(node)
            found.append(node)
    return found
