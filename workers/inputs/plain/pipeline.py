"""Threads that take records in turn and decode them side by side, each into its place in a batch.

Each thread takes the next group of records, under a lock, and decodes it without Python's. A batch has the images of
records that follow one another, so it is the same whatever the number of threads. Where one can't be decoded, nothing
is taken until all that was begun is done; then what is behind it moves up. What stops the reading is told behind the
last batch that was full before it. No more than `most` records are taken and not yet handed over, so no more batches
are made ahead than these fill.
"""

from __future__ import annotations

import atexit
import collections
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from workers.contract.ranks import Fault
from workers.inputs.plain.images import Pixels, Undecodable
from workers.inputs.plain.reading import Record
from workers.inputs.record_places import HOPELESS
from workers.inputs.source import GROUP
from workers.inputs.threads import Decoders

KEPT = 8  # arrays that may be used again
PATIENCE_S = 10.0  # with a thread that waits for storage, when the process ends

Label = int
# Fills an image for each record of a group, of which the first has this position in the pass. Returns their labels, or
# why there is none.
Decode = Callable[[Sequence[Record], int, Sequence[Pixels]], Sequence[Label | Undecodable]]


class Arrays:
    """Makes arrays of pixels, or gives those again that nobody holds any more: fresh memory costs a page fault for each
    4 KB, in all a tenth of what decoding does. Who has an array, a view of it, or a tensor made of it without a copy
    holds it.
    """

    def __init__(self, *shape: int) -> None:
        self._shape = shape
        self._kept: collections.deque[Pixels] = collections.deque(maxlen=KEPT)

    def take(self) -> Pixels:
        for array in self._kept:
            if sys.getrefcount(array) == 3:  # of the queue, of this loop, and of the question
                return array
        array = np.empty(self._shape, np.uint8)
        self._kept.append(array)
        return array


class Filling:
    """A batch that is being made."""

    def __init__(self, images: Pixels) -> None:
        self.images = images
        self.labels = np.empty(len(images), np.int64)
        self.numbers = np.empty(len(images), np.int64)  # of its records
        self.missing = len(images)  # that are not decoded yet
        self.holes: set[int] = set()  # where one can't be
        self.left_out: list[int] = []  # numbers of the records that could not be, since the batch before


class ImageSlot(NamedTuple):
    """The place of an image."""

    filling: Filling
    at: int

    @property
    def image(self) -> Pixels:
        image: Pixels = self.filling.images[self.at]
        return image


class RecordGroup(NamedTuple):
    """Records that one thread decodes."""

    records: Sequence[Record]
    slots: Sequence[ImageSlot]
    first: int  # position of the first of them in the pass


