"""Where a gang's ranks sit on a cluster's nodes. Pure.

A placement has one arrangement on a cluster, so that the repeats of a cell are alike wherever they land:

    pack     as few nodes as the cluster allows, each filled before the next: 6 ranks on nodes of 4 are 4 + 2
    spread   as many nodes as the cluster has, evenly: 6 ranks on 4 nodes are 2 + 2 + 1 + 1
    NxM      M ranks on each of N nodes

A plan for a cluster gives each cell its arrangement, and the cell keeps it: whatever nodes come or go, all its repeats
sit alike. What is free may leave no room for it now; it waits then, and is never arranged in another way.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from workers.contract import messages
from workers.contract.messages import TrialConfig

Seats = tuple[tuple[str, int], ...]  # node and ranks there, in the order of the ranks
Room = tuple[int, int, str]  # the ranks that a node can hold, its place in the cluster, its name


@dataclasses.dataclass(frozen=True)
class Node:
    name: str  # unique in its cluster
    cpus: int
    gpus: int
    kind: str = ""  # of its GPUs


def idle(nodes: Iterable[Node]) -> dict[str, Node]:
    """Return what is free on a cluster on which nothing runs."""
    return {node.name: node for node in nodes}


def cores(config: TrialConfig, node: Node) -> int:
    """Return the CPUs that a rank needs there: its GPU's share of the node's, or its own."""
    return _cores(config.device, config.cores_per_worker, node.cpus, node.gpus)


def slots(config: TrialConfig, node: Node) -> int:
    """Return how many ranks a node can hold."""
    return slots_of(config.device, config.cores_per_worker, node)


def slots_of(device: messages.Device, cores_per_worker: int, node: Node) -> int:
    """Return how many ranks on such a device it can hold."""
    return _ranks_in(device, _cores(device, cores_per_worker, node.cpus, node.gpus), node.cpus, node.gpus)


def room(config: TrialConfig, node: Node, left: Node) -> int:
    """Return how many it can hold with this much left of it; an exclusive trial shares a node with nobody."""
    if config.isolation == "exclusive" and left != node:
        return 0
    return _ranks_in(config.device, cores(config, node), left.cpus, left.gpus)


@functools.lru_cache(maxsize=4096)  # nodes are many, and alike
def _cores(device: messages.Device, cores_per_worker: int, cpus: int, gpus: int) -> int:
    return max(1, cpus // max(1, gpus)) if device == "gpu" else cores_per_worker


@functools.lru_cache(maxsize=4096)
def _ranks_in(device: messages.Device, cores: int, cpus: int, gpus: int) -> int:
    ranks = cpus // cores
    return min(ranks, gpus) if device == "gpu" else ranks


def arrangement(config: TrialConfig, nodes: Iterable[Node]) -> tuple[int, ...]:
    """Return the ranks on each of its nodes, the fullest first; empty if the cluster can never hold it."""
    held = tuple(slots(config, node) for node in nodes)
    if not config.arrangement:
        return arranged(config.gpus, config.placement, held)
    rooms = sorted(held, reverse=True)[: len(config.arrangement)]
    fits = len(rooms) == len(config.arrangement) and all(map(operator.ge, rooms, config.arrangement))
    return config.arrangement if fits else ()


@functools.lru_cache(maxsize=4096)
def arranged(ranks: int, placement: str, slots: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks on each node that a placement means on nodes with so many slots."""
    if placement not in ("pack", "spread"):
        count, each = map(int, placement.split("x"))
        return (each,) * count if sum(held >= each for held in slots) >= count else ()
    if ranks > sum(slots):
        return ()
    largest = sorted(slots, reverse=True)
    if placement == "spread":
        level = next(level for level in range(ranks + 1) if sum(min(held, level) for held in slots) >= ranks)
        seated = [min(held, level) for held in largest]
        surplus = sum(seated) - ranks
        full = seated.count(level)
        seated[full - surplus : full] = [level - 1] * surplus
        return tuple(held for held in seated if held)
    packed: list[int] = []
    while (left := ranks - sum(packed)) > 0:
        packed.append(min(left, largest[len(packed)]))
    return tuple(packed)


def place(
    config: TrialConfig, nodes: Sequence[Node], free: Mapping[str, Node], avoid: Collection[str] = ()
) -> Seats | None:
    """Choose seats in what is free, on the nodes with the least room that suffices; None if there are none now."""
    return seats(arrangement(config, nodes), rooms(config, nodes, free, avoid))


def rooms(
    config: TrialConfig, nodes: Sequence[Node], free: Mapping[str, Node], avoid: Collection[str] = ()
) -> list[Room]:
    """Return how many ranks each node can hold now, the least first."""
    return sorted(
        (room(config, node, free[node.name]), place, node.name)
        for place, node in enumerate(nodes)
        if node.name in free and node.name not in avoid
    )


