"""A trial's gang of ranks over its Ray placement group: seats, rendezvous, deadlines, the outcome as a value.

One keeper actor holds each bundle and outlives trials, so that a gang of the same shape starts at once. One
nurse actor a node keeps that node's nursery alive for as long as the sweep runs.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from workers import contract, verdict
from workers.keeper import Keeper, Order, RankEnd
from workers.paths import SweepPaths, nursery_address
from workers.rank import Seat
from workers.ring import Rendezvous

ENTRY = "workers.train:run"
ECHO_S = 2.0  # how long the rest of a gang may take to end by itself once one rank has


def nursery_key() -> str:
    """One nursery a node and sweep."""
    here = ray.get_runtime_context()
    return f"{here.get_job_id()}-{here.get_node_id()[:16]}"


class Nurse:
    """Keeps this node's nursery alive, and takes it along when it goes."""

    def __init__(self, log: str) -> None:
        self._log = Path(log)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._command = [sys.executable, "-m", "workers.nursery", nursery_address(nursery_key())[1:]]
        # A nursery sees every GPU of its node; each rank is told which is its own.
        self._env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        self._env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._nursery = self._start()
        threading.Thread(target=self._tend, daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _tend(self) -> None:
        while True:
            self._nursery.wait()
            time.sleep(0.2)
            self._nursery = self._start()

    def pid(self) -> int:
        return self._nursery.pid


class Nurses:
    """A nurse on every node that ranks may run on, as long as this object's process lives."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._nurses: dict[str, Any] = {}

    def cover(self) -> None:
        """Send a nurse to each node that has none yet: at the start, and when a node has joined."""
        nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for gone in self._nurses.keys() - nodes:
            del self._nurses[gone]
        for node in nodes - self._nurses.keys():
            self._nurses[node] = (
                ray.remote(Nurse)
                .options(
                    num_cpus=0,
                    max_restarts=-1,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                )
                .remote(str(self._logs / f"nursery-{node[:8]}.log"))
            )

    def pids(self) -> list[int]:
        return list(ray.get([nurse.pid.remote() for nurse in self._nurses.values()]))


@dataclasses.dataclass(frozen=True)
class Bench:
    """Where a keeper sits, as it found it."""

    node: str
    address: str
    interface: str
    gpu: str
    nursery: str


class GroupKeeper(Keeper):
    """A keeper in its bundle."""

    def __init__(self) -> None:
        super().__init__(nursery_key())

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


class Group:
    """The ranks of one trial at a time, one in each bundle of a placement group."""

    def __init__(self, placement: PlacementGroup, bundles: Sequence[dict[str, float]]) -> None:
        self._placement = placement
        self._bundles = bundles
        self._keepers: list[Any] = []
        self._benches: list[Bench] = []
        self._ticket = 0
        self._running: dict[Any, int] = {}  # a keeper's run: its rank
        self._ends: list[RankEnd] = []
        self._give_up = float("inf")
        self._rendezvous: Rendezvous | None = None

    def start(self, config: contract.TrialConfig, logs: SweepPaths, entry: str = ENTRY) -> None:
        """Have every rank forked. Returns at once; `wait` tells how it went."""
        if not self._keepers:
            self._seat_keepers()
        seats = seated(self._benches)
        if config.gpus > 1:
            alone = len({bench.nursery for bench in self._benches} | {nursery_key()}) == 1
            self._rendezvous = Rendezvous(seats, "127.0.0.1" if alone else ray.util.get_node_ip_address())
            seats = [dataclasses.replace(seat, rendezvous=self._rendezvous.address) for seat in seats]
        self._granted = [
            contract.Granted(rank=rank, node=bench.node, gpu=bench.gpu) for rank, bench in enumerate(self._benches)
        ]
        self._ends, self._give_up = [], float("inf")
        self._ticket += 1
        for keeper, bench, seat in zip(self._keepers, self._benches, seats, strict=True):
            order = Order(
                config=config,
                seat=seat,
                entry=entry,
                env={"CUDA_VISIBLE_DEVICES": bench.gpu or "-1"},
                log=str(logs.rank_log(config.trial, seat.rank)),
                ticket=self._ticket,
            )
            self._running[keeper.run.remote(order)] = seat.rank

    def wait(self, timeout_s: float) -> contract.TrialOutcome | None:
        """The outcome once every rank has ended; None if that takes longer than `timeout_s`."""
        until = time.monotonic() + timeout_s
        while self._running:
            now = time.monotonic()
            if now >= self._give_up:
                self._stop_keepers()
                self._give_up = float("inf")
            ready, _ = ray.wait(list(self._running), timeout=max(0.0, min(until, self._give_up) - now))
            for run in ready:
                self._take(run)
            if self._running and time.monotonic() >= until:
                return None
        self._close_rendezvous()
        outcome = verdict.outcome(self._ends, self._granted)
        if any(end.what == "lost" for end in self._ends):
            self.close()
        return outcome

    def progress(self) -> tuple[contract.Phase, int]:
        """How far the slowest rank has come."""
        seen: list[tuple[contract.Phase, int]] = ray.get([keeper.progress.remote() for keeper in self._keepers])
        return min(seen, key=lambda at: (contract.PHASES.index(at[0]), at[1]))

    def stop(self) -> None:
        """End the trial that runs, if one does; afterwards none of its processes is left."""
        self._stop_keepers()
        while self._running:
            self.wait(timeout_s=30)

    def close(self) -> None:
        self.stop()
        for keeper in self._keepers:
            ray.kill(keeper)
        self._keepers, self._benches = [], []

    def _seat_keepers(self) -> None:
        keepers = [
            ray.remote(GroupKeeper)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_concurrency=3,  # a run, a look at its progress, a stop
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement, index),
            )
            .remote()
            for index, bundle in enumerate(self._bundles)
        ]
        benches = ray.get([keeper.where.remote() for keeper in keepers])
        # Ranks of one node sit side by side, in the order of the nodes' first bundles.
        nodes = list(dict.fromkeys(bench.nursery for bench in benches))
        order = sorted(range(len(keepers)), key=lambda i: (nodes.index(benches[i].nursery), i))
        self._keepers = [keepers[i] for i in order]
        self._benches = [benches[i] for i in order]

    def _take(self, run: Any) -> None:
        rank = self._running.pop(run)
        try:
            end = ray.get(run)
        except ray.exceptions.RayError as error:
            end = RankEnd(rank=rank, what="lost", kind="node lost", message=str(error).splitlines()[0], at=time.time())
        self._ends.append(end)
        if end.what != "measured":
            self._give_up = min(self._give_up, time.monotonic() + ECHO_S)

    def _stop_keepers(self) -> None:
        for rank in self._running.values():
            self._keepers[rank].stop.remote(self._ticket)

    def _close_rendezvous(self) -> None:
        if self._rendezvous:
            self._rendezvous.close()
            self._rendezvous = None


def seated(benches: Sequence[Bench]) -> list[Seat]:
    """Horovod's view of the gang: rank, place within the node, place among the nodes. Benches come node by node."""
    nodes = list(dict.fromkeys(bench.nursery for bench in benches))
    here = Counter(bench.nursery for bench in benches)
    seen: Counter[str] = Counter()
    seats = []
    for rank, bench in enumerate(benches):
        local = seen[bench.nursery]
        seen[bench.nursery] += 1
        peers = [node for node in nodes if here[node] > local]  # nodes that have a rank of this local rank
        seats.append(
            Seat(
                rank=rank,
                size=len(benches),
                local_rank=local,
                local_size=here[bench.nursery],
                cross_rank=peers.index(bench.nursery),
                cross_size=len(peers),
                host=bench.address,
                interface="lo" if len(nodes) == 1 else bench.interface,
            )
        )
    return seats
