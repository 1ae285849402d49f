"""A sweep on a cluster that is followed from elsewhere: what goes over the wire, and what stays on the head of someone
who falls silent. Through a real head, and a wire whose bytes are counted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.clusters import BIN, Cluster, eventually

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(400)]

MOST_BYTES_PER_S = 4096
LOOKED_AT_S = 20.0
PAST, LINE = 2000, "line {} of what a driver says, which is about as long as the lines that it says mostly"
LISTENS_S = 4
DRIVES = "drives_x.py"
DRIVER = f"""
import json, time
from sweeps.record import ownership
from sweeps.spec import plan, sweep_file

text = "name: x\\nmodel: tiny\\ndevice: cpu\\nspace: {{batch_size: [8, 16], gpus: [1, 2]}}\\n"
book = ownership.create(plan.plan(sweep_file.parse(text, "x"), "x"), text)
node = {{"cpus": 64, "gpus": 8, "kind": "A100", "ranks": 8, "others_until": None}}
run = {{"stage": "step 20/100", "images_per_s": 1234.5, "since_s": 61.0, "ends_at": time.time() + 30}}
for n in range(10**9):
    print({LINE!r}.format(n), flush=n >= {PAST})
    if n >= {PAST}:
        now = {{"sweep": "x", "state": "running", "at": time.time(), "trials": 12, "ended": {{}}, "waiting": 4}}
        now |= {{"spent": 0.5, "unit": "GPU-hours", "nodes": [node | {{"node": f"n{{i}}"}} for i in range(4)]}}
        now |= {{"running": [run | {{"trial": f"b{{i}} #0", "nodes": [f"n{{i}}"]}} for i in range(4)]}}
        book.paths.status.write_text(json.dumps(now))
        time.sleep(1)
"""
SUBMITS = """
import sys
from sweeps.cluster import connection, ray_jobs

with connection.client(sys.argv[1]) as client:
    ray_jobs._start(client, "drives-x", ["python", sys.argv[2]], {})
"""
FETCHES_ALL = """
import sys
from sweeps.cluster import connection, job_log

with connection.client(sys.argv[1]) as client:
    for line in job_log.lines(client, "drives-x"):
        print(line, flush=True)
"""
FOLLOWS = """
import sys
from sweeps.cli import main
from sweeps.cluster import ray_jobs

ray_jobs.FOLLOWED_S = float(sys.argv[1])
sys.exit(main.main(sys.argv[2:]))
"""


class Wire:
    """Takes connections and passes on what comes, both ways, until it is cut: then nothing more, and nobody hears of
    it, as of a laptop that is closed."""

    def __init__(self, port: int) -> None:
        self.bytes, self._port, self._is_cut = 0, port, False
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._door.accept()
                theirs = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [ours, theirs]
                for ends in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (some := source.recv(65536)) and not self._is_cut:
                self.bytes += len(some)
                to.sendall(some)
            if not self._is_cut:
                to.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        self._is_cut = True

    def close(self) -> None:
        self._door.close()
        for end in self._ends:
            end.close()


def bytes_per_s(*wires: Wire) -> list[float]:
    """Over each, from now on, for a while."""
    before, began = [wire.bytes for wire in wires], time.monotonic()
    time.sleep(LOOKED_AT_S)
    took_s = time.monotonic() - began
    rates = [(wire.bytes - bytes_then) / took_s for wire, bytes_then in zip(wires, before, strict=True)]
    print("bytes a second:", *map(round, rates))
    return rates


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One that drives a sweep, which goes on for ever."""
    results = str(tmp_path_factory.mktemp("results"))
    (script := Path(results) / DRIVES).write_text(DRIVER)
    made = Cluster(2, takes_jobs=True, SWEEP_RESULTS=results, PATH=f"{BIN}:{os.environ['PATH']}")
    try:
        run = [sys.executable, "-c", SUBMITS, made.jobs, str(script)]
        subprocess.run(run, env=os.environ | made.environment, check=True, timeout=120)
        assert eventually(lambda: (Path(results) / "x/status.json").exists(), patience_s=60)
        yield made
    finally:
        made.close()


