"""Two people's sweeps on one cluster: two drivers at once, real Ray nodes, real ranks."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from sweeps.record import ledger
from sweeps.record.ledger import TrialRecord
from tests.integration.clusters import Cluster, eventually, said

# tests/cluster/test_hosts.py has two sweeps at once on hosts.
pytestmark = [pytest.mark.alone, pytest.mark.long, pytest.mark.timeout(600)]

Driver = subprocess.Popen[bytes]
SWEEP = """
name: {name}
model: tiny
device: cpu
image_size: 32
classes: 10
repeats: 1
explain: false
probe_every_min: 0
steps: {{warmup: 1, measured: {steps}}}
space: {{batch_size: {sizes}, gpus: {gpus}}}
"""


@pytest.fixture(scope="module")
def nodes(head: Cluster) -> Cluster:
    """A head without ranks, and two nodes of one."""
    head.join_all(a=1, b=1)
    return head


@pytest.fixture
def cluster(nodes: Cluster, workplace: Path) -> Iterator[Cluster]:
    yield nodes
    nodes.end_drivers()
    assert eventually(lambda: nodes.placement_groups() == 0)
    assert eventually(lambda: nodes.ask("ray.util.list_named_actors(all_namespaces=True)") == [])


def started(cluster: Cluster, name: str, steps: int, sizes: list[int], gpus: object, more: str = "") -> Driver:
    """Each person has a tracking store of their own."""
    shutil.copy("mlflow.db", f"{name}.db")
    Path(f"{name}.yaml").write_text(SWEEP.format(name=name, steps=steps, sizes=sizes, gpus=gpus) + more)
    with mock.patch.dict(os.environ, MLFLOW_TRACKING_URI=f"sqlite:///{name}.db"):
        return cluster.driver("run", f"{name}.yaml")


def spans(trials: tuple[TrialRecord, ...], node: str) -> list[tuple[float, float]]:
    """When they ran there."""
    return sorted((t.started_at, t.ended_at) for t in trials if node in {place.node_id for place in t.outcome.granted})


def waits_with_nothing(one: tuple[TrialRecord, ...], other: tuple[TrialRecord, ...]) -> bool:
    """Has the one, between its own trials, had none while a gang of the other held every node?"""
    first, last = min(t.ended_at for t in one), max(t.started_at for t in one)
    return any(t.config.gpus == 2 and first <= t.started_at and t.ended_at <= last for t in other)


def test_two_sweeps_at_once_share_the_nodes_and_never_one_of_them(cluster: Cluster) -> None:
    """They have trials on a node each, and gangs of both: for those a sweep waits with nothing of its own running."""
    drivers = [started(cluster, name, 100, [1, 2, 3], [1, 2]) for name in ("mine", "yours")]
    assert [driver.wait(400) for driver in drivers] == [0, 0], said()
    mine, yours = ledger.read("mine").trials, ledger.read("yours").trials
    assert [trial.outcome.status for trial in (*mine, *yours)] == ["completed"] * 12
    for node in (cluster.id("a"), cluster.id("b")):
        in_turn = sorted([*spans(mine, node), *spans(yours, node)])
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(in_turn)), in_turn
    assert waits_with_nothing(mine, yours) or waits_with_nothing(yours, mine)
    # Neither waited for the other's end: each ended trials between the other's first and last.
    for one, other in ((mine, yours), (yours, mine)):
        first, last = min(t.started_at for t in other), max(t.ended_at for t in other)
        assert sum(first < t.ended_at < last for t in one) >= 2


def test_what_a_sweep_has_no_trial_for_is_given_back_and_what_it_held_when_it_was_killed_is_the_others(
    cluster: Cluster,
) -> None:
    """A short trial and a long one, on a node each; what is held between trials counts for nobody."""
    gone = started(cluster, "gone", 200, [1, 1024], 1)
    try:
        assert eventually(lambda: Path("results/gone/ledger.jsonl").exists() and len(ledger.read("gone").trials) > 0)
        (short,) = ledger.read("gone").trials
        assert short.config.batch_size == 1
        assert eventually(lambda: cluster.placement_groups() == 1, patience_s=30), said()
        other = started(cluster, "other", 100, [1, 2, 3, 4, 5], 1, "priority: 2\n")
        assert eventually(lambda: Path("results/other/ledger.jsonl").exists()), said()
        assert gone.poll() is None
        assert len(ledger.read("gone").trials) == 1, "the long one was over too soon to tell anything"
        assert cluster.ranks("a") or cluster.ranks("b"), "it holds a node"
    finally:
        gone.kill()
        gone.wait()
    assert other.wait(300) == 0, said()
    trials = ledger.read("other").trials
    assert [trial.outcome.status for trial in trials] == ["completed"] * 5
    assert {place.node_id for t in trials for place in t.outcome.granted} == {cluster.id("a"), cluster.id("b")}
