"""Sweeps on clusters whose nodes differ, come late, die and come back: real Ray nodes, real ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sweeps.record import ledger, rows
from sweeps.record.ledger import TrialRecord
from sweeps.run import status
from tests.integration.clusters import BIN, LOG, Cluster, eventually, processes, said

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]

SWEEP = """
name: small
model: tiny
device: cpu
image_size: 32
classes: 10
repeats: 1
explain: false
probe_every_min: 0
"""
WITHIN_S = 60  # that a cluster that grows may hold what a driver wanted which is gone
LONG = SWEEP + "steps: {warmup: 1, measured: 300}\n"  # it runs still when it has just been seen to
SHORT = SWEEP + "steps: {warmup: 1, measured: 3}\n"


@pytest.fixture
def cluster(head: Cluster, workplace: Path) -> Iterator[Cluster]:
    yield head
    head.end_drivers()
    for node in "abc":
        head.kill(node)
    assert eventually(lambda: head.nodes() == 1)
    assert eventually(lambda: head.placement_groups() == 0)


def written(entry: str) -> list[dict[str, object]]:
    """Such entries of the ledger."""
    lines = Path("results/small/ledger.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == entry]


def nodes_of(trial: TrialRecord) -> list[str]:
    """Ray's, of each rank."""
    return [place.node_id for place in trial.outcome.granted]


def test_a_sweep_waits_for_its_nodes_whoever_drives_it_and_a_gang_for_another_when_one_of_them_dies(
    cluster: Cluster,
) -> None:
    """While it waits it has its name, and can be ended and gone on with."""
    Path("small.yaml").write_text(LONG + "space: {batch_size: 8, gpus: 2, placement: 2x1}\nwait_for_nodes_min: 10\n")
    cluster.join("a", cpus=1)
    for number, how in ((1, signal.SIGINT), (2, signal.SIGKILL)):
        driver = cluster.driver("run", "small.yaml")
        assert eventually(lambda told=number: said().count("results in") == told), said()
        assert status.look("small")["state"] == "starting"
        driver.send_signal(how)
        driver.wait(60)
        assert Path("results/small").exists() == (how == signal.SIGKILL)  # Ctrl-C leaves nothing of it
    Path(LOG).unlink()
    driver = cluster.driver("resume", "small")
    assert eventually(lambda: "waiting for nodes that hold 2 ranks" in said()), said()
    cluster.join("b", cpus=1)
    assert eventually(lambda: cluster.ranks("b") and cluster.ranks("a")), said()
    cluster.kill("b")
    assert eventually(lambda: "tried again" in said()), said()
    cluster.join("c", cpus=1)
    assert driver.wait(300) == 0, said()
    record = ledger.read("small")
    (trial,) = record.trials
    assert (trial.outcome.status, trial.attempts) == ("completed", 2)
    assert sorted(nodes_of(trial)) == sorted([cluster.id("a"), cluster.id("c")])
    assert rows.row(trial)["arrangement"] == "2x1"
    assert record.facts.nodes
    (attempt,) = written("attempt")
    assert attempt["outcome"]["kind"] == "node lost"
    assert len(written("trial")) == 1


@pytest.mark.long  # the tests above and below have a trial each that runs on where its node has died
def test_a_trial_whose_node_dies_runs_on_another(cluster: Cluster) -> None:
    Path("small.yaml").write_text(LONG + "space: {batch_size: [8, 16], gpus: 1}\n")
    cluster.join("a", cpus=1)
    cluster.join("b", cpus=1)
    driver = cluster.driver("run", "small.yaml")
    assert eventually(lambda: cluster.ranks("b") and cluster.ranks("a")), said()
    cluster.kill("b")
    assert driver.wait(300) == 0, said()
    trials = ledger.read("small").trials
    assert [trial.outcome.status for trial in trials] == ["completed"] * 2
    assert sorted(trial.attempts for trial in trials) == [1, 2]
    assert {node for trial in trials for node in nodes_of(trial)} == {cluster.id("a")}
    assert len(written("attempt")) == 1


