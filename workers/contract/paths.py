"""Every path of the project that a program writes to or reads back. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

RESULTS = "results"


def results_root() -> Path:
    """Return the folder of all sweeps: `SWEEP_RESULTS`, or `results` in the current folder."""
    return Path(os.environ.get("SWEEP_RESULTS", RESULTS)).absolute()


def kept_counts() -> Path:
    """Return the folder of what is known of sets of images."""
    return _kept() / "record-counts"


def kept_digests() -> Path:
    """Return the folder of what is known of large files of installed packages."""
    return _kept() / "file-digests"


def _kept() -> Path:
    """In the user's cache folder; `SWEEP_CACHE` moves it. Nothing in it is missed when it is deleted."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return Path(os.environ.get("SWEEP_CACHE") or user / "sweep").absolute()


class SweepPaths:
    """The files of one sweep."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise ValueError(f"a sweep's name is letters, digits, '.', '_' and '-', but got {name!r}")
        self.name = name
        self.folder = (root or results_root()) / name

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def code(self) -> Path:
        """The user's own code of a sweep that was submitted: its ranks run it here, whoever goes on with the sweep."""
        return self.folder / "code"

    @property
    def status(self) -> Path:
        """What a running sweep's driver says of it, once a second."""
        return self.folder / "status.json"

    def rank_log(self, trial: str, rank: int) -> Path:
        return self.logs / trial / f"rank-{rank}.log"

    def samples(self, fork_server: str) -> Path:
        """Return what a node's sampler wrote, on that node."""
        return self.folder / "telemetry" / f"{fork_server}.jsonl"

    def last_probe(self, fork_server: str) -> Path:
        """Return the file whose time says when a node was last tested."""
        return self.folder / "telemetry" / f"{fork_server}.probed"

    def history(self, cell: str, places: Collection[str]) -> Path:
        """Return what the windows of a cell's trials in these places have shown, on the node of the first rank."""
        place = hashlib.sha256(" ".join(sorted(set(places))).encode()).hexdigest()[:10]
        return self.folder / "windows" / f"{cell}-{place}.json"

    def checkpoint(self, trial: str) -> Path:
        return self.folder / "checkpoints" / f"{trial}.npz"


def history_of(history: Path, software: str, data_files: str) -> Path:
    """Return the part of a cell's history that this software has measured on this data."""
    made = hashlib.sha256(f"{software} {data_files}".encode()).hexdigest()[:10]
    return history.with_name(f"{history.stem}-{made}{history.suffix}")


def fork_server_address(key: str, framework: str = "tensorflow") -> str:
    """Return the socket of a node's fork server of a framework: a name of the kernel, so that no file can be left
    behind."""
    own = "" if framework == "tensorflow" else f"-{framework}"
    return f"\0sweep-fork-server-{os.getuid()}-{key}{own}"


def wanted_address(key: str) -> str:
    """Return the socket to which a node is told the framework whose fork server is wanted there."""
    return fork_server_address(key, "wanted")


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Have a file appear complete or not at all: write to the given path, it is renamed at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