def seats(ranks: Sequence[int], rooms: Sequence[Room]) -> Seats | None:
    """Choose them for so many ranks on each node, the fullest first, where there is the least room that suffices."""
    if not ranks or len(rooms) - bisect_left(rooms, (ranks[-1], -1)) < len(ranks):
        return None
    left, chosen = list(rooms), []
    for held in ranks:
        tightest = bisect_left(left, (held, -1))
        if tightest == len(left):
            return None
        _, _, name = left.pop(tightest)
        chosen.append((name, held))
    return tuple(chosen)


def taken(config: TrialConfig, seats: Seats, nodes: Mapping[str, Node]) -> dict[str, tuple[int, int]]:
    """Return the CPUs and GPUs of each node that nobody else has while the trial runs."""
    if config.isolation == "exclusive":
        return {name: (nodes[name].cpus, nodes[name].gpus) for name, _ in seats if name in nodes}
    on_gpus = config.device == "gpu"
    return {name: (ranks * cores(config, nodes[name]), ranks * on_gpus) for name, ranks in seats if name in nodes}


def held(config: TrialConfig, seats: Seats, nodes: Mapping[str, Node]) -> int:
    """Return how many GPUs nobody else has while the trial runs; of a CPU trial how many of its ranks the cores could
    hold that nobody else has."""
    part = taken(config, seats, nodes).values()
    return sum(gpus if config.device == "gpu" else cpus // config.cores_per_worker for cpus, gpus in part)


def bundles(config: TrialConfig, seats: Seats, nodes: Iterable[Node]) -> list[dict[str, float]]:
    """Return a trial's placement group: a bundle a node, in the order of the seats, with all that nobody else has
    meanwhile.

    Gangs that exclude others on the same nodes have the same group, whatever their ranks: one takes over from another.
    """
    part = taken(config, seats, idle(nodes))
    return [{"CPU": float(cpus)} | ({"GPU": float(gpus)} if gpus else {}) for cpus, gpus in part.values()]


def impossible(config: TrialConfig, nodes: Sequence[Node], most_nodes: int | None = None) -> str:
    """Say why the cluster can never hold a trial, as a rule that it breaks; empty if it can."""
    if found := arrangement(config, nodes):
        if most_nodes is None or len(found) <= most_nodes:
            return ""
        here = f"this cluster ({described(nodes)})"
        allowed = f"{most_nodes} node{'s' * (most_nodes != 1)}"
        return f"max_nodes allows {allowed} at a time, and on {here} {config.placement} takes {len(found)}"
    here = f"this cluster ({described(nodes)})"
    held = [slots(config, node) for node in nodes]
    if config.arrangement and sum(held) >= config.gpus and config.placement in ("pack", "spread"):
        form = messages.arranged(config.arrangement)
        return f"{here} has not the nodes for its ranks, which are planned as {form} (nodes x ranks)"
    if config.placement in ("pack", "spread"):
        return f"{here} holds at most {sum(held)} ranks on device {config.device}"
    needed, each = map(int, config.placement.split("x"))
    count = sum(ranks >= each for ranks in held)
    those = f"{count or 'no'} node{'s' * (count != 1)} that can hold {each} ranks on device {config.device}"
    return f"{here} has {those}, and {config.placement} takes {needed}"


def check_capacity(
    trials: Iterable[TrialConfig], nodes: Sequence[Node], most_nodes: int | None = None
) -> dict[str, list[TrialConfig]]:
    """Return the trials that would wait for ever, by the reason; empty if there are none."""
    refused: dict[str, list[TrialConfig]] = {}
    for config in trials:
        if why := impossible(config, nodes, most_nodes):
            refused.setdefault(why, []).append(config)
    return refused


def written(nodes: Iterable[Node]) -> str:
    """Return all that a plan needs of nodes, as JSON: how many are alike in what they have."""
    alike = Counter((node.cpus, node.gpus, node.kind) for node in nodes)
    return json.dumps(
        [{"nodes": n, "cpus": cpus, "gpus": gpus, "kind": kind} for (cpus, gpus, kind), n in alike.items()]
    )


def read(text: str) -> tuple[Node, ...]:
    """Return the nodes that are written so, with names of no meaning."""
    kinds = [kind for kind in json.loads(text or "[]") for _ in range(kind["nodes"])]
    return tuple(Node(f"node-{n}", kind["cpus"], kind["gpus"], kind["kind"]) for n, kind in enumerate(kinds))


def described(nodes: Iterable[Node]) -> str:
    """`8 nodes of 32 CPUs + 4 GPUs, 16 CPUs + 0 GPUs`."""
    alike = Counter(f"{node.cpus} CPUs + {node.gpus} GPUs{f' {node.kind}' if node.kind else ''}" for node in nodes)
    return ", ".join(f"{count} nodes of {one}" if count > 1 else one for one, count in alike.items()) or "no nodes"
