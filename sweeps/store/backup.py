"""`sweep backup`, `sweep restore`: a tracking store's SQLite database and its artifacts as one file, and back.

The database is copied by SQLite itself, so that a store may be in use. Other databases have tools of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from sweeps import errors
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.store import access, database
from sweeps.text import caller
from workers.contract.paths import written_whole

VERSION = 1
MANIFEST, DATABASE = "manifest.json", "mlflow.db"
ARTIFACTS = ("artifacts", "mlruns", "mlartifacts")  # folders beside a database: of `sweeps.cluster.server`, of MLflow
SUFFIXES = (".tar.gz", ".tgz")


def write(file: Path, store: Path | None) -> int:
    """Copy the store into `file`, which appears whole or not at all; the exit code."""
    if not file.name.endswith(SUFFIXES):
        raise InputError("backup", [Mistake("FILE", "must end with .tar.gz", file)])
    source = _database(store)
    if not source.is_file():
        raise InputError(
            str(source), [Mistake("", f"must be a tracking store's database{_elsewhere(store)}", "no file")]
        )
    folders = [source.parent / name for name in ARTIFACTS]
    folders = [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]
    if any(file.absolute().is_relative_to(folder) for folder in folders):
        raise InputError("backup", [Mistake("FILE", "must lie outside the store's artifacts", file)])
    left_out: list[str] = []

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.isreg() or member.isdir():
            return member
        left_out.append(member.name)
        return None

    try:
        with written_whole(file) as partial, tempfile.TemporaryDirectory(dir=file.parent, prefix=".backup-") as aside:
            copy = Path(aside) / DATABASE
            _copied(source, copy)
            with tarfile.open(partial, "w:gz", compresslevel=6) as archive:
                said = json.dumps({"version": VERSION, "at": time.time()}).encode()
                entry = tarfile.TarInfo(MANIFEST)
                entry.size = len(said)
                archive.addfile(entry, io.BytesIO(said))
                archive.add(copy, DATABASE)
                for folder in folders:
                    archive.add(folder, folder.name, filter=plain)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RefusedError(
            f"a backup must be written whole, but the system says: {why}\n"
            f"  {source} to {file}\n  choose another place for it; if the store has just changed, do it again"
        ) from None
    for name in left_out:
        print(f"left out, since it is neither a file nor a folder: {name}", file=sys.stderr)
    print(f"{file}: {source} with {', '.join(folder.name for folder in folders) or 'no artifacts'}")
    return errors.DONE


def restore(file: Path, store: Path | None) -> int:
    """Put the store of a backup where there is none; all of it or nothing. The exit code."""
    target = _database(store)
    with _opened(file) as archive:
        _check(archive, file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".restore-") as aside:
                for member in archive:  # checked above: Python's own filters came with 3.11.4
                    archive.extract(member, aside, set_attrs=False)
                _check_database(Path(aside) / DATABASE, file)
                there = [name for name in ARTIFACTS if (Path(aside) / name).is_dir()]
                moves = {Path(aside) / name: target.parent / name for name in there}
                # A log that another database has left would be taken for this one's.
                logs = [target.with_name(f"{target.name}-{kind}") for kind in ("wal", "shm")]
                _check_absent([target, *logs, *moves.values()])
                _moved(moves | {Path(aside) / DATABASE: target})
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise _torn(file, error) from None
        except OSError as error:
            raise RefusedError(
                f"a store must be written, but the system says: {error.strerror or error}\n"
                f"  {error.filename or target.parent}\n  choose another folder with --store"
            ) from None
    print(f"{target}: restored, with {', '.join(there) or 'no artifacts'}")
    return errors.DONE


def _database(store: Path | None) -> Path:
    """Return the file that is meant."""
    if store:
        return store.expanduser().absolute() / DATABASE
    uri = access.store_name()
    if uri.startswith(database.SQLITE):
        return database.file_of(uri)
    kind = uri.split(":", 1)[0] if ":" in uri else "a folder"  # the rest may hold a password
    cures = {
        "postgresql": "pg_dump copies it",
        "mysql": "mysqldump copies it",
        "http": f"where the server runs: {caller.program()} backup FILE --store ~/.ray-sweeps/mlflow",
    }
    cure = next((cure for name, cure in cures.items() if kind.startswith(name)), "tar copies a folder of files")
    raise RefusedError(
        f"the tracking store must be an SQLite file here, but it is {kind}\n"
        f"  {cure} (and --store FOLDER means one that holds {DATABASE})"
    )


def _elsewhere(store: Path | None) -> str:
    return "" if store else "; --store FOLDER or MLFLOW_TRACKING_URI means another"


def _copied(source: Path, copy: Path) -> None:
    """Copy a database as it is at one moment, whoever writes to it."""
    with (
        contextlib.closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, timeout=20)) as ours,
        contextlib.closing(sqlite3.connect(copy)) as theirs,
    ):
        ours.backup(theirs)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        archive = tarfile.open(file, "r:gz")  # noqa: SIM115
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise InputError(str(file), [Mistake("", "must be a backup", "no file")]) from None
        raise _torn(file, error) from None
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _torn(file, error) from None
    with archive:
        yield archive


def _check(archive: tarfile.TarFile, file: Path) -> None:
    """Is it a backup of ours, with nothing else in it?"""
    try:
        members = archive.getmembers()
        known = [member for member in members if member.name in (MANIFEST, DATABASE) and member.isreg()]
        said = archive.extractfile(MANIFEST) if len(known) == 2 else None
        version = json.loads(said.read(1000))["version"] if said else None
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, KeyError, TypeError) as error:
        raise _torn(file, error) from None
    if version != VERSION:
        raise InputError(
            str(file), [Mistake("version", f"must be {VERSION}, of a file that sweep backup wrote", version)]
        )
    for member in members:
        parts = PurePosixPath(member.name).parts
        is_ours = member in known or ((member.isreg() or member.isdir()) and parts[0] in ARTIFACTS)
        if not is_ours or ".." in parts:
            rule = f"must hold {DATABASE} and files of {', '.join(ARTIFACTS)} alone"
            raise InputError(str(file), [Mistake("", rule, member.name)])


def _torn(file: Path, error: Exception) -> InputError:
    return InputError(str(file), [Mistake("", "must be a whole file that sweep backup wrote", error)])


def _check_database(path: Path, file: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(path)) as store:
            said = store.execute("PRAGMA quick_check").fetchone()[0]
            store.execute("SELECT run_uuid FROM runs LIMIT 1")
    except sqlite3.Error as error:
        said = error
    if said != "ok":
        raise InputError(str(file), [Mistake(DATABASE, "must be a sound database of MLflow", said)])


def _check_absent(paths: list[Path]) -> None:
    for path in paths:
        is_empty_folder = path.is_dir() and not path.is_symlink() and not any(path.iterdir())
        if os.path.lexists(path) and not is_empty_folder:
            raise RefusedError(
                f"a store is restored where there is none, but there is {path}\n"
                "  end what uses it and move it away, or choose another folder with --store"
            )


def _moved(moves: dict[Path, Path]) -> None:
    """Move the database last: where it is, the rest is too. What has been moved goes if something can't be."""
    done: list[Path] = []
    try:
        for source, target in moves.items():
            source.rename(target)
            done.append(target)
    except OSError:
        for target in done:
            shutil.rmtree(target)
        raise
