"""A trial's gang of ranks over its Ray placement group: seats, rendezvous, deadlines, the outcome as a value.

One keeper actor holds each bundle and outlives trials, so that a gang of the same shape starts at once. One
nurse actor a node keeps that node's nursery alive for as long as the sweep runs.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from workers import contract, verdict
from workers.contract import Progress
from workers.keeper import Order, RankEnd, keep
from workers.paths import SweepPaths, nursery_address
from workers.ring import Rendezvous
from workers.seats import Bench, seated, side_by_side

ENTRY = "workers.train:run"
ECHO_S = 2.0  # how long the rest of a gang may take to end by itself once one rank has


def nursery_key() -> str:
    """One nursery a node and sweep."""
    here = ray.get_runtime_context()
    return f"{here.get_job_id()}-{here.get_node_id()[:16]}"


class Nurse:
    """Keeps this node's nursery alive, and takes it along when it goes."""

    def tend(self, log: str) -> None:
        """Returns when it is cancelled. A call that lasts, because an actor without one wakes a hundred times a
        second, in the way of those who measure."""
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "workers.nursery", nursery_address(nursery_key())[1:]]
        # A nursery sees every GPU of its node; each rank is told which is its own.
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        is_dismissed = ray.get_runtime_context().is_canceled
        while not is_dismissed():
            with open(log, "ab") as out:
                nursery = subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
                )
            while nursery.poll() is None and not is_dismissed():
                time.sleep(0.5)
        nursery.communicate()  # closes its input, and it goes


class Nurses:
    """A nurse on every node that ranks may run on, as long as this object's process lives."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._nurses: dict[str, tuple[Any, Any]] = {}  # by node: the nurse, and what it does until it goes

    def cover(self) -> None:
        """Send a nurse to each node that has none yet: at the start, and when a node has joined."""
        nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for gone in self._nurses.keys() - nodes:
            del self._nurses[gone]
        for node in nodes - self._nurses.keys():
            nurse = (
                ray.remote(Nurse)
                .options(
                    num_cpus=0,
                    max_restarts=-1,
                    max_task_retries=-1,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                )
                .remote()
            )
            tending = nurse.tend.remote(str(self._logs / f"nursery-{node[:8]}.log"))
            self._nurses[node] = nurse, tending

    def dismiss(self) -> None:
        """Send every nurse home, its nursery with it."""
        tending = [tending for _, tending in self._nurses.values()]
        for call in tending:
            ray.cancel(call)
        if tending:
            ray.wait(tending, num_returns=len(tending), timeout=10)
        self._nurses = {}


class Keeper:
    """Holds a bundle, and keeps one rank in it at a time."""

    def where(self) -> Bench:
        address = ray.util.get_node_ip_address()
        interfaces = [
            name for name, addresses in psutil.net_if_addrs().items() if any(a.address == address for a in addresses)
        ]
        return Bench(
            node=os.uname().nodename,
            address=address,
            interface=interfaces[0] if interfaces else "",
            gpu=",".join(str(gpu) for gpu in ray.get_gpu_ids()),
            nursery=nursery_key(),
        )

    @ray.method(num_returns="streaming")  # type: ignore[untyped-decorator]
    def run(self, order: Order) -> Iterator[Progress | RankEnd]:
        """One thread does it all: an actor with several wakes a hundred times a second."""
        yield from keep(order, nursery_key(), ray.get_runtime_context().is_canceled)


class Group:
    """The ranks of one trial at a time, one in each bundle of a placement group."""

    def __init__(self, placement: PlacementGroup, bundles: Sequence[dict[str, float]]) -> None:
        self._placement = placement
        self._bundles = bundles
        self._keepers: list[Any] = []
        self._benches: list[Bench] = []
        self._running: dict[Any, int] = {}  # what a keeper's run yields: its rank
        self._granted: list[contract.Granted] = []
        self._ends: list[RankEnd] = []
        self._give_up = float("inf")
        self._rendezvous: Rendezvous | None = None

    def start(self, config: contract.TrialConfig, paths: SweepPaths, entry: str = ENTRY) -> None:
        """Have every rank forked. Returns at once; `wait` tells how it went."""
        if not self._keepers:
            self._seat_keepers()
        seats = seated(self._benches)
        if config.gpus > 1:
            alone = len({bench.nursery for bench in self._benches} | {nursery_key()}) == 1
            self._rendezvous = Rendezvous(seats, "127.0.0.1" if alone else ray.util.get_node_ip_address())
            seats = [dataclasses.replace(seat, rendezvous=self._rendezvous.address) for seat in seats]
        checkpoint = str(paths.checkpoint(config.trial))
        self._granted = [
            contract.Granted(rank=rank, node=bench.node, gpu=bench.gpu) for rank, bench in enumerate(self._benches)
        ]
        self._ends, self._give_up = [], float("inf")
        self.progress = Progress("start", 0)  # of rank 0
        for keeper, bench, seat in zip(self._keepers, self._benches, seats, strict=True):
            order = Order(
                config=config,
                seat=dataclasses.replace(seat, checkpoint=checkpoint),
                entry=entry,
                env={"CUDA_VISIBLE_DEVICES": bench.gpu or "-1"},
                log=str(paths.rank_log(config.trial, seat.rank)),
            )
            self._running[keeper.run.remote(order)] = seat.rank

    def wait(self, timeout_s: float) -> contract.TrialOutcome | None:
        """The outcome once every rank has ended; None if that takes longer than `timeout_s`."""
        until = time.monotonic() + timeout_s
        while self._running:
            now = time.monotonic()
            if now >= self._give_up:
                self._call_off()
                self._give_up = float("inf")
            ready, _ = ray.wait(list(self._running), timeout=max(0.0, min(until, self._give_up) - now))
            for run in ready:
                self._hear(run)
            if self._running and time.monotonic() >= until:
                return None
        self._close_rendezvous()
        if any(end.what == "lost" for end in self._ends):
            self.close()
        return verdict.outcome(self._ends, self._granted)

    def stop(self) -> None:
        """End the trial that runs, if one does; afterwards none of its processes is left."""
        self._call_off()
        while self._running:
            self.wait(timeout_s=30)

    def close(self) -> None:
        self.stop()
        for keeper in self._keepers:
            ray.kill(keeper)
        self._keepers, self._benches = [], []

    def _seat_keepers(self) -> None:
        keepers = [
            ray.remote(Keeper)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement, index),
            )
            .remote()
            for index, bundle in enumerate(self._bundles)
        ]
        benches = ray.get([keeper.where.remote() for keeper in keepers])
        order = side_by_side(benches)
        self._keepers = [keepers[i] for i in order]
        self._benches = [benches[i] for i in order]

    def _hear(self, run: Any) -> None:
        """What a keeper yields next: progress, or the end of its rank."""
        rank = self._running[run]
        try:
            heard = ray.get(next(run))
        except ray.exceptions.TaskCancelledError:
            heard = RankEnd(rank=rank, what="stopped", at=time.time())
        except ray.exceptions.RayError as error:
            message = str(error).strip().splitlines()[0]
            heard = RankEnd(rank=rank, what="lost", kind="node lost", message=message, at=time.time())
        if isinstance(heard, Progress):
            if rank == 0:
                self.progress = heard
            return
        del self._running[run]
        self._ends.append(heard)
        if heard.what != "measured":
            self._give_up = min(self._give_up, time.monotonic() + ECHO_S)

    def _call_off(self) -> None:
        for run in self._running:
            ray.cancel(run)

    def _close_rendezvous(self) -> None:
        if self._rendezvous:
            self._rendezvous.close()
            self._rendezvous = None
