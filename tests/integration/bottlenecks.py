"""Ranks whose step has parts of a known length: they sleep, so that a busy machine changes them little.

And ranks with a stopwatch of their own beside the loop.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workers.contract import messages
from workers.contract.messages import TrialConfig
from workers.contract.ranks import Seat, Voice
from workers.frameworks.tensorflow import learner
from workers.inputs import opening
from workers.inputs.source import Batch, Source
from workers.measure import steady
from workers.strategies import horovod
from workers.workloads.images import train

INPUT_S, COMM_S, COMPUTE_S = "HOROVOD_PLANTED_INPUT_S", "HOROVOD_PLANTED_COMM_S", "HOROVOD_PLANTED_COMPUTE_S"
DECODE_S = "HOROVOD_PLANTED_DECODE_S"  # a batch takes so long, in a pipeline beside the steps
HELD_S, HELD_STEP = "HOROVOD_PLANTED_HELD_S", 25  # rank 1 is held up once, so long, behind this step
ENOUGH = "HOROVOD_PLANTED_ENOUGH"  # steps that are found to be enough, however noisy the machine
BATCHES_AHEAD = 8


def planted(name: str) -> float:
    return float(os.environ.get(name, 0))


class SlowSource:
    """Hands out a batch only after a while: an input whose rate is known."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def stream(self) -> Iterator[Batch]:
        for batch in self._source.stream():
            time.sleep(planted(INPUT_S))
            yield batch


class PacedSource(SlowSource):
    """Prefetches on a thread of its own, which makes a batch in a time that is known: a decoder's pipeline."""

    ahead = BATCHES_AHEAD + 2  # one is being made, and one waits for room

    def stream(self) -> Iterator[Batch]:
        ready: queue.Queue[Batch] = queue.Queue(BATCHES_AHEAD)
        batch = next(self._source.stream())

        def decode() -> None:
            done = time.perf_counter()
            while True:
                done += planted(DECODE_S)
                time.sleep(max(done - time.perf_counter(), 0))
                was_full = ready.full()
                ready.put(batch)
                if was_full:  # it stood still until somebody took one
                    done = time.perf_counter()

        threading.Thread(target=decode, daemon=True).start()
        while True:
            yield ready.get()


class Stopwatch(Voice):
    """Notes when each step of its rank was over, and holds up rank 1 where that is planted."""

    def __init__(self, voice: Voice, seat: Seat) -> None:
        super().__init__(voice._channel, voice._beat)
        self._rank = seat.rank
        self._noted = Path(seat.checkpoint).with_name(f"stopwatch-{seat.rank}")
        self._ends: list[float] = []

    def beat(self, phase: messages.Phase, step: int = 0) -> None:
        super().beat(phase, step)
        if phase == "step":
            if self._rank == 1 and step == HELD_STEP:
                time.sleep(planted(HELD_S))
            self._ends.append(time.monotonic())

    def report(self, report: messages.RankReport) -> None:
        self._noted.write_text("\n".join(map(str, self._ends)))
        super().report(report)


def ends(folder: Path, rank: int) -> list[float]:
    """When each step of a rank was over, by its stopwatch."""
    return [float(line) for line in (folder / f"stopwatch-{rank}").read_text().split()]


def after_a_while(seconds: float, tensors: Sequence[Any]) -> list[Any]:
    """The tensors, so many seconds after they are there; within a `tf.function`."""
    import tensorflow as tf

    with tf.control_dependencies(tensors):
        wait = tf.numpy_function(lambda: time.sleep(seconds) or 0, [], tf.int64)
    with tf.control_dependencies([wait]):
        return [tf.identity(tensor) for tensor in tensors]


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    open_source, average, differentiate = (
        opening.open_source,
        horovod.Horovod.average,
        learner.KerasLearner._differentiate,
    )

    def slow_average(self: horovod.Horovod, tensors: Sequence[Any]) -> list[Any]:
        return after_a_while(planted(COMM_S), average(self, tensors))

    def slow_differentiate(self: learner.KerasLearner, *batch: Any) -> Any:
        gradients, told = differentiate(self, *batch)
        return after_a_while(planted(COMPUTE_S), gradients), told

    if enough := int(planted(ENOUGH)):
        stop, go_on = steady.Decision(kind="stop", reason="interval"), steady.Decision(kind="go on")
        steady.decide = lambda trace, *_: stop if len(trace) >= enough else go_on
    source = PacedSource if planted(DECODE_S) else SlowSource
    opening.open_source = lambda *asked, **named: source(open_source(*asked, **named))  # type: ignore[assignment]
    horovod.Horovod.average = slow_average  # type: ignore[method-assign]
    learner.KerasLearner._differentiate = slow_differentiate  # type: ignore[method-assign]
    train.run(config, seat, Stopwatch(voice, seat))
