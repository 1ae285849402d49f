"""Ranks that join late, and ranks that look who listens once all have joined."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable

import numpy as np
import psutil

from workers.contract import messages
from workers.contract.ranks import Seat, Voice
from workers.strategies import rendezvous
from workers.strategies.horovod import joined

LATE_S = 2.0
CLOSED_WITHIN_S = 5.0


def is_open(address: str) -> bool:
    with socket.socket() as line:
        return line.connect_ex(rendezvous.place(address)) == 0


def listening(processes: Iterable[psutil.Process]) -> list[tuple[str, int]]:
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found |= {tuple(c.laddr) for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return sorted(found)


def late(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    """The last comes late, and all add up what is worth stealing: half a megabyte."""
    voice.beat("ring")
    if seat.rank == seat.size - 1:
        time.sleep(LATE_S)
    with joined(seat) as ring:
        total = ring.total(np.full(1 << 16, float(seat.rank + 1)))
    voice.beat("finish")
    voice.say("failed", kind="checked", message=f"{total[0]:g}")


def look_around(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    voice.beat("ring")
    with joined(seat) as ring:
        ring.barrier()
        give_up = time.monotonic() + CLOSED_WITHIN_S
        while is_open(seat.rendezvous) and time.monotonic() < give_up:
            time.sleep(0.05)
        told = f"{listening([psutil.Process()])}, the rendezvous {'open' if is_open(seat.rendezvous) else 'closed'}"
        ring.barrier()
    voice.beat("finish")
    voice.say("failed", kind="checked", message=told)
