"""What a process asks of Linux and its C library, where Python has no name for it. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Be killed when the process that started this one ends; at once, if it has."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Have whatever this process's descendants leave running become its own children, not those of the system's first
    process. Children are not asked the same by it; a program that this process becomes is."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def flush_c_output() -> None:
    """Write what C libraries still hold of standard output: NCCL tells there why it failed."""
    _libc.fflush(ctypes.c_void_p.in_dll(_libc, "stdout"))
