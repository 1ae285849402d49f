"""One node of a cluster, asked by `sweep doctor --cluster`: what it runs, its clock, what it sees, its links.

Standard library only; runs in a Ray worker on that node, and imports TensorFlow in a process of its own.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from workers.contract import proof
from workers.contract.packages import version_of
from workers.node import toolkit

PACKAGES = ("ray", "tensorflow", "horovod", "mlflow")
CHUNK = 1 << 20
LINK_MIB = 64
PATIENCE_S = 20.0
PROOF_S = 2.0  # that who sends has to show the word
CURE = "make clean setup installs them anew"  # of TensorFlow and Horovod that can't be imported


def facts(folders: Sequence[str]) -> dict[str, Any]:
    """Return what the node is and has; `folders` that it should see."""
    known, said = machine()
    return {
        "host": os.uname().nodename,
        "versions": {"python": platform.python_version(), **{name: version_of(name, "none") for name in PACKAGES}},
        "gpus": [gpu["name"] for gpu in known.get("gpus", [])],
        "mismatches": [str(one) for one in _mismatches(known)],
        "devices": len(glob.glob("/dev/nvidia[0-9]*")),
        "trouble": [f"{said} ({CURE})"] if said else list(known["trouble"]),
        "has_nccl": bool(known.get("horovod", {}).get("nccl")),
        "missing": [folder for folder in folders if not os.access(folder, os.R_OK)],
        "name_leads_to": _name_leads_to(),
    }


def machine() -> tuple[dict[str, Any], str]:
    """Return the facts of this machine, or why there are none. TensorFlow is imported for them, so a process of its own
    does it."""
    probe = subprocess.run(
        [sys.executable, "-m", "workers.checks.machine_facts"], capture_output=True, text=True, check=False
    )
    if probe.returncode == 0:
        return dict(json.loads(probe.stdout.splitlines()[-1])), ""
    last = (probe.stderr.strip().splitlines() or ["no message"])[-1]
    return {}, f"TensorFlow and Horovod must be importable, but their probe says: {last}"


def _mismatches(known: Mapping[str, Any]) -> list[toolkit.Mismatch]:
    """Return what of GPUs, driver and CUDA does not go together here."""
    gpus = [(gpu["name"], tuple(gpu["capability"])) for gpu in known.get("gpus", [])]
    if not gpus:
        return []
    return toolkit.of_node(gpus, toolkit.parsed(known["toolkit"]), toolkit.parsed(known["driver"]))


def without(patterns: Sequence[str]) -> list[str]:
    """Return the patterns that no file here matches."""
    return [pattern for pattern in patterns if not glob.glob(pattern)]


def unset(names: Sequence[str]) -> list[str]:
    """Return those that are no variables here, or empty ones."""
    return [name for name in names if not os.environ.get(name)]


def versions(packages: Sequence[str]) -> list[str]:
    """Return these packages' versions, "none" of those that are not installed."""
    return [version_of(name, "none") for name in packages]


def clock() -> float:
    return time.time()


def _name_leads_to() -> str:
    """Return the address that Horovod finds when it looks its node's name up; empty if none."""
    try:
        return str(socket.getaddrinfo(os.uname().nodename, None)[0][4][0])
    except socket.gaierror:
        return ""


class Sink:
    """Takes what another node sends that has the word, once; hangs up on everyone else."""

    def __init__(self, address: str, word: bytes) -> None:
        self._door, self._word = socket.create_server((address, 0)), word
        threading.Thread(target=self._take, daemon=True).start()

    def port_number(self) -> int:
        return int(self._door.getsockname()[1])

    def _take(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        with self._door, contextlib.suppress(TimeoutError):
            while (left_s := give_up - time.monotonic()) > 0:
                self._door.settimeout(left_s)
                line, _ = self._door.accept()
                with line, contextlib.suppress(OSError):
                    if self._is_sender(line):
                        _drain(line)
                        break

    def _is_sender(self, line: socket.socket) -> bool:
        line.settimeout(PROOF_S)
        question = proof.question()
        line.sendall(question)
        return proof.is_of(proof.received(line), self._word, question)


def _drain(line: socket.socket) -> None:
    line.settimeout(PATIENCE_S)
    left = LINK_MIB * CHUNK
    while left and (got := len(line.recv(CHUNK))):
        left -= got
    line.sendall(b".")


def send(address: str, port: int, word: bytes) -> float:
    """MiB/s to a sink on another node, until it has them all."""
    with socket.create_connection((address, port), timeout=PATIENCE_S) as line:
        line.sendall(proof.of(word, proof.received(line)))
        block, began = bytes(CHUNK), time.perf_counter()
        for _ in range(LINK_MIB):
            line.sendall(block)
        line.recv(1)
        return LINK_MIB / (time.perf_counter() - began)
