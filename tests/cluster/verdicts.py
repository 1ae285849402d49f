"""What a soak must come to, from what was gathered at its end: a line for each thing, with pass or fail. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from tests.cluster.schedule import Fault, Kind

Verdict = Literal["pass", "fail", "not judged"]
AGAIN = ("lost", "cancelled")  # ends after which a resumed sweep runs a trial again
OPEN = ("RUNNING", "SCHEDULED")  # states of MLflow's runs
NAMED = 3  # examples in a line
SHELLS = ("sh", "bash", "python", "python3", "python3.11")  # that run something else
POOLED = ("ray::IDLE", "postgres:")  # Ray's workers and servers of connections are kept, now more and now fewer
RUNNING_BY_THE_WAY = ("sleep", "timeout", "sshd: root@notty", "sshd: root")  # of a script that waits; who looks
WARM_S = 120.0  # after a process was first seen: it still loads what it needs
APART_S = 300.0  # two readings that say something of growth
WATCHED_S = 600.0  # in all, before a growth can be trusted
FLAT_MIB_PER_H = 30.0  # a choice, not a measurement: 20 MiB in forty minutes
FLAT_FILES_PER_H = 15.0  # a choice likewise: 10 in forty minutes, where one of each trial would be five hundred
SHARED = (tempfile.gettempdir(), "/dev/shm")  # by the hosts
FULL_MIN = 40.0  # a soak of so many minutes has had the time to judge all that is to be judged
TRIALS_PER_MIN = 10.0  # a choice: 500 trials in 45 minutes were measured, on two cores that did other work too
POWER_CUT_S = 60.0  # what was made in the shared /tmp so shortly before a host's end may be of its ranks


@dataclasses.dataclass(frozen=True)
class Line:
    what: str
    verdict: Verdict
    told: str

    def __str__(self) -> str:
        return f"{self.verdict:<10}  {self.what}: {self.told}"


@dataclasses.dataclass(frozen=True)
class Content:
    """What a trial's run says of it, and what its ledger's last line of it comes to."""

    status: str
    ended_ms: int | None = None
    images_per_s: float | None = None  # if it measured any


@dataclasses.dataclass(frozen=True)
class Swept:
    """A sweep as its ledger has it."""

    name: str
    planned: Collection[str]
    ended: Sequence[tuple[str, str]]  # every trial that stands there with how it ended, in their order
    contents: Mapping[str, Content]  # of each trial, by its last end


@dataclasses.dataclass(frozen=True)
class Duration:
    """How long something took, as a ledger tells it, or a row that is made of one."""

    of: str
    what: str
    seconds: float
    most_s: float = math.inf  # that of what it is a part of


@dataclasses.dataclass(frozen=True)
class Timed:
    """The times of a sweep."""

    name: str
    length_s: float  # by a clock that no fault moves
    durations: Sequence[Duration]
    gpu_hours: float  # held, as the budget counts them
    slots: int  # that can be held at once


@dataclasses.dataclass(frozen=True)
class Run:
    """One of MLflow's."""

    sweep: str
    trial: str  # empty for a sweep's own
    content: Content


@dataclasses.dataclass(frozen=True)
class Seen:
    """A process on a host."""

    pid: int
    kind: str
    ports: tuple[int, ...] = ()  # that it listens at


@dataclasses.dataclass(frozen=True)
class Stray:
    """A file that nobody needs any more."""

    path: str
    made_at: float


@dataclasses.dataclass(frozen=True)
class Reading:
    """How much memory a process has for itself, and how many files it has open."""

    at_s: float
    role: str
    host: str
    pid: int
    mib: float
    files: int


@dataclasses.dataclass(frozen=True)
class Growth:
    per_h: float
    watched_s: float
    last: float  # in the end


@dataclasses.dataclass(frozen=True)
class Watched:
    """What of a process must not grow."""

    name: str
    unit: str
    of: Callable[[Reading], float]
    most_per_h: float


MEMORY = Watched("memory", "MiB", lambda one: one.mib, FLAT_MIB_PER_H)
FILES = Watched("open files", "files", lambda one: one.files, FLAT_FILES_PER_H)


def has_failed(lines: Iterable[Line]) -> bool:
    return any(line.verdict == "fail" for line in lines)


