"""Cores of ranks and decoders: physical ones, disjoint, near their GPU, for all ranks of a node or for none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.records import config
from workers.contract.ranks import Seat
from workers.launch.seats import Location, seated
from workers.node import pinning
from workers.node.pinning import NO_SIBLINGS, PinDecision
from workers.node.topology import Core, Topology

THREADS_OF_A_CORE = st.sampled_from([1, 2, 4])


class Node(NamedTuple):
    """A machine, and a trial's ranks on it."""

    topology: Topology
    gpus: tuple[str, ...]  # of the ranks
    near: dict[str, frozenset[int]]  # logical cores near to each GPU of the node
    decode: int  # threads of a rank
    device: str
    cores_per_worker: int

    def decided(self) -> list[PinDecision]:
        """What each rank comes to by itself."""
        trial = dataclasses.replace(config(), device=self.device, cores_per_worker=self.cores_per_worker)
        return [
            pinning.of_rank(trial, seat(local, self.gpus), self.topology, self.decode, lambda gpu: self.near[gpu])
            for local in range(len(self.gpus))
        ]

    def needed(self) -> int:
        """Physical cores of a rank."""
        spare = len(self.topology.cores) // len(self.gpus) - self.decode
        return self.decode + (self.cores_per_worker if self.device == "cpu" else max(1, min(spare, 4)))

    def near_cores(self, local: int) -> set[Core]:
        near = self.near.get(self.gpus[local], frozenset())
        return {core for core in self.topology.cores if near & {*core.cpus}} or {*self.topology.cores}


def seat(local: int, gpus: tuple[str, ...]) -> Seat:
    size = len(gpus)
    places = {"rank": local, "size": size, "local_rank": local, "local_size": size, "cross_rank": 0, "cross_size": 1}
    return Seat(**places, host="127.0.0.1", gpus=gpus)  # type: ignore[arg-type]


