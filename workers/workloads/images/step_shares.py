"""What a step would take without its input, without its reduction, without both, and its reduction alone: timed after
the window, in rounds.

A part is taken away for a block of steps, rather than timed where it runs, because the parts of a step overlap: what
counts is what the step loses. A round has a block of whole steps and one without each part. Every second round goes
backwards (whole, without comm, without input, without both; without both, without input, …), so that a drift of the
machine falls on all alike, and what rounds differ by says how sure a share is.

What one block leaves behind must not show in the next:

- While no input is taken, its buffers fill up. Threads that fill them take cores from the ranks, so steps without input
  begin when the process has come to rest. Whole steps on full buffers would not wait for a while, though the input is
  too slow: so, before whole steps, batches are passed over until one is waited for as it was at the end of the window.
  An input that keeps up is not waited for, and nothing is passed over.
- Without reduction ranks drift apart: each block begins at a barrier, and its first step does not count. Where a round
  turns back, its last block goes on in the next one's first: between like blocks nothing has to settle.
- A pipeline that is waited for hands out several batches at a time, as many as its threads make side by side (`burst`).
  Where a block begins and ends within them must not count: with an input that is waited for it settles for as many
  steps, and counts a multiple of them.

One step suffices to settle (`SETTLING`) where a step carries nothing over but how far its ranks are apart: all begin
the first step after a barrier together, which is easier than what follows, and the reduction at its end brings them to
where every later step begins. A test plants such ranks. What that rests on and no test shows: that caches, allocators,
a GPU's queue and Horovod's cycle need no more than a step to be as they are in a block that goes on.

No step of the window is touched. It takes `cost` steps: a quarter of the trial's, but at least those of the shortest
blocks: 31 for an input, 49 for a reduction (a third of them nothing else), 85 for both. Where the input is waited for
they are 55 and 133, more with bursts of several batches, and its buffers are filled and emptied besides, six times at
most. Trials of fewer than 16 steps a part are left alone.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from workers.contract.messages import ROUNDS, TrialConfig, Without

if TYPE_CHECKING:  # the control plane asks what looking costs, and needs neither
    from workers.frameworks.tensorflow.learner import Learner
    from workers.strategies.ring import Ring

QUARTER = 0.25
SHORTEST = 16  # steps of a trial, for each part: of fewer nothing is said
FEWEST = 2  # counted steps of a block: twelve in all rounds
FEWEST_WAITING = 6  # the same of a block with an input that is waited for: batches then come several at a time
SETTLING = 1  # steps of a block that don't count
OBSERVED = 8  # whole steps, the last of a trial, that show how long a batch is waited for

PATIENCE = 20.0  # steps' time that buffers are given to fill or to empty
NOTICED = 0.02  # of a step: a batch that is at hand is handed over in less
WAITING = 0.1  # of a step
SLICE_S = 0.02
AT_REST = 0.5  # of a core, that a process whose buffers are full takes at most: Horovod's own thread took up to 0.44


def parts(config: TrialConfig, size: int) -> list[Without]:
    """What can be taken away."""
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
    """Counted steps of a block, in a trial of so many steps; none where it is too short."""
    if not parts or steps < SHORTEST * sum(part != "compute" for part in parts):  # which adds little to the rest
        return 0
    spare = int(QUARTER * steps) - _settling(parts)
    return max(spare // _blocks(parts), FEWEST)


def cost(steps: int, parts: Sequence[Without]) -> int:
    """All the steps that looking takes, of a trial of so many whose input keeps up."""
    counted = block(steps, parts)
    return _settling(parts) + _blocks(parts) * counted if counted else 0


def _blocks(parts: Sequence[Without]) -> int:
    return ROUNDS * (1 + len(parts))


def _settling(parts: Sequence[Without]) -> int:
    """Steps that don't count: of each block but those that only go on."""
    return SETTLING * (_blocks(parts) - (ROUNDS - 1))


def order(nth: int, parts: Sequence[Without]) -> list[Without]:
    """The blocks of a round: input is given back as seldom as can be, and every second round mirrors the one before."""
    blocks: list[Without] = ["nothing", *parts]
    return blocks[::-1] if nth % 2 else blocks