def unjudged(minutes: float) -> Verdict:
    """Return what becomes of a line that there was nothing to judge by: only a short soak has an excuse."""
    return "fail" if minutes >= FULL_MIN else "not judged"


def none_of(what: str, found: Sequence[object], otherwise: str) -> Line:
    """Return a line that fails if there is anything."""
    return Line(what, "fail" if found else "pass", some(found) if found else otherwise)


def some(found: Sequence[object]) -> str:
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(map(str, found[:NAMED])) + more


def of_ledgers(sweeps: Sequence[Swept]) -> Iterator[Line]:
    wrong, outcomes, trials = [], Counter[str](), 0
    for sweep in sweeps:
        ends: dict[str, list[str]] = defaultdict(list)
        for trial, status in sweep.ended:
            ends[trial].append(status)
        trials += len(ends)
        outcomes.update(each[-1] for each in ends.values())
        missing = sorted({*sweep.planned} - ends.keys())
        unplanned = sorted(ends.keys() - {*sweep.planned})
        twice = sorted(trial for trial, each in ends.items() if any(status not in AGAIN for status in each[:-1]))
        for which, those in (("missing", missing), ("not planned", unplanned), ("twice", twice)):
            wrong += [f"{sweep.name}/{trial} {which}" for trial in those]
    if not trials:
        wrong.append("there is no trial")
    yield none_of("every trial once in the ledger", wrong, f"{trials} trials in {len(sweeps)} sweeps")
    bad = [f"{count} {status}" for status, count in sorted(outcomes.items()) if status != "completed"]
    yield none_of("every trial completed", bad, f"{outcomes['completed']}")


def of_trials(sweeps: Sequence[Swept], minutes: float) -> Line:
    """Faults that befall nothing prove nothing."""
    count = sum(len({trial for trial, _ in sweep.ended}) for sweep in sweeps)
    due = math.ceil(TRIALS_PER_MIN * minutes)
    told = f"{count}; {due} are due in {minutes:g} minutes"
    return Line("enough trials ended", "pass" if count >= due else unjudged(minutes), told)


def of_times(sweeps: Sequence[Timed]) -> Iterator[Line]:
    """Whatever clocks were off: nothing took less than no time, or longer than what it is a part of."""
    wrong, durations = [], 0
    for sweep in sweeps:
        durations += len(sweep.durations)
        for one in sweep.durations:
            most_s = min(one.most_s, sweep.length_s)
            if not 0 <= one.seconds <= most_s:
                wrong.append(f"{sweep.name}/{one.of} {one.what} {one.seconds:.2f} of {most_s:.2f} s")
    if not durations:
        wrong.append("there is none")
    yield none_of("every duration is possible", wrong, f"{durations} of trials, their parts and waits")
    over = []
    for sweep in sweeps:
        most = sweep.slots * sweep.length_s / 3600
        if not 0 <= sweep.gpu_hours <= most:
            over.append(f"{sweep.name} {sweep.gpu_hours:.3f} GPU-hours of {most:.3f}")
    held = sum(sweep.gpu_hours for sweep in sweeps)
    yield none_of("no more GPU-hours are held than there are", over, f"{held:.3f} in {len(sweeps)} sweeps")


def of_mlflow(sweeps: Sequence[Swept], runs: Sequence[Run]) -> Iterator[Line]:
    planned = {(sweep.name, trial) for sweep in sweeps for trial in (*sweep.planned, "")}
    there = Counter((run.sweep, run.trial) for run in runs)
    wrong = [f"{_of(one)} missing" for one in sorted(planned - there.keys())]
    wrong += [f"{_of(one)} {count} times" for one, count in sorted(there.items()) if one in planned and count > 1]
    wrong += [f"{_of(one)} of no sweep" for one in sorted(there.keys() - planned)]
    yield none_of("every trial once in MLflow", wrong, f"{len(runs)} runs, of them {len(sweeps)} of the sweeps' own")
    still = [f"{_of((run.sweep, run.trial))} {run.content.status}" for run in runs if run.content.status in OPEN]
    yield none_of("no run is left open", still, "none")
    wanted = {(sweep.name, trial): content for sweep in sweeps for trial, content in sweep.contents.items()}
    pairs = [(run, wanted[run.sweep, run.trial]) for run in runs if (run.sweep, run.trial) in wanted]
    unlike = [difference for run, content in pairs for difference in _differences(run, content)]
    if not pairs:
        unlike.append("there is no run of a trial that ended")
    yield none_of("every run says what the ledger says", unlike, f"{len(pairs)} in status, end and images_per_s")


