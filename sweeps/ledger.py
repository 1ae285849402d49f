"""The append-only record of a sweep: JSON lines on disk. Nothing counts before it stands here.

{"kind": "sweep", …}     first: the name, the file, every planned trial
{"kind": "node", …}      what a node is made of, when it is first met
{"kind": "probe", …}     a node's self-test, and what was slow
{"kind": "attempt", …}   how a trial ended that was tried again, and the nodes to blame
{"kind": "rung", …}      a trial at a rung of an asha search, or at its target
{"kind": "trial", …}     how a trial ended, and all that it measured
{"kind": "aside", …}     a node that gets no more trials, and why
{"kind": "driver", …}    who drives the sweep from here on
{"kind": "end", …}       why the driver stopped
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.plan import Plan
from sweeps.shape import Node
from sweeps.spec import SweepSpec, parse
from workers import contract
from workers.contract import TrialConfig, TrialOutcome
from workers.paths import SweepPaths, results_root

VERSION = 5
READ = (4, VERSION)  # 4 had no nodes, and no arrangement of a trial's ranks
JOB = "SWEEP_JOB"  # in the environment of a driver that was submitted
SIMULATED = "-simulated"  # ends the name of a sweep that was
Note = Literal["node", "probe", "rung", "aside"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """What is known of a sweep before its first trial."""

    name: str
    id: str
    study: str  # the name in the sweep file; a second sweep of it is named study-2
    created_at: float
    file: str
    overrides: tuple[str, ...]
    trials: tuple[TrialConfig, ...]  # those known beforehand; a search adds others as it goes
    simulated: str = ""  # the cluster that was made up, if one was
    nodes: tuple[Node, ...] = ()  # for which its ranks were arranged, also where it goes on without one of them

    @functools.cached_property
    def spec(self) -> SweepSpec:
        return parse(self.file, self.name, self.overrides, is_recorded=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial that has ended."""

    config: TrialConfig
    outcome: TrialOutcome
    started_at: float
    ended_at: float
    attempts: int = 1
    blamed: tuple[str, ...] = ()  # nodes, for a bad end

    @property
    def gpu_hours(self) -> float:
        """What it took; a result that was used again took nothing."""
        return 0.0 if self.outcome.cached else self.config.gpus * (self.ended_at - self.started_at) / 3600


@dataclasses.dataclass(frozen=True)
class SweepRecord:
    facts: SweepFacts
    trials: tuple[TrialRecord, ...]
    nodes: tuple[Mapping[str, Any], ...] = ()
    probes: tuple[Mapping[str, Any], ...] = ()
    is_complete: bool = False  # its last driver came to the end
    attempts: tuple[TrialRecord, ...] = ()  # that did not count: their trials were tried again
    asides: tuple[Mapping[str, Any], ...] = ()  # nodes that got no more trials
    rungs: tuple[Mapping[str, Any], ...] = ()  # trials at rungs of an asha search, or at their target


