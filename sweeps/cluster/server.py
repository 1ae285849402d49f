"""Keeps MLflow's tracking server up on a cluster's head: again when it dies, and gone when Ray's head is.

    python -m sweeps.cluster.server FOLDER HEAD:PORT

The folder holds its database, its artifacts and its log, and outlives it. Another database is named by
MLFLOW_BACKEND_STORE_URI. It listens on loopback only: drivers run on the head too, and a user comes by SSH.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import logging.handlers
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from sweeps.cluster import head_watch
from sweeps.cluster.connection import MLFLOW_PORT
from sweeps.store import access

HOSTS = ("localhost", "127.0.0.1")  # that a browser may call it by; at any port, since a tunnel has one of its own
NO_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # else a dozen processes wait for work that we don't have
LOG_BYTES, LOGS = 16 << 20, 3
AGAIN_S = 2.0


def main(folder: Path, head: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # there is one already
        is_over = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: is_over.set())
        with head_watch.guarded(head, lambda: None, lambda _: is_over.set()):
            _keep(folder, is_over)


def _keep(folder: Path, is_over: threading.Event) -> None:
    log = _log(folder / "server.log")
    while not is_over.is_set():
        server = subprocess.Popen(
            _command(folder),
            env=os.environ | {"MLFLOW_BACKEND_STORE_URI": _database(folder)} | NO_JOBS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert server.stdout
        threading.Thread(target=_copy, args=(server.stdout, log), daemon=True).start()
        while server.poll() is None and not is_over.wait(0.5):
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)  # its worker too
        log.info("the server has ended with %s", server.wait())
        is_over.wait(AGAIN_S)


def _command(folder: Path) -> list[str]:
    return [
        *(
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(MLFLOW_PORT),
            "--workers",
            "1",
        ),
        *("--artifacts-destination", str(folder / "artifacts")),
        *("--allowed-hosts", ",".join([*HOSTS, *(f"{host}:*" for host in HOSTS)])),
    ]


def _database(folder: Path) -> str:
    """Never on the command line: it may hold a password."""
    if named := os.environ.get("MLFLOW_BACKEND_STORE_URI"):
        return named
    uri = f"sqlite:///{folder}/mlflow.db"
    access.prepare(uri)
    return uri


def _log(path: Path) -> logging.Logger:
    log = logging.getLogger("mlflow-server")
    log.setLevel(logging.INFO)
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOGS)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    return log


def _copy(lines: object, log: logging.Logger) -> None:
    for line in lines:  # type: ignore[attr-defined]
        log.info(line.rstrip())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
