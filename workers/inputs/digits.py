"""scikit-learn's handwritten digits: 1797 grey images of 8 × 8 pixels, real data that comes with a package.

Every fifth image validates, the others train. All is in memory, nothing is augmented. Every rank draws the same
order and takes its part of each global batch, so N ranks with batch b learn from the very global batches that one
rank with batch N × b has.
"""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from workers.contract.messages import TrialConfig
from workers.contract.ranks import Fault, Infeasible
from workers.inputs.source import Batch
from workers.inputs.threads import Decoders
from workers.strategies.ring import Ring

SIDE_PX, WHITE = 8, 16


class Digits:
    skipped = ahead = 0
    decoders = Decoders()

    def __init__(self, config: TrialConfig, ring: Ring) -> None:
        self._config, self._rank, self._ranks = config, ring.rank, ring.size
        self._images, self._labels = load(config.image_size)
        if config.classes <= self._labels.max():
            raise Fault("label out of range", f"digits have 10 classes, but got classes: {config.classes}")
        numbers = np.arange(len(self._labels))
        self._validation, self._train = numbers[::5], numbers[numbers % 5 > 0]
        self.train_images, self.validation_images = len(self._train), len(self._validation)

    def stream(self) -> Iterator[Batch]:
        steps = self._full_steps()
        epochs = (itertools.islice(self._epoch(n), steps) for n in itertools.count())
        return itertools.chain.from_iterable(epochs)

    def epoch(self, number: int) -> Iterator[Batch]:
        self._full_steps()
        return self._epoch(number)

    def validation(self) -> Iterator[Batch]:
        return self._batches(self._validation, weighs=lambda _: 1.0)

    def check(self) -> None:
        pass

    def _full_steps(self) -> int:
        steps = self.train_images // (self._ranks * self._config.batch_size)
        if not steps:
            asked = f"{self._ranks} ranks with a batch of {self._config.batch_size}"
            raise Infeasible("batch larger than the data", f"digits have {self.train_images} images for {asked}")
        return steps

    def _epoch(self, number: int) -> Iterator[Batch]:
        order = np.random.default_rng((self._config.repeat_seed, number)).permutation(self._train)
        return self._batches(order, weighs=lambda real: self._ranks / real)

    def _batches(self, order: npt.NDArray[Any], weighs: Any) -> Iterator[Batch]:
        """This rank's parts of the global batches. The last is filled up from the start of the order."""
        size = self._config.batch_size
        for start in range(0, len(order), size * self._ranks):
            real = min(size * self._ranks, len(order) - start)
            places = start + self._rank * size + np.arange(size)
            chosen = order[places % len(order)]
            weights = np.where(places < len(order), weighs(real), 0)
            grey = self._images[chosen]
            yield (
                tf.constant(np.repeat(grey, 3, axis=-1)),
                tf.constant(self._labels[chosen]),
                tf.constant(weights, tf.float32),
            )


def load(image_size: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Images of one channel, and what they show. Importing scikit-learn would take a second of every trial."""
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    images = table[:, :-1].reshape(-1, SIDE_PX, SIDE_PX, 1) * (255 / WHITE)
    with tf.device("CPU"):
        images = tf.image.resize(images, (image_size, image_size)).numpy()
    return np.round(images).astype(np.uint8), table[:, -1].astype(np.int32)
