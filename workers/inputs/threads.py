"""Decode threads: how many of a node's are a rank's, and how they are kept to their cores."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple


class Share(NamedTuple):
    """Of one rank."""

    threads: int
    cores: frozenset[int] | None  # that the decode threads of all ranks of the node keep to; None: any


def share(of_node: int, local_size: int, usable: Collection[int], pinned: Collection[int] = ()) -> Share:
    """An equal part for each of a node's ranks, rounded up, on the cores pinned for it.

    Where that makes more threads than were asked for, they share as many cores as threads were asked for.
    """
    threads = -(-of_node // local_size)
    is_crowded = of_node < local_size * threads and of_node < len(usable)
    if is_crowded:
        return Share(threads, frozenset(sorted(usable)[:of_node]))
    return Share(threads, frozenset(pinned) or None)


def iterate(dataset: Any, cores: Collection[int] | None) -> Iterator[Any]:
    """The dataset's elements. The threads that TensorFlow starts for them keep to the cores."""
    if cores is None:
        yield from dataset
        return
    # TensorFlow's threads have no names. Some start with the iterator, some with the first element.
    others = _threads()
    iterator = iter(dataset)
    first = next(iterator, None)
    for thread in _threads() - others:
        try:
            os.sched_setaffinity(thread, cores)
        except ProcessLookupError:
            pass
    if first is not None:
        yield first
        yield from iterator


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}
