"""Two people's sweeps on one cluster: two drivers at once, real Ray nodes, real ranks."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.record import ledger
from sweeps.record.ledger import TrialRecord
from tests.integration.clusters import Cluster, eventually, said

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]

SWEEP = """
name: {name}
model: tiny
device: cpu
image_size: 32
classes: 10
repeats: 1
explain: false
probe_every_min: 0
steps: {{warmup: 1, measured: 200}}
space: {{batch_size: {{range: [1, 5]}}, gpus: {gpus}}}
"""


@pytest.fixture
def cluster(workplace: Path) -> Iterator[Cluster]:
    """A head without ranks, and two nodes of one."""
    made = Cluster(cpus=0)
    for node in "ab":
        made.join(node, cpus=1)
    yield made
    made.close()


def started(cluster: Cluster, name: str, more: str = "", gpus: int = 1) -> subprocess.Popen[bytes]:
    """Each person has a tracking store of their own."""
    Path(f"{name}.yaml").write_text(SWEEP.format(name=name, gpus=gpus) + more)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{name}.db"
    try:
        return cluster.driver("run", f"{name}.yaml")
    finally:
        del os.environ["MLFLOW_TRACKING_URI"]


def spans(trials: tuple[TrialRecord, ...], node: str) -> list[tuple[float, float]]:
    """When they ran there."""
    return sorted((t.started_at, t.ended_at) for t in trials if node in {place.node_id for place in t.outcome.granted})


@pytest.mark.parametrize("gpus", [1, 2])  # one of them waits for its turn with nothing of its own running, or not
def test_two_sweeps_at_once_share_the_nodes_and_never_one_of_them(cluster: Cluster, gpus: int) -> None:
    drivers = [started(cluster, name, gpus=gpus) for name in ("mine", "yours")]
    assert [driver.wait(400) for driver in drivers] == [0, 0], said()
    mine, yours = ledger.read("mine").trials, ledger.read("yours").trials
    assert [trial.outcome.status for trial in (*mine, *yours)] == ["completed"] * 10
    for node in (cluster.id("a"), cluster.id("b")):
        in_turn = sorted([*spans(mine, node), *spans(yours, node)])
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(in_turn)), in_turn
    assert min(t.started_at for t in mine) < max(t.started_at for t in yours)
    # Neither waited for the other's end: each ended trials between the other's first and last.
    for one, other in ((mine, yours), (yours, mine)):
        first, last = min(t.started_at for t in other), max(t.ended_at for t in other)
        assert sum(first < t.ended_at < last for t in one) >= 2
    assert eventually(lambda: cluster.placement_groups() == 0)
    assert cluster.ask("ray.util.list_named_actors(all_namespaces=True)") == []


def test_a_driver_that_is_killed_leaves_its_nodes_to_the_other(cluster: Cluster) -> None:
    gone = started(cluster, "gone")
    assert eventually(lambda: cluster.ranks("a") and cluster.ranks("b")), said()
    other = started(cluster, "other", "priority: 2\n")
    assert eventually(lambda: Path("results/other/ledger.jsonl").exists()), said()
    gone.kill()
    assert other.wait(300) == 0, said()
    trials = ledger.read("other").trials
    assert [trial.outcome.status for trial in trials] == ["completed"] * 5
    assert {place.node_id for t in trials for place in t.outcome.granted} == {cluster.id("a"), cluster.id("b")}


def test_a_gang_for_which_no_trial_comes_gives_its_node_back_while_others_run(cluster: Cluster) -> None:
    """A short trial and a long one, on a node each; what is held between trials counts for nobody."""
    text = SWEEP.format(name="uneven", gpus=1).replace("{range: [1, 5]}", "[1, 1024]")
    Path("uneven.yaml").write_text(text)
    driver = cluster.driver("run", "uneven.yaml")
    try:
        assert eventually(
            lambda: Path("results/uneven/ledger.jsonl").exists() and len(ledger.read("uneven").trials) > 0
        )
        (short,) = ledger.read("uneven").trials
        assert short.config.batch_size == 1
        assert eventually(lambda: cluster.placement_groups() == 1, patience_s=30), said()
        assert driver.poll() is None
        assert len(ledger.read("uneven").trials) == 1, "the long one was over too soon to tell anything"
    finally:
        driver.kill()
        driver.wait()
