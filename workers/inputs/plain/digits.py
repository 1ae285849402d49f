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

from workers.contract.messages import TrialConfig
from workers.contract.ranks import Fault, Infeasible
from workers.inputs.source import Batch
from workers.inputs.threads import Decoders
from workers.strategies.ring import Ring

SIDE_PX, WHITE = 8, 16


class PlainDigits:
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
        """Yield this rank's parts of the global batches. The last is filled up from the start of the order."""
        size = self._config.batch_size
        for start in range(0, len(order), size * self._ranks):
            real = min(size * self._ranks, len(order) - start)
            places = start + self._rank * size + np.arange(size)
            chosen = order[places % len(order)]
            weights = np.where(places < len(order), weighs(real), 0).astype(np.float32)
            yield np.repeat(self._images[chosen], 3, axis=-1), self._labels[chosen], weights


def load(image_size: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Images of one channel, and what they show. Importing scikit-learn would take a second of every trial."""
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    rows = table[:, :-1].reshape(-1, SIDE_PX).astype(np.float32) * np.float32(255 / WHITE)
    enlarging = bilinear(SIDE_PX, image_size).T
    wide = (rows @ enlarging).reshape(-1, SIDE_PX, image_size)
    images = np.empty((len(table), image_size, image_size, 1), np.uint8)
    for image, columns in zip(images, wide.transpose(0, 2, 1), strict=True):
        image[..., 0] = np.round((columns @ enlarging).T)
    return images, table[:, -1].astype(np.int32)


def bilinear(before: int, after: int) -> npt.NDArray[np.float32]:
    """Return the matrix that brings a side of an image to another length, as `tf.image.resize` does: each new pixel
    lies between the two old ones that are nearest to it."""
    at = ((np.arange(after) + 0.5) * before / after - 0.5).clip(0, before - 1)
    parts: npt.NDArray[np.float32] = np.clip(1 - np.abs(at[:, None] - np.arange(before)), 0, None).astype(np.float32)
    return parts
