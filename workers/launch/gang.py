"""A trial's gang of ranks over its Ray placement group: seats, rendezvous, deadlines, the outcome as a value.

A bundle is a node's part of the gang. The supervisors in it, one actor a rank, outlive trials: whatever gang comes next
on the same nodes starts at once. One actor a node keeps the node's fork server alive for as long as the sweep runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import math
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import psutil
import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from workers.checks import gpu_self_test, self_test
from workers.contract import datafiles, messages
from workers.contract.messages import Framework, Progress
from workers.contract.paths import SweepPaths, fork_server_address, wanted_address
from workers.launch import verdict
from workers.launch.seats import Location, seated
from workers.launch.supervisor import Order, RankEnd, await_all, is_installed, supervise
from workers.node import fingerprint, gpus
from workers.strategies.rendezvous import Rendezvous
from workers.workloads.images import checkpoint

ENTRY = "workers.workloads.images.train:run"
OF_SCRIPTS = "workers.workloads.script.run:run"
COVER_EVERY_S = 10.0
LOOK_EVERY_S = 5.0
LONGEST_NAME = 64  # of a framework, in bytes
CREDENTIALS = struct.Struct("3i")  # of who speaks: process, user, group
SURE_WITHIN_S = 60.0  # is Ray of a node's end
ECHO_S = 2.0  # how long the rest of a gang may take to end by itself once one rank has


def fork_server_key() -> str:
    """One a node and sweep: its fork servers, each of a framework, go by it."""
    here = ray.get_runtime_context()
    return f"{here.get_job_id()}-{here.get_node_id()[:16]}"


class NodeActor:
    """Keeps this node's fork servers and its sampler alive, and takes them along when it goes."""

    def introduce(self, folders: Mapping[str, Sequence[str]], env_from: Collection[str] = ()) -> dict[str, Any]:
        """Return what this node is made of, and which data it has: fingerprints of these splits in these folders. The
        values of these variables stay here."""
        node_id = ray.get_runtime_context().get_node_id()
        hardware, software = fingerprint.hardware(), fingerprint.told(fingerprint.software(), env_from)
        return {
            "id": node_id,
            "node": os.uname().nodename,
            "hardware": {"digest": fingerprint.digest(hardware), **hardware},
            "software": {**software, "project": fingerprint.project()},
            **({"torch_software": _torch_software(env_from)} if importlib.util.find_spec("torch") else {}),
            "data": {folder: datafiles.fingerprint(folder, splits) for folder, splits in folders.items()},
        }

    def tend(self, log: str, samples: str, sample_every_s: float, frameworks: Sequence[Framework], *how: str) -> None:
        """Tend the node until it is cancelled, with the fork servers of these frameworks, and with each other's from
        when a trial first wants it; with none of a framework that is not installed, whose fork server would die and be
        started again all the time. The call lasts, because an actor without one wakes a hundred times a second, in the
        way of those who measure."""
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        key = fork_server_key()
        sampler = [sys.executable, "-m", "workers.node.telemetry", samples, "--every", str(sample_every_s)]
        commands: dict[str, list[str]] = {
            name: _fork_server(key, name, how) for name in frameworks if is_installed(name)
        }
        commands |= {"sampler": sampler} if sample_every_s else {}
        # They see every GPU of the node; each rank is told which is its own.
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | gpus.ORDER
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)

        def started(command: list[str]) -> subprocess.Popen[bytes]:
            with open(log, "ab") as out:
                return subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
                )

        is_dismissed = ray.get_runtime_context().is_canceled
        running = {name: started(command) for name, command in commands.items()}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wanted:
            wanted.bind(wanted_address(key))
            wanted.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            wanted.settimeout(1.0)
            while not is_dismissed():
                with contextlib.suppress(TimeoutError):
                    name = _heard(wanted)
                    if name in _installed() and name not in commands:
                        commands[name] = _fork_server(key, name, how)
                        running[name] = started(commands[name])
                for name, process in running.items():
                    if process.poll() is not None:
                        running[name] = started(commands[name])
        for process in running.values():
            process.communicate()  # closes its input, and it goes


def _installed() -> list[str]:
    """Return the frameworks that this node has."""
    return [name for name in get_args(Framework) if is_installed(name)]


