"""Ranks whose step has parts of a known length: they sleep, so that a busy machine changes them little."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from workers import inputs, learner, ring, train
from workers.contract import TrialConfig
from workers.rank import Seat, Voice

INPUT_S, COMM_S, COMPUTE_S = "HOROVOD_PLANTED_INPUT_S", "HOROVOD_PLANTED_COMM_S", "HOROVOD_PLANTED_COMPUTE_S"


def planted(name: str) -> float:
    return float(os.environ.get(name, 0))


class SlowSource:
    """Hands out a batch only after a while: an input whose rate is known."""

    def __init__(self, source: inputs.Source) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def stream(self) -> Iterator[inputs.Batch]:
        for batch in self._source.stream():
            time.sleep(planted(INPUT_S))
            yield batch


def after_a_while(seconds: float, tensors: Sequence[Any]) -> list[Any]:
    """The tensors, so many seconds after they are there; within a `tf.function`."""
    import tensorflow as tf

    with tf.control_dependencies(tensors):
        wait = tf.numpy_function(lambda: time.sleep(seconds) or 0, [], tf.int64)
    with tf.control_dependencies([wait]):
        return [tf.identity(tensor) for tensor in tensors]


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    open_source, average, differentiate = inputs.open_source, ring.Horovod.average, learner.Learner._differentiate

    def slow_average(self: ring.Horovod, tensors: Sequence[Any]) -> list[Any]:
        return after_a_while(planted(COMM_S), average(self, tensors))

    def slow_differentiate(self: learner.Learner, *batch: Any) -> Any:
        gradients, told = differentiate(self, *batch)
        return after_a_while(planted(COMPUTE_S), gradients), told

    inputs.open_source = lambda *asked, **named: SlowSource(open_source(*asked, **named))  # type: ignore[assignment]
    ring.Horovod.average = slow_average  # type: ignore[method-assign]
    learner.Learner._differentiate = slow_differentiate  # type: ignore[method-assign]
    train.run(config, seat, voice)
