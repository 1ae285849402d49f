"""A rank's step count and the time of its last step, in a small file that another process can read."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

READING = struct.Struct("<qd")


class StepCounter:
    def __init__(self, folder: Path, rank: int) -> None:
        path = folder / f"rank-{rank}"
        path.write_bytes(bytes(READING.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), READING.size)

    def note(self, step: int) -> None:
        READING.pack_into(self._memory, 0, step, time.monotonic())


def read(folder: Path, rank: int = 0) -> tuple[int, float]:
    """Return how many steps are done, and when the last of them was."""
    path = folder / f"rank-{rank}"
    return READING.unpack(path.read_bytes()) if path.exists() else (0, 0.0)
