"""Gangs of real ranks, forked by a real fork server and joined by Horovod, without Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.unit.records import config
from workers.contract import messages
from workers.contract.paths import fork_server_address, history_of
from workers.contract.ranks import Seat
from workers.launch.supervisor import Order, RankEnd, supervise
from workers.strategies.rendezvous import Rendezvous

ROOT = Path(__file__).parents[2]
KEY = f"test-{os.getpid()}"  # of the fixture `fork_server`
BAD_RANKS = "tests.integration.bad_ranks:run"
IMPATIENT = messages.Deadlines(
    fork_server_s=60, ring_s=3, build_s=60, step_s=2
)  # with those that are meant to stand still


@contextlib.contextmanager
def fork_server() -> Iterator[None]:
    """That forks the ranks, for who has no fixture of pytest's."""
    command = [sys.executable, "-m", "workers.launch.fork_server", fork_server_address(KEY)[1:]]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(10)


def end_of(order: Order, fork_server: str, is_called_off: Callable[[], bool] = lambda: False) -> RankEnd:
    *_, end = supervise(order, fork_server, is_called_off)
    assert isinstance(end, RankEnd)
    return end


def history(log: Path) -> Path:
    """The file in which a gang here leaves what its windows have shown of data that is no files."""
    command = [sys.executable, "-c", "from workers.node import fingerprint as f; print(f.digest(f.software()))"]
    software = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return history_of(log / "history.json", software, "")


def gang(
    size: int, log: Path, entry: str = BAD_RANKS, fork_server: str = KEY, folder: str = "", **fields: object
) -> list[RankEnd]:
    """How each rank of a gang ended. All are given up as soon as one has ended badly.

    `fields` are of the trial's config; by default it is a throughput trial of five steps of a tiny network.
    """
    deadlines = IMPATIENT if entry == BAD_RANKS else messages.Deadlines()
    trial = dataclasses.replace(
        config(gpus=size), **{"image_size": 32, "classes": 10, "measured_steps": 5, "deadlines": deadlines} | fields
    )
    seats = [
        Seat(
            rank=r,
            size=size,
            local_rank=r,
            local_size=size,
            cross_rank=0,
            cross_size=1,
            host="127.0.0.1",
            interface="lo",
            checkpoint=str(log / "checkpoint.npz"),
            history=str(log / "history.json"),
            folder=folder,
        )
        for r in range(size)
    ]
    rendezvous = Rendezvous(seats, "127.0.0.1")
    called_off = threading.Event()
    orders = [
        Order(
            config=trial,
            seat=dataclasses.replace(seat, rendezvous=rendezvous.address),
            entry=entry,
            env={"CUDA_VISIBLE_DEVICES": "-1"},
            log=str(log / f"rank-{seat.rank}.log"),
        )
        for seat in seats
    ]
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(end_of, order, fork_server, called_off.is_set) for order in orders]
        while not all(run.done() for run in runs):
            if any(run.done() and run.result().what != "measured" for run in runs):
                time.sleep(0.5)
                called_off.set()
            time.sleep(0.05)
    rendezvous.close()
    return [run.result() for run in runs]
