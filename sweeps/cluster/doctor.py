"""`sweep doctor`: what this machine can do, and what is wrong with its cure."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeps.errors import RefusedError
from sweeps.record import mounts
from sweeps.text import addresses
from workers.checks import node_checkup
from workers.contract.paths import results_root
from workers.node import toolkit

PORTS = {5000: "MLflow UI", 6379: "Ray head", addresses.DASHBOARD_PORT: "Ray dashboard and jobs"}
TESTED = {"ray": "2.60.0", "tensorflow": "2.18.1", "horovod": "0.28.1", "mlflow": "3.17.2"}
LEAST_FREE_GIB = 2.0
LEAST_SHARED_GIB = 0.3
LEAST_OPEN_FILES = 4096


@dataclasses.dataclass(frozen=True)
class CheckResult:
    matter: str
    finding: str
    cure: str = ""
    is_wrong: bool = False

    def row(self) -> dict[str, str]:
        mark = "✗" if self.is_wrong else "!" if self.cure else "✓"
        return {"": mark, "matter": self.matter, "finding": self.finding, "cure": self.cure}


def examine(folders: Sequence[str] = ()) -> list[CheckResult]:
    """One row a matter: what, finding, and the cure where something is wrong. `folders` are those that trials read."""
    facts = _facts()
    rows = [
        _row("machine", f"{facts['host']}: {facts['system']}, Python {facts['python']}"),
        _row("processor", f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} threads"),
        *([_row("cores to use", facts["usable"])] if facts["usable"] else []),
        _row("memory", f"{facts['memory_gib']} GiB"),
        *(_version(name, facts["packages"].get(name, "")) for name in TESTED),
        _horovod(facts),
        *_gpus(facts),
        _row("precision on CPU", f"{', '.join(facts['cpu_precisions'])} run natively"),
        *_ports(),
        _disk(results_root()),
        *_locks(results_root()),
        _shared_memory(),
        _open_files(),
        *(_data(folder) for folder in folders),
    ]
    rows += [_row("probe", *trouble.partition("; cure: ")[::2]) for trouble in facts["trouble"]]
    return rows


def _row(matter: str, finding: str, cure: str = "") -> CheckResult:
    return CheckResult(matter, finding, cure, is_wrong=bool(cure))


def _facts() -> dict[str, Any]:
    facts, said = node_checkup.machine()
    if said:
        raise RefusedError(f"{said}\n  {node_checkup.CURE}")
    return facts


def _version(name: str, found: str) -> CheckResult:
    if not found:
        return _row(name, "not installed", "make setup")
    tested = TESTED[name]
    return _row(name, found, "" if found == tested else f"tested with {tested}: make clean setup")


def _horovod(facts: dict[str, Any]) -> CheckResult:
    flags = facts["horovod"]
    built = ", ".join(name for name, is_built in flags.items() if is_built) or "nothing"
    cure = ""
    if not flags.get("gloo"):
        cure = "ranks on CPUs need Gloo: make clean setup"
    elif facts["gpus"] and not flags.get("nccl"):
        cure = "GPUs need NCCL: make clean setup GPU=1"
    return _row("horovod built with", built, cure)


def _gpus(facts: dict[str, Any]) -> list[CheckResult]:
    if not facts["gpus"]:
        return [_row("GPUs", "none: `device: cpu` only")]
    names = [f"{gpu['name']} {gpu['memory_gib']} GiB" for gpu in facts["gpus"]]
    cure = "" if facts["tensorflow_cuda"] else "this TensorFlow can't use them: make clean setup GPU=1"
    return [
        _row("GPUs", f"{len(names)}: {', '.join(sorted(set(names)))}", cure),
        *_cuda(facts),
        _row("precision on GPU", f"{', '.join(facts['gpu_precisions'])} run natively"),
    ]


def _cuda(facts: dict[str, Any]) -> list[CheckResult]:
    """Driver and toolkit, and a row for each thing that does not go with them or the GPUs."""
    capabilities = [(gpu["name"], tuple(gpu["capability"])) for gpu in facts["gpus"]]
    wrong = toolkit.of_node(capabilities, toolkit.parsed(facts["toolkit"]), toolkit.parsed(facts["driver"]))
    found = f"toolkit {facts['toolkit'] or 'not found'}, driver {facts['driver'] or 'not found'}"
    return [_row("CUDA", found), *(_row("CUDA", f"{one.rule}, but {one.value}", one.cure) for one in wrong)]


def _ports() -> list[CheckResult]:
    """Say which ports are free. A taken one is no fault: it may be the server that one wants."""
    return [
        CheckResult(f"port {port}", f"{use}: free")
        if port_is_free(port)
        else CheckResult(f"port {port}", f"{use}: taken", f"ss -ltnp 'sport = :{port}' names the process")
        for port, use in PORTS.items()
    ]


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return True
    return False


def _disk(folder: Path) -> CheckResult:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free_gib = shutil.disk_usage(there).free / 2**30
    cure = ""
    if not os.access(there, os.W_OK):
        cure = "not writable: choose another folder with SWEEP_RESULTS"
    elif free_gib < LEAST_FREE_GIB:
        cure = "nearly full: free some, or choose another folder with SWEEP_RESULTS"
    return _row("results", f"{folder}, {free_gib:.0f} GiB free", cure)


def _locks(folder: Path) -> list[CheckResult]:
    """No fault of a folder that one machine uses."""
    if not (how := mounts.locks_hold_here_alone(folder)):
        return []
    cure = "where several hosts drive sweeps, mount it so that locks hold between them"
    return [CheckResult("locks in results", f"{how}: they hold on this host alone", cure)]


def _shared_memory() -> CheckResult:
    free_gib = shutil.disk_usage("/dev/shm").free / 2**30
    cure = "" if free_gib >= LEAST_SHARED_GIB else "Ray keeps its objects there: mount it larger"
    return _row("shared memory", f"{free_gib:.1f} GiB free in /dev/shm", cure)


def _open_files() -> CheckResult:
    """Ray raises its own limit as far as it may."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = hard == resource.RLIM_INFINITY or hard >= LEAST_OPEN_FILES
    most = "no limit" if hard == resource.RLIM_INFINITY else f"{hard}"
    cure = "" if is_enough else f"Ray opens many: raise `nofile` in /etc/security/limits.conf to {LEAST_OPEN_FILES}"
    return _row("open files", f"at most {soft}, which Ray may raise to {most}", cure)


def _data(folder: str) -> CheckResult:
    cure = "" if os.access(folder, os.R_OK) else "must be there, and readable by you"
    return _row("data", folder, cure)
