"""What a cluster that grows is asked for: by a small model of one, which packs requests as Ray's autoscaler does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.scheduling import growth
from sweeps.spec import arrangements
from sweeps.spec.arrangements import Node
from tests.unit.records import config
from workers.contract.messages import TrialConfig

P4D, G4 = Node("p4d", 96, 8), Node("g4", 16, 4)
CPUS = Node("cpus", 6, 0)


def gang(gpus: int, placement: str, **fields: object) -> TrialConfig:
    return dataclasses.replace(config(), gpus=gpus, placement=placement, **{"device": "gpu", **fields})  # type: ignore[arg-type]


def unmet(asked: Sequence[dict[str, float]], nodes: Sequence[Node]) -> list[dict[str, float]]:
    """What does not fit beside the rest: the largest first, each on the first node with room for it."""
    free = [{"CPU": node.cpus, "GPU": node.gpus} for node in nodes]
    left = []
    for bundle in sorted(asked, key=lambda bundle: -sum(bundle.values())):
        if node := next((node for node in free if all(node[key] >= count for key, count in bundle.items())), None):
            for key, count in bundle.items():
                node[key] -= int(count)
        else:
            left.append(bundle)
    return left


def grown(nodes: list[Node], trials: Sequence[TrialConfig], kind: Node, most: int | None = None) -> list[Node]:
    """The nodes once nothing that is asked for is lacking, whatever is asked as they come."""
    nodes = list(nodes)
    for number in range(100):
        left = unmet(growth.wanted(trials, nodes, most), nodes)
        if not left:
            return nodes
        assert len(unmet(left, [kind])) < len(left), "no node of the kind holds any of it"
        nodes.append(dataclasses.replace(kind, name=f"new-{number}"))
    raise AssertionError("it grows for ever")


def lacking(trials: Sequence[TrialConfig], nodes: Sequence[Node]) -> bool:
    return bool(arrangements.check_capacity(trials, nodes))


@pytest.mark.parametrize(
    ("there", "trials", "kind", "count"),
    [
        pytest.param([P4D], [gang(2, "2x1")], P4D, 2, id="a gang for two nodes, one of which is there"),
        pytest.param([], [gang(2, "2x1")], P4D, 2, id="none is there, and one would hold both its ranks"),
        pytest.param([], [gang(8, "8x1")], P4D, 8, id="many nodes"),
        pytest.param([P4D], [gang(16, "pack"), gang(3, "3x1")], P4D, 3, id="not the largest trial alone"),
        pytest.param([P4D], [gang(16, "pack"), gang(2, "2x1")], P4D, 2, id="what holds one holds the other"),
        pytest.param([P4D], [gang(16, "spread")], P4D, 2, id="spread on what there is"),
        pytest.param([P4D], [gang(4, "spread", arrangement=(1,) * 4)], P4D, 4, id="spread, as it was planned"),
        pytest.param([G4, G4], [gang(8, "pack", arrangement=(8,))], P4D, 3, id="packed on one node, as it was planned"),
        pytest.param([P4D, G4], [gang(6, "3x2")], G4, 3, id="nodes that differ"),
        pytest.param([G4], [gang(16, "2x8")], P4D, 3, id="what is there is too small"),
        pytest.param([CPUS], [gang(2, "2x1", device="cpu")], CPUS, 2, id="cores"),
        pytest.param(
            [CPUS],
            [gang(6, "pack", device="cpu"), gang(3, "pack", device="cpu", cores_per_worker=4)],
            CPUS,
            3,
            id="fewer ranks that need more cores",
        ),
    ],
)
def test_a_cluster_that_grows_comes_to_hold_every_trial_and_no_node_more(
    there: list[Node], trials: list[TrialConfig], kind: Node, count: int
) -> None:
    assert lacking(trials, there)
    nodes = grown([dataclasses.replace(node, name=f"{n}") for n, node in enumerate(there)], trials, kind)
    assert not lacking(trials, nodes)
    assert len(nodes) == count


shapes = st.one_of(
    st.builds(lambda count, each: gang(count * each, f"{count}x{each}"), st.integers(1, 5), st.integers(1, 4)),
    st.builds(gang, st.integers(1, 20), st.sampled_from(["pack", "spread"])),
    st.builds(
        lambda ranks: gang(sum(ranks), "pack", arrangement=tuple(sorted(ranks, reverse=True))),
        st.lists(st.integers(1, 4), min_size=1, max_size=4),
    ),
)


@given(st.lists(shapes, min_size=1, max_size=4), st.integers(0, 3), st.sampled_from([4, 8]))
def test_whatever_a_sweep_needs_it_gets_as_few_nodes_as_hold_it(
    trials: list[TrialConfig], there: int, gpus: int
) -> None:
    def nodes(count: int) -> list[Node]:
        return [Node(f"{n}", 4 * gpus, gpus) for n in range(count)]

    came = grown(nodes(there), trials, Node("", 4 * gpus, gpus))
    fewest = next(count for count in range(there, 100) if not lacking(trials, nodes(count)))
    assert len(came) == fewest


def test_what_takes_more_nodes_than_a_sweep_may_use_asks_for_none() -> None:
    assert growth.wanted([gang(2, "2x1")], [P4D], most_nodes=1) == []
    assert growth.wanted([gang(12, "pack")], [P4D, dataclasses.replace(P4D, name="b")], most_nodes=1) == []
    assert growth.wanted([gang(12, "pack")], [P4D], most_nodes=2) == [{"GPU": 1.0}] * 12


def test_nothing_is_asked_for_nobody() -> None:
    assert growth.wanted([], [P4D]) == []
