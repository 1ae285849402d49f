"""The threads that decode for a rank: kept to cores of their own, and found again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from workers.node import pinning


class Decoders:
    """The cores where a rank's decode threads run. Each pass over a dataset starts its own."""

    def __init__(self, cores: Collection[int] = ()) -> None:
        self._cores = frozenset(cores)  # kept for them; empty: they may run anywhere
        self.threads: set[int] = set()  # that were ever started
        self._ran_on: frozenset[int] = frozenset()  # those of the latest pass, when it began

    def iterate(self, dataset: Any) -> Iterator[Any]:
        """Yield the dataset's elements. The threads that TensorFlow starts for them keep to the cores."""
        # TensorFlow's threads have no names. Some start with the iterator, some with the first element.
        others = pinning.threads_here()
        iterator = iter(dataset)
        first = next(iterator, None)
        started: set[int] = set()
        # A thread that was not yet kept may have started another meanwhile; one that was hands its cores on.
        while new := pinning.threads_here() - others - started:
            started |= new
            self.keep(started)
        if first is not None:
            yield first
            yield from iterator

    def keep(self, started: Collection[int]) -> None:
        """Count the threads of a pass, by their numbers in the system, among them: they keep to the cores."""
        if self._cores:
            pinning.keep(started, self._cores)
        self.threads.update(started)
        self._ran_on = pinning.affinity(started)

    def affinity(self) -> frozenset[int]:
        """Return the cores that they may run on, as the kernel says now; where none runs any more, as it said last."""
        return pinning.affinity(self.threads) or self._ran_on
