"""Signals that end a process, heard as Ctrl-C, so that all that is begun comes to an end in order."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

ONE_WISH_S = 1.0  # `timeout` tells a process and then its group; a shell and the kernel tell that a terminal goes


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[Callable[[], None]]:
    """SIGTERM is Ctrl-C within the block. So is a terminal that is closed, unless that is ignored (nohup). Also where
    Ctrl-C is ignored, as behind a shell's `&`, or blocked, as in a job of Ray's. Signals that come together are one.

    Yields what listens once more, where somebody else has come to listen in between."""
    terminals = [fd for fd in (1, 2) if os.isatty(fd)]
    heard_at = -math.inf

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal heard_at
        if number == signal.SIGHUP:  # what is said from here on, nobody can read
            with open(os.devnull, "wb") as null:
                for fd in terminals:
                    os.dup2(null.fileno(), fd)
        is_the_same, heard_at = time.monotonic() - heard_at < ONE_WISH_S, time.monotonic()
        if not is_the_same:
            interrupt = signal.getsignal(signal.SIGINT)
            (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def listen() -> None:
        for number, was in before.items():
            if was != signal.SIG_IGN:
                signal.signal(number, heard)

    listen()
    try:
        yield listen
    finally:
        for number, was in before.items():
            signal.signal(number, was)
