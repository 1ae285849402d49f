"""What a step would take without its input, without its reduction, without both, and its reduction alone: timed after
the window, in rounds.

A part is taken away for a block of steps, rather than timed where it runs, because the parts of a step overlap: what
counts is what the step loses. A round has a block of whole steps and one without each part. Every second round goes
backwards (whole, without comm, without input, without both; without both, without input, …), so that a drift of the
machine falls on all alike, and what rounds differ by says how sure a share is.

What one block leaves behind must not show in the next:

- While no input is taken, its buffers fill up. Threads that fill them take cores from the ranks, so steps without input
  begin when the process has come to rest. An input that keeps up has full buffers in the window too. Of one that does
  not, whole steps on full buffers would not wait at all: two batches last for 20 steps if it is slower by a tenth, and
  for 66 if by 3%. So before whole steps all that was made ahead is passed over (`Feed.empty`), wherever the window had
  to wait for its input by more than `NOTICED`, in the mean of the last half of the trial's steps. That mean is over
  whole bursts: eight steps may hold none of a wait that comes every ninth. An input that makes nothing ahead, in the
  rank's own thread, has no buffers to be emptied.
- Without reduction ranks drift apart: each block begins at a barrier, and its first step does not count. Where a round
  turns back, its last block goes on in the next one's first: between like blocks nothing has to settle.
- A pipeline that is waited for hands out several batches at a time, as many as its threads make side by side (`burst`).
  Where a block begins and ends within them must not count: with an input that is waited for it settles for as many
  steps, and counts a multiple of them. A burst that ends within a batch counts as ending with it: planted ones of 1.5
  to 8.5 batches were told up to 3.3 points off.

In the window an input whose batches take unlike times has some in reserve now and then. Behind emptied buffers it has
none, and looks slower for a few steps: planted shares of 3% to 12% were told half a point to one too large in the mean
of 20 trials where batches scatter by a tenth (single ones by up to 5), and two points where they scatter by a fifth.

One step suffices to settle (`SETTLING`) where a step carries nothing over but how far its ranks are apart: all begin
the first step after a barrier together, which is easier than what follows, and the reduction at its end brings them to
where every later step begins. A test plants such ranks. What that rests on and no test shows: that caches, allocators,
a GPU's queue and Horovod's cycle need no more than a step to be as they are in a block that goes on.

No step of the window is touched. It takes `cost` steps: a quarter of the trial's, but at least those of the shortest
blocks: 31 for an input, 49 for a reduction (a third of them nothing else), 85 for both. Where the input is waited for
they are 55 and 133, more with bursts of several batches, and its buffers are filled three times and emptied four times
besides. Bursts so long that all this would take more than half of the trial's steps, and more than `MOST`, are left
alone: nothing is said of their trials. Nor of trials of fewer than 16 steps a part.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from workers.contract.messages import ROUNDS, TrialConfig, Without

WITH_INPUT: tuple[Without, ...] = ("nothing", "comm")  # blocks that take it
QUARTER = 0.25
SHORTEST = 16  # steps of a trial, for each part: of fewer nothing is said
FEWEST = 2  # counted steps of a block: twelve in all rounds
FEWEST_WAITING = 6  # the same of a block with an input that is waited for: batches then come several at a time
SETTLING = 1  # steps of a block that don't count
MOST = 500  # steps that looking may take where an input is waited for, whatever its bursts

PATIENCE = 20.0  # steps' time that buffers are given to fill
NOTICED = 0.02  # of a step: a batch that is at hand is handed over in less
SLICE_S = 0.02
AT_REST = 0.5  # of a core, that a process whose buffers are full takes at most: Horovod's own thread took up to 0.44


class AllRanks(Protocol):
    """All ranks of a trial, as one of them meets the others."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def barrier(self) -> None:
        """Wait until all have come here."""

    def total(self, values: Any) -> Any:
        """Return the sum of everyone's arrays."""


class StepTaker(Protocol):
    """What a rank's steps do, and what they can leave out."""

    def take_step(self, batch: Any, is_alone: bool, /) -> object:
        """Take a step, without its reduction if it is alone."""

    def reduce_alone(self) -> object:
        """Reduce as a step does, and nothing else."""


def parts(config: TrialConfig, size: int) -> list[Without]:
    """Return what can be taken away."""
    has_input, has_comm = config.data != "synthetic", size > 1
    found: list[Without] = ["comm"] if has_comm else []
    if has_input:
        found.append("input")
    if has_input and has_comm:
        found.append("both")
    if has_comm:
        found.append("compute")
    return found