class Pipeline:
    def __init__(self, records: Iterator[Record], decode: Decode, batch_size: int, image_size: int, most: int) -> None:
        self._records, self._decode = records, decode
        self._batch_size, self._most = batch_size, most
        self._arrays = Arrays(batch_size, image_size, image_size, 3)
        self._reading = threading.Lock()  # of who takes records
        self._taken = 0  # records so far
        self._change = threading.Condition()  # of all that follows
        self._fillings: collections.deque[Filling] = collections.deque()  # not yet handed over
        self._begun = 0  # their slots that have a record, from the first
        self._busy = 0  # threads that take or decode a group
        self._has_holes = False
        self._left_out = 0
        self._failure: BaseException | None = None  # behind the last full batch
        self._is_over = False
        self._threads: list[threading.Thread] = []

    def batches(self, threads: int, decoders: Decoders) -> Generator[Filling, None, None]:
        """Yield full batches without end, made by so many threads of its own."""
        started = [threading.Thread(target=self._work, name=f"decode-{n}", daemon=True) for n in range(threads)]
        try:
            _with_threads.add(self)
            for thread in started:
                thread.start()
                self._threads.append(thread)
            decoders.keep({thread.native_id for thread in started if thread.native_id})
            while True:
                yield self._next()
        finally:
            self._give_up()

    def end(self) -> None:
        """Give up what is being made; return when no thread of it runs any more."""
        self._give_up()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _give_up(self) -> None:
        with self._change:
            self._is_over = True
            self._change.notify_all()

    def left_out(self) -> list[int]:
        """Return the numbers of the records that were left out behind the last batch that was handed over."""
        with self._change:
            return list(itertools.chain.from_iterable(filling.left_out for filling in self._fillings))

    def _next(self) -> Filling:
        with self._change:
            self._change.wait_for(lambda: self._is_full() or (self._failure and not self._busy))
            if self._failure and not self._is_full():
                raise self._failure
            self._begun -= self._batch_size
            self._change.notify_all()
            return self._fillings.popleft()

    def _is_full(self) -> bool:
        return bool(self._fillings) and not self._fillings[0].missing

    def _work(self) -> None:
        while group := self._take():
            try:
                outcomes = self._decode(group.records, group.first, [slot.image for slot in group.slots])
            except BaseException as error:  # told to who waits for a batch
                with self._change:
                    self._busy -= 1
                    self._stop(error)
            else:
                self._settle(group, outcomes)

    def _take(self) -> RecordGroup | None:
        """Return the next records when there is room. None: it is over."""
        with self._reading:
            with self._change:
                self._change.wait_for(lambda: self._is_over or self._has_room())
                if self._is_over:
                    return None
                self._busy += 1
            records, failure = list[Record](), None
            try:
                while len(records) < GROUP:
                    records.append(next(self._records))
            except BaseException as error:
                failure = error
            with self._change:
                group = RecordGroup(records, [self._next_slot() for _ in records], self._taken)
                self._taken += len(records)
                if failure:
                    self._stop(failure)
            return group

    def _has_room(self) -> bool:
        return not self._has_holes and self._begun + GROUP <= self._most

    def _next_slot(self) -> ImageSlot:
        nth, at = divmod(self._begun, self._batch_size)
        if nth == len(self._fillings):
            self._fillings.append(Filling(self._arrays.take()))
        self._begun += 1
        return ImageSlot(self._fillings[nth], at)

    def _settle(self, group: RecordGroup, outcomes: Sequence[Label | Undecodable]) -> None:
        with self._change:
            for record, (filling, at), outcome in zip(group.records, group.slots, outcomes, strict=True):
                filling.numbers[at] = record.number
                if isinstance(outcome, Undecodable):
                    filling.holes.add(at)
                    self._has_holes = True
                else:
                    filling.labels[at] = outcome
                    filling.missing -= 1
            self._busy -= 1
            if self._has_holes and not self._busy:
                self._close_holes()
            self._change.notify_all()

    def _close_holes(self) -> None:
        """Move up what is behind records that can't be decoded. Where nearly none can, no batch would ever be full."""
        slots = [ImageSlot(filling, at) for filling in self._fillings for at in range(self._batch_size)][: self._begun]
        kept = 0
        for n, (filling, at) in enumerate(slots):
            to = slots[kept]
            if at in filling.holes:
                to.filling.left_out.append(int(filling.numbers[at]))
                continue
            if kept < n:
                to.image[:] = filling.images[at]
                to.filling.labels[to.at], to.filling.numbers[to.at] = filling.labels[at], filling.numbers[at]
            kept += 1
        for nth, filling in enumerate(self._fillings):
            filling.holes.clear()
            filling.missing = self._batch_size - min(max(kept - nth * self._batch_size, 0), self._batch_size)
        self._left_out += self._begun - kept
        self._begun, self._has_holes = kept, False
        if self._left_out > HOPELESS + self._taken // 100:
            rule = "of 1000 images one may be impossible to decode"
            self._stop(Fault("corrupt images", f"{rule}, but got {self._left_out} of {self._taken}"))

    def _stop(self, why: BaseException) -> None:
        self._failure, self._is_over = self._failure or why, True
        self._change.notify_all()


_with_threads: weakref.WeakSet[Pipeline] = weakref.WeakSet()
os.register_at_fork(after_in_child=_with_threads.clear)  # threads are not forked


@atexit.register
def _end_all() -> None:
    """Python ends a daemon thread when that comes back to it at the process's end; within C++ that would be a crash."""
    for pipeline in list(_with_threads):
        pipeline.end()