class Ledger:
    """A sweep's ledger, open for appending."""

    def __init__(self, paths: SweepPaths, facts: SweepFacts) -> None:
        """Take it for this process; raises where another driver has it."""
        self.paths = paths
        self.facts = facts
        self.is_new = False
        self._file = paths.ledger.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends, however it does
        except OSError:
            self._file.close()
            raise _taken(paths) from None

    def begin(self) -> None:
        """The first line of a new sweep."""
        self.is_new = True
        self._cut_torn_line()
        self._append({"kind": "sweep", "version": VERSION, **contract.to_json(self.facts)})
        self._sign()

    def go_on(self) -> None:
        """Behind the last whole line of a sweep that stopped."""
        self._cut_torn_line()
        self._sign()

    def _cut_torn_line(self) -> None:
        self._file.truncate(self.paths.ledger.read_bytes().rfind(b"\n") + 1)

    def _sign(self) -> None:
        job = {"job": os.environ[JOB]} if JOB in os.environ else {}
        self._append({"kind": "driver", "pid": os.getpid(), "host": os.uname().nodename, **job, "at": time.time()})

    def write(self, record: TrialRecord) -> None:
        self._append({"kind": "trial", "trial": record.config.trial, **contract.to_json(record)})

    def write_attempt(self, record: TrialRecord) -> None:
        """It is tried again: this end does not count."""
        self._append({"kind": "attempt", "trial": record.config.trial, **contract.to_json(record)})

    def note(self, kind: Note, facts: Mapping[str, Any]) -> None:
        self._append({"kind": kind, **facts})

    def end(self, why: str) -> None:
        self._append({"kind": "end", "why": why, "at": time.time()})
        self._file.close()

    def discard(self) -> None:
        """Nothing was measured: leave no trace."""
        with contextlib.suppress(OSError):  # what could not be written can't be flushed either
            self._file.close()
        shutil.rmtree(self.paths.folder)

    def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RefusedError(
                f"the ledger must be written before a result counts, but the system says: {error.strerror}\n"
                f"  {self.paths.ledger}\n  free or choose another disk (SWEEP_RESULTS=folder), then run again"
            ) from None


def create(plan: Plan, text: str, overrides: tuple[str, ...] = (), simulated: str = "") -> Ledger:
    """A new ledger in a folder of its own: the study's name, or that with the next free number."""
    study = f"{plan.spec.name}{SIMULATED}" if simulated else plan.spec.name
    root = results_root()
    try:
        for number in range(1, 1_000_000):
            paths = SweepPaths(study if number == 1 else f"{study}-{number}", root)
            try:
                paths.folder.mkdir(parents=True)
            except FileExistsError:
                if not _is_stillborn(paths):
                    continue
            facts = SweepFacts(
                name=paths.name,
                id=uuid.uuid4().hex,
                study=study,
                created_at=time.time(),
                file=text,
                overrides=overrides,
                trials=plan.trials,
                simulated=simulated,
                nodes=plan.nodes,
            )
            try:
                book = Ledger(paths, facts)
            except RefusedError:  # another driver begins it at this moment
                continue
            try:
                book.begin()
            except RefusedError:
                book.discard()
                raise
            return book
    except OSError as error:
        raise RefusedError(
            f"the results folder must be writable, but the system says: {error.strerror}\n"
            f"  {root}\n  choose another one with SWEEP_RESULTS=folder"
        ) from None
    raise RefusedError(f"{root} is full of sweeps named {study}")


def _is_stillborn(paths: SweepPaths) -> bool:
    """Its driver was killed before it had written the first line, so that there is no sweep."""
    there = [path.name for path in paths.folder.iterdir()] if paths.folder.is_dir() else ["a file"]
    return not there or (there == [paths.ledger.name] and b"\n" not in paths.ledger.read_bytes())


def reopen(record: SweepRecord) -> Ledger:
    """The ledger of a sweep that stopped, for its next driver."""
    book = Ledger(paths(record.facts.name), record.facts)
    book.go_on()
    return book


def _taken(paths: SweepPaths) -> RefusedError:
    last = driver(paths.name)
    who = f"process {last['pid']} on {last['host']}" if last else "another process"
    return RefusedError(f"a sweep has one driver at a time, but {who} drives {paths.name}")


def driver(name: str) -> Mapping[str, Any]:
    """The latest of a sweep: its process, its host, its job if it was submitted; empty if there was none yet."""
    signed = [entry for entry in _entries(paths(name).ledger) if entry["kind"] == "driver"]
    return signed[-1] if signed else {}


def is_driven(name: str) -> bool:
    """Has it a driver at this moment?"""
    with undriven(name) as is_free:
        return not is_free