def _heard(wanted: socket.socket) -> str:
    """Return the name that a process of its own user asks for; nothing where another user does."""
    said, facts, _, _ = wanted.recvmsg(LONGEST_NAME, socket.CMSG_SPACE(CREDENTIALS.size))
    uids = [CREDENTIALS.unpack(fact)[1] for _, kind, fact in facts if kind == socket.SCM_CREDENTIALS]
    return said.decode(errors="replace") if uids == [os.getuid()] else ""


def _fork_server(key: str, framework: str, how: Sequence[str]) -> list[str]:
    """Return the command that starts a node's fork server of a framework."""
    own = how if framework == "tensorflow" else ()
    address = fork_server_address(key, framework)[1:]
    return [sys.executable, "-m", "workers.launch.fork_server", address, framework, *own]


def _torch_software(env_from: Collection[str]) -> dict[str, Any]:
    return fingerprint.told(fingerprint.software(framework="torch"), env_from)


class NodeActors:
    """A node actor on every node that ranks may run on, as long as this object's process lives."""

    def __init__(
        self,
        paths: SweepPaths,
        sample_every_s: float = 1.0,
        folders: Mapping[str, Sequence[str]] | None = None,
        *,
        env_from: Collection[str] = (),
        has_scripts: bool = False,
        frameworks: Sequence[Framework] = ("tensorflow",),
    ) -> None:
        """`folders` that trials read, each with its splits; variables that they have of their nodes. Scripts find all
        of a framework imported. The fork servers of `frameworks` are started at once, another's when a trial first
        wants it."""
        self._how = (tuple(frameworks), *(["whole"] if has_scripts else []))
        self._paths = paths
        self._folders = dict(folders or {})
        self._env_from = tuple(env_from)
        self._sample_every_s = sample_every_s
        self._node_actors: dict[str, tuple[Any, Any]] = {}  # by node: the node actor, and what it does until it goes
        self._introducing: list[Any] = []
        self._covered_at = -math.inf
        self._left_out: frozenset[str] = frozenset()  # nodes, when it was done last

    def cover(self, but: Collection[str] = ()) -> None:
        """Send a node actor to each node that has none yet: at the start, and when a node has joined. Not to those that
        others measure on: while its fork server imports TensorFlow a node is slow."""
        self._covered_at, self._left_out = time.monotonic(), frozenset(but)
        nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
        for gone in self._node_actors.keys() - nodes:
            del self._node_actors[gone]
        for node in nodes - self._node_actors.keys() - self._left_out:
            node_actor = (
                ray.remote(NodeActor)
                .options(
                    num_cpus=0,
                    max_restarts=-1,
                    max_task_retries=-1,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                )
                .remote()
            )
            self._introducing.append(node_actor.introduce.remote(self._folders, self._env_from))
            log = str(self._paths.logs / f"fork-server-{node[:8]}.log")
            samples = str(self._paths.samples(f"{ray.get_runtime_context().get_job_id()}-{node[:16]}"))
            self._node_actors[node] = node_actor, node_actor.tend.remote(log, samples, self._sample_every_s, *self._how)

    def introduced(self, but: Collection[str] = ()) -> list[dict[str, Any]]:
        """Return what the nodes that are new since the last call are made of, as far as they have said; `but` those of
        others."""
        if time.monotonic() - self._covered_at > COVER_EVERY_S or not self._left_out <= set(but):
            self.cover(but)
        if not self._introducing:
            return []
        said, self._introducing = ray.wait(self._introducing, num_returns=len(self._introducing), timeout=0)
        facts = []
        for one in said:
            with contextlib.suppress(ray.exceptions.RayError):  # a node that has gone meanwhile
                facts.append(ray.get(one))
        return facts

    def dismiss(self) -> None:
        """Send every node actor home, its fork server with it."""
        tending = [tending for _, tending in self._node_actors.values()]
        for call in tending:
            ray.cancel(call)
        if tending:
            ray.wait(tending, num_returns=len(tending), timeout=10)
        self._node_actors = {}


def own_address() -> str:
    """Return this node's address, by which it is in the cluster. Ray's own function asks which way leads to the
    internet: nodes that have none would all be 127.0.0.1."""
    address, _ = own_machine()
    return address


