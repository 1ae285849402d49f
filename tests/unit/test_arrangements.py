"""A gang fits a cluster in one arrangement, takes what it is said to take, and sits as Horovod expects."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.spec.arrangements import (
    Node,
    Seats,
    arrangement,
    bundles,
    check_capacity,
    cores,
    described,
    idle,
    impossible,
    place,
    read,
    room,
    slots,
    written,
)
from tests.unit.records import config
from workers.contract.messages import TrialConfig
from workers.launch.seats import Location, seated

TEMPLATE = config()


def gang(gpus: int, placement: str = "pack", device: str = "gpu", isolation: str = "exclusive") -> TrialConfig:
    fields = {"gpus": gpus, "placement": placement, "device": device, "isolation": isolation}
    return dataclasses.replace(TEMPLATE, **fields)  # type: ignore[arg-type]


def cluster(*gpus: int, cpus_a_gpu: int = 8) -> list[Node]:
    return [Node(f"n{i}", cpus=cpus_a_gpu * count, gpus=count) for i, count in enumerate(gpus)]


FOURS = cluster(4, 4, 4, 4)
CLUSTERS = st.lists(st.builds(Node, st.just(""), st.integers(0, 12), st.integers(0, 4)), max_size=7).map(
    lambda nodes: [dataclasses.replace(node, name=f"n{i}") for i, node in enumerate(nodes)]
)
PLACEMENTS = st.one_of(
    st.tuples(st.integers(1, 32), st.sampled_from(["pack", "spread"])),
    st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda of: (of[0] * of[1], f"{of[0]}x{of[1]}")),
)
GANGS = st.builds(
    lambda placed, device, isolation: gang(*placed, device, isolation),
    PLACEMENTS,
    st.sampled_from(["cpu", "gpu"]),
    st.sampled_from(["exclusive", "shared"]),
)


@pytest.mark.parametrize(
    ("gpus", "placement", "nodes", "ranks"),
    [
        (1, "pack", (4, 4), (1,)),
        (6, "pack", (4, 4, 4), (4, 2)),  # not 3 + 3
        (6, "pack", (4, 8, 4), (6,)),
        (10, "pack", (4, 8, 4), (8, 2)),
        (17, "pack", (4, 8, 4), ()),
        (1, "spread", (4, 4), (1,)),
        (6, "spread", (4, 4, 4, 4), (2, 2, 1, 1)),
        (7, "spread", (1, 4, 4), (3, 3, 1)),
        (9, "spread", (1, 4, 4), (4, 4, 1)),
        (10, "spread", (1, 4, 4), ()),
        (8, "2x4", (4, 4, 4), (4, 4)),
        (8, "4x2", (4, 4, 4), ()),
        (3, "3x1", (4, 1, 2), (1, 1, 1)),
        (4, "2x2", (4, 1, 1), ()),
    ],
)
def test_a_placement_has_one_arrangement(
    gpus: int, placement: str, nodes: tuple[int, ...], ranks: tuple[int, ...]
) -> None:
    assert arrangement(gang(gpus, placement), cluster(*nodes)) == ranks


@given(GANGS, CLUSTERS)
def test_what_an_idle_cluster_can_hold_is_placed_as_arranged(trial: TrialConfig, nodes: list[Node]) -> None:
    seats = place(trial, nodes, idle(nodes))
    assert (seats is None) == bool(impossible(trial, nodes))
    if seats is None:
        return
    assert sum(ranks for _, ranks in seats) == trial.gpus
    assert tuple(ranks for _, ranks in seats) == arrangement(trial, nodes)
    assert len({name for name, _ in seats}) == len(seats)
    assert all(ranks <= slots(trial, idle(nodes)[name]) for name, ranks in seats)


@given(st.integers(1, 24), CLUSTERS)
def test_pack_takes_the_fewest_nodes_and_spread_the_most(gpus: int, nodes: list[Node]) -> None:
    held = sorted((slots(gang(gpus), node) for node in nodes), reverse=True)
    if sum(held) < gpus:
        assert impossible(gang(gpus), nodes)
        assert impossible(gang(gpus, "spread"), nodes)
        return
    packed, spread = arrangement(gang(gpus), nodes), arrangement(gang(gpus, "spread"), nodes)
    assert sum(held[: len(packed) - 1]) < gpus <= sum(held[: len(packed)])
    assert len(spread) == min(gpus, sum(map(bool, held)))
    full = [ranks for ranks, most in zip(spread, held, strict=False) if ranks < most]
    assert not full or max(spread) - min(full) <= 1  # uneven only where a node is full


@given(GANGS, CLUSTERS)
def test_nodes_that_are_written_and_read_arrange_every_gang_as_they_did(trial: TrialConfig, nodes: list[Node]) -> None:
    again = read(written(nodes))
    assert arrangement(trial, again) == arrangement(trial, nodes)
    assert len(again) == len(nodes)


@given(st.integers(1, 6), st.integers(1, 6), CLUSTERS)
def test_n_times_m_is_exactly_that(count: int, each: int, nodes: list[Node]) -> None:
    trial = gang(count * each, f"{count}x{each}")
    fitting = sum(slots(trial, node) >= each for node in nodes)
    assert arrangement(trial, nodes) == ((each,) * count if fitting >= count else ())


def test_seats_are_on_the_nodes_with_the_least_room_that_suffices() -> None:
    nodes = cluster(8, 2, 4, 4)
    assert place(gang(1), nodes, idle(nodes)) == (("n1", 1),)
    assert place(gang(3), nodes, idle(nodes)) == (("n2", 3),)
    assert place(gang(3), nodes, idle(nodes), avoid={"n2"}) == (("n3", 3),)
    assert place(gang(10), nodes, idle(nodes)) == (("n0", 8), ("n1", 2))


def test_an_exclusive_gang_takes_no_node_on_which_something_runs() -> None:
    free = {**idle(FOURS), "n0": Node("n0", cpus=24, gpus=3)}
    assert place(gang(1), FOURS, free) == (("n1", 1),)
    assert place(gang(16, "spread"), FOURS, free) is None
    assert place(gang(1, isolation="shared"), FOURS, free) == (("n0", 1),)
    assert room(gang(1), FOURS[0], free["n0"]) == 0


def test_a_gang_waits_rather_than_sit_otherwise() -> None:
    free = {"n0": Node("n0", 24, 3), "n1": Node("n1", 24, 3)}
    assert place(gang(6, isolation="shared"), cluster(4, 4), free) is None  # 4 + 2; 3 + 3 would be another cell
    assert place(gang(6, "2x3", isolation="shared"), cluster(4, 4), free) == (("n0", 3), ("n1", 3))


@pytest.mark.parametrize(
    ("gpus", "placement", "nodes"), [(1, "pack", 1), (4, "pack", 1), (6, "pack", 2), (2, "2x1", 2)]
)
def test_an_exclusive_gang_takes_its_nodes_whole_whatever_its_ranks(gpus: int, placement: str, nodes: int) -> None:
    trial = gang(gpus, placement)
    seats = place(trial, FOURS, idle(FOURS))
    assert seats
    assert bundles(trial, seats, FOURS) == [{"CPU": 32, "GPU": 4}] * nodes


def test_a_gang_that_shares_takes_its_part() -> None:
    seats: Seats = (("n0", 2),)
    assert bundles(gang(2, isolation="shared"), seats, FOURS) == [{"CPU": 16, "GPU": 2}]
    on_cores = dataclasses.replace(gang(2, device="cpu", isolation="shared"), cores_per_worker=3)
    assert bundles(on_cores, seats, FOURS) == [{"CPU": 6}]


@given(GANGS, CLUSTERS)
def test_bundles_hold_the_ranks_and_fit_the_nodes(trial: TrialConfig, nodes: list[Node]) -> None:
    named = idle(nodes)
    seats = place(trial, nodes, named)
    if seats is None:
        return
    for (name, ranks), bundle in zip(seats, bundles(trial, seats, nodes), strict=True):
        assert ranks * cores(trial, named[name]) <= bundle["CPU"] <= named[name].cpus
        assert ranks * (trial.device == "gpu") <= bundle.get("GPU", 0) <= named[name].gpus


def test_trials_that_a_cluster_can_never_hold_are_named_by_why() -> None:
    nodes = [Node("a", cpus=3, gpus=0)]
    small, large, larger = (gang(gpus, device="cpu") for gpus in (2, 4, 8))
    rule = "this cluster (3 CPUs + 0 GPUs) holds at most 3 ranks on device cpu"
    assert check_capacity([small, large, larger], nodes) == {rule: [large, larger]}
    assert check_capacity([small, large, larger], [*nodes, Node("b", cpus=5, gpus=0)]) == {}


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        (gang(20), "holds at most 16 ranks on device gpu"),
        (gang(16, "2x8"), "has no nodes that can hold 8 ranks on device gpu, and 2x8 takes 2"),
        (gang(10, "5x2"), "has 4 nodes that can hold 2 ranks on device gpu, and 5x2 takes 5"),
    ],
)
def test_why_a_trial_is_impossible(trial: TrialConfig, why: str) -> None:
    assert impossible(trial, FOURS) == f"this cluster (4 nodes of 32 CPUs + 4 GPUs) {why}"


def test_a_cluster_in_words() -> None:
    nodes = [*cluster(4, 4), Node("x", cpus=16, gpus=2, kind="v100")]
    assert described(nodes) == "2 nodes of 32 CPUs + 4 GPUs, 16 CPUs + 2 GPUs v100"
    assert described([]) == "no nodes"


def location(node: str) -> Location:
    return Location(node=node, address=f"10.0.0.{node}", interface="eth0", gpu="", fork_server=node)


def test_seats_of_uneven_nodes() -> None:
    seats = seated([location(node) for node in "1112"])
    assert [(s.rank, s.local_rank, s.local_size) for s in seats] == [(0, 0, 3), (1, 1, 3), (2, 2, 3), (3, 0, 1)]
    assert [(s.cross_rank, s.cross_size) for s in seats] == [(0, 2), (0, 1), (0, 1), (1, 2)]
    assert {s.interface for s in seats} == {"eth0"}


def test_a_rank_knows_the_gpus_of_its_node_in_the_order_of_its_ranks() -> None:
    locations = [dataclasses.replace(location(node), gpu=gpu) for node, gpu in ("13", "15", "20")]
    assert [seat.gpus for seat in seated(locations)] == [("3", "5"), ("3", "5"), ("0",)]


def test_a_gang_on_one_node_talks_over_loopback() -> None:
    assert {seat.interface for seat in seated([location("1")] * 2)} == {"lo"}


def test_so_does_a_gang_on_several_of_rays_nodes_that_are_one_machine() -> None:
    """Else it would want the machine's name to lead to its address, which it needs not."""
    locations = [dataclasses.replace(location(node), address="10.0.0.1") for node in "12"]
    assert [(seat.interface, seat.cross_size) for seat in seated(locations)] == [("lo", 2)] * 2
