"""A user's own training loop, measured in the window that the built-in training is measured in.

    for batch in sweeps.steps(loader, items=64):
        train(batch)

A step runs from the moment in which a batch is asked for to the next such moment: input, computing, reduction and
whatever else the loop does. Steps run back to back; nothing is said between them. Rank 0 looks at its own times on a
thread beside the steps; when they suffice it names the step that will be the last, some steps ahead, and every rank
ends there. After the window parts of a step are taken away, as far as the loop lets us: its input (the same batch is
given again), and its reduction where the loop asks `sweeps.alone()`, or where it is one of Horovod's, which we leave
out ourselves (`left_out`). Then the trial ends, wherever the script is: nothing may go on from weights that such steps
have made. Where the script ends its loop in their midst, or they bring it to raise, the window stands without shares.

A script that leaves the loop and comes again (an epoch, a validation between) goes on with the same window: the time
between two loops belongs to no step. A framework that computes in the background must have waited for a step's result
(read its loss, say) where the next batch is asked for, else steps are timed too short.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import queue
import resource
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.messages import (
    TOLD_STEPS,
    EpochRecord,
    Phase,
    RankReport,
    StepRecord,
    TrialConfig,
    Without,
    reaches_target,
)
from workers.contract.ranks import Fault, Seat
from workers.inputs import storage
from workers.inputs.source import AHEAD_OF_OTHERS
from workers.measure import earlier_windows, steady, step_shares
from workers.measure.watching import Watch, steady_rule, windowed
from workers.strategies import left_out, meeting
from workers.strategies.meeting import Meeting, MeetingBroken
from workers.workloads.script import code
from workers.workloads.script.reports import Reports

AHEAD_S, AHEAD = 0.25, 2  # the last step is named so long, and so many steps, before it
FEWEST = 3  # steps that a window needs
LOSS = math.nan  # of a step whose script has not said it
GOES_ON, ENDED = "goes on", "ended its loop"  # a rank that others wait for
OWN_STEPS = "sweeps.steps"
WITH_REDUCTION: tuple[Without, ...] = ("nothing", "input")  # blocks of rounds in which it is in its place
ELSEWHERE = "not every rank can leave its reductions out"
ASKED_BY_SOME = "only some ranks ask sweeps.alone()"
Taken = dict[Without, tuple[tuple[float, ...], ...]]  # milliseconds of each step, by round
Items = int | Callable[[Any], int] | None  # of a step of this rank: a number, or of each batch


class Measured(SystemExit):  # so that no `except Exception` of a script's holds it up, and its process ends well
    """The trial has measured what it was to measure: the script ends here."""


class OwnLoop:
    """The loop of one rank."""

    def __init__(
        self,
        config: TrialConfig,
        beat: Callable[[Phase, int], None],
        seat: Seat,
        measured_by: str = OWN_STEPS,
        command: Sequence[str] = (),
        folder: str = "",
        reports: Reports | None = None,
    ) -> None:
        """`command`: names the script's files, from the folder in which it was started. `reports`: what it says that it
        came to."""
        self._reports = reports or Reports(is_first=False)
        self._learns = config.protocol == "convergence"
        self._command, self._folder = command, Path(folder or os.getcwd())  # it may change its folder
        self._measured_by = measured_by
        self._pid = os.getpid()
        self.is_alone = False  # the step that is taken now goes without its reduction
        self.asks_alone = False  # the script wants to know that
        self.report: RankReport | None = None
        self._figures: dict[str, Any] = {}  # of the window, once it is closed
        self._reductions = left_out.Reductions()
        self._leaves_out = False  # its reductions, without being asked
        self._config, self._beat, self._seat, self._history = config, beat, seat, seat.history
        self._entered_at, self._began, self._launch_s = time.time(), time.perf_counter(), seat.launched_s()
        self._build_s = 0.0
        self._items = 0  # of a step, where they are the same in each
        self._items_of: Callable[[Any], int] | None = None  # else of a batch
        self._items_taken: list[int] = []  # in each step
        self._steps = 0
        self._ends: list[float] = []  # of the steps, behind the begin of the first; without the time between two loops
        self._left_at: float | None = None  # when the script was last seen to leave a loop
        self._between_s = 0.0
        self._read_before_mib = storage.read_mib()
        is_watching = seat.rank == 0 and not config.measured_steps and not self._learns
        self._earlier = earlier_windows.load(seat.history) if seat.rank == 0 else steady.NOTHING
        self._watch = Watch(steady_rule(config), self._earlier) if is_watching else None

    @functools.cached_property
    def _meeting(self) -> Meeting:
        """All ranks, which come there with their first step, or at their end: the first alone may report before."""
        return meeting.joined(self._seat)

    def ends_at(self, record: EpochRecord) -> None:
        """End a rank that is alone where it has come to the target; others go on to their script's end."""
        if self._learns and self._seat.size == 1 and reaches_target(record, self._config):
            if self.report is None:
                self._report(**self._course())
            raise Measured

    def steps(self, batches: Iterable[Any], items: Items = None) -> Iterator[Any]:
        """Pass the batches on, one a step, until enough is measured."""
        self._take_items(items)
        feed = step_shares.Feed(iter(batches))
        self._come_in()
        self.notice()
        try:
            for batch in _each(feed):
                taken = self._own_items(self._items_of(batch)) if self._items_of else self._items
                yield batch
                self._step_is_done(taken)
                if self._is_last():
                    yield from self._end(feed, batches)
                    raise Measured
        finally:
            self._left_at = time.perf_counter()
            self._reductions.is_in_loop = False
        if not self._steps and self._measured_by == OWN_STEPS:
            rule = f"the loader that {OWN_STEPS} is given must have batches"
            raise Fault("no steps", f"{rule}, but gave none: are its data shorter than a batch?")

    def notice(self) -> None:
        """Notice what the script reduces from now on, where that may be left out later."""
        if self._seat.size > 1 and self._config.explain and not self._learns:
            self._reductions.notice()

    def begins(self, told_by: str) -> None:
        """Time the steps that someone else takes, and tells of: from here on."""
        if self._measured_by == OWN_STEPS and not self._steps:
            self._measured_by = told_by
        if not self._config.items:
            raise Fault("items", f"the sweep file must give items: {told_by} doesn't say how many a step has")
        self._take_items(None)
        self._come_in()

    def stepped(self) -> None:
        """Count a step of these, which is done; end the script behind the last one."""
        self._step_is_done(self._items)
        if self._is_last():
            for _ in self._end(None, ()):
                raise AssertionError("nothing can be taken away from steps of others")
            raise Measured

    def pauses(self) -> None:
        """Count what comes now, and what has come since the last step was done, to no step: a validation, say."""
        if self._ends:
            self._left_at = self._ends[-1] + self._between_s

    def _take_items(self, items: Items) -> None:
        self._items_of = items if callable(items) else None
        if callable(items):
            return
        size = self._seat.size
        asked = self._config.items
        own = asked // size or 1 if items is None else self._own_items(items)
        if asked and own * size != asked:
            rule = "must be what the sweep file's items come to: those of one step of all ranks"
            raise Fault("items", f"{rule} ({asked}, {asked / size:g} a rank), but sweeps.steps was told {items}")
        if self._steps and self._items and own != self._items:
            rule = "items must be the same in every step, or a function that takes a batch and returns how many it has"
            raise Fault("items", f"{rule}, but were {self._items} until step {self._steps}, then {own}")
        self._items = own

    def _own_items(self, items: object) -> int:
        """Return how many items a step has, if that is a number that it can have."""
        if not isinstance(items, int | np.integer) or isinstance(items, bool) or items < 1:
            raise Fault("items", f"sweeps.steps must be told items as a whole number of at least 1, but got {items!r}")
        most = self._config.items // self._seat.size
        if most and self._items_of and items > most:
            rule = "a batch must have no more than the sweep file's items come to"
            raise Fault("items", f"{rule} ({most} a rank), but one has {items}")
        return int(items)

    def _come_in(self) -> None:
        self._check_process()
        if self.report is not None:  # the script has caught its end, and goes on
            raise Measured
        if self._figures:  # it has left the loop while parts were taken away, and comes again
            self._close_without_shares()
            raise Measured
        self._reductions.is_in_loop = True
        now = time.perf_counter()
        if self._left_at is not None:
            self._between_s += now - self._left_at
            self._left_at = None
        if not self._ends:
            self._beat("build", 0)
            self._ends.append(now)

    def _now(self) -> float:
        return time.perf_counter() - self._between_s

    def _check_process(self) -> None:
        """Refuse steps of another process: they would be counted in no window, and its words mixed with this one's."""
        if os.getpid() != self._pid:
            rule = "a rank's steps must be taken by the process that was started for it"
            raise Fault("forked", f"{rule}, but this is a process that it forked")

    def _step_is_done(self, items: int) -> None:
        self._check_process()
        self._steps += 1
        self._items_taken.append(items)
        if self._steps == 1:
            self._build_s = time.perf_counter() - self._began
            self._beat("build", 1)
            self._meet()
        if self._learns:  # it runs to its own end: who knows how many steps that is
            del self._ends[2:]
            self._items_taken[1:] = [sum(self._items_taken[1:])]
        self._ends.append(self._now())
        self._beat("step", self._steps)
        if self._watch and self._meeting.last_step is None and self._watch.is_enough(self._ends):
            step_s = (self._ends[-1] - self._ends[1]) / max(1, self._steps - 1)
            self._meeting.end_after(self._steps + max(AHEAD, math.ceil(AHEAD_S / max(step_s, 1e-6))))

    def _meet(self, doing: str = GOES_ON) -> None:
        """Return when every rank has come here, each after the same step."""
        self._meeting.at = (doing, self._steps)
        self._meeting.barrier()

    def _is_last(self) -> bool:
        last = self._meeting.last_step
        if last is not None and self._steps > last:
            rule = "ranks must step together, as those do that reduce their gradients at each step"
            done = f"this one had done {self._steps} when step {last} was to be the last"
            raise Fault("ranks apart", f"{rule}, but {done}")
        return self._steps == (self._config.steps if last is None else min(last, self._config.steps))

    def _end(self, feed: step_shares.Feed | None, batches: Iterable[Any]) -> Generator[Any]:
        """Close the window, look for the shares, and report."""
        is_enough = self._meeting.last_step is not None and self._steps < self._config.steps
        figures = self._window(is_enough)
        step_ms = figures.pop("step_ms")
        self._figures = figures
        without_ms, why_no_comm = ({}, "") if feed is None else (yield from self._explained(step_ms, feed, batches))
        self._report(without_ms=without_ms, why_no_comm=why_no_comm, **figures)

    @property
    def is_disturbed(self) -> bool:
        """Whether we are taking away from its steps what the script has not offered: its window stands, whatever comes
        of it."""
        return self._leaves_out and bool(self._figures) and self.report is None

    def _close_without_shares(self) -> None:
        """Report the window alone; other ranks hear that no shares are to be had."""
        self._meeting.close()
        why_no_comm = (
            "the script left its loop, or raised, in a step without its reductions" if self._leaves_out else ""
        )
        self._report(why_no_comm=why_no_comm, **self._figures)

    def _course(self) -> dict[str, Any]:
        """Return the figures of a script that ran to its own end: those of its loops, but for the first step."""
        if self._seat.rank == 0 and not self._reports.records:
            rule = "must call sweeps.report(…), or train by Keras' fit, with protocol: convergence"
            raise Fault("no reports", f"the script {rule}, and came to its end without")
        self._meet(ENDED)
        ended_at, counted = time.time(), max(0, self._steps - 1)
        window_s = self._ends[-1] - self._ends[1] if counted else ended_at - self._entered_at
        return {
            "window_s": window_s,
            "window_at": (ended_at - window_s, ended_at),
            "images": sum(self._items_taken[1:]),
            "read_mib": storage.read_mib() - self._read_before_mib,
            "reached_target": any(reaches_target(record, self._config) for record in self._reports.records),
        }

    def _window(self, is_enough: bool) -> dict[str, Any]:
        self._meet()
        self._reports.is_open = False
        ended, ended_at = self._now(), time.time()
        config, is_first = self._config, self._seat.rank == 0
        step_ms = [1e3 * (after - before) for before, after in itertools.pairwise(self._ends)]
        window = windowed(config, step_ms, is_enough, self._earlier) if is_first else None
        warmup = int(self._meeting.total(np.array([window.warmup_steps if window else 0]))[0])
        if window and self._history:
            earlier_windows.save(self._history, steady.learnt(self._earlier, step_ms, warmup))
        counted = step_ms[warmup:]
        window_s = ended - self._ends[warmup]
        return {
            "step_ms": step_ms,
            "window": window,
            "window_s": window_s,
            "window_at": (ended_at - window_s, ended_at),
            "images": sum(self._items_taken[warmup:]),
            "steps": tuple(StepRecord(step=n, step_ms=ms, loss=LOSS) for n, ms in enumerate(counted)),
            "read_mib": storage.read_mib() - self._read_before_mib,
        }

    def _explained(
        self, step_ms: list[float], feed: step_shares.Feed, batches: Iterable[Any]
    ) -> Generator[Any, None, tuple[Taken, str]]:
        """Take steps without a part, in the same rounds as the built-in training does; why those without their
        reduction say nothing, if they don't.

        There the rounds call a step; here the script's loop takes it. So the rounds run on a thread, and each of their
        steps is handed over to the loop.
        """
        taken, why_no_comm = self._parts()
        again = step_shares.Feed(_endless(feed, batches))
        again.like(feed)
        handed = _Handover()

        def look() -> None:
            handed.end(
                lambda: step_shares.timed(
                    self._config,
                    step_ms,
                    self._meeting,
                    handed,
                    again,
                    lambda step: self._beat("explain", step),
                    ahead=AHEAD_OF_OTHERS,
                    taken=taken,
                )
            )

        threading.Thread(target=look, name="rounds", daemon=True).start()
        try:
            while (step := handed.next()) is not None:
                batch, is_alone = step
                self._be_alone(is_alone)
                yield batch
                if is_alone:
                    self._reductions.settle()
                handed.done()
        finally:
            self._be_alone(False)
        try:
            found: Taken = handed.result()
            if self._leaves_out and found:
                why_no_comm = self._doubt()
        except (_NoMoreBatches, MeetingBroken):  # here, or at another rank: the shares are withheld
            self._meeting.close()
            return {}, why_no_comm
        return {part: found[part] for part in found if part in WITH_REDUCTION or not why_no_comm}, why_no_comm

    def _be_alone(self, is_alone: bool) -> None:
        self.is_alone, self._reductions.is_left_out = is_alone, is_alone and self._leaves_out

    def _doubt(self) -> str:
        """Why the steps that went without their reductions say nothing, at this rank or at another; empty where they
        do."""
        why = self._reductions.why_in_doubt
        are_in_doubt = self._meeting.total(np.array([float(bool(why))]))[0]
        return why or (ELSEWHERE if are_in_doubt else "")

    def _parts(self) -> tuple[list[Without], str]:
        """Return what can be taken away at every rank: a batch can be given again, a reduction be left out by the
        script, or by us; and why it can't be."""
        if self._measured_by != OWN_STEPS:  # nothing can be taken from a program that is only looked at
            return [], ""
        if self._seat.size == 1 or not self._config.explain:
            return ["input"], ""
        why_not = self._reductions.why_not
        asks, can = self._meeting.total(np.array([float(self.asks_alone), float(not why_not)]))
        self._leaves_out = bool(not asks and can == self._seat.size)
        if self._leaves_out:
            self._reductions.prepare()
        elif asks != self._seat.size:
            return ["input"], ASKED_BY_SOME if asks else why_not or ELSEWHERE
        return ["comm", "input", "both"], ""

    def _report(self, **figures: Any) -> None:
        self._beat("finish", self._steps)
        self.report = RankReport(
            rank=self._seat.rank,
            entered_at=self._entered_at,
            launch_s=self._launch_s,
            build_s=self._build_s,
            peak_memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            parameters=0,
            flops=0,
            measured_by=self._measured_by if self._steps else "",
            software=code.digest(self._command, self._folder),
            epochs=tuple(self._reports.records),
            **figures,
        )

    def close(self) -> RankReport:
        """Return the report, at the script's end: of a loop that ended by itself too, if it was long enough."""
        if self.report is None and self._figures:  # it has ended its loop while parts were taken away
            self._close_without_shares()
        if self.report is None:
            self._reports.settle(is_last=True)
            if self._learns:
                self._report(**self._course())
            else:
                self._end_early()
        assert self.report
        return self.report

    def _end_early(self) -> None:
        if not self._steps:
            raise Fault("no steps", f"the script must {TOLD_STEPS}, but it ended without")
        fewest = self._config.steps if self._config.measured_steps else self._config.warmup_steps + FEWEST
        if self._steps < fewest:
            rule = f"a loop must have at least {fewest} steps, {self._config.warmup_steps} that don't count among them"
            raise Fault("too few steps", f"{rule}, but the script ended after {self._steps}")
        self._meet(ENDED)
        figures = self._window(False)
        del figures["step_ms"]
        if window := figures["window"]:
            figures["window"] = dataclasses.replace(window, stopped_by="script")
        self._report(**figures)


def _each(feed: step_shares.Feed) -> Iterator[Any]:
    while True:
        try:
            yield next(feed)
        except StopIteration:
            return


def _endless(feed: step_shares.Feed, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield what is left of the batches, and all of them again where they can be had again."""
    yield from _each(feed)
    if iter(batches) is batches:
        raise _NoMoreBatches
    while True:
        yield from batches


class _NoMoreBatches(Exception):  # noqa: N818
    """A loader that gives its batches once has given them all."""


class _Handover:
    """Steps of the rounds, one by one, for the script's loop to take."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Any, bool] | None] = queue.SimpleQueue()
        self._taken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._result: Any = None
        self._error: BaseException | None = None

    def take_step(self, batch: Any, is_alone: bool) -> None:
        self._asked.put((batch, is_alone))
        self._taken.get()

    def reduce_alone(self) -> None:
        """Do nothing: a script has no such step."""

    def end(self, work: Any) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error
        self._asked.put(None)

    def next(self) -> tuple[Any, bool] | None:
        """Return the step that is to be taken now; None once there are no more."""
        return self._asked.get()

    def done(self) -> None:
        self._taken.put(None)

    def result(self) -> Any:
        if self._error:
            raise self._error
        return self._result
