"""Real ranks and strangers: while a gang joins, while it trains, and at every port of the Ray that it runs on."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import importlib.util
import queue
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from sweeps.run import status
from tests.cluster import strangers
from tests.integration import bad_ranks, gangs
from tests.integration.clusters import Cluster, eventually, said
from tests.integration.gangs import gang
from tests.integration.joining_ranks import listening
from workers.contract import messages
from workers.launch import verdict
from workers.strategies import rendezvous
from workers.strategies.rendezvous import Rendezvous

ROOT = Path(__file__).parents[2]

PATIENT = messages.Deadlines(fork_server_s=60, ring_s=20, build_s=60, step_s=20)
HASTY = dataclasses.replace(PATIENT, ring_s=8, step_s=8)  # whatever the gang comes to in that time
NODE = "a"
OF_SCRIPTS = "workers.workloads.script.run:run"
SWEEP = """
name: small
model: tiny
device: cpu
image_size: 32
classes: 10
repeats: 1
space: {batch_size: 8, gpus: 2}
steps: {warmup: 1, measured: 100000}
explain: false
probe_every_min: 0
"""


@pytest.fixture
def meetings(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[Rendezvous]:
    """Where gangs meet, as they are opened."""
    made: queue.SimpleQueue[Rendezvous] = queue.SimpleQueue()

    class Seen(Rendezvous):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.put(self)

    monkeypatch.setattr(gangs, "Rendezvous", Seen)
    return made


def by_the_word(meeting: Rendezvous, method: str, path: str) -> tuple[int, bytes]:
    """What one of the gang gets."""
    line = http.client.HTTPConnection(*rendezvous.place(meeting.address), timeout=10)
    word, port = meeting.address.partition("/")[2], rendezvous.place(meeting.address)[1]
    with contextlib.closing(line):
        line.request(method, f"/{word}:{port}/{path}")
        answer = line.getresponse()
        return answer.status, answer.read()


def answers(meeting: Rendezvous, by: str) -> bool:
    """Whether somebody at this address is told anything, though they have the word."""
    host, port = rendezvous.place(meeting.address)
    line = http.client.HTTPConnection(host, port, timeout=10, source_address=(by, 0))
    with contextlib.closing(line), contextlib.suppress(OSError, http.client.HTTPException):
        line.request("GET", f"/{meeting.address.partition('/')[2]}:{port}/global/0")
        return bool(line.getresponse().status)
    return False


def test_while_a_gang_joins_a_stranger_gets_nothing_and_changes_nothing(
    fork_server: subprocess.Popen[bytes], tmp_path: Path, meetings: queue.SimpleQueue[Rendezvous]
) -> None:
    """Rank 0 has come and left its address; rank 1 never comes, and a stranger would take its seat."""
    with ThreadPoolExecutor() as pool:
        running = pool.submit(gang, 2, tmp_path, batch_size=bad_ranks.NEVER_JOINS, deadlines=PATIENT)
        meeting = meetings.get(timeout=60)
        assert eventually(lambda: by_the_word(meeting, "GET", "global/0")[0] == 200, patience_s=60)
        found = strangers.complaints(*rendezvous.place(meeting.address))
        absent = by_the_word(meeting, "GET", "global/rank_1")[0]
        told = {by: answers(meeting, by) for by in ("127.0.0.1", "127.0.0.2")}
        bound = listening(psutil.Process(fork_server.pid).children())
        outcome = verdict.outcome(running.result(), ())
    assert not found
    assert absent == 404
    assert told == {"127.0.0.1": True, "127.0.0.2": False}
    word = meeting.address.partition("/")[2]
    assert not [log.name for log in tmp_path.glob("*.log") if word in log.read_text()]
    assert bound  # Gloo, for the rank that does not come
    assert {address for address, _ in bound} == {"127.0.0.1"}
    assert (outcome.rank, outcome.kind) == (bad_ranks.BAD_RANK, "no rendezvous")


def test_a_stranger_in_a_ranks_place_learns_nothing_and_costs_the_trial_at_most(
    fork_server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Gloo asks nobody who they are: docs/cluster.md says so."""
    ranks = psutil.Process(fork_server.pid).children
    with ThreadPoolExecutor() as pool:
        running = pool.submit(
            gang,
            2,
            tmp_path,
            "tests.integration.joining_ranks:late",
            deadlines=HASTY,
        )
        assert eventually(lambda: bool(listening(ranks())), patience_s=60)
        with strangers.in_the_way(*listening(ranks())[0]) as heard:
            ends = running.result()
    assert len(b"".join(heard)) < 1024
    assert {end.message for end in ends if end.kind == "checked"} <= {"3"}  # nobody has added the stranger up
    assert eventually(lambda: not ranks(), patience_s=15)


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.long), 3])
def test_nobody_of_a_gang_listens_once_all_have_joined(
    fork_server: subprocess.Popen[bytes], size: int, tmp_path: Path
) -> None:
    ends = gang(size, tmp_path, "tests.integration.joining_ranks:look_around")
    assert [(end.kind, end.message) for end in ends] == [("checked", "[], the rendezvous closed")] * size


