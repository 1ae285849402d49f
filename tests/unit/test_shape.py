"""A gang fits a cluster, has its nodes to itself, and sits as Horovod expects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import plan, spec
from sweeps.errors import InputError
from sweeps.shape import Node, bundles, check_capacity
from tests.unit.records import config
from workers.seats import Bench, seated, side_by_side

FOUR_GPUS = Node(cpus=32, gpus=4)


@pytest.mark.parametrize(
    ("gpus", "placement", "bundle"),
    [
        (1, "pack", {"CPU": 32, "GPU": 1}),  # alone on its node
        (4, "pack", {"CPU": 8, "GPU": 1}),
        (8, "pack", {"CPU": 8, "GPU": 1}),
        (2, "spread", {"CPU": 32, "GPU": 1}),
        (8, "spread", {"CPU": 16, "GPU": 1}),  # two on each of four nodes
    ],
)
def test_a_gang_takes_all_the_cpus_of_its_nodes(gpus: int, placement: str, bundle: dict[str, float]) -> None:
    trial = config(gpus=gpus, placement=placement)
    on_gpus = type(trial)(**{**vars(trial), "device": "gpu"})
    assert bundles(on_gpus, [FOUR_GPUS] * 4) == [bundle] * gpus


@given(st.integers(1, 32), st.sampled_from(["pack", "spread"]), st.integers(1, 8), st.integers(1, 64))
def test_bundles_always_fit_the_nodes(gpus: int, placement: str, nodes: int, cpus: int) -> None:
    if gpus > nodes * cpus:
        return
    made = bundles(config(gpus=gpus, placement=placement), [Node(cpus=cpus, gpus=0)] * nodes)
    assert len(made) == gpus
    assert nodes * (cpus // made[0]["CPU"]) >= gpus


def test_a_gang_larger_than_the_cluster_is_named() -> None:
    text = "{name: x, model: tiny, device: cpu, repeats: 2, space: {batch_size: [8, 16], gpus: [2, 4]}}"
    planned = plan.plan(spec.parse(text, "x"))
    check_capacity(planned, [Node(cpus=2, gpus=0)] * 2, "x.yaml")
    with pytest.raises(InputError) as refused:
        check_capacity(planned, [Node(cpus=3, gpus=0)], "x.yaml")
    rule = "this cluster (3 CPUs + 0 GPUs) holds at most 3 ranks on device cpu, but got 4"
    assert str(refused.value) == f"x.yaml: space.gpus: {rule}"


def bench(node: str) -> Bench:
    return Bench(node=node, address=f"10.0.0.{node}", interface="eth0", gpu="", nursery=node)


def test_ranks_of_a_node_sit_together() -> None:
    benches = [bench(node) for node in "1212"]
    order = side_by_side(benches)
    assert [benches[i].node for i in order] == ["1", "1", "2", "2"]


def test_seats_of_uneven_nodes() -> None:
    seats = seated([bench(node) for node in "1112"])
    assert [(s.rank, s.local_rank, s.local_size) for s in seats] == [(0, 0, 3), (1, 1, 3), (2, 2, 3), (3, 0, 1)]
    assert [(s.cross_rank, s.cross_size) for s in seats] == [(0, 2), (0, 1), (0, 1), (1, 2)]
    assert {s.interface for s in seats} == {"eth0"}


def test_a_gang_on_one_node_talks_over_loopback() -> None:
    assert {seat.interface for seat in seated([bench("1")] * 2)} == {"lo"}