def own_machine() -> tuple[str, bool]:
    """Return this node's address, and whether another of Ray's nodes that ranks may run on has it too."""
    node_id, nodes = ray.get_runtime_context().get_node_id(), ray.nodes()
    address = next(node["NodeManagerAddress"] for node in nodes if node["NodeID"] == node_id)
    beside = [node for node in nodes if node["NodeManagerAddress"] == address and node["NodeID"] != node_id]
    return str(address), any(node["Alive"] and node["Resources"].get("CPU") for node in beside)


class Supervisor:
    """Sits in a bundle, and supervises one rank at a time."""

    def where(self) -> Location:
        address, shares_machine = own_machine()
        interfaces = [
            name for name, addresses in psutil.net_if_addrs().items() if any(a.address == address for a in addresses)
        ]
        return Location(
            node=os.uname().nodename,
            node_id=ray.get_runtime_context().get_node_id(),
            address=address,
            interface=interfaces[0] if interfaces else "",
            gpu=",".join(gpus.number(str(gpu)) for gpu in ray.get_gpu_ids()),
            fork_server=fork_server_key(),
            shares_machine=shares_machine,
            hardware=fingerprint.digest(fingerprint.hardware()),
            software=fingerprint.digest(fingerprint.software()),
        )

    def probe(
        self, last: str, every_s: float, patience_s: float, frameworks: Sequence[Framework], on_node: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Test this node, and the GPUs that the gang has on it, but for what was tested lately; not before its fork
        servers are there, which make a node slow while they import their frameworks."""
        due = [last] if not _is_recent(last, every_s) else []
        marks = [f"{last}-gpu-{gpu}" for gpu in on_node]
        if not all(_is_recent(mark, every_s) for mark in marks):
            due += marks
        if not due:
            return []
        self.await_fork_servers(frameworks, patience_s)
        node, tests = os.uname().nodename, []
        if last in due:
            tests.append({"node": node, "at": time.time(), "figures": self_test.probe()})
        if due[-1] != last:
            tests += gpu_self_test.probe(node, on_node)
        Path(last).parent.mkdir(parents=True, exist_ok=True)
        for mark in due:
            Path(mark).touch()
        return tests

    def await_fork_servers(self, frameworks: Sequence[Framework], patience_s: float) -> None:
        await_all(fork_server_key(), frameworks, patience_s)

    @ray.method(num_returns="streaming")  # type: ignore[untyped-decorator]
    def run(self, order: Order) -> Iterator[Progress | RankEnd]:
        """One thread does it all: an actor with several wakes a hundred times a second."""
        yield from supervise(order, fork_server_key(), ray.get_runtime_context().is_canceled)


def _is_recent(mark: str, within_s: float) -> bool:
    """Say whether a file was touched so short a time ago."""
    with contextlib.suppress(OSError):
        return time.time() - os.stat(mark).st_mtime < within_s
    return False


class NodeGoneError(Exception):
    """Before a rank could sit there."""

    def __init__(self, rank: int, node_id: str) -> None:
        super().__init__(f"node {node_id[:8]} of its placement group had gone before it started")
        self.rank = rank


class Group:
    """The ranks of one trial at a time, in a placement group with a bundle for each of their nodes."""

    def __init__(self, placement: PlacementGroup, seats: Sequence[int], node_ids: Sequence[str] = ()) -> None:
        """`seats` ranks in each bundle. The bundles must lie on the nodes named, where they are."""
        self.seats = seats  # of the next trial
        self._placement = placement
        self._node_ids = node_ids
        self._pools: list[list[tuple[Any, Location]]] = [
            [] for _ in seats
        ]  # by bundle: supervisors, and where they sit
        self._supervisors: list[Any] = []  # by rank, of the latest trial
        self._locations: list[Location] = []  # likewise
        self._running: dict[Any, int] = {}  # what a supervisor's run yields: its rank
        self._granted: list[messages.Granted] = []
        self._ends: list[RankEnd] = []
        self._give_up = float("inf")
        self._rendezvous: Rendezvous | None = None
        self._saved: Path | None = None  # where the trial leaves its checkpoints
        self._kept_before: checkpoint.Kept | None = None  # what lay there when it started

    def probe(
        self, paths: SweepPaths, every_s: float, config: messages.TrialConfig, frameworks: Sequence[Framework] = ()
    ) -> list[dict[str, Any]]:
        """Test each node that was not tested lately, once it has the fork servers of these frameworks. The gang has its
        nodes to itself, and its trial waits."""
        try:
            self._seat(config)
        except NodeGoneError:  # the trial's start will say so
            return []
        tests = [
            pool[0][0].probe.remote(
                str(paths.last_probe(pool[0][1].fork_server)),
                every_s,
                config.deadlines.fork_server_s,
                frameworks or (config.framework,),
                [location.gpu for _, location in pool if location.gpu],
            )
            for pool in self._pools
        ]
        return list(itertools.chain(*ray.get(tests)))

    def await_fork_servers(self, config: messages.TrialConfig, frameworks: Sequence[Framework]) -> None:
        """Wait until its nodes have the fork servers of these frameworks, all of which would be in the way of a trial
        while they start."""
        with contextlib.suppress(NodeGoneError):  # the trial's start will say so
            self._seat(config)
            patience_s = config.deadlines.fork_server_s
            ray.get([pool[0][0].await_fork_servers.remote(frameworks, patience_s) for pool in self._pools])

    def start(
        self,
        config: messages.TrialConfig,
        paths: SweepPaths,
        entry: str = ENTRY,
        at: float = 0.0,
        attempt: int = 0,
        folder: str = "",
    ) -> None:
        """Have every rank forked, a user's program in this folder.

        Returns at once; `wait` tells how it went. When, and how often before, is for gangs that only pretend.
        """
        self._ends, self._give_up = [], float("inf")
        self._saved = None
        self.progress = Progress("start", 0)  # of rank 0
        self.epochs: list[messages.EpochRecord] = []  # that it has finished
        try:
            self._supervisors = self._seat(config)
        except NodeGoneError as gone:
            self._granted = []
            self._ends = [RankEnd(rank=gone.rank, what="lost", kind="node lost", message=str(gone), at=time.time())]
            return
        seats = seated(self._locations)
        if config.gpus > 1:
            alone = len({location.fork_server for location in self._locations} | {fork_server_key()}) == 1
            self._rendezvous = Rendezvous(seats, "127.0.0.1" if alone else own_address())
            seats = [dataclasses.replace(seat, rendezvous=self._rendezvous.address) for seat in seats]
        self._saved = paths.checkpoint(config.trial) if config.checkpoint_every else None
        self._kept_before = self._kept()
        made = {
            "hardware": checkpoint.joined((location.fork_server, location.hardware) for location in self._locations),
            "arrangement": messages.arranged(self.seats),
        }
        places = [f"{location.node} {location.hardware} {location.software}" for location in self._locations]
        history = str(paths.history(config.cell, places))
        self._granted = [
            messages.Granted(
                rank=rank,
                node=location.node,
                gpu=location.gpu,
                node_id=location.node_id,
                hardware=location.hardware,
                software=location.software if config.framework == "tensorflow" else "",  # else its rank says it
            )
            for rank, location in enumerate(self._locations)
        ]
        for supervisor, location, seat in zip(self._supervisors, self._locations, seats, strict=True):
            order = Order(
                config=config,
                seat=dataclasses.replace(
                    seat,
                    folder=folder,
                    checkpoint=str(paths.checkpoint(config.trial)),
                    made=made,
                    history=history,
                ),
                entry=OF_SCRIPTS if config.script else entry,
                env=gpus.environment([location.gpu] if location.gpu else []),
                log=str(paths.rank_log(config.trial, seat.rank)),
                samples=str(paths.samples(location.fork_server)),
                gpus=tuple(gpu for gpu in seat.gpus if gpu),
            )
            self._running[supervisor.run.remote(order)] = seat.rank

    def wait(self, timeout_s: float) -> messages.TrialOutcome | None:
        """Return the outcome once every rank has ended; None if that takes longer than `timeout_s`."""
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

    def has_come_on(self) -> bool:
        """Say whether the trial has left a checkpoint, since its start, that the next attempt would not begin
        before."""
        kept = self._kept()
        return kept is not None and kept.is_beyond(self._kept_before)

    def _kept(self) -> checkpoint.Kept | None:
        return checkpoint.peek(self._saved) if self._saved else None

    def stop(self) -> None:
        """End the trial that runs, if one does; afterwards none of its processes is left."""
        self._call_off()
        while self._running:
            self.wait(timeout_s=30)

    def close(self) -> None:
        self.stop()
        for supervisor, _ in itertools.chain(*self._pools):
            ray.kill(supervisor)
        self._pools = [[] for _ in self._pools]

    def _seat(self, config: messages.TrialConfig) -> list[Any]:
        """Return a supervisor for each rank, in the order of the ranks; those that are there already sit where they
        sat."""
        missing = [
            (bundle, self._supervisor(config, bundle))
            for bundle, ranks in enumerate(self.seats)
            for _ in range(ranks - len(self._pools[bundle]))
        ]
        calls = [supervisor.where.remote() for _, supervisor in missing]
        while calls and ray.wait(calls, num_returns=len(calls), timeout=LOOK_EVERY_S)[1]:
            self._check_nodes([supervisor for _, supervisor in missing])
        locations = ray.get(calls)
        for (bundle, supervisor), location in zip(missing, locations, strict=True):
            self._check(location, bundle)
            self._pools[bundle].append((supervisor, location))
            self._pools[bundle].sort(key=lambda one: (len(one[1].gpu), one[1].gpu))  # a gang has its node's first
        seated = [one for pool, ranks in zip(self._pools, self.seats, strict=True) for one in pool[:ranks]]
        self._locations = [location for _, location in seated]
        return [supervisor for supervisor, _ in seated]

    def _supervisor(self, config: messages.TrialConfig, bundle: int) -> Any:
        options = {
            # Else an actor waits 30 s for a call that was cancelled before it was sent, and then fails the next.
            "allow_out_of_order_execution": True,
            "num_cpus": 0,  # its bundle has the cores
            "num_gpus": int(config.device == "gpu"),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._placement, bundle),
        }
        return ray.remote(Supervisor).options(**options).remote()

    def _check_nodes(self, waiting: Sequence[Any]) -> None:
        """Ray would wait for ever for a node that has gone."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for bundle, node in enumerate(self._node_ids):
            if node not in alive:
                for supervisor in waiting:
                    ray.kill(supervisor)
                raise NodeGoneError(sum(self.seats[:bundle]), node)

    def _check(self, location: Location, bundle: int) -> None:
        wanted = self._node_ids[bundle] if self._node_ids else location.node_id
        if location.node_id != wanted:
            raise RuntimeError(
                f"a rank was to sit on node {wanted[:8]}, but sits on {location.node} {location.node_id[:8]}"
            )

    def _hear(self, run: Any) -> None:
        """Hear what a supervisor yields next: progress, or the end of its rank."""
        rank = self._running[run]
        try:
            heard = ray.get(next(run))
        except ray.exceptions.TaskCancelledError:
            heard = RankEnd(rank=rank, what="stopped", at=time.time())
        except ray.exceptions.RayError as error:
            message = self._why_gone(self._supervisors[rank], error)
            heard = RankEnd(rank=rank, what="lost", kind="node lost", message=message, at=time.time())
        if isinstance(heard, Progress):
            if rank == 0:
                self._follow(heard)
            return
        del self._running[run]
        self._ends.append(heard)
        if heard.what != "measured":
            self._give_up = min(self._give_up, time.monotonic() + ECHO_S)

    def _follow(self, heard: Progress) -> None:
        self.progress = heard
        if heard.epoch and (not self.epochs or heard.epoch.epoch > self.epochs[-1].epoch):
            self.epochs.append(heard.epoch)

    def _why_gone(self, supervisor: Any, error: Exception) -> str:
        """Once Ray is sure that it is: until then its node would seem fit for the next attempt."""
        until = time.monotonic() + SURE_WITHIN_S
        while time.monotonic() < until:
            try:
                ray.get(supervisor.where.remote(), timeout=SURE_WITHIN_S)
                break  # it was only away for a moment
            except ray.exceptions.ActorDiedError as death:
                return _reason(death)
            except ray.exceptions.RayError:
                time.sleep(0.5)
        return _reason(error)

    def _call_off(self) -> None:
        for run in self._running:
            ray.cancel(run)

    def _close_rendezvous(self) -> None:
        if self._rendezvous:
            self._rendezvous.close()
            self._rendezvous = None


def _reason(error: Exception) -> str:
    """Return the line of what Ray says of an actor's death that says why."""
    lines = str(error).strip().splitlines()
    return next((line.strip() for line in lines if "because" in line), lines[0])
