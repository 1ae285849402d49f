"""Tells a process from a later one that got its number: by when it began, and in which life of its machine. So it ends
no other than the one that was meant."""

from __future__ import annotations

import os
import signal
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
STARTED = 19  # in /proc/PID/stat behind the command's name, which may hold anything: its field 22


def birth(pid: int) -> str:
    """Return what no other process of this machine has, ever; empty where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        return f"{BOOT.read_text().strip()} {fields[STARTED]}"
    except (OSError, LookupError):
        return ""


def end(pid: int, born: str) -> None:
    """Ask a process to end, if it is the one that was born then; where that is not known (empty), whichever has the
    number. Its number is bound to it before it is looked at, so that none that gets it meanwhile has the signal.
    Raises ProcessLookupError if it has gone, PermissionError if it is another user's."""
    bound = os.pidfd_open(pid)
    try:
        if born and (now := birth(pid)) and now != born:
            raise ProcessLookupError(f"process {pid} is another than the one that began at {born}")
        signal.pidfd_send_signal(bound, signal.SIGTERM)
    finally:
        os.close(bound)
