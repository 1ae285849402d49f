"""Parts of a step are taken away by turns, and what a turn leaves behind does not show in the next.

The input is real but plain: a thread that makes batches ahead into a queue, at a rate that is known.
"""

from __future__ import annotations

import dataclasses
import math
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sweeps import limits
from tests.unit.records import config, report
from workers import explain
from workers.contract import ROUNDS, Measurement, TrialConfig, Without
from workers.ring import Solo

STEP_S = 0.01


class Ahead:
    """Batches that a thread makes ahead, so many at most, each in so long."""

    def __init__(self, each_s: float, buffered: int) -> None:
        self._ready: queue.Queue[int] = queue.Queue(buffered)
        self._each_s, self._is_over, self.taken = each_s, False, 0
        self._thread = threading.Thread(target=self._make)
        self._thread.start()

    def _make(self) -> None:
        while not self._is_over:
            time.sleep(self._each_s)
            self._ready.put(0)

    def stream(self) -> Iterator[int]:
        while True:
            batch = self._ready.get()
            self.taken += 1
            yield batch

    def close(self) -> None:
        self._is_over = True
        while self._thread.is_alive():
            if not self._ready.empty():
                self._ready.get()
            time.sleep(0.001)


class Sleeper:
    """A learner whose step takes a known time, more with its reduction."""

    def __init__(self, comm_s: float = 0.0) -> None:
        self._comm_s = comm_s

    def take_step(self, batch: Any, is_alone: bool) -> None:
        time.sleep(STEP_S + (0 if is_alone else self._comm_s))

    def reduce_alone(self) -> None:
        time.sleep(self._comm_s)


class Pair(Solo):
    size = 2


def asked(**fields: object) -> TrialConfig:
    return dataclasses.replace(config(), **{"data": "images", "explain": True} | fields)  # type: ignore[arg-type]


def timed(source: Ahead, ring: Solo, comm_s: float = 0.0, steps: int = 64) -> dict[Without, tuple[Any, ...]]:
    batches = source.stream()
    for _ in range(30):  # as in a window: the buffers are as they are while steps are whole
        next(batches)
        time.sleep(STEP_S + comm_s)
    beats: list[int] = []
    found = explain.timed(asked(), steps, ring, Sleeper(comm_s), batches, beats.append)  # type: ignore[arg-type]
    source.close()
    assert beats == list(range(len(beats)))
    return found


def share(found: dict[Without, tuple[Any, ...]], gpus: int) -> limits.Shares:
    told = dataclasses.replace(report(0, 10, [10.0]), without_ms=found)
    made = limits.shares(Measurement(ranks=(told,)), asked(gpus=gpus))
    assert made
    return made


def test_an_input_that_is_too_slow_is_waited_for_though_its_buffers_filled_meanwhile() -> None:
    """Batches of 20 ms and steps of 10: without its buffers emptied, the input would last for 24 steps."""
    found = timed(Ahead(2 * STEP_S, buffered=12), Solo())
    assert set(found) == {"nothing", "input"}
    assert share(found, 1).input.value == pytest.approx(0.5, abs=0.1)
    for blocks in found.values():
        assert len(blocks) == ROUNDS
    assert {len(block) for block in found["input"]} == {explain.FEWEST}
    assert {len(block) for block in found["nothing"]} == {explain.FEWEST_WAITING}


def test_an_input_that_keeps_up_is_not_waited_for_and_none_of_it_passed_over() -> None:
    source = Ahead(STEP_S / 4, buffered=12)
    timed(source, Solo())
    took = 30 + explain.OBSERVED + ROUNDS * (explain.SETTLING + explain.FEWEST)
    assert source.taken == took


def test_two_parts_and_both_have_their_shares() -> None:
    """Steps of 10 ms, 5 more for the reduction, an input of 30, behind which the reduction hides."""
    found = timed(Ahead(3 * STEP_S, buffered=3), Pair(), comm_s=STEP_S / 2)
    assert set(found) == {"nothing", "comm", "input", "both", "compute"}
    shares = share(found, 2)
    told = [shares.input.value, shares.comm.value, shares.compute.value, shares.overlap.value]
    assert told == pytest.approx([1 / 2, 0, 1 / 3, 0], abs=0.1)


def test_a_trial_that_does_not_ask_or_is_too_short_takes_no_step() -> None:
    for wanted, steps in ((asked(explain=False), 100), (asked(), 15)):
        assert explain.timed(wanted, steps, Solo(), None, iter(()), lambda _: None) == {}  # type: ignore[arg-type]


def busy(monkeypatch: pytest.MonkeyPatch, until: float) -> None:
    """The process's clock, as if threads filled buffers until then: threads of a test may be starved of cores."""
    monkeypatch.setattr(explain.time, "process_time", lambda: min(time.perf_counter(), until))


def test_it_rests_until_the_threads_that_fill_buffers_have_done_so(monkeypatch: pytest.MonkeyPatch) -> None:
    until = time.perf_counter() + 0.3
    busy(monkeypatch, until)
    explain.rest(30.0, lambda: None)
    assert until <= time.perf_counter() < until + 10


def test_it_does_not_rest_for_ever_and_says_meanwhile_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    busy(monkeypatch, math.inf)
    began, beats = time.perf_counter(), []
    explain.rest(0.2, lambda: beats.append(time.perf_counter()))
    assert 0.2 <= time.perf_counter() - began < 10
    assert len(beats) >= 2
