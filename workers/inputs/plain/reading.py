"""Records from TFRecord files: of several files in turn, each checked against its checksums, shuffled by a window."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from workers.inputs import shards
from workers.inputs.dealt_records import FILES_AT_ONCE, SHUFFLED, Pass
from workers.inputs.record_places import number_of

BUFFER_BYTES = 1 << 18


class Record(NamedTuple):
    number: int  # its place in the set, as `record_places` has it
    content: bytes


def of_pass(asked: Pass) -> Iterator[Record]:
    """Yield the records of a pass, without end. Raises a `Fault` where a file is damaged or can't be read."""
    rng = np.random.default_rng(asked.key)
    if asked.is_endless:
        orders = (rng.permutation(len(asked.parts)) for _ in itertools.count())
        return shuffled(interleaved(asked.parts[n] for order in orders for n in order), rng)
    records = interleaved(asked.parts)
    if asked.is_random:
        records = shuffled(records, rng)
    marked = [part._replace(file=~part.file) for part in asked.fillers]
    return itertools.chain(records, itertools.chain.from_iterable(interleaved(marked) for _ in itertools.count()))


def shuffled(records: Iterator[Record], rng: np.random.Generator) -> Iterator[Record]:
    """Yield each time one of the next `SHUFFLED` records, drawn at random."""
    window = list(itertools.islice(records, SHUFFLED))
    for record in records:
        at = int(rng.integers(len(window)))
        drawn, window[at] = window[at], record
        yield drawn
    for at in rng.permutation(len(window)):
        yield window[at]


def interleaved(parts: Iterable[shards.Part]) -> Iterator[Record]:
    """Yield a record of each of several files in turn; where one ends, the next file comes in."""
    left = iter(parts)
    turns = collections.deque(map(read, itertools.islice(left, FILES_AT_ONCE)))
    while turns:
        records = turns.popleft()
        if (record := next(records, None)) is not None:
            yield record
            turns.append(records)
        else:
            turns.extend(map(read, itertools.islice(left, 1)))


def read(part: shards.Part) -> Iterator[Record]:
    """Yield the records of a part of a file. What lies between them is passed over, but for its heads."""
    try:
        with open(part.path, "rb", buffering=BUFFER_BYTES) as file:
            at = 0
            for index in itertools.count():
                left_bytes = os.fstat(file.fileno()).st_size - at  # looked up each time: somebody may cut the file
                if not left_bytes:
                    return
                if left_bytes < 0:
                    raise shards.blame([part.path], "a file that was cut behind what was read of it")
                length = shards.length_of(file.read(shards.HEAD.size), part.path, index, left_bytes)
                at += shards.HEAD.size + length + shards.CHECKSUM.size
                if index % part.every != part.first:
                    file.seek(at)
                    continue
                content = file.read(length)
                if file.read(shards.CHECKSUM.size) != shards.CHECKSUM.pack(shards.masked_crc(content)):
                    raise shards.corrupted(part.path, index)
                yield Record(number_of(part.file, index), content)
    except OSError as error:
        raise shards.unreadable(error) from error
