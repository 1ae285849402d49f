"""The cores of this machine that a process may run on: which logical ones are one physical core, and where they lie."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from workers.contract.files import text

SYSTEM = Path("/sys/devices/system")


@dataclasses.dataclass(frozen=True, order=True)
class Core:
    """A physical core, as far as a process may run on it."""

    node: int  # NUMA
    cpus: tuple[int, ...]  # the logical cores that are threads of it


@dataclasses.dataclass(frozen=True)
class Topology:
    cores: tuple[Core, ...]
    has_siblings: bool = True  # False: the system does not tell them, and each logical core is taken for a physical one


def here(system: Path = SYSTEM, usable: Collection[int] | None = None) -> Topology:
    """Return the physical cores that this process may run on, node by node."""
    cpus = sorted(os.sched_getaffinity(0) if usable is None else usable)
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (system / "node").glob("node[0-9]*")
        for cpu in parsed(text(folder / "cpulist"))
    }
    siblings = {cpu: parsed(text(system / f"cpu/cpu{cpu}/topology/thread_siblings_list")) for cpu in cpus}
    has_siblings = all(cpu in own for cpu, own in siblings.items())
    threads: dict[int, list[int]] = defaultdict(list)  # by the first of a core's logical cores
    for cpu in cpus:
        threads[min(siblings[cpu]) if has_siblings else cpu].append(cpu)
    cores = sorted(Core(node_of.get(own[0], 0), tuple(own)) for own in threads.values())
    return Topology(tuple(cores), has_siblings)


def parsed(text: str) -> set[int]:
    """`0-3,8` as the system writes it."""
    spans = (span.partition("-") for span in text.strip().split(",") if span)
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def listed(cores: Collection[int]) -> str:
    """`0-3,8`."""
    spans: list[list[int]] = []
    for core in sorted(cores):
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)
