"""The ring that a gang's ranks stand in: alone, or joined by what their framework is joined by (`horovod`, `ddp`).

All kinds answer to the same names, so a training loop knows none of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

KNOWN_MIB = 4
LONGEST_WORD = 256  # bytes
Tensor = Any
Numbers = np.ndarray[Any, Any]


class Ring(Protocol):
    rank: int
    size: int
    local_rank: int
    local_size: int

    def total(self, values: Numbers) -> Numbers:
        """Return the sum over all ranks, element by element."""

    def barrier(self) -> None:
        """Return when every rank has come here."""


class ReducingRing(Ring, Protocol):
    """What TensorFlow's learner asks of a ring besides; collectives work inside `tf.function`."""

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean over all ranks, tensor by tensor."""

    def sum_of(self, flag: Tensor) -> Tensor:
        """Return the sum over all ranks of one number, within a step."""

    def spread(self, variables: Sequence[Any]) -> None:
        """Give every rank the values that rank 0 holds."""


class Solo:
    """One rank, nobody to wait for."""

    rank, size, local_rank, local_size = 0, 1, 0, 1

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)

    def sum_of(self, flag: Tensor) -> Tensor:
        return flag

    def spread(self, variables: Sequence[Any]) -> None:
        pass

    def total(self, values: Numbers) -> Numbers:
        return values

    def barrier(self) -> None:
        pass


def gathered(ring: Ring, word: str) -> list[str]:
    """Return every rank's word, in the order of the ranks, at every rank."""
    own = word.encode()
    if len(own) > LONGEST_WORD:
        raise ValueError(f"a word must have at most {LONGEST_WORD} bytes, but got {len(own)}")
    words = np.zeros((ring.size, LONGEST_WORD))
    words[ring.rank, : len(own)] = list(own)
    return [bytes(row.astype(np.uint8)).rstrip(b"\0").decode() for row in ring.total(words)]


def speed(ring: Ring) -> float:
    """MiB of a float32 tensor that all ranks add up in a second, the best of a few rounds; 0 for a rank alone."""
    if ring.size == 1:
        return 0.0
    values = np.zeros(KNOWN_MIB << 18, np.float32)
    rounds = []
    for _ in range(4):
        ring.barrier()
        start = time.perf_counter()
        ring.total(values)
        rounds.append(time.perf_counter() - start)
    return KNOWN_MIB / min(rounds)
