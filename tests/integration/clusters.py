"""Ray clusters of several nodes on this machine, each in processes of its own, that come and go as a test says."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import MARK

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
NODE = "SWEEP_TEST_NODE"  # names, in the environment of each of its processes, the node that they make up
SOON = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}  # is a node missed
GROWING = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
LABEL = "sweep-test-node"
LOG = "driver.log"
ANSWER, ANSWERS_WITHIN_S = "answer: ", 120
STARTS = 3  # that Ray is given: on a machine with much to do its agent may be late for its raylet


class Cluster:
    """A head and whatever joins it. Its nodes share the machine's address, and nothing else."""

    def __init__(self, cpus: int, grows_by: int = 0, takes_jobs: bool = False, **variables: str) -> None:
        """With a head of so many CPUs; one that grows by itself does so by nodes of so many, two at most. `variables`
        are those of all its processes."""
        self._folder = Path(tempfile.mkdtemp(prefix="sweep-test-"))
        (self._folder / "token").write_text(secrets.token_hex(32))
        self._ids: dict[str, str] = {}
        self._answers: Answers | None = None
        self._drivers: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.environment = {
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            **variables,
        }
        self._takes_jobs, self._jobs_port = takes_jobs, free_port()
        self.jobs = f"http://127.0.0.1:{self._jobs_port}"
        self._cpus = cpus
        self._options: list[str] = []
        self._growing = GROWING if grows_by else {}  # with it, the heads of all clusters are node fff…
        if grows_by:
            growth = self._folder / "growth.yaml"
            growth.write_text(json.dumps(growing(grows_by, self.address)))
            self._options.append(f"--autoscaling-config={growth}")
        with self._cleared_if_it_fails():
            self.start()

    def start(self) -> None:
        """The head; once more at its address, if it was killed."""
        place = [
            f"--port={self._port}",
            f"--dashboard-port={self._jobs_port}",
            f"--dashboard-agent-listen-port={free_port()}",  # else all have one: who comes second takes no job
            f"--temp-dir={self._folder}/{free_port()}",
        ]
        dashboard = f"--include-dashboard={str(self._takes_jobs).lower()}"
        self._start("head", self._cpus, "--head", dashboard, *place, *self._options)

    def logs(self) -> list[Path]:
        """Return those of Ray's own that there are."""
        return [*self._folder.glob("*/session_latest/logs/*")]

    def join(self, name: str, cpus: int) -> None:
        """A node more; returns when Ray has it."""
        self.join_all(**{name: cpus})

    def join_all(self, **cpus: int) -> None:
        """Nodes of so many CPUs, by their names, at once."""

        def start(name: str) -> None:
            self._start(name, cpus[name], f"--address={self.address}", f"--labels={LABEL}={name}")

        with concurrent.futures.ThreadPoolExecutor(len(cpus)) as at_once:
            list(at_once.map(start, cpus))
        alive = f"[[node['Labels'].get('{LABEL}'), node['NodeID']] for node in ray.nodes() if node['Alive']]"

        def have_come() -> bool:
            self._ids |= {name: node for name, node in self.ask(alive) if name in cpus}
            return cpus.keys() <= self._ids.keys()

        assert eventually(have_come, 30), self.ask("ray.nodes()")

    def driver(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A `sweep` on this cluster, under way; what it says goes to `driver.log`."""
        with open(LOG, "ab") as log:
            self._drivers.append(
                subprocess.Popen(
                    [str(BIN / "sweep"), *arguments, "--address", self.address],
                    env=os.environ | self.environment,
                    stdout=log,
                    stderr=log,
                )
            )
        return self._drivers[-1]

    def end_drivers(self) -> None:
        """Those that a test has left, if it failed: they would have the nodes of the next."""
        for driver in self._drivers:
            driver.kill()
            driver.wait()
        self._drivers.clear()

    def ranks(self, name: str) -> list[psutil.Process]:
        """That run on a node at this moment."""
        found = []
        for process in processes(**{NODE: self._mark(name)}):
            with contextlib.suppress(psutil.Error):
                if _is_fork_server(process) and (parent := process.parent()) and _is_fork_server(parent):
                    found.append(process)
        return found

    def kill(self, name: str) -> None:
        """Every process of the nodes whose names begin so, at once and without a word."""
        if "head".startswith(name):
            self.hang_up()
        for _ in range(5):  # what is ended may just have started another
            if not (found := processes(**{NODE: self._mark(name)})):
                return
            for process in [*found]:  # Ray's agents have their title where their environment was
                with contextlib.suppress(psutil.Error):
                    found += process.children(recursive=True)
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(found, timeout=5)

    def close(self) -> None:
        self.end_drivers()
        self.kill("")
        shutil.rmtree(self._folder, ignore_errors=True)

    def processes(self) -> list[psutil.Process]:
        """All of all its nodes, ranks and supervisors too."""
        return processes(**{NODE: f"{self._folder}/"})

    def ask(self, question: str) -> Any:
        """What `question`, in Python and of Ray, comes to on the cluster."""
        if not self._answers:
            self._answers = Answers(self.address, os.environ | self.environment, self._folder / "answers.log")
        try:
            return self._answers.to(question)
        except RuntimeError:  # the next is asked of another
            self.hang_up()
            raise

    def hang_up(self) -> None:
        """Whoever has asked so far is no longer connected."""
        if self._answers:
            self._answers.close()
            self._answers = None

    def nodes(self) -> int:
        """That are alive."""
        alive: int = self.ask("sum(node['Alive'] for node in ray.nodes())")
        return alive

    def id(self, name: str) -> str:
        """Ray's, of a node, a dead one too."""
        return self._ids[name]

    def placement_groups(self) -> int:
        """Those that hold anything or wait for it."""
        table = "[group['state'] for group in ray.util.placement_group_table().values()]"
        return sum(state != "REMOVED" for state in self.ask(table))

    def _start(self, name: str, cpus: int, *options: str) -> None:
        command = [str(BIN / "ray"), "start", "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", *options]
        environment = os.environ | self.environment | SOON | self._growing | {NODE: self._mark(name)}
        for _ in range(STARTS):
            started = subprocess.run(
                [*command, "--disable-usage-stats"], env=environment, capture_output=True, text=True, check=False
            )
            if started.returncode == 0:
                return
            self.kill(name)
        raise RuntimeError(started.stdout + started.stderr)

    def _mark(self, name: str) -> str:
        return f"{self._folder}/{name}"

    @contextlib.contextmanager
    def _cleared_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


class Answers:
    """A program on a cluster that does nothing but answer: to connect anew for each question takes seconds."""

    CODE = f"""
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
for question in sys.stdin:
    print({ANSWER!r} + json.dumps(eval(json.loads(question))), flush=True)
"""

    def __init__(self, address: str, environment: dict[str, str], log: Path) -> None:
        self._log = log
        own = {name: value for name, value in environment.items() if name != MARK}  # it goes with its cluster
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self.CODE, address],
                env=own,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def to(self, question: str) -> Any:
        """What it comes to, in Python and of Ray; a JSON value."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps(question)}\n")
            self._process.stdin.flush()
        too_late = threading.Timer(ANSWERS_WITHIN_S, self._process.kill)
        too_late.start()
        try:
            for line in self._process.stdout:  # Ray may have news, too
                if line.startswith(ANSWER):
                    return json.loads(line.removeprefix(ANSWER))
        finally:
            too_late.cancel()
        raise RuntimeError(f"{question}\n{self._log.read_text()}")

    def close(self) -> None:
        with self._process:
            self._process.kill()


def growing(cpus: int, head: str) -> dict[str, Any]:
    """Ray's own stand-in for a cloud: its nodes are processes beside the head's."""

    def kind(cpus: int, most: int) -> dict[str, Any]:
        return {"resources": {"CPU": cpus}, "node_config": {}, "min_workers": 0, "max_workers": most}

    return {
        "cluster_name": "test",
        "max_workers": 2,
        "idle_timeout_minutes": 10,
        "upscaling_speed": 1.0,
        "provider": {"type": "fake_multinode", "gcs_address": head, "disable_node_updaters": True},
        "available_node_types": {"ray.head.default": kind(0, 0), "ray.worker.cpu": kind(cpus, 2)},
        "head_node_type": "ray.head.default",
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "cluster_synced_files": [],
        **{f"{when}_commands": [] for when in ("initialization", "setup", "head_setup", "worker_setup")},
        **{f"{which}_start_ray_commands": [] for which in ("head", "worker")},
    }


def _is_fork_server(process: psutil.Process) -> bool:
    """Or one of its ranks, which are its forks."""
    return "workers.launch.fork_server" in process.cmdline()


def said() -> str:
    """By the drivers so far."""
    return Path(LOG).read_text()


def free_port() -> int:
    """A port outside the range of those that the system gives to whoever asks for any, such as another test's Ray."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def processes(**variables: str) -> list[psutil.Process]:
    """Those in whose environment each variable begins so."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # one that has just ended
            environment = process.environ()
            if all(environment.get(name, "").startswith(text) for name, text in variables.items()):
                found.append(process)
    return found


def eventually(holds: Callable[[], bool], patience_s: float = 240) -> bool:
    """Does it come to hold?"""
    until = time.monotonic() + patience_s
    while not (does := holds()) and time.monotonic() < until:
        time.sleep(0.2)
    return does
