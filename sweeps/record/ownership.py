"""Who has a sweep: one driver at a time, by a lock on its ledger that goes with the driver, however that ends.

Whoever begins a sweep or goes on with one gets its ledger locked; who only looks is never in the way. The last line in
which a driver has signed says who it is, to people and where locks don't hold between hosts (`mounts`).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from sweeps.errors import RefusedError
from sweeps.record import ledger, mounts, processes
from sweeps.record.ledger import SIMULATED, Ledger, SweepFacts, SweepRecord
from sweeps.spec.plan import Plan
from sweeps.text import caller
from workers.contract.paths import SweepPaths, results_root

SIGNS_WITHIN_S = 2.0  # of taking a ledger, a driver has said in it who it is
LOOK_EVERY_S = 0.01
SAYS_AFTER_S = 2.0  # what it waits for


def create(
    plan: Plan,
    text: str,
    overrides: tuple[str, ...] = (),
    simulated: str = "",
    *,
    is_fresh: bool = False,
    skips_impossible: bool = False,
) -> Ledger:
    """Make a new ledger in a folder of its own: the study's name, or that with the next free number."""
    study = f"{plan.spec.name}{SIMULATED}" if simulated else plan.spec.name
    root = results_root()
    try:
        for number in range(1, 1_000_000):
            paths = SweepPaths(study if number == 1 else f"{study}-{number}", root)
            try:
                paths.folder.mkdir(parents=True)
            except FileExistsError:
                # Where no lock tells, it may be another host's that begins it at this moment.
                if not _is_stillborn(paths) or mounts.locks_hold_here_alone(root):
                    continue
            try:
                file = _locked(paths, os.O_CREAT)
            except FileNotFoundError:  # another driver has begun it, and discarded it
                continue
            if file is None:  # another driver begins it at this moment
                continue
            if not _is_stillborn(paths):  # has begun it, and left it
                file.close()
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
                is_fresh=is_fresh,
                skips_impossible=skips_impossible,
            )
            book = Ledger(paths, file, facts)
            try:
                book.begin()
            except BaseException:
                book.discard()
                raise
            return book
    except OSError as error:
        raise RefusedError(
            f"the results folder must be writable, but the system says: {error.strerror}\n"
            f"  {root}\n  {caller.elsewhere('SWEEP_RESULTS', 'choose another one with SWEEP_RESULTS=folder')}"
        ) from None
    raise RefusedError(f"{root} is full of sweeps named {study}")


def _is_stillborn(paths: SweepPaths) -> bool:
    """Its driver was killed before it had written the first line, so that there is no sweep."""
    try:
        there = [path.name for path in paths.folder.iterdir()]
        return not there or (there == [paths.ledger.name] and b"\n" not in paths.ledger.read_bytes())
    except (FileNotFoundError, NotADirectoryError):  # another driver discards it at this moment; it is a file
        return False


def reopen(name: str) -> Ledger:
    """Take a sweep that stopped, for its next driver; raises where another one has it."""
    at, file = _take(name)
    try:
        before = ledger.read(name)
        book = Ledger(at, file, before.facts, before)
        book.go_on()
    except BaseException:
        file.close()
        raise
    return book


class TakenError(RefusedError):
    """Another command or driver has the sweep."""


@contextlib.contextmanager
def resting(name: str) -> Iterator[SweepRecord]:
    """Lock a sweep that nobody drives, for who does something with all of it: nobody else has it within the block.
    Raises where another has it."""
    _, file = _take(name)
    with file:
        yield ledger.read(name)


def _take(name: str) -> tuple[SweepPaths, TextIO]:
    while True:
        at = ledger.paths(name)
        try:
            file = _locked(at)
        except FileNotFoundError:  # it was deleted at this moment
            continue
        except OSError as error:
            raise RefusedError(
                f"a sweep's ledger must be writable to go on, but the system says: {error.strerror}\n"
                f"  {at.ledger}\n  its owner can go on"
            ) from None
        if file is None:
            raise _taken(at)
        if host := _driven_elsewhere(at):
            file.close()
            raise RefusedError(
                f"a sweep has one driver at a time, but that of {name} on {host} has not said that it ended, and no"
                f" lock tells: {mounts.locks_hold_here_alone(at.folder)}, where a lock holds on one host alone\n"
                f"  {at.folder}\n  do this on {host}; or mount the folder on all hosts so that locks hold between them"
            )
        return at, file


