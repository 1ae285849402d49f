"""Batches from a folder of TFRecords by threads of Python's own.

What happens to a record on its way:

files → interleaved, shuffled → taken by a thread, decoded → put in its batch → weighed
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.contract.ranks import Fault
from workers.inputs import crops, shards
from workers.inputs.dealt_records import DealtRecords, Pass
from workers.inputs.plain import images, reading
from workers.inputs.plain.pipeline import Filling, Pipeline
from workers.inputs.plain.reading import Record
from workers.inputs.record_places import FILLERS, RecordPlace, place_of
from workers.inputs.source import GROUP, Batch

PREFETCHED = 2  # batches


class PlainTally:
    """What was wrong with the images of the batches that one pass has handed over."""

    def __init__(self, split: shards.Split) -> None:
        self.split = split
        self.decoded = 0
        self._left_out: list[int] = []
        self._mislabelled: dict[int, int] = {}

    def leave_out(self, numbers: list[int]) -> None:
        self._left_out += [number for number in numbers if number > FILLERS]

    def count(self, filling: Filling, wanted: range) -> npt.NDArray[np.bool_]:
        """Note a batch. Says which of its images count: real ones, with the label of a class."""
        self.leave_out(filling.left_out)
        is_real = filling.numbers > FILLERS
        is_sound = (filling.labels >= wanted.start) & (filling.labels < wanted.stop)
        wrong = is_real & ~is_sound
        self._mislabelled.update(zip(filling.numbers[wrong].tolist(), filling.labels[wrong].tolist(), strict=True))
        self.decoded += int(np.count_nonzero(is_real))
        return is_real & is_sound

    def undecodable(self) -> list[RecordPlace]:
        return [place_of(number) for number in self._left_out]

    def mislabelled(self) -> list[tuple[RecordPlace, int]]:
        return [(place_of(number), label) for number, label in sorted(self._mislabelled.items())]


class PlainRecords(DealtRecords):
    @property
    def _in_flight(self) -> int:
        return PREFETCHED * self._config.batch_size + GROUP * self._decode_threads

    def _batches(self, asked: Pass) -> Iterator[Batch]:
        tally = PlainTally(asked.split)
        self._passes.append(tally)
        return self._run(asked, tally)

    def _decode(
        self, asked: Pass, group: Sequence[Record], first: int, pictures: Sequence[images.Pixels]
    ) -> list[int | images.Undecodable]:
        """Fill a picture with each image of a group.

        In rounds over the whole group: what runs again at once is still in the processor's caches, which each image
        that is decoded fills.
        """
        looks = [images.looked_at(record.content) for record in group]
        draws = [first + n if asked.is_endless else record.number for n, record in enumerate(group)]
        views = [_view(asked, draw, look) for draw, look in zip(draws, looks, strict=True)]
        return list(map(images.fill, pictures, looks, views))

    def _run(self, asked: Pass, tally: PlainTally) -> Iterator[Batch]:
        size, side = self._config.batch_size, self._config.image_size
        decode = functools.partial(self._decode, asked)
        pipeline = Pipeline(reading.of_pass(asked), decode, size, side, self._in_flight)
        weights: Any = itertools.repeat(asked.weights[0]) if asked.is_endless else asked.weights
        with contextlib.closing(pipeline.batches(self._decode_threads, self.decoders)) as made:
            try:
                for weight, filling in zip(weights, made, strict=False):
                    counts = tally.count(filling, self._labels)
                    classes = filling.labels.clip(self._labels[0], self._labels[-1]) - self._labels[0]
                    yield filling.images, classes.astype(np.int32), np.where(counts, weight, np.float32(0))
            except Fault:
                tally.leave_out(pipeline.left_out())
                self.check()
                raise


def _view(asked: Pass, draw: int, look: images.Encoded | images.Undecodable) -> crops.CropView:
    """Return what is seen of an image: in training another part at each position of a pass that never ends, else the
    same part whenever the pass has this key."""
    if isinstance(look, images.Undecodable):
        return crops.middle(0, 0)
    if not asked.is_random:
        return crops.middle(look.height, look.width)
    return crops.random_view(random.Random((asked.key << 64) + draw), look.height, look.width)
