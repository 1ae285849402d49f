"""Ranks that go wrong in a chosen way: the trial's batch size says which. Any other batch size trains."""

from __future__ import annotations

import os
import signal
import time

from workers.contract import messages
from workers.contract.ranks import Seat, Voice
from workers.frameworks.tensorflow import body
from workers.strategies.horovod import joined
from workers.workloads.images import train

RAISES, KILLED, STOPPED, NEVER_JOINS, EXITS, NO_MEMORY = 901, 902, 903, 904, 905, 906
BAD_RANK = 1


def run(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    if config.batch_size < RAISES:
        return train.run(config, seat, voice)
    body.place(config)
    is_bad = seat.rank == BAD_RANK
    if is_bad and config.batch_size == NEVER_JOINS:
        time.sleep(600)
    voice.beat("ring")
    with joined(seat) as ring:
        for step in range(600):
            voice.beat("step", step)
            ring.barrier()
            if is_bad and step == 3:
                _go_wrong(config.batch_size)
            time.sleep(0.05)
    return None


def _go_wrong(how: int) -> None:
    if how == RAISES:
        raise ValueError("planted\nwith a second line")
    if how == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == STOPPED:
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == EXITS:
        os._exit(7)
    if how == NO_MEMORY:
        raise MemoryError("planted: 12 GiB")
