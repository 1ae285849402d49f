"""How many cores this process may use: those of its affinity, and of no more than its container's quota of time.

A quota (Docker's --cpus, a Kubernetes limit) leaves a container every core to run on, and stops it for the rest of each
tenth of a second once it has used up its time. The number of cores, and the affinity, tell nothing of it. Linux writes
it in a control group's `cpu.max`, or `cpu.cfs_quota_us` in its first version; a group is bound by those above it too,
so the smallest on the way up counts. Standard library only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.contract.files import text

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def quota(groups: Path = GROUPS, own: Path = OWN) -> float:
    """Return the cores whose time this process's container may use up; infinite where it has no quota."""
    return min((_limit(folder) for folder in _folders(groups, text(own))), default=math.inf)


def cores(groups: Path = GROUPS, own: Path = OWN, affinity: Collection[int] | None = None) -> int:
    """Return the logical cores that this process may use: it may run on so many, and use up the time of so many, begun
    ones included."""
    allowed = len(os.sched_getaffinity(0) if affinity is None else affinity)
    within = quota(groups, own)
    return allowed if within >= allowed else max(1, math.ceil(within))


def facts(
    of_machine: int, groups: Path = GROUPS, own: Path = OWN, affinity: Collection[int] | None = None
) -> Mapping[str, Any]:
    """Return what is kept from this process of a machine with so many logical cores; nothing where it may use them
    all."""
    usable, within = cores(groups, own, affinity), quota(groups, own)
    if usable >= of_machine and within >= of_machine:
        return {}
    return {"usable_cores": usable, **({"cpu_quota": within} if math.isfinite(within) else {})}


def described(of_machine: int, groups: Path = GROUPS, own: Path = OWN, affinity: Collection[int] | None = None) -> str:
    """`4 of 64 cores (the container's quota)`; empty where it may use them all."""
    found = facts(of_machine, groups, own, affinity)
    if not found:
        return ""
    allowed = len(os.sched_getaffinity(0) if affinity is None else affinity)
    why = "the container's quota" if found.get("cpu_quota", math.inf) < allowed else "the affinity of its processes"
    return f"{found['usable_cores']} of {of_machine} cores ({why})"


def _folders(groups: Path, own: str) -> Iterator[Path]:
    """Yield this process's groups that may limit its processors, each with those above it. A container may see its own
    group at the root, under a path of its host."""
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = (controllers, "cpu", "cpu,cpuacct") if controllers else ("", "unified")
        inside = [part for part in path.split("/") if part]
        for root in {groups / name for name in names}:
            for depth in range(0 if ".." in inside else len(inside), -1, -1):
                yield root.joinpath(*inside[:depth])


def _limit(folder: Path) -> float:
    """Return a group's limit in cores; infinite where the group has none, or there is no such group."""
    parts = text(folder / "cpu.max").split()
    if not parts:
        parts = [text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):  # "max", or -1, is none
        return math.inf
    time_us, period_us = map(int, parts)
    return time_us / period_us
