"""`sweep gc`: what takes space and can be made again, or that nobody needs any more.

Of a sweep that is complete and old, and whose trials all stand in the tracking store: logs, telemetry, checkpoints and
Tune's folder. Its ledger and report stay unless they are asked for. And columnar copies of tracking stores; and runs
that were made twice there: a server may carry out a call long after its client has given up and called again, when
nobody is left to look. And what is left of sweeps that were discarded: a folder whose driver was killed while it
deleted it, a run that the store could not be asked to delete.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps import errors
from sweeps.errors import InputError, Mistake, RefusedError, SweepError
from sweeps.record import discarded, ledger, ownership
from sweeps.record.discarded import OpenRun
from sweeps.record.ledger import SweepRecord
from sweeps.store import access, database, late_runs, mirror, query, tracking
from sweeps.text import caller, tables
from workers.contract.paths import SweepPaths, results_root
from workers.contract.redact import masked

PARTS = ("logs", "telemetry", "checkpoints", "windows", "tune", "code")  # of a sweep's folder
DAY_S = 86_400
MIB = 1 << 20
NAMED = 5  # of the sweeps that stay


@dataclasses.dataclass(frozen=True)
class Leftover:
    what: str  # a sweep's name, or a copy
    paths: tuple[Path, ...]
    size: int  # bytes
    days: float  # since it was of use
    sweep: str = ""
    ledger_size: int = 0  # bytes of it, when this was found
    runs: int = 0  # in the tracking store, beside one for each trial
    is_discarded: bool = False
    open_run: OpenRun | None = None  # of a sweep that was discarded

    def row(self) -> dict[str, Any]:
        parts = ", ".join([*(path.name for path in self.paths), *(["its run in MLflow"] if self.open_run else [])])
        goes = parts or f"{_runs(self.runs)} made twice"
        return {"what": self.what, "days": round(self.days), "mib": round(self.size / MIB, 1), "goes": goes}


def collect(days: float, has_ledgers: bool, is_meant: bool, form: tables.Format) -> int:
    """Print what would go, and delete it if that is meant; the exit code."""
    if not (math.isfinite(days) and days >= 0):
        raise InputError("--older", [Mistake("", "must be a number of days, 0 or more", days)])
    found, kept = find(days, has_ledgers, time.time())
    if found or form != "table":
        tables.show_rows([one.row() for one in found], form)
    for why, names in sorted(kept.items()):
        print(f"kept, {why}: {', '.join(names[:NAMED])}{' …' if len(names) > NAMED else ''}", file=sys.stderr)
    if not found:
        print("nothing to delete", file=sys.stderr)
    elif not is_meant:
        again = caller.command("gc", "--older", f"{days:g}", *(["--ledgers"] if has_ledgers else []), "--yes")
        print(f"nothing was deleted; to delete these {_amount(found)}: {again}", file=sys.stderr)
    else:
        deleted: list[Leftover] = []
        try:
            deleted.extend(one for one in found if _delete(one))
        finally:  # one of them may be refused
            print(f"deleted {_amount(deleted) if deleted else 'nothing'}", file=sys.stderr)
    return errors.DONE


def _amount(found: Sequence[Leftover]) -> str:
    """Files as MiB, runs by their number."""
    runs = sum(one.runs + (one.open_run is not None) for one in found)
    parts = [f"{sum(one.size for one in found) / MIB:,.1f} MiB"] if any(one.paths for one in found) else []
    return " and ".join([*parts, *([_runs(runs)] if runs else [])])


def _runs(count: int) -> str:
    return f"{count:,} run{'s' if count > 1 else ''} in MLflow"


def find(days: float, has_ledgers: bool, now: float) -> tuple[list[Leftover], Mapping[str, list[str]]]:
    """Return what can go, and which sweeps stay for which reason."""
    copies = [*_copies(days, now)]  # before the store is read, which may write its copy anew
    kept: dict[str, list[str]] = {}
    resting: list[Leftover] = []
    ids: dict[str, str] = {}  # of those
    ended: list[tuple[SweepRecord, float, int]] = []
    for name in ledger.names():
        try:
            length = ledger.paths(name).ledger.stat().st_size
            record = ledger.read(name)
            is_driven = ownership.is_driven(name)
        except (SweepError, ValueError, KeyError, TypeError, OSError):  # whatever another version has written
            kept.setdefault("ledgers that can't be read", []).append(name)
            continue
        ended_at = max([record.facts.created_at, *(trial.ended_at for trial in record.trials)])
        age = max(0.0, now - ended_at) / DAY_S  # a simulated sweep may end in the future
        if not is_driven:
            resting.append(Leftover(name, (), 0, age, name, length))
            ids[name] = record.facts.id
        if results_root().joinpath(name).is_symlink():
            kept.setdefault("folders that are links", []).append(name)
        elif is_driven or not record.is_complete:
            kept.setdefault("not complete", []).append(name)
        elif age < days:
            kept.setdefault(f"younger than {days:g} days", []).append(name)
        else:
            ended.append((record, age, length))
    stored = query.stored_trials([record.facts.name for record, *_ in ended])
    doubled = query.doubled([*ids])
    found = [dataclasses.replace(one, runs=doubled[ids[one.sweep]]) for one in resting if doubled[ids[one.sweep]]]
    for record, age, length in ended:
        if {trial.config.trial for trial in record.trials} <= stored.get(record.facts.id, set()):
            found += _of_sweep(record.facts.name, age, length, has_ledgers)
        else:
            why = f"since the tracking store lacks trials ({caller.command('sync', 'NAME')} brings them)"
            kept.setdefault(why, []).append(record.facts.name)
    return [*found, *copies, *_discarded(now, kept)], kept


def _discarded(now: float, kept: dict[str, list[str]]) -> list[Leftover]:
    """Return what is left of them, unless it is being deleted; first those that ask nothing of the store, which may
    refuse."""
    found: list[Leftover] = []
    uri = masked(access.store_address())
    for folder in discarded.folders():
        name = discarded.name_of(folder)
        try:
            with discarded.held(folder) as is_free:
                run, since = discarded.open_run(folder), folder.stat().st_mtime
        except FileNotFoundError:  # it has gone since
            continue
        except (OSError, ValueError, TypeError):
            kept.setdefault("left of discarded sweeps, and can't be read", []).append(name)
            continue
        if run and (run.store != uri or not query.is_there()):
            which = "another tracking store" if run.store != uri else "a tracking store that is not there now"
            asked = caller.elsewhere("MLFLOW_TRACKING_URI", f"MLFLOW_TRACKING_URI={run.store}")
            why = f"discarded, but with runs that may be open in {which} ({asked})"
            kept.setdefault(why, []).append(name)
        elif is_free:
            age = max(0.0, now - since) / DAY_S
            found.append(Leftover(name, (folder,), _size(folder), age, is_discarded=True, open_run=run))
    return sorted(found, key=lambda one: one.open_run is not None)


def _of_sweep(name: str, age: float, length: int, has_ledgers: bool) -> Iterator[Leftover]:
    folder = SweepPaths(name).folder
    parts = [folder] if has_ledgers else [folder / part for part in PARTS]
    there = tuple(part for part in parts if _kind(part) == stat.S_IFDIR)
    if there:
        yield Leftover(name, there, sum(map(_size, there)), age, name, length)


def _copies(days: float, now: float) -> Iterator[Leftover]:
    """Of the tracking store of here, and of database servers."""
    uri = access.store_name()
    there = {mirror.file_of(uri)} if database.is_database(uri) else set()
    stores = results_root() / ".stores"
    there |= {*stores.glob("*.parquet")} if _kind(stores) == stat.S_IFDIR else set()
    for path in sorted(there):
        if _kind(path) == stat.S_IFREG and (age := (now - path.stat().st_mtime) / DAY_S) >= days:
            yield Leftover("copy of a tracking store", (path,), path.stat().st_size, age)


def _delete(one: Leftover) -> bool:
    """Unless its sweep has, or has had, a driver meanwhile: what was found of it holds no longer.

    Links are deleted, what they point to is not."""
    try:
        if one.is_discarded:
            return _delete_discarded(one.paths[0])
        if not one.sweep:
            one.paths[0].unlink(missing_ok=True)
            return True
        with ownership.undriven(one.sweep) as is_free:
            is_meant = is_free and ledger.paths(one.sweep).ledger.stat().st_size == one.ledger_size
            if is_meant and one.runs and (late := tracking.leave_one_each(ledger.facts(one.sweep))):
                print(late_runs.words(late, one.sweep), file=sys.stderr)
            for path in one.paths if is_meant else ():
                if _kind(path) == stat.S_IFDIR:
                    shutil.rmtree(path)
        return is_meant
    except OSError as error:
        raise RefusedError(
            f"what is deleted must be ours to delete, but the system says: {error.strerror}\n"
            f"  {error.filename or one.paths[0]}\n  the rest of the table still stands; its owner can go on"
        ) from None


def _delete_discarded(folder: Path) -> bool:
    """Delete the run first: without the folder nobody would know of it."""
    try:
        with discarded.held(folder) as is_free:
            if is_free:
                if run := discarded.open_run(folder):
                    tracking.forget(run, discarded.name_of(folder))
                shutil.rmtree(folder)
            return is_free
    except FileNotFoundError:  # another has deleted it
        return False


def _kind(path: Path) -> int:
    """Of the path itself, not of what it may point to; 0 where there is nothing."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except OSError:
        return 0


def _size(folder: Path) -> int:
    """Of its files, in bytes; what vanishes meanwhile counts nothing."""
    size = 0
    for at, _, files in os.walk(folder):
        for name in files:
            try:
                size += Path(at, name).lstat().st_size
            except OSError:
                continue
    return size
