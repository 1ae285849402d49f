"""A PostgreSQL server on a host, for MLflow's store, or on this machine."""

from __future__ import annotations

import pwd
import shutil
from pathlib import Path
from typing import Protocol

USER = "sweep"
NAME = "mlflow"
PORT = 5432
INSTALLED = Path("/usr/lib/postgresql")  # a folder a version, as Debian has it


def programs() -> Path | None:
    """Where PostgreSQL's are; None if it is not installed."""
    if found := shutil.which("pg_ctl"):
        return Path(found).resolve().parent
    versions = sorted(INSTALLED.glob("*/bin/pg_ctl"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


class Host(Protocol):
    def run(self, command: str, timeout_s: float = 60) -> str:
        """Return what a command says; raises where it fails."""


class Postgres:
    """Listens on the loopback of its host only, and lets everyone there in who has its password, if it has one."""

    store = f"postgresql://{USER}@127.0.0.1:{PORT}/{NAME}"

    def __init__(self, host: Host, folder: Path, programs: Path, port: int = PORT, password: str = "") -> None:
        """With its files in a new folder within one that it may pass through. A password comes to stand in its user's
        ~/.pgpass on the host, and nowhere else as it is."""
        self.store = f"postgresql://{USER}@127.0.0.1:{port}/{NAME}"
        self._host, self._programs, self._folder = host, programs, folder / "postgres"
        self._owner = next(name for name in ("postgres", "nobody") if _is_known(name))  # it refuses to run as root
        folder.chmod(0o711)
        self._folder.mkdir(mode=0o700)
        shutil.chown(self._folder, self._owner)
        entry = folder / "entry"
        entry.write_text(password)
        entry.chmod(0o644)
        way = f"scram-sha-256 --pwfile={entry}" if password else "trust"
        self._call(f"initdb -D {self._folder}/data -U {USER} -A {way} -E UTF8 --locale=C")
        entry.unlink()
        if password:
            line = f"127.0.0.1:{port}:*:{USER}:{password}"
            self._host.run(f"umask 077 && echo {line} > ~/.pgpass && echo {line} > {self._folder}/.pgpass")
            self._host.run(f"chown {self._owner} {self._folder}/.pgpass")
        with (self._folder / "data/postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\n")
        self.start()
        self._call(f"createdb -h 127.0.0.1 -p {port} -U {USER} {NAME}", PGPASSFILE=f"{self._folder}/.pgpass")
        (self._folder / ".pgpass").unlink(missing_ok=True)

    def start(self) -> None:
        self._call(f"pg_ctl -w -D {self._folder}/data -l {self._folder}/log start")

    def crash(self) -> None:
        """Every connection is cut in the middle of whatever it does, and nothing is tidied up."""
        self._call(f"pg_ctl -w -D {self._folder}/data -m immediate stop")

    def _call(self, command: str, **environment: str) -> None:
        log = f"</dev/null >>{self._folder}/calls 2>&1"
        named = " ".join(f"{name}={value}" for name, value in environment.items())
        run = f"runuser -u {self._owner} -- env {named} {self._programs}/{command}"
        self._host.run(f"cd / && {run} {log}", timeout_s=120)


def _is_known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
