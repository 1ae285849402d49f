"""What a cluster that grows by itself is asked to hold, so that a sweep's trials find the nodes that they lack. Pure.

Such a cluster packs what it is asked for onto as few nodes as hold it, those that are there among them. So where ranks
may sit anywhere, each of them is asked for. A gang that needs several nodes asks for each as a whole: for one that is
there, and beyond these for the smallest kind that is known to hold its part. As long as no such node is known, it asks
for what its ranks need; several parts may come to one node then, and what is still lacking is to be asked for anew.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence

from sweeps.spec import arrangements
from sweeps.spec.arrangements import Node
from workers.contract.messages import TrialConfig


def wanted(
    trials: Iterable[TrialConfig], nodes: Sequence[Node], most_nodes: int | None = None
) -> list[dict[str, float]]:
    """Return what a cluster must hold so that it can hold each of these trials of a sweep, one at a time. What needs
    more nodes than may be in use adds nothing: no node that comes would help it."""
    kinds = {_kind(config): config for config in trials}
    helped = [config for config in kinds.values() if _count(config, nodes) <= (most_nodes or sys.maxsize)]
    sizes: list[int] = []
    for config in helped:
        sizes = [max(pair) for pair in itertools.zip_longest(sizes, _whole_nodes(config, nodes), fillvalue=0)]
    for config in sorted(helped, key=_of_a_rank, reverse=True):
        if not _apart(config):
            one = _of_a_rank(config)
            sizes += [one] * (config.gpus - sum(size // one for size in sizes))
    return [{"GPU" if helped[0].device == "gpu" else "CPU": float(size)} for size in sizes]


def _kind(config: TrialConfig) -> tuple[object, ...]:
    """Return what is equal for trials that need the same nodes."""
    return config.device, config.cores_per_worker, config.gpus, config.arrangement or config.placement


def _count(config: TrialConfig, nodes: Sequence[Node]) -> int:
    """Return how many nodes it takes, or those that it takes at least where they are not there."""
    return len(arrangements.arrangement(config, nodes) or _apart(config))


def _apart(config: TrialConfig) -> tuple[int, ...]:
    """Return its ranks on each node, the most first; nothing where any nodes will do that hold them in sum."""
    if config.arrangement or config.placement in ("pack", "spread"):
        return config.arrangement
    count, each = map(int, config.placement.split("x"))
    return (each,) * count


def _whole_nodes(config: TrialConfig, nodes: Sequence[Node]) -> list[int]:
    """Return the sizes of the nodes for its parts, the largest first."""
    there = sorted(((arrangements.slots(config, node), _size(config, node)) for node in nodes), reverse=True)
    left, sizes = list(there), []
    for ranks in _apart(config):
        if left and left[0][0] >= ranks:
            sizes.append(left.pop(0)[1])
        else:
            sizes.append(min((size for slots, size in there if slots >= ranks), default=ranks * _of_a_rank(config)))
    return sorted(sizes, reverse=True)


def _size(config: TrialConfig, node: Node) -> int:
    """Return so much of a node that no other rank fits beside it."""
    return node.gpus if config.device == "gpu" else arrangements.slots(config, node) * config.cores_per_worker


def _of_a_rank(config: TrialConfig) -> int:
    return 1 if config.device == "gpu" else config.cores_per_worker