def _differences(run: Run, wanted: Content) -> Iterator[str]:
    for field in dataclasses.fields(Content):
        there, due = getattr(run.content, field.name), getattr(wanted, field.name)
        is_same = there == due or (None not in (there, due) and field.name == "images_per_s" and _is_close(there, due))
        if not is_same:
            yield f"{_of((run.sweep, run.trial))} {field.name} {there} in MLflow, {due} in the ledger"


def _is_close(one: float, other: float) -> bool:
    """But for the last digits, which a database may write otherwise."""
    return math.isclose(one, other, rel_tol=1e-12)


def _of(run: tuple[str, str]) -> str:
    return "/".join(run) if run[1] else f"{run[0]}'s own run"


def kind(command: Sequence[str], name: str = "") -> str:
    """Return what a process is, whatever its ports, ids and folders are: `python mlflow`, `raylet`, `ray::IDLE`."""
    words = [word for word in " ".join(command).split() if not word.startswith("-")]
    if not words:  # a zombie has no command any more
        return f"dead {name}"
    if words[0] == "sshd:":
        return "sshd" if "[listener]" in words else " ".join(words[:2])
    what = words[0] if words[0].startswith("ray::") else Path(words[0]).name
    return f"{what} {Path(words[1]).name}" if what in SHELLS and len(words) > 1 else what


def settled(first: Collection[Seen], then: Collection[Seen]) -> list[Seen]:
    """Return those that were there at both looks: what only passes through is none that was left."""
    before = {(one.pid, one.kind) for one in first}
    passing = POOLED + RUNNING_BY_THE_WAY
    return [one for one in then if (one.pid, one.kind) in before and not one.kind.startswith(passing)]


def of_processes(before: Mapping[str, Sequence[Seen]], after: Mapping[str, Sequence[Seen]]) -> Iterator[Line]:
    """By host, before the first sweep and after the last. A host that was started again has others of each kind, with
    other ports: what counts is how many."""
    for what, weigh in (("process", lambda one: 1), ("port", lambda one: len(one.ports))):
        more = [
            f"{count} {kind} on {host}" + (_ports(after[host], kind) if what == "port" else "")
            for host, kinds in _more(before, after, weigh).items()
            for kind, count in sorted(kinds.items())
        ]
        count = sum(weigh(one) for those in after.values() for one in those)
        yield none_of(f"no {what} is left", more, f"{count} are there, none that is new in kind or number")


def _ports(seen: Iterable[Seen], kind: str) -> str:
    """Those of a kind: which of them is new only who knows them can say."""
    return f", of {', '.join(str(port) for one in seen if one.kind == kind for port in one.ports)}"


def _more(
    before: Mapping[str, Sequence[Seen]], after: Mapping[str, Sequence[Seen]], weigh: Callable[[Seen], int]
) -> dict[str, Counter[str]]:
    def counted(those: Sequence[Seen]) -> Counter[str]:
        count: Counter[str] = Counter()
        for one in those:
            count[one.kind] += weigh(one)
        return count

    return {host: counted(after[host]) - counted(before.get(host, ())) for host in sorted(after)}


def of_groups(states: Sequence[str]) -> Line:
    held = [state for state in states if state != "REMOVED"] if states else ["none was ever made"]
    return none_of("no placement group is left", held, f"{len(states)} were made, all are removed")


def of_files(strays: Sequence[Stray], power_cuts: Sequence[float]) -> Line:
    """The hosts share this machine's /tmp: a real one would find its own empty, or its owner would clear it. What is
    left where results stand has no excuse."""
    shared = [one for one in strays if str(Path(one.path).parent) in SHARED]
    cut = [one for one in shared if any(0 <= at - one.made_at <= POWER_CUT_S for at in power_cuts)]
    left = [one.path for one in strays if one not in cut]
    return none_of("no file is left", left, f"none, but for {len(cut)} of hosts whose power went" if cut else "none")


