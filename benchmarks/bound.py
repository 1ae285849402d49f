"""The shortest time in which gangs could be done on equal nodes if they could be paused, cut and moved at will.

At any moment of any schedule the gangs that run fit on the nodes side by side; call such a set a pattern. Give each
pattern the time for which it ran: together the patterns give every kind of gang the time that it needs. So no schedule
is shorter than the least sum of times over all patterns that does so, which is a linear programme. It holds all of the
simpler bounds: the area (seconds × slots ÷ all slots), and the sum of those that exclude each other.

There are too many patterns to list. Columns are generated: a programme over few patterns prices each kind of gang, the
most valuable pattern at these prices is searched for over the states that the nodes can be in, and joins. Prices scaled
by the worth of that pattern are a bound at every step (Farley), so it is one wherever the search stops.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

ENOUGH = 1e-3  # of the bound: how far it may be below the least sum
Gang = tuple[int, ...]  # slots that it takes of each of its nodes
State = tuple[int, ...]  # how many nodes have 0, 1, 2, … slots free
Floats = NDArray[np.float64]


def shortest(nodes: int, slots: int, seconds: Mapping[Gang, float]) -> float:
    """Return the shortest time for gangs of these kinds, with the sum of their seconds, on so many nodes of so many
    slots."""
    gangs = tuple(sorted(seconds))
    search = PatternSearch(nodes, slots, gangs)
    needed = np.array([seconds[gang] for gang in gangs])
    patterns = [search.best(np.eye(len(gangs))[kind])[1] for kind in range(len(gangs))]
    bound = 0.0
    while True:
        solved = linprog(np.ones(len(patterns)), A_ub=-np.array(patterns).T, b_ub=-needed, method="highs")
        prices = -solved.ineqlin.marginals
        worth, pattern = search.best(prices)
        bound = max(bound, float(needed @ prices) / max(worth, 1.0))
        if solved.fun <= (1 + ENOUGH) * bound:
            return bound
        patterns.append(pattern)


class PatternSearch:
    """The most valuable pattern, over every state that the nodes can be in; states with less free are solved first."""

    def __init__(self, nodes: int, slots: int, gangs: tuple[Gang, ...]) -> None:
        self._kinds = len(gangs)
        states = [state for state in itertools.product(range(nodes + 1), repeat=slots + 1) if sum(state) == nodes]
        states.sort(key=_free)
        number = {state: n for n, state in enumerate(states)}
        steps = [
            (number[state], number[after], kind)
            for state in states
            for kind, gang in enumerate(gangs)
            for after in placed(state, gang)
        ]
        self._states = len(states)
        self._before, self._after, self._kind = np.array(steps).T
        free = np.array([_free(state) for state in states])[self._before]
        self._levels = [np.searchsorted(free, [level, level + 1]) for level in range(1, nodes * slots + 1)]

    def best(self, prices: Floats) -> tuple[float, Floats]:
        """Return what it is worth, and how many of each kind of gang it has."""
        worth = np.zeros(self._states)
        for first, end in self._levels:
            if first < end:
                gained = prices[self._kind[first:end]] + worth[self._after[first:end]]
                np.maximum.at(worth, self._before[first:end], gained)
        pattern = np.zeros(self._kinds)
        state = self._states - 1  # all free
        while True:
            first, end = np.searchsorted(self._before, [state, state + 1])
            gained = prices[self._kind[first:end]] + worth[self._after[first:end]]
            if first == end or gained.max() <= 0:
                return float(worth[-1]), pattern
            step = first + int(gained.argmax())
            pattern[self._kind[step]] += 1
            state = self._after[step]


def _free(state: State) -> int:
    return sum(slots * nodes for slots, nodes in enumerate(state))


@functools.cache
def placed(state: State, gang: Gang) -> tuple[State, ...]:
    """Return the states that a gang can leave behind."""
    return tuple(set(_placed(state, gang, (0,) * len(state))))


def _placed(untouched: State, gang: Gang, used: State) -> Iterator[State]:
    if not gang:
        yield tuple(a + b for a, b in zip(untouched, used, strict=True))
        return
    for slots in range(gang[0], len(untouched)):
        if untouched[slots]:
            yield from _placed(_moved(untouched, slots, -1), gang[1:], _moved(used, slots - gang[0], +1))


def _moved(state: State, slots: int, by: int) -> State:
    return tuple(nodes + by * (n == slots) for n, nodes in enumerate(state))