def machine(sockets: int, cores: int, threads: int, is_interleaved: bool) -> dict[int, tuple[int, int]]:
    """Each logical core's socket and physical core. Siblings are numbered half the machine apart, as on Intel, or
    side by side."""
    physical = [(socket, core) for socket in range(sockets) for core in range(cores)]
    order = physical * threads if is_interleaved else [place for place in physical for _ in range(threads)]
    return dict(enumerate(order))


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    sockets, cores = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    cpus = machine(sockets, cores, draw(THREADS_OF_A_CORE), draw(st.booleans()))
    kept_out = draw(st.sets(st.sampled_from(sorted(cpus)), max_size=len(cpus) - 1))  # by a container
    allowed = cpus.keys() - (kept_out if draw(st.booleans()) else set())
    threads: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        threads.setdefault(cpus[cpu], []).append(cpu)
    topology = Topology(tuple(sorted(Core(socket, tuple(own)) for (socket, _), own in threads.items())))
    of_socket = [frozenset(cpu for cpu, (of, _) in cpus.items() if of == socket) for socket in range(sockets)]
    behind = draw(
        st.sampled_from(
            [
                lambda gpu: of_socket[gpu % sockets],  # interleaved
                lambda gpu: of_socket[0],
                lambda gpu: of_socket[gpu * sockets // 8],
                lambda gpu: of_socket[0] if gpu % 2 else frozenset(cpus),
                lambda gpu: frozenset(),  # nothing is known
                lambda gpu: of_socket[-1] if gpu % 3 else frozenset(),
            ]
        )
    )
    near = {str(gpu): frozenset(behind(gpu)) for gpu in range(8)}
    device = draw(st.sampled_from(["cpu", "gpu"]))
    gpus = tuple(draw(st.lists(st.sampled_from(sorted(near)), min_size=1, max_size=8, unique=True)))
    if device == "cpu":
        gpus = ("",) * len(gpus)
    return Node(topology, gpus, near, draw(st.integers(0, 4)), device, draw(st.integers(1, 4)))


def physical(node: Node, cpus: Collection[int]) -> list[Core]:
    """The cores that these are threads of: all of each, or the test fails."""
    own = [core for core in node.topology.cores if not {*core.cpus}.isdisjoint(cpus)]
    assert {cpu for core in own for cpu in core.cpus} == set(cpus)
    return own


def matched(wants: list[set[Core]]) -> int:
    """The most wishes that can be met at once, a core each: Kuhn's augmenting paths."""
    holder: dict[Core, int] = {}

    def seek(wish: int, seen: set[Core]) -> bool:
        for core in wants[wish] - seen:
            seen.add(core)
            if core not in holder or seek(holder[core], seen):
                holder[core] = wish
                return True
        return False

    return sum(seek(wish, set()) for wish in range(len(wants)))


@given(nodes())
def test_no_physical_core_is_anyone_else_s(node: Node) -> None:
    sets = [cpus for pins, _ in node.decided() if pins for cpus in pins]
    cores = [core for cpus in sets for core in physical(node, cpus)]
    assert len(cores) == len(set(cores))


@given(nodes())
def test_every_rank_has_what_it_needs_or_none_has_and_it_says_why(node: Node) -> None:
    decided = node.decided()
    assert len({pins is None for pins, _ in decided}) == 1
    for pins, note in decided:
        if pins is None:
            assert len(node.gpus) * node.needed() > len(node.topology.cores)
            assert f"but the node has {len(node.topology.cores)}" in note
        else:
            assert not note
            assert len(physical(node, pins.decode)) == node.decode
            assert len(physical(node, pins.compute)) >= node.needed() - node.decode


@given(nodes())
def test_cores_are_near_as_far_as_there_are_enough(node: Node) -> None:
    decided = [pins for pins, _ in node.decided() if pins]
    near = [node.near_cores(local) for local in range(len(decided))]
    held = [{*physical(node, pins.compute), *physical(node, pins.decode)} for pins in decided]
    needed = node.needed()
    wishes = [near[local] for local in range(len(decided)) for _ in range(needed)]
    assert sum(min(needed, len(own & close)) for own, close in zip(held, near, strict=True)) == matched(wishes)
    for own, close in zip(held, near, strict=True):
        assert own <= close or len(own) == needed, "what is left over is given to those who are near to it"


@given(nodes())
def test_ranks_that_are_near_to_the_same_cores_share_them_equally(node: Node) -> None:
    decided = [pins for pins, _ in node.decided() if pins]
    alike: dict[frozenset[Core], list[set[Core]]] = {}
    for local, pins in enumerate(decided):
        own = {*physical(node, pins.compute), *physical(node, pins.decode)}
        alike.setdefault(frozenset(node.near_cores(local)), []).append(own)
    for close, held in alike.items():
        assert len({len(own) for own in held}) == 1
        near = [len(own & close) for own in held]
        assert max(near) - min(near) <= 1
        left = close - {core for pins in decided for core in physical(node, {*pins.compute, *pins.decode})}
        assert len(left) < len(held), "no core that could be shared out is left"


def two_sockets(gpus: tuple[str, ...], near: dict[str, frozenset[int]], decode: int = 0) -> list[str]:
    """Eight cores each, with two threads: 0-15, and their siblings 16-31."""
    cores = [Core(cpu // 8, (cpu, cpu + 16)) for cpu in range(16)]
    return [str(pins) for pins, _ in Node(Topology(tuple(cores)), gpus, near, decode, "gpu", 1).decided()]


FIRST, SECOND = frozenset({*range(8), *range(16, 24)}), frozenset({*range(8, 16), *range(24, 32)})


@pytest.mark.parametrize(
    ("gpus", "near", "decode", "pins"),
    [
        # one rank of two GPUs: the half that is near
        (("1",), {"1": SECOND}, 2, ["compute 8-13,24-29, decode 14-15,30-31"]),
        # two ranks, GPUs interleaved over the sockets: the first two are not behind the same
        (("0", "1"), {"0": FIRST, "1": SECOND}, 0, ["compute 0-7,16-23", "compute 8-15,24-31"]),
        # all behind one: they halve it, and far cores stay idle
        (("0", "1"), {"0": FIRST, "1": FIRST}, 0, ["compute 0-3,16-19", "compute 4-7,20-23"]),
        # … or it has too few: each takes as many from elsewhere, for decoding first
        (
            ("0", "1"),
            {"0": FIRST, "1": FIRST},
            2,
            ["compute 0-3,16-19, decode 8-9,24-25", "compute 4-7,20-23, decode 10-11,26-27"],
        ),
        # nothing is known: in one piece
        (("0", "1"), {"0": frozenset(), "1": frozenset()}, 0, ["compute 0-7,16-23", "compute 8-15,24-31"]),
    ],
)  # fmt: skip
def test_pins_of_a_machine_with_two_sockets(
    gpus: tuple[str, ...], near: dict[str, frozenset[int]], decode: int, pins: list[str]
) -> None:
    assert two_sockets(gpus, near, decode) == pins


def flat(cores: int) -> Topology:
    return Topology(tuple(Core(0, (cpu,)) for cpu in range(cores)))


def test_two_ranks_on_two_cores_have_none_to_spare_for_decoding() -> None:
    node = Node(flat(2), ("", ""), {}, 0, "cpu", 1)
    assert [str(pins) for pins, _ in node.decided()] == ["compute 0", "compute 1"]
    why = "2 ranks need 4 physical cores of their own (1 each to compute and 1 each to decode), but the node has 2"
    assert node._replace(decode=1).decided() == [PinDecision(None, why)] * 2


def test_siblings_are_no_two_cores() -> None:
    node = Node(Topology((Core(0, (0, 1)),)), ("", ""), {}, 0, "cpu", 1)
    why = "2 ranks need 2 physical cores of their own (1 each to compute), but the node has 1"
    assert node.decided() == [PinDecision(None, why)] * 2


def test_where_siblings_are_not_told_the_record_says_so() -> None:
    node = Node(dataclasses.replace(flat(2), has_siblings=False), ("", ""), {}, 0, "cpu", 1)
    assert node.decided()[1] == PinDecision(pinning.Pins(frozenset([1]), frozenset()), NO_SIBLINGS)


def test_trials_that_share_a_node_are_not_pinned() -> None:
    trial = dataclasses.replace(config(), isolation="shared")
    pins, note = pinning.of_rank(trial, seat(0, ("",)), flat(8), 0)
    assert pins is None
    assert "isolation is shared" in note


def test_where_the_quota_is_less_than_the_cores_none_is_a_rank_s_own() -> None:
    """A container with the time of 4 of 64 cores: to each of two ranks it may show all 64."""
    for quota, is_pinned in [(4.0, False), (63.5, False), (64.0, True), (math.inf, True)]:
        decided = pinning.of_rank(config(), seat(0, ("", "")), flat(64), 0, quota=quota)
        assert (decided.pins is not None) == is_pinned
        assert decided.note == ("" if is_pinned else f"the container's quota is the time of {quota:g} of its 64 cores")


def test_ranks_on_one_machine_s_several_ray_nodes_do_not_take_the_same_cores_for_their_own() -> None:
    """Each of Ray's nodes has a fork server of its own, which knows its own ranks."""
    here = [
        Location(node="a", address="10.0.0.1", interface="eth0", gpu="", fork_server=name)
        for name in ("n1", "n1", "n2")
    ]
    why = "another of Ray's nodes is on the same machine: its ranks may run on these cores"
    assert [pinning.of_rank(config(), one, flat(8), 0) for one in seated(here)] == [PinDecision(None, why)] * 3
    two = [dataclasses.replace(location, address=f"10.0.0.{location.fork_server}") for location in here]
    assert all(pinning.of_rank(config(), one, flat(8), 0).pins for one in seated(two))
    alone = dataclasses.replace(here[0], shares_machine=True)  # with the ranks of another trial
    assert pinning.of_rank(config(), seated([alone])[0], flat(8), 0) == PinDecision(None, why)


def test_auto_leaves_four_cores_to_each_rank_and_at_least_one_to_decoding() -> None:
    assert [pinning.decode_threads("auto", 40, ranks) for ranks in (1, 4, 10)] == [36, 24, 10]


def test_decode_threads_are_as_many_for_each_rank() -> None:
    assert [pinning.decode_threads(7, 40, ranks) for ranks in (1, 2, 4, 8)] == [7, 8, 8, 8]
    assert pinning.decode_threads("auto", 16, 3) == 3
