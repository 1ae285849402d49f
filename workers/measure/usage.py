"""What a node's samples say of a window of time: its load, its traffic, its energy.

Reads what `workers.node.telemetry` wrote. Between two samples counters are taken to grow, and other readings to change,
evenly, and the wall clock not to be set back. Standard library only.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

GIB, MIB = 1 << 30, 1 << 20
BLOCK = 1 << 16  # bytes; holds the line of a sample, and many of most nodes
LONGEST_GAP = 5  # sampling intervals; the edge of a window is not interpolated in a longer one
LEAST_SEEN = 0.5  # of a window; a figure of which less was seen is left out


class Sample(NamedTuple):
    at: float
    monotonic: float
    every_s: float
    values: Mapping[str, Mapping[str, float]]  # by quantity and instance


def samples(lines: Iterable[str | bytes]) -> Iterator[Sample]:
    """Skips notes of what is missing, and lines that a killed sampler has cut."""
    for line in lines:
        try:
            said: dict[str, Any] = json.loads(line)
            if "missing" not in said:
                yield Sample(said.pop("at"), said.pop("monotonic"), said.pop("every_s"), said)
        except (ValueError, LookupError, TypeError, AttributeError):
            continue


def within(path: Path, start_at: float, end_at: float) -> list[Sample]:
    """Return the samples of a window and, where there are, the last before and the first after it.

    Finds its place by bisection: a file of days costs as little as one of minutes.
    """
    if not path.exists():
        return []
    with open(path, "rb") as file:
        low, high = 0, os.fstat(file.fileno()).st_size
        while high - low > BLOCK:
            middle = (low + high) // 2
            file.seek(middle)
            file.readline()
            first = next(samples(file), None)
            if first and first.at < start_at:
                low = middle
            else:
                high = middle
        file.seek(max(0, low - BLOCK))
        if file.tell():
            file.readline()
        found: list[Sample] = []
        for sample in samples(file):
            if sample.at < start_at:
                found.clear()
            found.append(sample)
            if sample.at >= end_at:
                break
        return found


def mean(values: Collection[float]) -> float:
    return sum(values) / len(values)


Reduction = Callable[[Collection[float]], float]


class Figure(NamedTuple):
    """How a quantity becomes a figure of a window: over time, over its parts, over the nodes of a trial."""

    quantity: str
    over_time: Literal["rate", "total", "mean", "max"]  # the first two of what counts up
    over_parts: Reduction
    over_nodes: Reduction
    unit: float = 1


FIGURES = {
    "cpu_percent": Figure("cpu_busy_s", "rate", mean, mean, 0.01),
    "cpu_core_max_percent": Figure("cpu_busy_s", "rate", max, max, 0.01),
    "cpu_steal_cores": Figure("cpu_steal_s", "rate", sum, sum),
    "sampler_cpu_percent": Figure("sampler_cpu_s", "rate", sum, max, 0.01),
    "memory_used_gib": Figure("memory_used_bytes", "max", sum, max, GIB),
    "page_cache_gib": Figure("page_cache_bytes", "mean", sum, mean, GIB),
    "disk_read_mib_per_s": Figure("disk_read_bytes", "rate", sum, sum, MIB),
    "disk_write_mib_per_s": Figure("disk_write_bytes", "rate", sum, sum, MIB),
    "disk_read_mib": Figure("disk_read_bytes", "total", sum, sum, MIB),
    "disk_write_mib": Figure("disk_write_bytes", "total", sum, sum, MIB),
    "net_send_mib_per_s": Figure("net_send_bytes", "rate", sum, sum, MIB),
    "net_receive_mib_per_s": Figure("net_receive_bytes", "rate", sum, sum, MIB),
    "loopback_mib_per_s": Figure("loopback_bytes", "rate", sum, sum, MIB),
    "ib_send_mib_per_s": Figure("ib_send_bytes", "rate", sum, sum, MIB),
    "ib_receive_mib_per_s": Figure("ib_receive_bytes", "rate", sum, sum, MIB),
    "gpu_percent": Figure("gpu_percent", "mean", mean, mean),
    "gpu_memory_gib": Figure("gpu_memory_bytes", "max", max, max, GIB),
    "gpu_power_w": Figure("gpu_power_w", "mean", sum, sum),
    "gpu_clock_mhz": Figure("gpu_clock_mhz", "mean", mean, mean),
    "gpu_temperature_c": Figure("gpu_temperature_c", "max", max, max),
    "gpu_nvlink_send_mib_per_s": Figure("gpu_nvlink_send_bytes", "rate", sum, sum, MIB),
    "gpu_nvlink_receive_mib_per_s": Figure("gpu_nvlink_receive_bytes", "rate", sum, sum, MIB),
    "gpu_pcie_send_mib_per_s": Figure("gpu_pcie_send_kb_per_s", "mean", sum, sum, MIB / 1000),
    "gpu_pcie_receive_mib_per_s": Figure("gpu_pcie_receive_kb_per_s", "mean", sum, sum, MIB / 1000),
    "cpu_energy_j": Figure("cpu_energy_j", "total", sum, sum),
    "gpu_energy_j": Figure("gpu_energy_j", "total", sum, sum),
}
COUNTS: dict[str, Reduction] = {"samples": sum, "sampled_s": min}
CURVES = ("disk_read_mib_per_s", "disk_write_mib_per_s", "net_send_mib_per_s", "net_receive_mib_per_s")


class Stretch(NamedTuple):
    """The time between two samples in a row, and from where to where in it (0 to 1) a window reaches."""

    before: Sample
    after: Sample
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) * (self.after.monotonic - self.before.monotonic)


class PartInWindow(NamedTuple):
    """One part of a quantity over a window: the mean of its readings or of its growth a second."""

    mean: float
    largest: float
    seconds: float


def summary(
    source: Path | Sequence[Sample], start_at: float, end_at: float, gpus: Collection[str] | None = None
) -> dict[str, float]:
    """Return what a node did between two times of the wall clock; nothing where nothing was sampled.

    A figure that can't be told is left out. Totals are of the whole window, what wasn't seen of it (the sampler
    began late, the last sample is to come) taken as what was; `sampled_s` says how much was seen. `gpus` names
    those that count (NVML's numbers), or all that were seen do. Of those named, each must have been seen: a figure of
    some of them would pass for one of all.
    """
    stretches = _stretches(within(source, start_at, end_at) if isinstance(source, Path) else source, start_at, end_at)
    return _figures_of(stretches, start_at, end_at, FIGURES, gpus)


def combine(nodes: Sequence[Mapping[str, float]], machines: Sequence[str] = ()) -> dict[str, float]:
    """Return the figures of a trial from those of its nodes. A sum needs a part of each node; means and maxima don't.

    `machines` names that of each node, where it is known. Several of Ray's nodes on one machine read the same
    processors, memory, disks and networks: these count once. GPUs are told by the one node that has them.

    The energies of processors and of GPUs stay apart. Which of them are all that a trial took depends on whether it
    has GPUs, which samples don't tell.
    """
    reductions = {**COUNTS, **{name: figure.over_nodes for name, figure in FIGURES.items()}}
    combined = {}
    for name, over_nodes in reductions.items():
        every = [node.get(name) for node in nodes]
        if not name.startswith("gpu_"):
            every = _of_machines(every, machines)
        parts = [part for part in every if part is not None]
        if parts and (len(parts) == len(every) or over_nodes is not sum):
            combined[name] = over_nodes(parts)
    return combined


def _of_machines(parts: Sequence[float | None], machines: Sequence[str]) -> list[float | None]:
    """One part for each machine: that of the first of its nodes that knows it."""
    found: dict[str | int, float | None] = {}
    for n, (part, machine) in enumerate(itertools.zip_longest(parts, machines)):
        place = machine or n
        found[place] = part if found.get(place) is None else found[place]
    return list(found.values())


def series(
    source: Path | Sequence[Sample],
    start_at: float,
    end_at: float,
    step_s: float = 0.0,
    figures: Iterable[str] = CURVES,
) -> list[dict[str, float]]:
    """Figures over time, for curves: a row from one sample to the next that is at least `step_s` later, its `at` the
    later of the two."""
    known = within(source, start_at, end_at) if isinstance(source, Path) else source
    known = [sample for sample in known if start_at <= sample.at <= end_at]
    wanted = {name: FIGURES[name] for name in figures}
    rows = []
    first = 0
    for last in range(1, len(known)):
        begin, end = known[first].at, known[last].at
        if end - begin >= step_s:
            found = _figures_of(_stretches(known[first : last + 1], begin, end), begin, end, wanted)
            rows.append({"at": end, **{name: found[name] for name in wanted if name in found}})
            first = last
    return rows


def _figures_of(
    stretches: Sequence[Stretch],
    start_at: float,
    end_at: float,
    figures: Mapping[str, Figure],
    gpus: Collection[str] | None = None,
) -> dict[str, float]:
    if not stretches:
        return {}
    window_s = end_at - start_at
    times = {time for stretch in stretches for time in (stretch.before.at, stretch.after.at)}
    found = {
        "samples": sum(start_at <= time <= end_at for time in times),
        "sampled_s": sum(stretch.seconds for stretch in stretches),
    }
    for name, figure in figures.items():
        seen = _by_part(stretches, figure.quantity, counts_up=figure.over_time in ("rate", "total"))
        if name == "gpu_energy_j":  # older GPUs have no meter: what they drew, over the time
            seen = {**_by_part(stretches, "gpu_power_w", counts_up=False), **seen}
        if gpus is not None and name.startswith("gpu_"):
            seen = {part: seen[part] for part in gpus} if seen.keys() >= set(gpus) else {}
        if seen and all(it.seconds >= LEAST_SEEN * window_s for it in seen.values()):
            parts = [it.largest if figure.over_time == "max" else it.mean for it in seen.values()]
            whole = window_s if figure.over_time == "total" else 1
            found[name] = figure.over_parts(parts) * whole / figure.unit
    return found


def _stretches(known: Sequence[Sample], start_at: float, end_at: float) -> list[Stretch]:
    found = []
    for before, after in itertools.pairwise(known):
        length_s = after.at - before.at
        begin, end = max(before.at, start_at), min(after.at, end_at)
        is_whole = (begin, end) == (before.at, after.at)
        is_near = length_s <= LONGEST_GAP * max(before.every_s, after.every_s)
        if begin < end and (is_whole or is_near) and before.monotonic < after.monotonic:
            found.append(Stretch(before, after, (begin - before.at) / length_s, (end - before.at) / length_s))
    return found


def _by_part(stretches: Sequence[Stretch], quantity: str, counts_up: bool) -> dict[str, PartInWindow]:
    """Return what was seen, by part. A counter that has fallen began anew in between, and that stretch tells nothing of
    it."""
    seen: dict[str, PartInWindow] = {}
    for stretch in stretches:
        before, after = (sample.values.get(quantity, {}) for sample in (stretch.before, stretch.after))
        between_s = stretch.after.monotonic - stretch.before.monotonic
        for part in before.keys() & after.keys():
            growth = after[part] - before[part]
            if counts_up and growth < 0:
                continue
            first, last = before[part] + growth * stretch.begin, before[part] + growth * stretch.end
            if counts_up:
                first = last = growth / between_s
            total, largest, seconds = seen.get(part, (0.0, first, 0.0))
            total += (first + last) / 2 * stretch.seconds
            seen[part] = PartInWindow(total, max(largest, first, last), seconds + stretch.seconds)
    return {part: PartInWindow(total / seconds, largest, seconds) for part, (total, largest, seconds) in seen.items()}