@contextlib.contextmanager
def undriven(name: str) -> Iterator[bool]:
    """Whether it has no driver; then it gets none within the block either."""
    with paths(name).ledger.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def read(name: str) -> SweepRecord:
    """A sweep as its ledger tells it. A last line that was torn by a crash is left out."""
    at = paths(name).ledger
    facts: SweepFacts | None = None
    trials: dict[str, TrialRecord] = {}
    noted: dict[str, list[Mapping[str, Any]]] = {"node": [], "probe": [], "aside": [], "rung": []}
    attempts: list[TrialRecord] = []
    is_complete = False
    for entry in _entries(at):
        if entry["kind"] == "sweep":
            if entry["version"] not in READ:
                rule = f"must be {' or '.join(map(str, READ))}; what wrote it reads it"
                raise InputError(str(at), [Mistake("version", rule, entry["version"])])
            facts = _facts(entry)
        elif entry["kind"] == "trial":
            trials[entry["trial"]] = _record(entry)
        elif entry["kind"] == "attempt":
            attempts.append(_record(entry))
        elif entry["kind"] in noted:
            noted[entry["kind"]].append(entry)
        is_complete = entry["kind"] == "end" and entry["why"] == "complete"
    if facts is None:
        raise InputError(str(at), [Mistake("", "a ledger begins with its sweep", "none")])
    return SweepRecord(
        facts,
        tuple(trials.values()),
        tuple(noted["node"]),
        tuple(noted["probe"]),
        is_complete,
        tuple(attempts),
        tuple(noted["aside"]),
        tuple(noted["rung"]),
    )


def facts(name: str) -> SweepFacts:
    """A sweep's first line alone."""
    at = paths(name).ledger
    first = next(_entries(at), None)
    if first is None or first["kind"] != "sweep" or first["version"] not in READ:
        return read(name).facts  # which says what is wrong
    return _facts(first)


class Tail:
    """A ledger that grows."""

    def __init__(self, name: str) -> None:
        self._path = paths(name).ledger
        self._read = 0  # bytes of it

    def news(self) -> Iterator[TrialRecord | Mapping[str, Any]]:
        """The trials that have ended, and the nodes that have been met, since the last call."""
        with self._path.open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                entry = json.loads(line)
                if entry["kind"] == "trial":
                    yield _record(entry)
                elif entry["kind"] == "node":
                    yield entry


def names() -> list[str]:
    """The sweeps in the results folder, oldest first."""
    ledgers = [path for path in results_root().glob("*/ledger.jsonl") if path.is_file()]
    return [path.parent.name for path in sorted(ledgers, key=lambda path: path.stat().st_mtime)]


def paths(name: str) -> SweepPaths:
    """The files of a sweep that is in the results folder."""
    try:
        found = SweepPaths(name)
    except ValueError as error:
        raise InputError("sweep", [Mistake("", str(error).split(", but")[0], name)]) from None
    if not found.ledger.is_file():
        known = ", ".join(names()[-5:]) or "none yet"
        raise InputError(str(results_root()), [Mistake("", f"must hold the sweep named (there: {known})", name)])
    return found


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):
                try:
                    yield json.loads(line)
                except ValueError:
                    raise InputError(
                        f"{path}:{number}", [Mistake("", "a ledger holds JSON lines", line[:40])]
                    ) from None


def _facts(entry: Mapping[str, Any]) -> SweepFacts:
    known = {field.name for field in dataclasses.fields(SweepFacts)}
    facts = {key: value for key, value in entry.items() if key in known}
    trials = tuple(contract.trial_config(trial) for trial in entry["trials"])
    nodes = tuple(Node(**node) for node in entry.get("nodes", ()))
    return SweepFacts(**{**facts, "overrides": tuple(entry["overrides"]), "trials": trials, "nodes": nodes})


def _record(entry: Mapping[str, Any]) -> TrialRecord:
    return TrialRecord(
        config=contract.trial_config(entry["config"]),
        outcome=contract.trial_outcome(entry["outcome"]),
        started_at=entry["started_at"],
        ended_at=entry["ended_at"],
        attempts=entry["attempts"],
        blamed=tuple(entry.get("blamed", ())),
    )
