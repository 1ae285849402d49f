"""What `--simulate nodes=8,gpus=4,gpu=v100` means. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sweeps.errors import InputError, Mistake
from sweeps.record.rows import SIMULATED
from sweeps.scheduling.cache import NodeContents
from sweeps.simulator.model import KINDS, Kind
from sweeps.spec.arrangements import Node
from workers.contract.spelling import did_you_mean

PLACE = "--simulate"
EXAMPLE = "nodes=8,gpus=4,gpu=v100"
MOST = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedCluster:
    """Equal nodes, and what befalls trials on them."""

    nodes: tuple[Node, ...]
    gpu: str = "v100"  # a name in KINDS
    memory_gib: float = 0.0  # of a GPU, or of a node without; 0: as the kind has
    noise: float = 0.01  # standard deviation of a step's time, relative to it
    loss: float = 0.0  # chance that a trial loses a node or a rank
    seed: int = 0

    @property
    def kind(self) -> Kind:
        kind = KINDS[self.gpu]
        if not self.memory_gib:
            return kind
        if kind.gpus:
            return dataclasses.replace(kind, gpu_gib=self.memory_gib)
        return dataclasses.replace(kind, memory_gib=self.memory_gib)

    @property
    def hardware(self) -> str:
        """The fingerprint of its nodes, that no real node has."""
        memory = f"-{self.memory_gib:g}GiB" if self.memory_gib else ""
        return f"simulated:{self.gpu}{memory}"


def contents(cluster: SimulatedCluster, folders: Iterable[str] = ()) -> dict[str, NodeContents]:
    """Return what its nodes are made of, by name; the files in these folders are as made up as they are."""
    same = NodeContents(cluster.hardware, SIMULATED, dict.fromkeys(folders, SIMULATED), SIMULATED)
    return {node.name: same for node in cluster.nodes}


def parse(text: str) -> SimulatedCluster:
    """Return the cluster of a shape; raises `InputError` with every mistake."""
    mistakes: list[Mistake] = []
    given: dict[str, Any] = {}
    for word in text.split(","):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or name not in READ:
            hint = "" if name in READ else did_you_mean(name, READ)
            rule = f"a part must be NAME=VALUE, NAME one of {', '.join(READ)}{hint}"
            mistakes.append(Mistake("", rule, word.strip()))
        elif name in given:
            mistakes.append(Mistake(name, "must be given once", value))
        else:
            rule, read = READ[name]
            given[name] = read(value)
            if given[name] is None:
                mistakes.append(Mistake(name, rule, value))
    gpu = given.get("gpu") or "v100"
    if gpu == "none" and given.get("gpus"):
        mistakes.append(Mistake("gpus", "must be left out, or be 0, with gpu=none", given["gpus"]))
    if gpu != "none" and given.get("gpus") == 0:
        mistakes.append(Mistake("gpus", "must be at least 1; gpu=none gives nodes without", 0))
    if "nodes" not in given and not any("nodes" in str(mistake.got) for mistake in mistakes):
        mistakes.append(Mistake("nodes", f"must be given, as in {EXAMPLE}", None))
    if mistakes:
        raise InputError(PLACE, mistakes)
    kind = KINDS[gpu]
    cpus, gpus = given.get("cpus") or kind.cores, given.get("gpus", kind.gpus)
    of_kind = "" if gpu == "none" else gpu
    nodes = tuple(Node(f"node-{n}", cpus, gpus, of_kind) for n in range(1, given["nodes"] + 1))
    rest = {name: given[name] for name in ("noise", "loss", "seed") if name in given}
    return SimulatedCluster(nodes=nodes, gpu=gpu, memory_gib=given.get("memory", 0.0), **rest)


def like(nodes: Sequence[Node]) -> SimulatedCluster:
    """Return a simulated cluster in place of a real one, to foretell what it will take; of GPUs that no figures are
    known of, the reference stands for all."""
    kinds = {node.kind.lower() for node in nodes if node.gpus}
    known = [name for name in KINDS if kinds == {name}]
    return SimulatedCluster(nodes=tuple(nodes), gpu=known[0] if known else "v100" if kinds else "none")


def _whole(low: int) -> Callable[[str], int | None]:
    return lambda text: int(text) if text.isdecimal() and text.isascii() and low <= int(text) <= MOST else None


def _share(text: str) -> float | None:
    """`5%` or 0.05; less than 1."""
    is_percent = text.endswith("%")
    try:
        share = float(text.removesuffix("%")) / (100 if is_percent else 1)
    except ValueError:
        return None
    return share if 0 <= share < 1 else None


def _gib(text: str) -> float | None:
    try:
        size = float(text)
    except ValueError:
        return None
    return size if 0 < size < 1e6 else None


READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "nodes": (f"must be a whole number from 1 to {MOST}", _whole(1)),
    "gpus": (f"must be a whole number from 0 to {MOST}: those of a node", _whole(0)),
    "gpu": (f"must be one of {', '.join(KINDS)}", lambda text: text if text in KINDS else None),
    "cpus": (f"must be a whole number from 1 to {MOST}: the cores of a node", _whole(1)),
    "memory": ("must be GiB: of a GPU, or of a node with gpu=none", _gib),
    "noise": ("must be at least 0 and less than 1, such as 0.01 or 1%: a step's deviation", _share),
    "loss": ("must be at least 0 and less than 1, such as 0.05 or 5%: of the trials", _share),
    "seed": (f"must be a whole number from 0 to {MOST}", _whole(0)),
}
