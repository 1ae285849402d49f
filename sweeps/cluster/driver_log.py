"""What a submitted driver says, kept in its sweep's folder too: Ray forgets a job's log at the next `ray up`."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from sweeps.cluster import marked_output

NAME = "driver.log"  # among a sweep's logs

_waiting: list[LogTee] = []  # that don't know their file yet


class LogTee(io.TextIOBase):
    """A stream whose text goes to a file too, all of it, from the moment on in which the file is known."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._file: TextIO | None = None
        self._early: list[str] = []

    def write(self, text: str) -> int:
        self.keep(text)
        return self._stream.write(text)

    def keep(self, text: str) -> None:
        """Put it into the file alone."""
        if self._file:
            with contextlib.suppress(OSError):  # a disk that is full ends no sweep
                self._file.write(text)
                self._file.flush()
        else:
            self._early.append(text)

    def pass_on(self, text: str) -> None:
        """Say it, and put it into no file."""
        self._stream.write(text)
        self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def into(self, file: TextIO) -> None:
        early, self._early, self._file = "".join(self._early), [], file
        if early:
            file.write(early)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keep what is said on both streams within the block, in the file that `into` is told."""
    before = sys.stdout, sys.stderr
    ours = [LogTee(stream) for stream in before]
    sys.stdout, sys.stderr = ours
    _waiting.extend(ours)
    try:
        yield
    except Exception:
        ours[1].keep(traceback.format_exc())  # Python says it too, once nothing is kept any more
        raise
    finally:
        sys.stdout, sys.stderr = before
        del _waiting[:]


def into(folder: Path) -> None:
    """Say where the sweep's logs lie. Means nothing where nothing is kept."""
    if not _waiting:
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / NAME).open("a", encoding="utf-8")
    while _waiting:
        _waiting.pop(0).into(file)
    file.flush()


def name_sweep(name: str, is_over: bool) -> None:
    """Name the sweep to whoever submitted its driver, and say whether nothing of it is left to run."""
    if isinstance(sys.stdout, LogTee):
        sys.stdout.pass_on(marked_output.line(marked_output.OVER if is_over else marked_output.BEGUN, name))


def read(folder: Path) -> str:
    """Return what a sweep's drivers have said; empty if none was submitted."""
    path = folder / NAME
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
