"""What a user's script may call, in a trial or by itself: outside of a trial each does nothing but pass on.

In a rank that was forked the loop is set up before the script begins. A script that was started as a process of its
own finds in its environment which rank it is, and sets the loop up when it first asks for it.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workers.contract import messages
from workers.contract.ranks import Beat, Fault, Seat, Voice
from workers.strategies.meeting import MeetingBroken
from workers.workloads.script.loop import Items, OwnLoop
from workers.workloads.script.reports import Reports, of_rank

RANK = "SWEEP_RANK_ORDER"  # the file that says which rank a process of its own is
CHECKPOINTS = "SWEEP_CHECKPOINT_DIR"  # the folder that an attempt finds again as the one before has left it
_loop: OwnLoop | None = None
_reports: Reports | None = None


def steps(batches: Iterable[Any], items: Items = None) -> Iterator[Any]:
    """Pass batches on, one a step. In a trial of a sweep the steps are measured, and the script ends when enough is
    known. `items` of this rank are in each step: a number, or a function that takes a batch and returns how many it
    has, where batches are not all alike."""
    loop = _here()
    return iter(batches) if loop is None else loop.steps(batches, items)


def alone() -> bool:
    """Whether the step that is taken now goes without its reduction: a trial looks so for what reducing costs. A loop
    that asks must then leave out its reduction: `no_sync` of a DistributedDataParallel, no `allreduce`."""
    loop = _here()
    if loop is None:
        return False
    loop.asks_alone = True
    return loop.is_alone


def report(*, epoch: int | None = None, **figures: Any) -> None:
    """Say what the script has come to: numbers by name, such as `loss`, and after which epoch (else one more than the
    last). In a trial of a sweep they are columns, series, and what a search goes by; the first rank's count."""
    _here()
    if _reports:
        _reports.add(epoch, figures)


def checkpoint_dir() -> Path:
    """Return the folder for what the script goes on from: in a trial of a sweep, one that the next attempt at it finds
    again; else `checkpoints` in the current folder."""
    folder = Path(os.environ.get(CHECKPOINTS) or "checkpoints").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def set_up(loop: OwnLoop | None, reports: Reports) -> None:
    """Have this process's script measured by a loop, or by whoever started it; and hear its reports."""
    global _loop, _reports
    _loop, _reports = loop, reports


def _here() -> OwnLoop | None:
    if _reports is None and (order := os.environ.pop(RANK, "")):
        _start(Path(order))
    return _loop


def _start(order: Path) -> None:
    """Set up a script that is a process of its own; what it has measured and reported is left for who started it, or
    why it could not."""
    said = _taken(order)
    seat, beat = Seat(**said["seat"]), Beat(said["beat"])
    voice = Voice(socket.socket(fileno=said["voice"]), beat)
    trial = messages.trial_config(said["config"])
    reports = of_rank(trial, seat.rank, voice, Path(said["folder"]))
    loop = None
    if not said["is_timed"]:  # by whoever started it
        command = [str(getattr(sys.modules["__main__"], "__file__", ""))]
        loop = OwnLoop(trial, beat.write, seat, command=command, folder=said["folder"], reports=reports)
        reports.added = loop.ends_at
    set_up(loop, reports)
    if loop is None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # so is its end told once it is timed
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    errors: list[BaseException] = []
    sys.excepthook = functools.partial(_remember, errors, voice, sys.excepthook)
    atexit.register(_leave, os.getpid(), Path(said["report"]), loop, reports, errors)


def _taken(order: Path) -> Any:
    """Return an order that no other process of the script has taken."""
    taken = order.with_suffix(".taken")
    try:
        order.rename(taken)
    except FileNotFoundError:
        rule = "a rank's steps and reports must be told by one process, but this is a second process that tells them"
        raise Fault("forked", rule) from None
    return json.loads(taken.read_text())


def _remember(
    errors: list[BaseException],
    voice: Voice,
    show: Callable[..., Any],
    kind: Any,
    error: BaseException,
    trace: Any,
) -> None:
    errors.append(error)
    if not isinstance(error, Fault):
        show(kind, error, trace)
    elif voice.is_of_a_fork:  # else its words stand in the outcome
        print(error, file=sys.stderr)


def _leave(pid: int, path: Path, loop: OwnLoop | None, reports: Reports, errors: Sequence[BaseException]) -> None:
    """Leave what the script has measured and reported, or why it could not: the fault that ended it, or what was
    missing at an end that may be a good one. A process that it has forked leaves nothing. Of an error of its own its
    exit code and its log tell."""
    if os.getpid() != pid:
        return
    left: dict[str, Any] = {"epochs": [messages.to_json(one) for one in reports.records]}
    try:
        stands = loop is not None and loop.is_disturbed
        if loop and (stands or not errors):
            left["stands"], errors = stands, ()
            left["report"] = messages.to_json(loop.close())
    except Fault as fault:
        left["missing"] = [fault.kind, str(fault)]
    except MeetingBroken as broken:
        left["broken"] = str(broken)
    for error in errors:
        if isinstance(error, MeetingBroken):
            left["broken"] = str(error)
        if isinstance(error, Fault):
            left["fault"] = [error.kind, str(error)]
    path.write_text(json.dumps(left))
