"""Sweeps up after a private Ray, however its driver ended: by itself, by Ctrl-C, by kill -9.

    python -m sweeps.cluster.cleanup FOLDER

It waits for its standard input to close, which happens when the driver ends. Then it ends every process that
writes to Ray's FOLDER (Ray's own agents would live on for a minute) and removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil


@contextlib.contextmanager
def swept() -> Iterator[str]:
    """Make a folder for Ray, gone with all that uses it when the block or the process ends."""
    folder = tempfile.mkdtemp(prefix="sweep-")
    cleaner = subprocess.Popen(
        [sys.executable, "-m", "sweeps.cluster.cleanup", folder], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield folder
    finally:
        assert cleaner.stdin
        cleaner.stdin.close()
        cleaner.wait()


def users(folder: Path, but: int) -> list[psutil.Process]:
    """Return the processes, but one, with a file of the folder open: Ray's keep their logs there."""
    return [process for process in psutil.process_iter() if process.pid != but and _uses(process, folder)]


def _uses(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(fd.readlink().is_relative_to(folder) for fd in Path(f"/proc/{process.pid}/fd").iterdir())
    except OSError:
        return False


def main(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver = os.getppid()
    sys.stdin.read()
    for _ in range(10):  # what is ended may just have started another
        if not (left := users(folder, but=driver)):
            break
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=2)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
