"""Notices that Ray's head has gone before Ray does.

Ray waits a minute for its head and then ends the process where it stands; if another head has come up in its place, at
once and with a stack trace. So a line to the head is kept open here: when its process ends, the line does too.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

AWAY_S = 20.0  # may a head be that can't be reached, on a network with trouble
CONNECT_S = 5.0
RECONNECT_S = 0.2
LOOK_EVERY_S = 1.0


@contextlib.contextmanager
def guarded(address: str, identity: Callable[[], object], gone: Callable[[str], None]) -> Iterator[None]:
    """Call `gone` in a thread of its own, with the reason, if the head at the address ends or becomes another; never
    beside what follows the block."""
    is_over, turn = threading.Event(), threading.Lock()

    def told(why: str) -> None:
        with turn:
            if not is_over.is_set():
                gone(why)

    watch = threading.Thread(target=_watch, args=(address, identity, told, is_over), name="guard", daemon=True)
    watch.start()
    try:
        yield
    finally:
        with turn:  # whoever has been told ends what runs here
            is_over.set()


def _watch(address: str, identity: Callable[[], object], gone: Callable[[str], None], is_over: threading.Event) -> None:
    known, seen_at = identity(), time.monotonic()
    while not is_over.is_set():
        try:
            with connected(address) as line:
                if identity() != known:
                    return gone(f"the Ray head at {address} is another than before")
                _until_it_ends(line, is_over)
            is_over.wait(RECONNECT_S)
            seen_at = time.monotonic()
        except ConnectionRefusedError:
            return gone(f"the Ray head at {address} has gone")
        except OSError as error:
            if time.monotonic() - seen_at > AWAY_S:
                return gone(f"the Ray head at {address} can't be reached: {error.strerror or error}")
            is_over.wait(LOOK_EVERY_S)
    return None


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition("//")[-1].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=CONNECT_S)


def _until_it_ends(line: socket.socket, is_over: threading.Event) -> None:
    """Or nobody wants to know any more. A head that hears nothing hangs up now and then."""
    line.settimeout(LOOK_EVERY_S)
    while not is_over.is_set():
        with contextlib.suppress(TimeoutError):
            if not line.recv(1 << 12):
                return
