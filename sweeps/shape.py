"""How gangs fit on a cluster's nodes. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from sweeps.errors import InputError, Mistake
from sweeps.plan import Plan
from workers.contract import TrialConfig


@dataclasses.dataclass(frozen=True)
class Node:
    cpus: int
    gpus: int


def bundles(config: TrialConfig, nodes: Sequence[Node]) -> list[dict[str, float]]:
    """A trial's placement group: a bundle a rank, each taking its share of the CPUs of the nodes it may use.

    An exclusive trial has its nodes to itself: neighbours contend for cores and links. One that shares them takes a
    GPU's part of the CPUs, or the cores that a CPU rank computes with.
    """
    hosts = [node for node in nodes if _slots(config, node)]
    largest = max(hosts, key=lambda node: _slots(config, node))
    if config.placement == "pack":
        used = math.ceil(config.gpus / _slots(config, largest))
    else:
        used = min(len(hosts), config.gpus)
    ranks_a_node = math.ceil(config.gpus / used)
    share = min(node.cpus for node in hosts) // ranks_a_node
    if config.isolation == "shared":
        share = min(node.cpus // node.gpus for node in hosts) if config.device == "gpu" else config.cores_per_worker
    bundle: dict[str, float] = {"CPU": max(1, share)}
    if config.device == "gpu":
        bundle["GPU"] = 1
    return [bundle] * config.gpus


def _slots(config: TrialConfig, node: Node) -> int:
    """How many ranks a node can hold."""
    return min(node.gpus, node.cpus) if config.device == "gpu" else node.cpus // config.cores_per_worker


def check_capacity(plan: Plan, nodes: Sequence[Node], place: str) -> None:
    """A gang larger than the cluster would wait for ever."""
    mistakes = {}
    for config in plan.trials:
        slots = sum(_slots(config, node) for node in nodes)
        if config.gpus > slots:
            shape = ", ".join(f"{node.cpus} CPUs + {node.gpus} GPUs" for node in nodes)
            rule = f"this cluster ({shape}) holds at most {slots} ranks on device {config.device}"
            mistakes[config.gpus] = Mistake("space.gpus", rule, config.gpus)
    if mistakes:
        raise InputError(place, list(mistakes.values()))
