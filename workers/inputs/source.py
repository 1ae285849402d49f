"""What a source of images is to the rank that trains on it.

A batch is (images, labels, weights), of a fixed shape: images are RGB, from 0 to 255 in uint8, NHWC; labels are
int32 and count from 0; weights are float32. They are TensorFlow's tensors, or, from `plain`, NumPy arrays. Pixels are
normalised on the device, in the training step: a byte a value is a quarter of the copy to a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

from workers.inputs.threads import Decoders

MEAN_RGB = (123.675, 116.28, 103.53)
STDDEV_RGB = (58.395, 57.12, 57.375)

AHEAD_OF_OTHERS = 64  # batches that a user's own input may have made before they are taken, at most
GROUP = 16  # records that are decoded one after the other by one thread

Batch = tuple[Any, Any, Any]


class Source(Protocol):
    """One rank's part of the data. All ranks must call the same methods in the same order: some add up over ranks.

    Any call, and any step of an iterator, may raise a `Fault` that names what is wrong with the data.
    """

    @property
    def skipped(self) -> int:
        """Images of this rank, left out so far because they can't be decoded."""

    @property
    def decoders(self) -> Decoders:
        """The threads that decode for this rank: none where nothing is decoded."""

    @property
    def ahead(self) -> int:
        """Batches that it may have made before they are taken: none where nothing is decoded."""

    @property
    def train_images(self) -> int:
        """Over all ranks."""

    @property
    def validation_images(self) -> int:
        """Over all ranks."""

    def stream(self) -> Iterator[Batch]:
        """Endless full batches. Each weight is one over the batch size."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Every training image once, over all ranks, in an order of the epoch's own; as many batches at each rank.

        The last batches are filled up with images of weight 0. The mean over the ranks of sum(weights × losses)
        is the mean loss over the real images of the global batch. The same seed and number give the same batches.
        """

    def validation(self) -> Iterator[Batch]:
        """Every validation image once, over all ranks, in a fixed order: weight 1, or 0 for what fills up."""

    def check(self) -> None:
        """Raise a `Fault` if too much is wrong with the images read so far."""


@dataclasses.dataclass(frozen=True)
class Cores:
    """What of its node a rank has, for its decoding above all."""

    decode_threads: int  # of this rank; 0 where nothing is decoded
    decode: frozenset[int] = frozenset()  # kept for its decoding; empty: any
    is_pinned: bool = False
    pinning_note: str = ""