@pytest.mark.long  # tests/unit/test_in_process.py has what no node is left for; the test above a node that dies
def test_what_a_shrunken_cluster_can_t_hold_is_lost_and_the_rest_measured(cluster: Cluster) -> None:
    axes = "space: {batch_size: 8, gpus: [1, 2], placement: spread}\nrepeats: 2\nwait_for_nodes_min: 0.05\n"
    Path("small.yaml").write_text(LONG.replace("repeats: 1\n", "") + axes)
    cluster.join("a", cpus=1)
    cluster.join("b", cpus=1)
    driver = cluster.driver("run", "small.yaml")
    assert eventually(lambda: bool(cluster.ranks("b")) and bool(cluster.ranks("a"))), said()
    cluster.kill("b")
    assert driver.wait(300) == 1, said()
    trials = ledger.read("small").trials
    assert {(trial.config.gpus, trial.outcome.status) for trial in trials} == {(1, "completed"), (2, "lost")}
    alone = [trial for trial in trials if trial.config.gpus == 1]
    assert {node for trial in alone for node in nodes_of(trial)} == {cluster.id("a")}
    assert {one["outcome"]["kind"] for one in written("attempt")} == {"node lost"}  # type: ignore[index]
    assert sorted(trial.attempts for trial in alone) in ([1, 1], [1, 2]), "what ran on a was left alone"
    assert "no node left: this cluster (1 CPUs + 0 GPUs) holds at most 1 ranks on device cpu" in said()
    assert len(written("trial")) == 4


def test_ranks_sit_on_uneven_nodes_as_their_placement_asks(cluster: Cluster) -> None:
    both = "space: {batch_size: [8, 16], gpus: 2, placement: [pack, spread, 2x1, 1x2]}\n"
    exact = "where: [\"batch_size == 8 or placement in ('2x1', '1x2')\"]\n"
    Path("small.yaml").write_text(SHORT + both + exact)
    cluster.join_all(a=1, b=2, c=1)
    assert cluster.driver("run", "small.yaml").wait(300) == 0, said()
    trials = {(trial.config.batch_size, trial.config.placement): trial for trial in ledger.read("small").trials}
    assert trials.keys() == {(8, "pack"), (8, "spread"), (16, "1x2"), (16, "2x1")}
    assert "left out: 1 cells: 2x1 is spread here; 1 cells: 1x2 is pack here" in said()
    for together, apart in (((8, "pack"), (8, "spread")), ((16, "1x2"), (16, "2x1"))):
        assert nodes_of(trials[together]) == [cluster.id("b")] * 2
        assert len(set(nodes_of(trials[apart]))) == 2
        assert [rows.row(trials[one])["arrangement"] for one in (together, apart)] == ["1x2", "2x1"]


@pytest.fixture(scope="module")
def growing() -> Iterator[Cluster]:
    """By two nodes of one CPU at most."""
    made = Cluster(cpus=0, grows_by=1)
    yield made
    made.close()


def test_a_cluster_that_grows_is_asked_for_the_nodes_of_a_gang(growing: Cluster, workplace: Path) -> None:
    Path("small.yaml").write_text(SHORT + "space: {batch_size: 8, gpus: 2}\nwait_for_nodes_min: 10\n")
    assert growing.driver("run", "small.yaml").wait(300) == 0, said()
    (trial,) = ledger.read("small").trials
    assert trial.outcome.status == "completed"
    assert len(set(nodes_of(trial))) == 2
    assert asked_for(growing) == []  # it may shrink again