def block(steps: int, parts: Sequence[Without]) -> int:
    """Return the counted steps of a block, in a trial of so many steps; none where it is too short."""
    if not parts or steps < SHORTEST * sum(part != "compute" for part in parts):  # which adds little to the rest
        return 0
    spare = int(QUARTER * steps) - _settling(parts)
    return max(spare // _blocks(parts), FEWEST)


def cost(steps: int, parts: Sequence[Without]) -> int:
    """All the steps that looking takes, of a trial of so many whose input keeps up."""
    counted = block(steps, parts)
    return _settling(parts) + _blocks(parts) * counted if counted else 0


def cost_waiting(counted: int, parts: Sequence[Without], burst: int) -> int:
    """Return the same where the input is waited for, with so many counted steps of a block without it."""
    with_input = [part for part in order(0, parts) if part in WITH_INPUT]
    more = whole_bursts(counted, burst) - counted
    turns = (ROUNDS - 1) // 2  # at which a block with input goes on
    settling = (burst - SETTLING) * (ROUNDS * len(with_input) - turns)
    return _settling(parts) + _blocks(parts) * counted + ROUNDS * len(with_input) * more + settling


def whole_bursts(counted: int, burst: int) -> int:
    """Return the counted steps of a block whose input is waited for, at least as many."""
    return -(-max(counted, FEWEST_WAITING) // burst) * burst


def _blocks(parts: Sequence[Without]) -> int:
    return ROUNDS * (1 + len(parts))


def _settling(parts: Sequence[Without]) -> int:
    """Return how many steps don't count: of each block but those that only go on."""
    return SETTLING * (_blocks(parts) - (ROUNDS - 1))


def order(nth: int, parts: Sequence[Without]) -> list[Without]:
    """Return the blocks of a round: input is given back as seldom as can be, and every second round mirrors the one
    before."""
    blocks: list[Without] = ["nothing", *parts]
    return blocks[::-1] if nth % 2 else blocks


def observed(steps: int, burst: int) -> int:
    """Return the last steps of a trial of so many, that show how long a batch is waited for: whole bursts of its last
    half."""
    return max(steps // 2 // burst, 1) * burst


class Feed:
    """A rank's batches, and how long each step has waited for its own."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._waits_s: list[float] = []
        self.batch: Any = None  # at hand, for steps that take no other

    def __next__(self) -> Any:
        """For a step."""
        batch, waited_s = self._timed()
        self._waits_s.append(waited_s)
        return batch

    def like(self, other: Feed) -> None:
        """Take over how long the steps have waited for the batches of another, which this one goes on with."""
        self._waits_s, self.batch = [*other._waits_s], other.batch

    def waited_s(self, steps: int) -> float:
        """By each of the last so many steps, in the mean."""
        return statistics.fmean(self._waits_s[-steps:])

    def take(self) -> float:
        """Go on to the next batch, and keep it at hand; return the seconds that took."""
        self.batch, waited_s = self._timed()
        return waited_s

    def empty(self, ahead: int, step_s: float, ring: AllRanks, beat: Callable[[], None]) -> None:
        """Pass over what was made ahead, so many batches at most; once more where ranks had to wait for others.

        One that was not yet made is waited for half a step at least, if the input does not keep up: how long exactly,
        while ranks compute, can't be told yet. An input that keeps up is soon ahead again.
        """
        is_slow = self._pass_over(ahead, step_s / 2, beat)
        ring.barrier()
        if is_slow:
            self._pass_over(ahead, step_s / 2, beat)

    def _pass_over(self, most: int, slow_s: float, beat: Callable[[], None]) -> bool:
        """Whether a batch had to be waited for so long: it is the last one then."""
        for _ in range(most):
            waited_s = self.take()
            beat()
            if waited_s >= slow_s:
                return True
        return False

    def _timed(self) -> tuple[Any, float]:
        began = time.perf_counter()
        batch = next(self._batches)
        return batch, time.perf_counter() - began


def rest(patience_s: float, beat: Callable[[], None]) -> None:
    """Wait until this process's threads have little left to do, twice in a row: buffers that fill are full."""
    until, quiet = time.perf_counter() + patience_s, 0
    while quiet < 2 and time.perf_counter() < until:
        began, used = time.perf_counter(), time.process_time()
        time.sleep(SLICE_S)
        is_quiet = time.process_time() - used < AT_REST * (time.perf_counter() - began)
        quiet = quiet + 1 if is_quiet else 0
        beat()


def timed(
    config: TrialConfig,
    step_ms: Sequence[float],
    ring: AllRanks,
    learner: StepTaker,
    feed: Feed,
    beat: Callable[[int], None],
    burst: int = 1,
    ahead: int = 0,
    taken: Sequence[Without] | None = None,
) -> dict[Without, tuple[tuple[float, ...], ...]]:
    """Milliseconds of each counted step, round by round, by what it went without; nothing where a trial of these
    steps does not ask, is too short, or waits for bursts that are too long. The feed has just given the last of them
    its batch. `burst`: the batches that this rank's input makes side by side; `ahead`: that it may have made before
    they are taken. What is `taken` away is what can be, or these parts."""
    taken = parts(config, ring.size) if taken is None else taken
    counted = block(len(step_ms), taken)
    if not counted or not config.explain:
        return {}
    return _Rounds(ring, learner, feed, taken, step_ms, beat, burst, ahead).timed(counted)


class _Rounds:
    def __init__(
        self,
        ring: AllRanks,
        learner: StepTaker,
        feed: Feed,
        parts: Sequence[Without],
        step_ms: Sequence[float],
        beat: Callable[[int], None],
        burst: int,
        ahead: int,
    ) -> None:
        import numpy as np  # which the control plane, asking what looking costs, does without

        self._ring, self._learner, self._feed, self._parts = ring, learner, feed, parts
        self._report_beat, self._beaten = beat, 0
        self._most = max(MOST, len(step_ms) // 2)
        shown = observed(len(step_ms), burst)
        self._step_s = statistics.fmean(step_ms[-shown:]) / 1e3
        waits = ahead > 0 and feed.waited_s(shown) > NOTICED * self._step_s
        self._ahead = ahead if waits else 0  # batches to be passed over
        shared = np.zeros(1 + ring.size)
        shared[0], shared[1 + ring.rank] = waits, burst
        waiting, *bursts = ring.total(shared)
        self._is_waited_for = bool(waiting)  # at some rank
        self._burst = round(max(bursts))

    def timed(self, counted: int) -> dict[Without, tuple[tuple[float, ...], ...]]:
        if self._is_waited_for and cost_waiting(counted, self._parts, self._burst) > self._most:
            return {}
        self._feed.take()
        if "comm" in self._parts:
            self._learner.take_step(self._feed.batch, True)  # built before the clock runs
        if "compute" in self._parts:
            self._learner.reduce_alone()
        self._give_input()
        found: dict[Without, list[tuple[float, ...]]] = {part: [] for part in order(0, self._parts)}
        had_input, before = True, None
        for nth in range(ROUNDS):
            for part in order(nth, self._parts):
                has_input = part in WITH_INPUT
                if has_input != had_input:
                    (self._give_input if has_input else self._take_input)()
                    had_input = has_input
                found[part].append(self._block(part, has_input, counted, goes_on=part == before))
                before = part
        return {part: tuple(rounds) for part, rounds in found.items()}

    def _take_input(self) -> None:
        if "input" in self._parts:
            rest(PATIENCE * self._step_s, self._beat)

    def _give_input(self) -> None:
        """Leave the buffers as they were in the window."""
        if self._is_waited_for:
            self._feed.empty(self._ahead, self._step_s, self._ring, self._beat)

    def _block(self, part: Without, has_input: bool, counted: int, goes_on: bool) -> tuple[float, ...]:
        """`goes_on`: the block before was of the same part, and left all as it was."""
        settling = 0 if goes_on else SETTLING
        if not goes_on:
            self._ring.barrier()
        times = []
        if has_input and self._is_waited_for:
            settling = max(settling, self._burst) if settling else 0  # it goes on in its phase
            counted = whole_bursts(counted, self._burst)
        for _ in range(settling + counted):
            began = time.perf_counter()
            if has_input:
                self._feed.take()
            if part == "compute":
                self._learner.reduce_alone()
            else:
                self._learner.take_step(self._feed.batch, part in ("comm", "both"))
            times.append(1e3 * (time.perf_counter() - began))
            self._beat()
        return tuple(times[settling:])

    def _beat(self) -> None:
        self._report_beat(self._beaten)
        self._beaten += 1