def _locked(paths: SweepPaths, flags: int = 0) -> TextIO | None:
    """Open a ledger for appending and take it, until it is closed or this process ends, however it does; None where a
    driver has it. Who looks on holds it for a moment, `sweep gc` while it deletes: these are waited for, and after a
    while that is said."""
    file = open(  # noqa: SIM115
        paths.ledger,
        "a+",
        encoding="utf-8",
        opener=lambda path, _: os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o666),
    )
    says_at = time.monotonic() + SAYS_AFTER_S
    try:
        while not _has_got(file, fcntl.LOCK_EX):
            if not _has_got(file, fcntl.LOCK_SH):
                file.close()
                return None
            fcntl.flock(file, fcntl.LOCK_UN)
            if time.monotonic() >= says_at:
                says_at = math.inf
                print(f"{paths.name} is being deleted or looked at (`sweep gc`): waiting for that …", file=sys.stderr)
            time.sleep(LOOK_EVERY_S)
        if not os.path.samestat(os.fstat(file.fileno()), paths.ledger.stat()):
            raise FileNotFoundError(paths.ledger)
    except OSError:
        file.close()
        raise
    return file


def _has_got(file: TextIO, lock: int) -> bool:
    try:
        fcntl.flock(file, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _taken(at: SweepPaths) -> TakenError:
    last = holder(at.name)
    if not last:
        return TakenError(f"a sweep is one command's at a time, but {momentarily(at.name)}\n  do this again after that")
    who = f"process {last['pid']} on {last['host']}"
    user = [f"user {last['user']}"] if "user" in last else []  # ledgers of before don't tell
    job = [f"job {last['job']}"] if "job" in last else []
    since = time.strftime("since %Y-%m-%d %H:%M:%S", time.localtime(last["at"]))
    details = f" ({', '.join([*user, *job, since])})"
    return TakenError(
        f"a sweep has one driver at a time, but {who}{details} drives {at.name}\n"
        f"  look on with `{caller.command('status', at.name, '-f')}`, or end it with"
        f" `{caller.command('stop', at.name)}` and then do this again"
    )


def momentarily(name: str) -> str:
    """Say who has a sweep that is locked, but not by a driver that has signed."""
    return f"{name} is being brought to the store (`sweep sync` or `report`), or its driver is about to begin or to end"


def holder(name: str) -> Mapping[str, Any]:
    """Return who drives a sweep that somebody has; empty if that can't be told, or nobody does: a command such as
    `sweep sync` has it. A driver that has just taken it has not signed yet: the last one to sign may have gone."""
    give_up = time.monotonic() + SIGNS_WITHIN_S
    while is_driven(name) and time.monotonic() < give_up:
        last, has_ended = _last_driver(name)
        if last and not has_ended and not (last["host"] == os.uname().nodename and _has_gone(last)):
            return last
        time.sleep(LOOK_EVERY_S)
    return {}


def _has_gone(last: Mapping[str, Any]) -> bool:
    """Say whether a driver of this host has ended, also where a later process has its number. Ledgers of before don't
    tell when it began: then any process with its number is taken for it."""
    try:
        os.kill(last["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is another user's
        pass
    now, then = processes.birth(last["pid"]), last.get("birth", "")
    return bool(now and then) and now != then


def driver(name: str) -> Mapping[str, Any]:
    """Return the latest driver of a sweep: its process, its host, its job if it was submitted; empty if there was none
    yet."""
    last, _ = _last_driver(name)
    return last


def _last_driver(name: str) -> tuple[Mapping[str, Any], bool]:
    """Return the latest driver, and whether it has said that it ended."""
    last: Mapping[str, Any] = {}
    has_ended = False
    for entry in ledger.entries(ledger.paths(name).ledger):
        if entry["kind"] == "driver":
            last, has_ended = entry, False
        elif entry["kind"] == "end":
            has_ended = True
    return last, has_ended


def is_driven(name: str) -> bool:
    """Has it a driver at this moment?"""
    with undriven(name) as is_free:
        return not is_free


@contextlib.contextmanager
def undriven(name: str) -> Iterator[bool]:
    """Whether it has no driver; then it gets none within the block either."""
    with ledger.paths(name).ledger.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield not _driven_elsewhere(ledger.paths(name))


def _driven_elsewhere(at: SweepPaths) -> str:
    """Return the host of its last driver, where that may be at work though we have got the lock; empty where it can't
    be."""
    if not mounts.locks_hold_here_alone(at.folder):
        return ""
    host = kind = ""
    for entry in ledger.entries(at.ledger):
        kind = entry["kind"]
        if kind == "driver":
            host = entry["host"]
    return "" if kind == "end" or host == os.uname().nodename else host
