"""A rank's log, held to a bound whatever the rank prints: its first and its last part stay."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20
MOST, KEPT = 64 * MIB, MIB  # bytes that a log may have; that are kept of its begin, and of its end, once it has more


class BoundLog:
    """A file that others append to, and that is cut from time to time: between two looks it may grow beyond the bound.
    What is printed in the very moment of a cut is cut too."""

    def __init__(self, path: str, most: int = MOST, kept: int = KEPT) -> None:
        self._path, self._most, self._kept = Path(path), most, kept
        self._left_out, self._mark = 0, b""  # bytes that were cut so far, and the line that says so

    def look(self) -> None:
        """Cut the middle out of a log that has more than it may have."""
        if not self._path.exists() or self._path.stat().st_size <= self._most:
            return
        with self._path.open("r+b") as log:
            log.seek(-self._kept, os.SEEK_END)
            last = log.read()
            last = last[last.find(b"\n") + 1 :]  # whole lines
            self._left_out += log.tell() - self._kept - len(self._mark) - len(last)
            said = f"{self._left_out / MIB:,.1f} MiB of this log were cut here"
            self._mark = f"\n[{said}: it may have {self._most / MIB:g} MiB]\n".encode()
            log.seek(self._kept)
            log.write(self._mark + last)
            log.truncate()