def test_a_cluster_is_asked_for_what_the_sweeps_that_live_need_in_sum_and_for_nothing_else(
    growing: Cluster, workplace: Path
) -> None:
    request(growing, 2)  # left by whoever was here before
    assert len(asked_for(growing)) == 2
    assert eventually(lambda: growing.nodes() == 3)
    Path("small.yaml").write_text(LONG + "space: {batch_size: 8, gpus: 2}\n")
    contented = growing.driver("run", "small.yaml")
    assert eventually(lambda: asked_for(growing) == []), said()  # its nodes are there: it asks for none
    assert contented.poll() is None, said()
    assert eventually(lambda: growing.placement_groups() == 1), said()
    lose_a_node(growing)
    assert eventually(lambda: len(asked_for(growing)) == 2), said()  # it waits for another in its place
    assert contented.poll() is None, said()
    contented.send_signal(signal.SIGINT)
    assert contented.wait(100) == 130, said()
    drivers = []
    for gpus in (3, 4):  # never will there be as many nodes
        file = Path(f"large-{gpus}.yaml")
        file.write_text(SHORT + f"space: {{batch_size: 8, gpus: {gpus}}}\nwait_for_nodes_min: 10\n")
        drivers.append(growing.driver("run", str(file)))
    assert eventually(lambda: len(asked_for(growing)) == 7), said()
    (lease_actor,) = [one for one in growing.processes() if "ray::LeaseActor" in " ".join(one.cmdline())]
    lease_actor.kill()  # the requests of the living outlive it
    request(growing, 5)  # what is asked for in the meantime is not the lease actor's either
    assert eventually(lambda: len(asked_for(growing)) == 7), said()
    assert [driver.poll() for driver in drivers] == [None, None]
    drivers[0].kill()
    assert eventually(lambda: len(asked_for(growing)) == 4, WITHIN_S), said()  # the first one's go, and no more
    drivers[1].kill()
    assert eventually(lambda: asked_for(growing) == [], WITHIN_S), said()  # though nobody is left who would say so
    assert eventually(lambda: growing.ask("ray.util.list_named_actors(all_namespaces=True)") == [])


def test_a_submitted_sweep_has_its_name_at_once_though_its_nodes_never_come(workplace: Path) -> None:
    """A cluster that must grow first may take many minutes; this one can't grow that far."""
    Path("small.yaml").write_text(SHORT + "space: {batch_size: 8, gpus: 3}\nwait_for_nodes_min: 10\n")
    there = {"SWEEP_RESULTS": str(workplace / "results"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    made = Cluster(cpus=0, grows_by=1, takes_jobs=True, **there)

    def sweep(*arguments: str) -> str:
        command = [str(BIN / "sweep"), *arguments, "--address", made.jobs]
        environment = os.environ | made.environment
        ran = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=150)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    try:
        assert sweep("submit", "small.yaml").split() == ["small"]
        assert eventually(lambda: len(asked_for(made)) == 3)
        assert eventually(lambda: made.nodes() == 3)
        now = json.loads(sweep("status", "small", "--format", "json"))
        assert (now["state"], now["ended"]) == ("starting", {}), now
    finally:
        made.close()


def lose_a_node(growing: Cluster) -> None:
    """As a spot instance goes."""
    alive = "[node['NodeID'] for node in ray.nodes() if node['Alive'] and node['Resources'].get('CPU')]"
    (lost, *_) = growing.ask(alive)
    for process in processes(RAY_OVERRIDE_NODE_ID_FOR_TESTING=lost):
        with contextlib.suppress(psutil.Error):  # what goes with another
            process.kill()


def request(growing: Cluster, cpus: int) -> None:
    """As a program does that is gone a moment later."""
    growing.ask(
        f"__import__('ray.autoscaler.sdk', fromlist=['sdk']).request_resources(bundles=[{{'CPU': 1}}] * {cpus})"
    )
    growing.hang_up()


def asked_for(growing: Cluster) -> list[object]:
    request = "(ray.experimental.internal_kv._internal_kv_get(b'autoscaler_resource_request') or b'[]').decode()"
    return list(json.loads(growing.ask(request)))