@pytest.fixture
def wires(cluster: Cluster) -> Iterator[Callable[[], Wire]]:
    made = []

    def another() -> Wire:
        made.append(Wire(int(cluster.jobs.rpartition(":")[2])))
        return made[-1]

    yield another
    for wire in made:
        wire.close()


@pytest.fixture
def wire(wires: Callable[[], Wire]) -> Wire:
    return wires()


Follow = Callable[..., tuple[subprocess.Popen[bytes], Callable[[], list[str]]]]


@pytest.fixture
def follow(cluster: Cluster, tmp_path: Path) -> Iterator[Follow]:
    """Starts one who follows; what they have been told so far, in whole lines."""
    running = []

    def start(script: str, *words: str) -> tuple[subprocess.Popen[bytes], Callable[[], list[str]]]:
        told = tmp_path / f"told-{len(running)}"
        with told.open("wb") as out:
            command = [sys.executable, "-c", script, *words]
            running.append(subprocess.Popen(command, env=os.environ | cluster.environment, stdout=out))
        return running[-1], lambda: told.read_text().split("\n")[:-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def commands(cluster: Cluster, part: str) -> list[str]:
    """Those on the head that have this part in them, of the jobs themselves."""
    lines = []
    for process in cluster.processes():
        with contextlib.suppress(psutil.Error):  # it has just ended
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if part in line]


def asked(cluster: Cluster) -> list[str]:
    """The commands that run on the head for somebody elsewhere."""
    return commands(cluster, "-m sweeps.cli.on_head")


@pytest.mark.long  # a cost; what is shown, the tests above have
def test_whoever_follows_costs_little_and_one_who_fetched_all_each_time_would_be_found(
    cluster: Cluster, wires: Callable[[], Wire], follow: Follow
) -> None:
    """The status, also where it is asked for again, and the log, for which no command runs meanwhile."""
    log, status, thief = wires(), wires(), wires()
    _, log_told = follow(FOLLOWS, "90", "logs", "x", "-f", "--address", log.url)
    _, status_told = follow(FOLLOWS, "90", "status", "x", "-f", "--format", "json", "--address", status.url)
    _, thief_told = follow(FETCHES_ALL, thief.url)
    assert eventually(lambda: len(log_told()) > PAST + 2, patience_s=60)
    assert eventually(lambda: len(status_told()) > 2, patience_s=60)
    assert eventually(lambda: len(thief_told()) > PAST, patience_s=60)
    assert eventually(lambda: not commands(cluster, "-m sweeps.cli.on_head logs"), patience_s=30)
    before = [len(told()) for told in (log_told, status_told)]
    log_rate, status_rate, thief_rate = bytes_per_s(log, status, thief)
    assert all(len(told()) > count for told, count in zip((log_told, status_told), before, strict=True))
    assert log_told() == [LINE.format(n) for n in range(len(log_told()))]
    assert 0 < log_rate < MOST_BYTES_PER_S
    assert 0 < status_rate < MOST_BYTES_PER_S
    assert thief_rate > 10 * MOST_BYTES_PER_S


def test_a_command_on_the_head_ends_soon_after_its_follower_fell_silent_and_not_before(
    cluster: Cluster, wire: Wire, follow: Follow
) -> None:
    follower, told = follow(FOLLOWS, str(LISTENS_S), "status", "x", "-f", "--format", "json", "--address", wire.url)
    assert eventually(lambda: len(told()) > 3 * LISTENS_S, patience_s=120)  # it was asked again
    at = [json.loads(line)["at"] for line in told()]
    assert at == sorted(at)
    assert follower.poll() is None
    assert eventually(lambda: bool(asked(cluster)), patience_s=30)
    wire.cut()
    assert eventually(lambda: not asked(cluster), patience_s=60)
    assert commands(cluster, DRIVES), "the sweep goes on"


def test_one_who_leaves_by_ctrl_c_leaves_nothing_behind(cluster: Cluster, wire: Wire, follow: Follow) -> None:
    follower, told = follow(FOLLOWS, "90", "status", "x", "-f", "--format", "json", "--address", wire.url)
    assert eventually(lambda: len(told()) > 1, patience_s=60)
    follower.send_signal(signal.SIGINT)
    follower.wait(60)
    assert eventually(lambda: not asked(cluster), patience_s=30)
