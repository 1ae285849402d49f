"""The append-only record of a sweep: JSON lines on disk. Nothing counts before it stands here.

{"kind": "sweep", …}     first: the name, the file, every planned trial
{"kind": "node", …}      what a node is made of, when it is first met
{"kind": "probe", …}     a node's self-test, and what was slow
{"kind": "start", …}     a trial has got its GPUs: its placement group is there, since when, and how many it holds
{"kind": "wait", …}      a gang has held its GPUs for no trial: between two, or before it was gone
{"kind": "attempt", …}   how a trial ended that was tried again, and the nodes to blame
{"kind": "rung", …}      a trial at a rung of an asha search, or at its target
{"kind": "trial", …}     how a trial ended, and all that it measured
{"kind": "aside", …}     a node that gets no more trials, and why
{"kind": "driver", …}    who drives the sweep from here on, and when the one before was last heard
{"kind": "again", …}     trials that have ended, and that somebody wants measured again
{"kind": "end", …}       why the driver stopped

Ledgers of before have no starts: of a driver that was killed they don't tell what ran, nor what that had cost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import getpass
import itertools
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.record import discarded, processes
from sweeps.record.discarded import OpenRun
from sweeps.record.gpu_hours import Hours, heard_until
from sweeps.spec.arrangements import Node
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import Plan
from sweeps.spec.sweep_file import parse
from sweeps.text import caller
from workers.contract import messages
from workers.contract.messages import TrialConfig, TrialOutcome
from workers.contract.paths import SweepPaths, results_root

VERSION = 6
READ = (4, 5, VERSION)  # 4 had no nodes, and no arrangement of a trial's ranks; 5 had each rank's report in full
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
    is_fresh: bool = False  # nothing that earlier sweeps have measured is used again
    skips_impossible: bool = False  # what its cluster can never hold was to be left out

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
    held_since: float | None = None  # before it started its nodes may have been tested; None in ledgers of before
    gpus_held: int | None = None  # all of its nodes', where it excludes others; in ledgers of before its ranks' alone

    @property
    def held_s(self) -> float:
        """How long its GPUs were held for it; not at all for a result that is used again."""
        since = self.started_at if self.held_since is None else self.held_since
        return 0.0 if self.outcome.cached else max(0.0, self.ended_at - since)

    @property
    def gpu_hours(self) -> float:
        """What it took. A sweep has spent more: `SweepRecord.spent`."""
        gpus = self.config.gpus if self.gpus_held is None else self.gpus_held
        return gpus * self.held_s / 3600


@dataclasses.dataclass(frozen=True)
class SweepRecord:
    facts: SweepFacts
    trials: tuple[TrialRecord, ...]
    nodes: tuple[Mapping[str, Any], ...] = ()
    probes: tuple[Mapping[str, Any], ...] = ()
    is_complete: bool = False  # a driver came to the end, and none has done anything since
    attempts: tuple[TrialRecord, ...] = ()  # that did not count: their trials were tried again
    asides: tuple[Mapping[str, Any], ...] = ()  # nodes that got no more trials
    rungs: tuple[Mapping[str, Any], ...] = ()  # trials at rungs of an asha search, or at their target
    spent: float = 0.0  # GPU-hours of all attempts, whoever they were for
    heard_at: float = 0.0  # when its last driver was last heard
    has_ended: bool = False  # its last driver has said that it stops
    # Trials wanted again that have not ended since: is the search to let them be?
    due: Mapping[str, bool] = dataclasses.field(default_factory=dict)


class Ledger:
    """A sweep's ledger, open for appending: whoever has it drives the sweep, and nobody else does until it is closed.

    What the sweep came to before is read under it, so that no other driver can add to that: `before`.
    """

    def __init__(self, paths: SweepPaths, file: TextIO, facts: SweepFacts, before: SweepRecord | None = None) -> None:
        """`file` is locked."""
        self.paths = paths
        self.facts = facts
        self.is_new = before is None
        self.has_run = False  # a trial, since this driver has it
        self.has_ended = False  # as its last line says
        self._stays = not self.is_new
        self.before = before or SweepRecord(facts, ())
        self._again: Mapping[str, Any] | None = None  # what is to be said before the first of them starts
        self._file = file

    def begin(self) -> None:
        """Write the first line of a new sweep."""
        self._cut_torn_line()
        self._write_facts()
        self._sign()
        self._stays = JOB in os.environ  # who submitted it is told its name, and goes by that

    def plan(self, plan: Plan) -> None:
        """Write what it is going to measure, where that has become known since it began."""
        if (plan.trials, plan.nodes) != (self.facts.trials, self.facts.nodes):
            self.facts = dataclasses.replace(self.facts, trials=plan.trials, nodes=plan.nodes)
            self._write_facts()

    def _write_facts(self) -> None:
        self._append({"kind": "sweep", "version": VERSION, **messages.to_json(self.facts)})

    def go_on(self) -> None:
        """Behind the last whole line of a sweep that stopped."""
        self._cut_torn_line()
        self._sign()

    def _cut_torn_line(self) -> None:
        self._file.truncate(self.paths.ledger.read_bytes().rfind(b"\n") + 1)

    def _sign(self) -> None:
        job = {"job": os.environ[JOB]} if JOB in os.environ else {}
        pid = os.getpid()
        who = {"pid": pid, "birth": processes.birth(pid), "host": os.uname().nodename, "user": _user()}
        self._append({"kind": "driver", **who, **job, "at": time.time(), "heard_at": self.before.heard_at})

    def again(self, trials: Collection[str], are_unjudged: bool) -> None:
        """They are wanted once more, whatever they came to, and `are_unjudged` to their end, whatever the search would
        say of them. It stands here as soon as one of them has begun."""
        self._again = {"kind": "again", "trials": [*trials], "are_unjudged": are_unjudged, "at": time.time()}

    @property
    def is_blank(self) -> bool:
        """Has no trial of it ever got a GPU, nor a result, and does nobody elsewhere know its name?"""
        return not (self._stays or self.has_run)

    @property
    def is_still_complete(self) -> bool:
        """Was it complete, and has this driver run nothing?"""
        return self.before.is_complete and not self.has_run

    def start(self, config: TrialConfig, at: float, gpus: int | None = None) -> None:
        """Write that it holds so many GPUs from now on, or one for each rank. Nothing counts by this line but what a
        driver that is killed leaves open: it need not be on the disk."""
        self._run()
        self._append({"kind": "start", "trial": config.trial, "gpus": gpus or config.gpus, "at": at}, is_safe=False)

    def wait(self, gpus: int, since: float, at: float) -> None:
        """Write that a gang has held these for no trial. It need not be on the disk: it was seconds."""
        self._append({"kind": "wait", "gpus": gpus, "since": since, "at": at}, is_safe=False)

    def write(self, record: TrialRecord) -> None:
        """Write a trial that has ended."""
        self._run()
        self._append({"kind": "trial", "trial": record.config.trial, **messages.to_json(record)})

    def _run(self) -> None:
        """Keep that this driver runs a trial; before the first, write that it has taken the sweep up again."""
        if self._again:
            self._append(self._again)
            self._again = None
        self.has_run = True

    def write_attempt(self, record: TrialRecord) -> None:
        """Write that it is tried again: this end does not count."""
        self._append({"kind": "attempt", "trial": record.config.trial, **messages.to_json(record)})

    def note(self, kind: Note, facts: Mapping[str, Any]) -> None:
        self._append({"kind": kind, **facts})

    def end(self, why: str) -> None:
        self._append({"kind": "end", "why": why, "at": time.time()})
        self.has_ended = True

    def close(self) -> None:
        """Leave the sweep to its next driver."""
        with contextlib.suppress(OSError):  # what could not be written can't be flushed either
            self._file.close()

    def discard(self, run: OpenRun | None = None) -> None:
        """Nothing was measured: leave no trace but what the system does not let go; and, where the tracking store may
        have a run of it that is open, what `sweep gc` needs to delete that. Raises OSError, and the sweep stays, where
        this can't be written, or the folder can't be renamed."""
        if run:
            discarded.note(self.paths.folder, run)
        with contextlib.suppress(FileNotFoundError), discarded.held(self.paths.folder):  # else somebody has deleted it
            gone = discarded.hide(self.paths.folder)  # at once: in a folder that is being emptied another would begin
            self.close()  # before it is deleted: NFS keeps what is open, under another name
            if not run:
                shutil.rmtree(gone, ignore_errors=True)
        self.close()

    def _append(self, entry: Mapping[str, Any], is_safe: bool = True) -> None:
        try:
            self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")
            self._file.flush()
            if is_safe:
                os.fsync(self._file.fileno())
        except OSError as error:
            other = caller.elsewhere("SWEEP_RESULTS", "or choose another disk (SWEEP_RESULTS=folder), then run again")
            cure = f"free some of its disk\n  {other}"
            if not self.is_blank:
                resumes = caller.command("resume", self.facts.name, is_submitted=JOB in os.environ)
                cure = f"free some of its disk, then {resumes}"
            raise RefusedError(
                f"the ledger must be written before a result counts, but the system says: {error.strerror}\n"
                f"  {self.paths.ledger}\n  {cure}"
            ) from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return str(os.getuid())


def read(name: str) -> SweepRecord:
    """Read a sweep as its ledger tells it. A last line that was torn by a crash is left out."""
    at = paths(name).ledger
    facts: SweepFacts | None = None
    trials: dict[str, TrialRecord] = {}
    noted: dict[str, list[Mapping[str, Any]]] = {"node": [], "probe": [], "aside": [], "rung": []}
    attempts: list[TrialRecord] = []
    hours = Hours()
    due: dict[str, bool] = {}
    is_complete = has_ended = False
    for entry in entries(at):
        if entry["kind"] == "sweep":
            if entry["version"] not in READ:
                rule = f"must be {' or '.join(map(str, READ))}; what wrote it reads it"
                raise InputError(str(at), [Mistake("version", rule, entry["version"])])
            facts = _facts(entry)
        elif entry["kind"] in ("trial", "attempt"):
            record = _record(entry)
            hours.ended(record.config.trial, record.gpu_hours, record.ended_at)
            if entry["kind"] == "trial":
                trials[record.config.trial] = record
                if record.outcome.status != "cancelled":
                    due.pop(record.config.trial, None)
            else:
                attempts.append(record)
        elif entry["kind"] == "start":
            hours.started(entry["trial"], entry["gpus"], entry["at"])
        elif entry["kind"] == "wait":
            hours.waited(entry["gpus"], entry["since"], entry["at"])
        elif entry["kind"] == "again":
            due |= dict.fromkeys(entry["trials"], entry["are_unjudged"])
        elif entry["kind"] == "driver":
            hours.cut_off(entry.get("heard_at", 0.0))
        elif entry["kind"] == "end" and facts and not facts.simulated:  # whose hours are of another clock
            hours.cut_off(entry.get("at", 0.0))
        elif entry["kind"] in noted:
            noted[entry["kind"]].append(entry)
        has_ended = entry["kind"] == "end"
        if entry["kind"] != "driver":  # one that has only looked leaves a sweep as complete as it was
            is_complete = has_ended and entry["why"] == "complete"
    if facts is None:
        raise InputError(str(at), [Mistake("", "a ledger begins with its sweep", "none")])
    heard_at = hours.heard_at  # of a virtual clock the lines alone tell
    if not facts.simulated:
        heard_at = heard_until(max(heard_at, _bulletin_at(paths(name))), time.time())
    return SweepRecord(
        facts,
        tuple(trials.values()),
        tuple(noted["node"]),
        tuple(noted["probe"]),
        is_complete,
        tuple(attempts),
        tuple(noted["aside"]),
        tuple(noted["rung"]),
        hours.spent(heard_at),
        heard_at,
        has_ended,
        due,
    )


def _bulletin_at(at: SweepPaths) -> float:
    """When a driver that runs, or was killed, last told in its bulletin that it was there."""
    try:
        bulletin = json.loads(at.status.read_text())
        return float(bulletin.get("heard_at", bulletin["at"]))  # one of before tells only when it last looked
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0.0


def facts(name: str) -> SweepFacts:
    """Read what a sweep is, by its first lines alone."""
    at = paths(name).ledger
    heads = [*itertools.takewhile(lambda entry: entry["kind"] in ("sweep", "driver"), entries(at))]
    written = [entry for entry in heads if entry["kind"] == "sweep"]
    if not written or written[-1]["version"] not in READ:
        return read(name).facts  # which says what is wrong
    return _facts(written[-1])


class Tail:
    """A ledger that grows."""

    def __init__(self, name: str) -> None:
        self._path = paths(name).ledger
        self._read = 0  # bytes of it

    def news(self) -> Iterator[TrialRecord | Mapping[str, Any]]:
        """Return the trials that have ended, and the nodes that have been met, since the last call."""
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
    """Return the sweeps in the results folder, oldest first. What begins with a dot is no sweep: `discarded`."""
    changed: dict[str, float] = {}
    for path in results_root().glob("[!.]*/ledger.jsonl"):
        with contextlib.suppress(OSError):  # it has gone since
            if path.is_file():
                changed[path.parent.name] = path.stat().st_mtime
    return sorted(changed, key=changed.__getitem__)


def paths(name: str) -> SweepPaths:
    """Return the files of a sweep that is in the results folder."""
    try:
        found = SweepPaths(name)
    except ValueError as error:
        raise InputError("sweep", [Mistake("", str(error).split(", but")[0], name)]) from None
    if not found.ledger.is_file():
        known = ", ".join(names()[-5:]) or "none yet"
        raise InputError(str(results_root()), [Mistake("", f"must hold the sweep named (there: {known})", name)])
    return found


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a ledger's lines, each as it was written; not a last one that a crash has torn."""
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
    trials = tuple(messages.trial_config(trial) for trial in entry["trials"])
    nodes = tuple(Node(**node) for node in entry.get("nodes", ()))
    is_fresh = entry.get("is_fresh", True)  # ledgers of before don't tell whether it was asked for
    return SweepFacts(
        **{**facts, "overrides": tuple(entry["overrides"]), "trials": trials, "nodes": nodes, "is_fresh": is_fresh}
    )


def _record(entry: Mapping[str, Any]) -> TrialRecord:
    return TrialRecord(
        config=messages.trial_config(entry["config"]),
        outcome=messages.trial_outcome(entry["outcome"]),
        started_at=entry["started_at"],
        ended_at=entry["ended_at"],
        attempts=entry["attempts"],
        blamed=tuple(entry.get("blamed", ())),
        held_since=entry.get("held_since"),
        gpus_held=entry.get("gpus_held"),
    )
