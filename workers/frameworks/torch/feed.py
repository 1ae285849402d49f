"""Batches on their way to the device: NumPy's arrays from a source, tensors for the step.

On a GPU a thread of its own copies each batch to memory that the device may read by itself, and has the device take it
on a stream beside the step's, while the step before still computes. Synthetic images go there once.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch

from workers.contract.messages import TrialConfig
from workers.inputs.source import Batch, Source
from workers.inputs.threads import Decoders

AHEAD = 2  # batches that are on the device, or on their way
END = object()


class OnDevice:
    """A `source.Source` of tensors."""

    def __init__(self, source: Source, config: TrialConfig) -> None:
        self._source = source
        self._is_gpu = config.device == "gpu"
        self._is_constant = config.data == "synthetic"

    @property
    def skipped(self) -> int:
        return self._source.skipped

    @property
    def decoders(self) -> Decoders:
        return self._source.decoders

    @property
    def ahead(self) -> int:
        return self._source.ahead + (AHEAD + 1 if self._is_gpu and not self._is_constant else 0)

    @property
    def train_images(self) -> int:
        return self._source.train_images

    @property
    def validation_images(self) -> int:
        return self._source.validation_images

    def stream(self) -> Iterator[Batch]:
        batches = self._source.stream()
        if self._is_constant:
            return itertools.repeat(next(self._placed(itertools.islice(batches, 1))))
        return self._placed(batches)

    def epoch(self, number: int) -> Iterator[Batch]:
        return self._placed(self._source.epoch(number))

    def validation(self) -> Iterator[Batch]:
        return self._placed(self._source.validation())

    def check(self) -> None:
        self._source.check()

    def _placed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return copied_beside(batches) if self._is_gpu else map(tensors, batches)


def tensors(batch: Batch) -> Batch:
    """Return a batch as tensors in the host's memory, without a copy."""
    images, labels, weights = (torch.from_numpy(values) for values in batch)
    return images, labels, weights


def copied_beside(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield a source's batches on the GPU, each copied there while the steps before it compute."""
    ready: queue.Queue[Any] = queue.Queue(AHEAD)
    stream = torch.cuda.Stream()
    is_left = threading.Event()

    def copy() -> None:
        try:
            with torch.cuda.stream(stream):
                for batch in batches:
                    pinned = [values.pin_memory() for values in tensors(batch)]
                    placed = tuple(values.to("cuda", non_blocking=True) for values in pinned)
                    arrived = torch.cuda.Event()
                    arrived.record(stream)
                    if not _put(ready, (placed, pinned, arrived), is_left):
                        return
            _put(ready, END, is_left)
        except BaseException as error:  # what is wrong with the data is for the rank to say
            _put(ready, error, is_left)

    threading.Thread(target=copy, name="copies", daemon=True).start()
    try:
        while (made := ready.get()) is not END:
            if isinstance(made, BaseException):
                raise made
            placed, _pinned, arrived = made
            own = torch.cuda.current_stream()
            own.wait_event(arrived)
            for values in placed:
                values.record_stream(own)  # its memory is not given to another batch while the step reads it
            yield placed
    finally:
        is_left.set()


def _put(ready: queue.Queue[Any], made: Any, is_left: threading.Event) -> bool:
    """Hand over what was made; whether anybody will take it."""
    while not is_left.is_set():
        try:
            ready.put(made, timeout=1.0)
            return True
        except queue.Full:
            continue
    return False