STEPS = """
import pathlib, time
import sweeps
{join}
folder = pathlib.Path(__file__).parent

def batches():
    while not total(float((folder / "over").exists())):
        yield None

for n, _ in enumerate(sweeps.steps(batches(), items=1)):
    time.sleep(0.02)
    if n == 3:
        (folder / "stepping").touch()
"""
BY_HOROVOD = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()

def total(value):
    return float(hvd.allreduce(tf.constant(value), op=hvd.Sum, name="total").numpy())
"""
BY_TORCHRUN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")

def total(value):
    summed = torch.tensor(value)
    dist.all_reduce(summed)
    return float(summed)
"""
IN_THE_STORE = """
import sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.2", int(sys.argv[1]), is_master=False)
store.set("planted", "here")
print(store.get("planted").decode())
"""


@pytest.mark.parametrize(
    ("ranks", "join"),
    [
        ("horovod", BY_HOROVOD),
        pytest.param(
            "torchrun",
            BY_TORCHRUN,
            marks=pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed"),
        ),
    ],
)
def test_in_the_midst_of_a_script_the_rendezvous_still_turns_strangers_away(
    fork_server: subprocess.Popen[bytes],
    tmp_path: Path,
    meetings: queue.SimpleQueue[Rendezvous],
    ranks: messages.Joining,
    join: str,
) -> None:
    """A script may join its ranks late, or again: so it listens as long as they run. docs/cluster.md says so, and which
    port of PyTorch's asks for nothing."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(STEPS).format(join=join))
    own = messages.Script(run=f"python {script}", ranks=ranks, items=0, unit="items", fork=True, lines="", lengths=())
    with ThreadPoolExecutor() as pool:
        running = pool.submit(gang, 2, tmp_path, OF_SCRIPTS, script=own, isolation="shared", measured_steps=1_000_000)
        try:
            meeting = meetings.get(timeout=60)
            assert eventually((tmp_path / "stepping").exists, patience_s=60), running
            found = strangers.complaints(*rendezvous.place(meeting.address))
            told = {by: answers(meeting, by) for by in ("127.0.0.1", "127.0.0.2")}
            doors = listening(psutil.Process(fork_server.pid).children(recursive=True))
            said = [one for door in doors for one in strangers.answers("127.0.0.1", door[1])]
            stores = [port for address, port in doors if address != "127.0.0.1"]
            planted = [in_the_store(port) for port in stores]
            assert not running.done()  # strangers have ended no trial
        finally:
            (tmp_path / "over").touch()
    assert not found
    assert told == {"127.0.0.1": True, "127.0.0.2": False}
    assert not said
    assert {end.kind for end in running.result()} == {"too few steps"}  # each came to the script's own end
    assert len(doors) == (3 if ranks == "torchrun" else 0)  # Gloo of both ranks, and the store
    assert planted == (["here"] if ranks == "torchrun" else [])  # whoever comes may change it


def in_the_store(port: int) -> str:
    """What a stranger finds in PyTorch's store that they have left there."""
    asks = [sys.executable, "-c", IN_THE_STORE, str(port)]
    return subprocess.run(asks, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.fixture(scope="module")
def cluster(head: Cluster) -> Cluster:
    """One that asks for a token."""
    head.join(NODE, cpus=2)
    return head


def is_stepping() -> bool:
    running = status.look("small").get("running", ()) if Path("results/small/status.json").exists() else ()
    return any(one["stage"].startswith("step ") for one in running)


@pytest.mark.timeout(600)
def test_no_port_of_a_cluster_lets_a_stranger_in_while_a_trial_runs(cluster: Cluster, workplace: Path) -> None:
    """Ray's own metrics aside: on a cluster `scripts/node` has them listen on loopback, here nothing does."""
    Path("small.yaml").write_text(SWEEP)
    driver = cluster.driver("run", "small.yaml")
    try:
        assert eventually(is_stepping), said()
        ranks = cluster.ranks(NODE)
        assert len(ranks) == 2
        ours = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
        doors = [("127.0.0.1", port) for _, port in listening([*cluster.processes(), *ours])]
        found = strangers.opened(doors)
        assert cluster.ranks(NODE) == ranks  # strangers have ended no trial
        assert not listening(ranks)
    finally:
        driver.terminate()
        driver.wait(120)
    assert len(doors) > 5, doors
    opened = {door: named for door, saw in found.items() if (named := [one for one in saw if "# HELP" not in one])}
    assert not opened, opened


def test_ray_still_dies_of_the_call_that_the_docs_name() -> None:
    """Once it does not, docs/cluster.md need not say so."""
    assert "`RaySyncer/StartSync`" in (ROOT / "docs/cluster.md").read_text()
    assert strangers.DEADLY.endswith("RaySyncer/StartSync")
    made = Cluster(cpus=0)
    try:
        host, _, port = made.address.partition(":")
        assert strangers.heard(host, int(port), b"")  # it greets whoever comes
        strangers.deadly(host, int(port))
        assert eventually(lambda: not strangers.heard(host, int(port), b""), patience_s=20)
    finally:
        made.close()
