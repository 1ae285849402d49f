"""Parts of a step are taken away by turns, and what a turn leaves behind does not show in the next.

Time is planted: the clock goes on where a step, a wait or a rest takes its time, and the input's threads make batches
ahead at a rate that is known.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from sweeps.record import bottleneck
from tests.unit.records import config, report
from workers.contract.messages import ROUNDS, Measurement, TrialConfig, Without
from workers.measure import step_shares
from workers.strategies.ring import Solo

STEP_S = 0.01
BUILD_S = 1.0  # in which buffers fill up


class Clock:
    """In place of `time`. The input's threads are busy for as long as it makes batches."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.busy_until_s = 0.0
        self.input: Ahead | None = None

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def process_time(self) -> float:
        return self.input.busy_s if self.input else min(self.now_s, self.busy_until_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    planted = Clock()
    monkeypatch.setattr(step_shares, "time", planted)
    return planted


class Ahead:
    """Batches that are made ahead, so many at most, each in so long; some of them side by side. The next are begun when
    there was room for all that were made before. Their times may scatter, by such a part as a standard deviation."""

    def __init__(
        self, clock: Clock, each_s: float, buffered: int, burst: int = 1, scatter: float = 0.0, seed: int = 0
    ) -> None:
        self.burst, self.taken = burst, 0
        self._at_once = burst
        self.ahead = buffered + 2 * burst  # some are being made
        self._clock, self._each_s, self._buffered = clock, each_s, buffered
        self._scatter, self._random = scatter, random.Random(seed)
        self._ready = self._made = 0  # in the buffer; made, and waiting for room in it
        self._made_at_s = self._made_in_s()
        self._held_up_s = 0.0  # for want of room
        clock.input = self

    @property
    def busy_s(self) -> float:
        self.make()
        return self._clock.now_s - self._held_up_s - (self._clock.now_s - self._made_at_s if self._made else 0.0)

    def make(self) -> None:
        """All that is made by now."""
        while self._made_at_s <= self._clock.now_s:
            self._made = self._made or self._at_once
            room = min(self._made, self._buffered - self._ready)
            self._ready, self._made = self._ready + room, self._made - room
            if self._made:
                return
            self._made_at_s += self._made_in_s()

    def _made_in_s(self) -> float:
        return self._at_once * self._each_s * max(0.0, self._random.gauss(1, self._scatter))

    def stream(self) -> Iterator[int]:
        while True:
            self.make()
            if not self._ready:
                self._clock.now_s = self._made_at_s
                self.make()
            if self._made == 1:  # the last of them finds room now
                self._held_up_s += self._clock.now_s - self._made_at_s
                self._made_at_s = self._clock.now_s + self._made_in_s()
            if self._made:
                self._made, self._ready = self._made - 1, self._ready + 1
            self._ready -= 1
            self.taken += 1
            yield 0


class Sleeper:
    """A learner whose step takes a known time, more with its reduction; what it has not done yet is built first."""

    def __init__(self, clock: Clock, comm_s: float = 0.0) -> None:
        self.steps = 0
        self._clock, self._comm_s = clock, comm_s
        self._to_build = {"alone", "reduction"}

    def take_step(self, batch: Any, is_alone: bool) -> None:
        if is_alone:
            self._build("alone")
        self._clock.sleep(STEP_S + (0 if is_alone else self._comm_s))
        self.steps += 1

    def reduce_alone(self) -> None:
        self._build("reduction")
        self._clock.sleep(self._comm_s)
        self.steps += 1

    def _build(self, what: str) -> None:
        if what in self._to_build:
            self._clock.sleep(BUILD_S)
            self._to_build.remove(what)


class Pair(Solo):
    size = 2


def asked(**fields: object) -> TrialConfig:
    return dataclasses.replace(config(), **{"data": "images", "explain": True} | fields)  # type: ignore[arg-type]


def timed(
    clock: Clock, source: Ahead, ring: Solo, comm_s: float = 0.0, steps: int = 64, most: int = step_shares.MOST
) -> dict[Without, tuple[Any, ...]]:
    """`most`: the steps that looking takes at most."""
    feed, step_ms = step_shares.Feed(source.stream()), []
    for _ in range(steps):  # as in a window: the buffers are as they are while steps are whole
        began = clock.now_s
        next(feed)
        clock.sleep(STEP_S + comm_s)
        step_ms.append(1e3 * (clock.now_s - began))
    beats: list[int] = []
    learner = Sleeper(clock, comm_s)
    found = step_shares.timed(
        asked(),
        step_ms,
        ring,
        learner,  # type: ignore[arg-type]
        feed,
        beats.append,
        burst=source.burst,
        ahead=source.ahead,
    )
    assert beats == list(range(len(beats)))
    assert learner.steps <= most
    return found


def share(found: dict[Without, tuple[Any, ...]], gpus: int) -> bottleneck.Shares:
    told = dataclasses.replace(report(0, 10, [10.0]), without_ms=found)
    made = bottleneck.shares(Measurement(ranks=(told,)), asked(gpus=gpus))
    assert made
    return made


def test_an_input_that_is_too_slow_is_waited_for_though_its_buffers_filled_meanwhile(clock: Clock) -> None:
    """Batches of 20 ms and steps of 10: without its buffers emptied, the input would last for 24 steps."""
    found = timed(clock, Ahead(clock, 2 * STEP_S, buffered=12), Solo())
    assert set(found) == {"nothing", "input"}
    assert share(found, 1).input.value == pytest.approx(0.5, abs=0.1)
    for blocks in found.values():
        assert len(blocks) == ROUNDS
    assert {len(block) for block in found["input"]} == {step_shares.FEWEST}
    assert {len(block) for block in found["nothing"]} == {step_shares.FEWEST_WAITING}


@pytest.mark.parametrize("burst", [2, 4])
def test_batches_that_come_several_at_a_time_do_not_lengthen_the_wait_for_them(burst: int, clock: Clock) -> None:
    """A block that began within a burst and ended within another would count a computing step too many."""
    found = timed(clock, Ahead(clock, 1.4 * STEP_S, buffered=4, burst=burst), Solo())
    assert share(found, 1).input.value == pytest.approx(1 - 1 / 1.4, abs=0.05)
    assert {len(block) % burst for block in found["nothing"]} == {0}


BURSTS = [1, 2, 5, 9]


@pytest.mark.parametrize("burst", BURSTS)
@pytest.mark.parametrize("wait", [0.03, 0.05, 0.074, 0.08, 0.12, 0.145])
def test_a_small_wait_is_told_too_whatever_batches_come_side_by_side(wait: float, burst: int, clock: Clock) -> None:
    """A buffer that was filled for steps without input lasts for hundreds of steps that hardly wait. And one wait in so
    many steps may be none of the last few: so windows end anywhere in a burst."""
    for steps in range(64, 64 + burst):
        clock.now_s = 0.0
        found = timed(clock, Ahead(clock, STEP_S / (1 - wait), buffered=12, burst=burst), Solo(), steps=steps)
        assert share(found, 1).input.value == pytest.approx(wait, abs=0.002)


@pytest.mark.parametrize("burst", BURSTS)
@pytest.mark.parametrize("wait", [0.03, 0.08, 0.145])
def test_a_small_wait_is_told_though_buffers_filled_while_the_lone_step_was_built(
    wait: float, burst: int, clock: Clock
) -> None:
    """Of two ranks, whose steps take 5 ms more for their reduction: that is less than a burst's wait, and hides."""
    source = Ahead(clock, 1.5 * STEP_S / (1 - wait), buffered=12, burst=burst)
    found = share(timed(clock, source, Pair(), comm_s=STEP_S / 2), 2)
    assert found.input.value == pytest.approx(wait, abs=0.002)
    assert found.comm.value == pytest.approx(0, abs=0.002)


@pytest.mark.parametrize("wait", [0.03, 0.08, 0.12])
def test_a_small_wait_for_batches_whose_times_scatter_by_a_tenth_is_told_within_five_points(
    wait: float, clock: Clock
) -> None:
    """In the long run some are in reserve, which emptied buffers lack: so the mean of many trials is too large."""
    told = []
    for seed in range(20):
        clock.now_s = 0.0
        source = Ahead(clock, STEP_S / (1 - wait), buffered=12, scatter=0.1, seed=seed)
        told.append(share(timed(clock, source, Solo(), steps=258), 1).input.value)
    assert told == pytest.approx([wait] * len(told), abs=0.05)
    assert 0 < statistics.fmean(told) - wait < 0.015


class OfHalves(Ahead):
    """Batches of two parts each, of which an odd number are made side by side: 80 images are two batches and a half."""

    def __init__(self, clock: Clock, each_s: float, buffered: int, halves: int) -> None:
        super().__init__(clock, each_s / 2, 2 * buffered, halves)
        self.burst = -(-halves // 2)

    def stream(self) -> Iterator[int]:
        parts = super().stream()
        while True:
            next(parts)
            yield next(parts)


@pytest.mark.parametrize("halves", [3, 5, 7, 17])
@pytest.mark.parametrize("wait", [0.03, 0.08, 0.3, 0.5])
def test_bursts_that_end_within_a_batch_are_told_within_five_points(wait: float, halves: int, clock: Clock) -> None:
    for steps in range(64, 64 + halves):
        clock.now_s = 0.0
        found = timed(clock, OfHalves(clock, STEP_S / (1 - wait), 12, halves), Solo(), steps=steps)
        assert share(found, 1).input.value == pytest.approx(wait, abs=0.05)


@pytest.mark.parametrize("ring", [Solo(), Pair()], ids=["one rank", "two"])
def test_steps_that_look_for_a_wait_are_those_that_are_told(ring: Solo, clock: Clock) -> None:
    for burst in BURSTS:
        clock.now_s = 0.0
        parts = step_shares.parts(asked(), ring.size)
        told = step_shares.cost_waiting(step_shares.block(64, parts), parts, burst)
        built = 2 * (ring.size > 1)
        found = timed(clock, Ahead(clock, 1.2 * STEP_S, buffered=12, burst=burst), ring, most=told + built)
        assert sum(len(block) for blocks in found.values() for block in blocks) > told / 2
    assert [step_shares.cost_waiting(2, ["input"], burst) for burst in BURSTS] == [55, 59, 95, 105]


def test_bursts_so_long_that_looking_would_cost_more_than_it_may_are_left_alone(clock: Clock) -> None:
    """Ten times their length, with one rank."""
    assert not timed(clock, Ahead(clock, 1.2 * STEP_S, buffered=60, burst=60), Solo(), most=0)
    clock.now_s = 0.0
    long = timed(clock, Ahead(clock, 1.2 * STEP_S, buffered=60, burst=60), Solo(), steps=1600, most=800)
    assert share(long, 1).input.value == pytest.approx(1 / 6, abs=0.002)
    clock.now_s = 0.0
    assert timed(clock, Ahead(clock, STEP_S / 2, buffered=60, burst=60), Solo(), most=31)  # which keeps up


class InStep(Ahead):
    """Batches that the rank makes itself, when it takes them."""

    def __init__(self, clock: Clock, each_s: float) -> None:
        super().__init__(clock, each_s, 0)
        self.ahead = 0

    def stream(self) -> Iterator[int]:
        while True:
            self._clock.sleep(self._each_s)
            yield 0


def test_an_input_that_makes_nothing_ahead_needs_no_longer_blocks(clock: Clock) -> None:
    found = timed(clock, InStep(clock, STEP_S / 4), Solo(), most=31)
    assert share(found, 1).input.value == pytest.approx(0.2, abs=0.002)


@pytest.mark.parametrize("burst", BURSTS)
def test_an_input_that_just_keeps_up_has_its_buffers_full_as_in_the_window(burst: int, clock: Clock) -> None:
    found = timed(clock, Ahead(clock, 0.97 * STEP_S, buffered=12, burst=burst), Solo(), most=31)
    assert share(found, 1).input.value == pytest.approx(0, abs=1e-9)


def test_an_input_that_keeps_up_is_not_waited_for_and_none_of_it_passed_over(clock: Clock) -> None:
    source = Ahead(clock, STEP_S / 4, buffered=12)
    timed(clock, source, Solo())
    whole_blocks = ROUNDS * step_shares.FEWEST + step_shares.SETTLING * 4  # of six, two go on where a round turns back
    assert source.taken == 64 + 1 + whole_blocks  # and the one at hand


def test_two_parts_and_both_have_their_shares(clock: Clock) -> None:
    """Steps of 10 ms, 5 more for the reduction, an input of 30, behind which the reduction hides."""
    found = timed(clock, Ahead(clock, 3 * STEP_S, buffered=3), Pair(), comm_s=STEP_S / 2)
    assert set(found) == {"nothing", "comm", "input", "both", "compute"}
    shares = share(found, 2)
    told = [shares.input.value, shares.comm.value, shares.compute.value, shares.overlap.value]
    assert told == pytest.approx([1 / 2, 0, 1 / 3, 0], abs=0.1)


def test_a_trial_that_does_not_ask_or_is_too_short_takes_no_step() -> None:
    for wanted, steps in ((asked(explain=False), 100), (asked(), 15)):
        feed = step_shares.Feed(iter(()))
        assert step_shares.timed(wanted, [10.0] * steps, Solo(), None, feed, lambda _: None) == {}  # type: ignore[arg-type]


class Rehearsed(Pair):
    """A ring of two that notes when its ranks meet, and a learner that notes its steps."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def barrier(self) -> None:
        self.done.append("|")

    def take_step(self, batch: Any, is_alone: bool) -> None:
        self.done.append("a" if is_alone else "w")

    def reduce_alone(self) -> None:
        self.done.append("r")


def test_blocks_settle_after_a_barrier_but_where_a_round_turns_back() -> None:
    """Whole, alone and reducing blocks of two counted steps: what goes on does not settle again."""
    both = Rehearsed()
    config = asked(data="synthetic", gpus=2)
    feed = step_shares.Feed(itertools.repeat(None))
    next(feed)
    found = step_shares.timed(config, [10.0] * 64, both, both, feed, lambda _: None)  # type: ignore[arg-type]
    there_and_back = ["|www", "|aaa", "|rrrrr", "|aaa", "|www"]
    turned = "".join(there_and_back[:-1]) + "|wwwww" + "".join(there_and_back[1:-1])
    assert "".join(both.done) == "ar" + turned + "|wwwww" + "".join(there_and_back[1:])
    assert [len(block) for blocks in found.values() for block in blocks] == [2] * ROUNDS * 3
    assert len(both.done) - both.done.count("|") - 2 == step_shares.cost(64, step_shares.parts(config, 2))


def test_after_the_steps_that_settle_each_takes_what_it_takes_in_the_long_run() -> None:
    """Ranks of unlike lengths, from a barrier: the first step is easier, since none comes to it late."""
    backward, update, out_ms = [60.0, 80.0, 70.0], [35.0, 10.0, 20.0], 30.0
    ends, steps = [0.0] * 3, []
    for _ in range(12):
        there = max(end + ms for end, ms in zip(ends, backward, strict=True))
        later = [there + out_ms + ms for ms in update]
        steps.append([one - end for one, end in zip(later, ends, strict=True)])
        ends = later
    in_the_long_run = max(one + other for one, other in zip(backward, update, strict=True)) + out_ms
    assert all(ms == in_the_long_run for step in steps[step_shares.SETTLING :] for ms in step)
    assert any(ms < in_the_long_run - 1 for step in steps[: step_shares.SETTLING] for ms in step)


def test_it_rests_until_the_threads_that_fill_buffers_have_done_so(clock: Clock) -> None:
    clock.busy_until_s = 0.3
    step_shares.rest(30.0, lambda: None)
    assert 0.3 <= clock.now_s < 0.3 + 4 * step_shares.SLICE_S


def test_it_does_not_rest_for_ever_and_says_meanwhile_that_it_is_there(clock: Clock) -> None:
    clock.busy_until_s = math.inf
    beats: list[float] = []
    step_shares.rest(0.2, lambda: beats.append(clock.now_s))
    assert 0.2 <= clock.now_s < 0.2 + 2 * step_shares.SLICE_S
    assert len(beats) >= 2
