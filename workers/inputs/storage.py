"""A trial's data on disk and in the page cache: brought to a known state before it, counted during it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

from workers.contract.messages import TrialConfig
from workers.contract.ranks import Voice
from workers.strategies.ring import Ring

CHUNK = 8 << 20
MIB = 1 << 20


def prepare(config: TrialConfig, ring: Ring, voice: Voice) -> None:
    """Drop the data's pages from every node's cache, or read them in. The node's ranks share the files."""
    if config.cache == "any" or not os.path.isdir(config.data):
        return
    files = sorted(path for path in Path(config.data).iterdir() if path.is_file())
    if config.cache == "cold" and ring.local_rank == 0:
        os.sync()  # pages that are not written yet can't be dropped
    ring.barrier()
    beats = itertools.count(1)
    for path in files[ring.local_rank :: ring.local_size]:
        if config.cache == "cold":
            drop(path)
        else:
            read(path, lambda: voice.beat("build", next(beats)))
    ring.barrier()


def drop(path: Path) -> None:
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path, beat: Callable[[], None] = lambda: None) -> None:
    """Read a file from its begin to its end, with a beat for each chunk: it may be larger than a deadline is long."""
    buffer = bytearray(CHUNK)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            beat()


def read_mib() -> float:
    """Return what this process has had from disks so far; what the page cache held is not in it."""
    try:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    except OSError:
        return 0.0
    return int(fields["read_bytes"]) / MIB
