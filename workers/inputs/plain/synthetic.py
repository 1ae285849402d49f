"""Random images, to measure everything but the input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from workers.contract.messages import TrialConfig
from workers.contract.ranks import Fault
from workers.inputs.source import Batch
from workers.inputs.threads import Decoders
from workers.strategies.ring import Ring


class PlainSynthetic:
    """One batch, made once, over and over. There is nothing to learn from it."""

    train_images = validation_images = skipped = ahead = 0
    decoders = Decoders()

    def __init__(self, config: TrialConfig, ring: Ring) -> None:
        self._config = config
        self._rng = np.random.default_rng((config.repeat_seed, ring.rank))

    def stream(self) -> Iterator[Batch]:
        return itertools.repeat(self._batch())

    def _batch(self) -> Batch:
        config = self._config
        shape = (config.batch_size, config.image_size, config.image_size, 3)
        images = self._rng.integers(0, 256, shape, np.uint8)
        labels = self._rng.integers(0, config.classes, config.batch_size, np.int32)
        return images, labels, np.full(config.batch_size, 1 / config.batch_size, np.float32)

    def epoch(self, number: int) -> Iterator[Batch]:
        raise _no_epochs()

    def validation(self) -> Iterator[Batch]:
        raise _no_epochs()

    def check(self) -> None:
        pass


def _no_epochs() -> Fault:
    return Fault("nothing to learn", "data must be digits or a folder of TFRecords to learn from, but got synthetic")