class Feed:
    """A rank's batches, and how long the latest were waited for."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._waits_s: collections.deque[float] = collections.deque(maxlen=OBSERVED)
        self.batch: Any = None  # at hand, for steps that take no other

    def __next__(self) -> Any:
        began = time.perf_counter()
        batch = next(self._batches)
        self._waits_s.append(time.perf_counter() - began)
        return batch

    @property
    def waited_s(self) -> float:
        """The mean of the last `OBSERVED` waits."""
        return sum(self._waits_s) / len(self._waits_s)

    def take(self) -> float:
        """Go on to the next batch, and keep it at hand; return the seconds that took."""
        self.batch = next(self)
        return self._waits_s[-1]

    def pass_over(self, most: int, slow_s: float) -> bool:
        """Pass over what was made ahead, so many batches at most: whether one had to be waited for so long."""
        return any(self.take() >= slow_s for _ in range(most))

    def empty(self, usual_s: float, patience_s: float, beat: Callable[[], None]) -> None:
        """Pass over what was made ahead, until a batch is waited for at least half as long as usual."""
        until = time.perf_counter() + patience_s
        while self.take() < usual_s / 2 and time.perf_counter() < until:
            beat()


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
    ring: Ring,
    learner: Learner,
    feed: Feed,
    beat: Callable[[int], None],
    burst: int = 1,
) -> dict[Without, tuple[tuple[float, ...], ...]]:
    """Milliseconds of each counted step, round by round, by what it went without; nothing where a trial of these
    steps does not ask, or is too short. The feed has just given the last of them its batch. `burst`: the batches that
    this rank's input makes side by side."""
    taken = parts(config, ring.size)
    counted = block(len(step_ms), taken)
    if not counted or not config.explain:
        return {}
    latest_ms = step_ms[-OBSERVED:]
    step_s = sum(latest_ms) / len(latest_ms) / 1e3
    return _Rounds(ring, learner, feed, taken, step_s, beat, burst).timed(counted)


class _Rounds:
    def __init__(
        self,
        ring: Ring,
        learner: Learner,
        feed: Feed,
        parts: Sequence[Without],
        step_s: float,
        beat: Callable[[int], None],
        burst: int,
    ) -> None:
        import numpy as np  # which the control plane, asking what looking costs, does without

        self._ring, self._learner, self._feed, self._parts = ring, learner, feed, parts
        self._report_beat, self._beaten = beat, 0
        usual_s = feed.waited_s if "input" in parts else 0.0
        self._usual_s = usual_s if usual_s > NOTICED * step_s else 0.0  # that a batch is waited for, 0 where none is
        self._patience_s = PATIENCE * step_s
        shared = np.zeros(1 + ring.size)
        shared[0], shared[1 + ring.rank] = usual_s > WAITING * step_s, burst
        waiting, *bursts = ring.total(shared)
        self._is_waited_for = bool(waiting)  # at some rank
        self._burst = round(max(bursts))

    def timed(self, counted: int) -> dict[Without, tuple[tuple[float, ...], ...]]:
        self._feed.take()
        if "comm" in self._parts:
            self._learner.take_step(self._feed.batch, True)  # built before the clock runs
            self._learner.reduce_alone()
        self._give_input()
        found: dict[Without, list[tuple[float, ...]]] = {part: [] for part in order(0, self._parts)}
        had_input, before = True, None
        for nth in range(ROUNDS):
            for part in order(nth, self._parts):
                has_input = part in ("nothing", "comm")
                if has_input != had_input:
                    (self._give_input if has_input else self._take_input)()
                    had_input = has_input
                found[part].append(self._block(part, has_input, counted, goes_on=part == before))
                before = part
        return {part: tuple(rounds) for part, rounds in found.items()}

    def _take_input(self) -> None:
        if "input" in self._parts:
            rest(self._patience_s, self._beat)

    def _give_input(self) -> None:
        """Leave the buffers as they were; once more for those that had to wait for other ranks meanwhile."""
        if self._is_waited_for:
            self._feed.empty(self._usual_s, self._patience_s, self._beat)
            self._ring.barrier()
            self._feed.empty(self._usual_s, self._patience_s, self._beat)

    def _block(self, part: Without, has_input: bool, counted: int, goes_on: bool) -> tuple[float, ...]:
        """`goes_on`: the block before was of the same part, and left all as it was."""
        settling = 0 if goes_on else SETTLING
        if not goes_on:
            self._ring.barrier()
        times = []
        if has_input and self._is_waited_for:
            settling = max(settling, self._burst) if settling else 0  # it goes on in its phase
            counted = -(-max(counted, FEWEST_WAITING) // self._burst) * self._burst
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
