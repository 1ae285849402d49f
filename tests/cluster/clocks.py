"""Hosts with clocks of their own, though they share the machine's: see shifted_clock.c."""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
from pathlib import Path

from tests.cluster.hosts import HOME, Host

SOURCE = Path(__file__).with_name("shifted_clock.c")
LIBRARY, SHIFT = "shifted-clock.so", "clock-shift"


def compiler() -> str | None:
    """The system's for C; None if there is none."""
    return shutil.which("cc") or shutil.which("gcc")


def build(library: Path) -> None:
    made = subprocess.run(
        [str(compiler()), "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


def move(shift: Path, by_s: float) -> None:
    """Put the clock of every process that has the file off by so much from now on."""
    with shift.open("r+b" if shift.exists() else "wb") as file:
        file.write(struct.pack("q", round(by_s * 1e9)))


class Clock:
    """The clock of a host, for all that Ray starts there: as a site gives variables to trials (docs/cluster.md)."""

    def __init__(self, host: Host) -> None:
        """Before Ray is started there."""
        self._host, folder = host, host.home / ".ray-sweeps"
        folder.mkdir(exist_ok=True)
        build(folder / LIBRARY)
        self._shift = folder / SHIFT
        move(self._shift, 0)
        there = f"{HOME}/.ray-sweeps"
        (folder / "environment").write_text(
            f"LD_PRELOAD={there}/{LIBRARY}\nRAY_LD_PRELOAD_ON_WORKERS=1\nSWEEP_CLOCK={there}/{SHIFT}\n"
        )

    def move(self, by_s: float) -> int:
        """Return how many processes of the host it concerns."""
        move(self._shift, by_s)
        count = 0
        for process in self._host.processes():
            with contextlib.suppress(OSError):
                count += LIBRARY in Path(f"/proc/{process.pid}/maps").read_text()
        return count
