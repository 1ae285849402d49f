"""How many records a rank's files hold. A count is kept, by the file's size and time, for the next trial.

A set is counted once on a node, or once for all nodes that share their users' home folder. What is kept lies outside
the set, which may be read-only. A count that can't be kept is made again by each trial.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workers.contract.messages import Phase
from workers.contract.paths import kept_counts
from workers.inputs import shards
from workers.strategies.ring import Ring

ROUND_S = 0.5  # until the ranks tell each other how far they are

Beat = Callable[[Phase, int], None]
Numbers = npt.NDArray[Any]


class Stamp(NamedTuple):
    """A file as it was when it was counted."""

    file: str
    size_bytes: int
    mtime_ns: int


class StoredCounts:
    """The counts of a set's files that earlier trials have made.

    Each host appends to a file of its own, one line a count, and reads those of all. A line that is torn is no count.
    """

    def __init__(self, folder: str) -> None:
        digest = hashlib.sha256(os.path.realpath(folder).encode()).hexdigest()[:16]
        self._folder = kept_counts() / digest
        self._records = dict(self._read())

    def get(self, stamp: Stamp) -> int | None:
        return self._records.get(stamp)

    def keep(self, stamp: Stamp, records: int) -> None:
        self._records[stamp] = records
        line = f"\n{json.dumps({**stamp._asdict(), 'records': records})}\n".encode()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / f"{os.uname().nodename}.jsonl").open("ab", buffering=0) as file:
                file.write(line)  # in one call, so that other ranks' lines come before it or behind it
        except OSError as error:
            print(f"the next trial counts {stamp.file} again: its count can't be kept: {error}")

    def _read(self) -> Iterator[tuple[Stamp, int]]:
        for path in sorted(self._folder.glob("*.jsonl")):
            try:
                lines = path.read_bytes().splitlines()
            except OSError:
                continue
            yield from filter(None, map(_entry, lines))


def _entry(line: bytes) -> tuple[Stamp, int] | None:
    try:
        match json.loads(line):
            case {"file": str(file), "size_bytes": int(size_bytes), "mtime_ns": int(mtime_ns), "records": int(records)}:
                return Stamp(file, size_bytes, mtime_ns), records
    except ValueError:
        pass
    return None


def of_ranks(parts: Sequence[shards.Part], folder: str, ring: Ring, beat: Beat) -> Numbers:
    """How many records each rank has. Every rank must call it with its own parts.

    They count in rounds and tell each other after each, so that a rank that has done its part is seen to live too.
    """
    progress = so_far(parts, StoredCounts(folder))
    own = others = 0
    while True:
        is_done, until = True, time.perf_counter() + ROUND_S
        for own in progress:
            beat("count", others + own)
            if time.perf_counter() >= until:
                is_done = False
                break
        shared = np.zeros(ring.size + 1, np.int64)
        shared[ring.rank], shared[-1] = own, not is_done
        *counts, counting = ring.total(shared).tolist()
        others = sum(counts) - own
        beat("count", others + own)
        if not counting:
            return np.array(counts, np.int64)


def so_far(parts: Sequence[shards.Part], kept: StoredCounts) -> Iterator[int]:
    """How many records of these parts have been found, again and again until they all are."""
    before = 0
    for part in parts:
        found = 0
        for whole in _in_file(part.path, kept):
            found = shards.owned(part, whole)
            yield before + found
        before += found


def _in_file(path: str, kept: StoredCounts) -> Iterator[int]:
    stamp = _stamp(path)
    if (known := kept.get(stamp)) is not None:
        yield known
        return
    records = 0
    for _ in shards.heads(path):
        records += 1
        yield records
    if _stamp(path) == stamp:  # nobody wrote to it meanwhile
        kept.keep(stamp, records)


def _stamp(path: str) -> Stamp:
    status = os.stat(path)
    return Stamp(Path(path).name, status.st_size, status.st_mtime_ns)
