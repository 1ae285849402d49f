"""Which cores a rank computes on and which decode its images: disjoint, and near its GPU. Pure but for the last two."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from workers import gpus
from workers.contract import DecodeThreads, TrialConfig
from workers.rank import Seat

SPARE_CORES = 4  # a rank on a GPU: it drives the device, the network, and TensorFlow's own threads


class Pins(NamedTuple):
    """The cores of one rank."""

    compute: frozenset[int]
    decode: frozenset[int]

    def __str__(self) -> str:
        return f"compute {listed(self.compute)}" + (f", decode {listed(self.decode)}" if self.decode else "")


def decode_threads(wanted: DecodeThreads, physical_cores: int, local_size: int) -> int:
    """Of a node. `auto` leaves four cores to each rank."""
    return max(1, physical_cores - SPARE_CORES * local_size) if isinstance(wanted, str) else wanted


def pins(cores: Sequence[int], place: int, sharers: int, compute: int, decode: int) -> Pins | None:
    """The cores of one of the `sharers` of these cores, each of which needs so many; None where they don't suffice.

    What is left over goes to computing: a rank has more threads than the ones that it computes with.
    """
    part = len(cores) // sharers
    if part < compute + decode:
        return None
    own = list(cores)[place * part : (place + 1) * part]
    return Pins(frozenset(own[: part - decode]), frozenset(own[part - decode :]))


def of_rank(config: TrialConfig, seat: Seat, cores: Collection[int], decode: int) -> Pins | None:
    """A rank's pins on a node that the trial has to itself. `decode` threads work on the node, or none."""
    if config.isolation == "shared":
        return None
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    near = sorted(near_gpu(gpu) & set(cores)) or sorted(cores)
    groups = 1 if len(near) == len(cores) else round(len(cores) / len(near))  # NUMA nodes, taken to be alike
    sharers = -(-seat.local_size // groups)
    compute = config.cores_per_worker if config.device == "cpu" else 1
    return pins(near, seat.local_rank % sharers, sharers, compute, -(-decode // seat.local_size))


def near_gpu(number: str) -> set[int]:
    """The cores on the NUMA node of a GPU; empty where that can't be known."""
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
