"""Which physical cores a rank computes on and which decode its images: its own, and near its GPU.

Every rank of a node decides for all of them, from the same facts, and takes its part: so no two take one core. What
is recorded is read back from the kernel. `near_gpu` and the last three functions ask the system, the rest is pure.

Nobody is pinned where the container's quota is less than the cores that it may run on: whoever runs on any of them uses
up the time of all, so none would be a rank's own. Nor where several of Ray's nodes are one machine: each knows only its
own ranks, and would give them the cores that another gives to others.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from workers.contract.messages import DecodeThreads, TrialConfig
from workers.contract.ranks import Seat
from workers.node import gpus
from workers.node.topology import Core, Topology, listed, parsed

SPARE_CORES = 4  # a rank on a GPU: it drives the device, the network, and TensorFlow's own threads
NO_SIBLINGS = "the system tells no siblings: each logical core was taken for a physical one"


class Pins(NamedTuple):
    """The logical cores of one rank."""

    compute: frozenset[int]
    decode: frozenset[int]

    def __str__(self) -> str:
        return f"compute {listed(self.compute)}" + (f", decode {listed(self.decode)}" if self.decode else "")


class PinDecision(NamedTuple):
    pins: Pins | None  # None: the rank may run anywhere
    note: str  # why it may, or what was not known; empty where there is nothing to say


def decode_threads(wanted: DecodeThreads, physical_cores: int, local_size: int) -> int:
    """Return the decode threads of a node: as many for each of its ranks, so more than were asked for where that does
    not come out even. `auto` leaves four cores to each rank.

    `auto` leaves four cores to each rank.
    """
    each = physical_cores // local_size - SPARE_CORES if isinstance(wanted, str) else -(-wanted // local_size)
    return local_size * max(1, each)


def near_gpu(number: str) -> set[int]:
    """Return the cores on the NUMA node of a GPU; empty where that can't be known."""
    try:
        import pynvml
    except ImportError:
        return set()
    try:
        pynvml.nvmlInit()
        address = gpus.bus(pynvml, gpus.handle(pynvml, number))
        return parsed(Path(f"/sys/bus/pci/devices/{address}/local_cpulist").read_text())
    except (LookupError, OSError, pynvml.NVMLError):
        return set()


def of_rank(
    config: TrialConfig,
    seat: Seat,
    topology: Topology,
    decode: int,
    near: Callable[[str], Collection[int]] = near_gpu,
    quota: float = math.inf,
) -> PinDecision:
    """Return a rank's pins on a node that the trial has to itself. It has `decode` threads of its own, or none. `quota`
    is the container's, in logical cores."""
    if config.isolation == "shared":
        return PinDecision(None, "isolation is shared: other trials run on the node")
    if seat.shares_machine:
        return PinDecision(None, "another of Ray's nodes is on the same machine: its ranks may run on these cores")
    logical = sum(len(core.cpus) for core in topology.cores)
    if quota < logical:
        return PinDecision(None, f"the container's quota is the time of {quota:g} of its {logical} cores")
    gpus = seat.gpus or ("",) * seat.local_size
    spare = len(topology.cores) // seat.local_size - decode
    compute = config.cores_per_worker if config.device == "cpu" else max(1, min(SPARE_CORES, spare))
    found = assigned(topology.cores, [near(gpu) if gpu else () for gpu in gpus], compute, decode)
    if isinstance(found, str):
        return PinDecision(None, found)
    return PinDecision(found[seat.local_rank], "" if topology.has_siblings else NO_SIBLINGS)


def assigned(cores: Sequence[Core], near: Sequence[Collection[int]], compute: int, decode: int) -> list[Pins] | str:
    """Return the pins of all ranks of a node, each of which needs so many physical cores; or why there are none.

    `near` holds the logical cores near to each rank's GPU, none where that makes no difference. These sets are equal,
    apart, or one within the other, as nodes and sockets are. Ranks near to the same cores share them equally. What is
    too few is made up for from elsewhere; what is left over goes to computing by those who are near to it, for a rank
    has more threads than the ones that it computes with.
    """
    each, ranks = compute + decode, len(near)
    if ranks * each > len(cores):
        return _too_few(ranks, compute, decode, len(cores))
    whole = frozenset(cores)
    around = [frozenset(core for core in cores if not {*core.cpus}.isdisjoint(cpus)) or whole for cpus in near]
    groups = {own: [rank for rank in range(ranks) if around[rank] == own] for own in around}
    by_size = sorted(groups, key=lambda own: (len(own), min(own)))  # who is near to little has the least choice
    free = sorted(
        cores, key=lambda core: (sum(core in own for own in groups), core)
    )  # what few are near to comes first
    held: dict[frozenset[Core], list[Core]] = {own: [] for own in groups}

    def take(own: frozenset[Core], where: Collection[Core], most: int) -> None:
        taken = [core for core in free if core in where][:most]
        held[own] += taken
        for core in taken:
            free.remove(core)

    for own in by_size:
        take(own, own, each * len(groups[own]))
    for own in by_size:
        take(own, cores, each * len(groups[own]) - len(held[own]))
    for own in by_size:
        left = sum(core in own for core in free)
        take(own, own, left - left % len(groups[own]))
    pins = {}
    for own, members in groups.items():
        for rank, part in zip(members, _parts(held[own], own, len(members)), strict=True):
            pins[rank] = Pins(_cpus(part[: len(part) - decode]), _cpus(part[len(part) - decode :]))
    return [pins[rank] for rank in range(ranks)]


def _parts(held: Sequence[Core], near: Collection[Core], ranks: int) -> list[list[Core]]:
    """Equal parts of cores, each in one piece and with as many near ones as the next, which come first."""
    close, far = (iter(sorted(core for core in held if (core in near) == is_near)) for is_near in (True, False))
    each = len(held) // ranks
    near_ones, odd = divmod(sum(core in near for core in held), ranks)
    parts = []
    for rank in range(ranks):
        own = list(itertools.islice(close, near_ones + (rank < odd)))
        parts.append(own + list(itertools.islice(far, each - len(own))))
    return parts


def _cpus(cores: Collection[Core]) -> frozenset[int]:
    return frozenset(cpu for core in cores for cpu in core.cpus)


def _too_few(ranks: int, compute: int, decode: int, cores: int) -> str:
    who = f"{ranks} ranks need" if ranks > 1 else "a rank needs"
    each = " each" if ranks > 1 else ""
    needs = f"{compute}{each} to compute" + (f" and {decode}{each} to decode" if decode else "")
    return f"{who} {ranks * (compute + decode)} physical cores of their own ({needs}), but the node has {cores}"


def threads_here() -> set[int]:
    """All threads of this process, by their numbers in the system."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def keep(threads: Collection[int], cpus: Collection[int]) -> None:
    """Have these threads run on these logical cores alone, and those that they start from here on."""
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cpus)


def affinity(threads: Collection[int]) -> frozenset[int]:
    """Return the logical cores that the kernel lets any of these threads run on; none where none of them lives."""
    found: set[int] = set()
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            found |= os.sched_getaffinity(thread)
    return frozenset(found)