def growth(readings: Iterable[Reading], what: Watched = MEMORY) -> Growth | None:
    """Return how what a role has on a host grows: the median over all pairs of readings of one process that are far
    enough apart. So neither the start of a process nor another that comes after it counts as growth, and a single
    reading that is off moves nothing. None if no process lived long enough."""
    lives: dict[int, list[Reading]] = defaultdict(list)
    for one in sorted(readings, key=lambda reading: reading.at_s):
        lives[one.pid].append(one)
    slopes: list[float] = []
    watched_s, last = 0.0, 0.0
    for life in lives.values():
        warm = [one for one in life if one.at_s - life[0].at_s >= WARM_S]
        pairs = [(a, b) for a, b in itertools.combinations(warm, 2) if b.at_s - a.at_s >= APART_S]
        if pairs:
            slopes += [(what.of(b) - what.of(a)) / (b.at_s - a.at_s) * 3600 for a, b in pairs]
            watched_s += warm[-1].at_s - warm[0].at_s
            last = what.of(warm[-1])
    return Growth(statistics.median(slopes), watched_s, last) if slopes else None


def of_reader(is_alive: bool, readings: Sequence[Reading]) -> Line:
    """What grew after its death nobody has seen, however flat it was before."""
    what = "memory and open files are read to the end"
    if not is_alive:
        last_min = readings[-1].at_s / 60 if readings else 0.0
        return Line(what, "fail", f"the reader died, after its last reading in minute {last_min:.1f}")
    return Line(what, "pass" if readings else "fail", f"{len(readings)} readings")


def of_growth(
    role: str, readings: Iterable[Reading], is_judged: bool, what: Watched = MEMORY, minutes: float = 0.0
) -> Line:
    """By the host on which it grows most. What keeps a history by its nature is told, and not judged; anything else is
    to be judged in a soak of so many minutes."""
    hosts: dict[str, list[Reading]] = defaultdict(list)
    for one in readings:
        if one.role == role:
            hosts[one.host].append(one)
    found = {host: grown for host, those in sorted(hosts.items()) if (grown := growth(those, what))}
    title = f"{what.name} of {role} {'is' if what is MEMORY else 'are'} flat"
    known = {host: grown for host, grown in found.items() if grown.watched_s >= WATCHED_S}
    if not known:
        longest_s = max((grown.watched_s for grown in found.values()), default=0.0)
        rule = f"must be watched for {WATCHED_S / 60:.0f} minutes beyond its start"
        told = f"{rule}, but was for {longest_s / 60:.1f}"
        return Line(title, unjudged(minutes) if is_judged else "not judged", told)
    host, grown = max(known.items(), key=lambda one: one[1].per_h)
    after = f"at {grown.last:.0f} {what.unit} after {grown.watched_s / 60:.0f} min"
    told = f"{grown.per_h:+.1f} {what.unit}/h on {host}, {after}"
    if not is_judged:
        return Line(title, "not judged", f"{told}; it keeps a history")
    is_flat = grown.per_h <= what.most_per_h
    return Line(title, "pass" if is_flat else "fail", f"{told}; at most {what.most_per_h:.0f}")


def of_faults(planned: Sequence[Fault], happened: Sequence[Fault]) -> Line:
    lacking = [str(one) for one in planned if one not in happened]
    return none_of("every fault happened", lacking, f"{len(planned)}")


def of_left_out(kinds: Mapping[Kind, str], minutes: float) -> Iterator[Line]:
    """Of each kind of fault that could not be caused here, and why: a full soak has them all."""
    for kind, why in kinds.items():
        yield Line(kind, unjudged(minutes), f"left out, since {why}")


def of_drivers(ended_by: Sequence[str]) -> Line:
    """What ended each that was resumed; empty where no fault accounts for it."""
    alone = [one for one in ended_by if not one]
    told = f"{len(ended_by)} were resumed" + (f" ({', '.join(ended_by)})" if ended_by else "")
    if alone:
        return Line("no driver ends but by its fault", "fail", f"{len(alone)} of {len(ended_by)} that were resumed")
    return Line("no driver ends but by its fault", "pass", told)
