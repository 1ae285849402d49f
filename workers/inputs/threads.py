"""Decode threads: how many of a node's are a rank's, and how they are kept to their cores."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from workers.contract import DecodeThreads

SPARE_CORES = 4  # per rank, that `auto` leaves for what drives the device and the network


class Share(NamedTuple):
    """Of one rank."""

    threads: int
    cores: frozenset[int] | None  # that the decode threads of all ranks of the node keep to; None: any


def share(wanted: DecodeThreads, physical_cores: int, local_size: int, usable: Collection[int]) -> Share:
    """An equal part for each of a node's ranks, rounded up.

    Where that makes more threads than were asked for, they share as many cores as threads were asked for.
    """
    of_node = max(local_size, physical_cores - SPARE_CORES * local_size) if isinstance(wanted, str) else wanted
    threads = -(-of_node // local_size)
    is_crowded = of_node < local_size * threads and of_node < len(usable)
    return Share(threads, frozenset(sorted(usable)[:of_node]) if is_crowded else None)


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
