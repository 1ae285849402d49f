"""A user's own data: batches from a function of theirs, which gives one pass over a rank's part each time it is called.

    def open(rank, size, batch_size, seed, split, epoch): -> an iterable of (examples, labels)

It asks for what it wants of these by name (`functions.HANDED`), and for axes of its user's own. Examples are an array
of any shape but its first side, labels whole numbers from 0. A batch has `batch_size` examples; the last of a pass may
be shorter. For throughput a pass may be endless; what ends is opened again, with the next `epoch`. To learn from, a
pass must end, and all ranks' passes together must give each example once: each split is gone through before the first
epoch, to count it and to look for examples that come again.

Arrays are handed on as they are: a function that writes into one again must not do so before it is asked for the next.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.contract import functions
from workers.contract.messages import Phase, TrialConfig
from workers.contract.ranks import Fault, Infeasible
from workers.inputs import padding
from workers.inputs.source import AHEAD_OF_OTHERS, Batch
from workers.inputs.threads import Decoders
from workers.strategies.ring import Ring, gathered

SPLITS = ("train", "validation")
REPEATED = 0.1  # part of the examples that may be like others: real sets have some twice
DIGEST_BYTES = 6  # of an example: a float64 holds it exactly
END = object()


class PlainOwn:
    skipped = 0
    ahead = AHEAD_OF_OTHERS
    decoders = Decoders()

    def __init__(self, config: TrialConfig, ring: Ring, beat: Callable[[Phase, int], None]) -> None:
        self._config, self._ring, self._beat = config, ring, beat
        self._form: Any = None  # of an example, and its label
        self._like: Any = None  # an example, to fill up batches with
        self._counts: dict[str, npt.NDArray[np.int64]] = {}
        if config.protocol == "convergence":
            for split in SPLITS:
                self._counts[split] = self._counted(split)

    @property
    def train_images(self) -> int:
        return int(self._counts["train"].sum())

    @property
    def validation_images(self) -> int:
        return int(self._counts["validation"].sum())

    def stream(self) -> Iterator[Batch]:
        full = self._full()
        first = next(full)
        self._require_parts(first)
        weights = self._placed(np.full(self._config.batch_size, 1 / self._config.batch_size, np.float32))
        return ((*batch, weights) for batch in itertools.chain([first], full))

    def epoch(self, number: int) -> Iterator[Batch]:
        counts, size = self._counts["train"], self._config.batch_size
        if counts.min() < size:
            raise self._too_few(int(counts.argmin()), int(counts.min()))
        return self._filled("train", number, padding.step_weights(counts, size))

    def validation(self) -> Iterator[Batch]:
        counts = self._counts["validation"]
        weights = np.ones(padding.steps(counts, self._config.batch_size), np.float32)
        return self._filled("validation", 0, weights)

    def check(self) -> None:
        """Nothing is left to be said: what is wrong with a batch is told when it is taken."""

    def _examples(self, given: Any) -> Any:
        """Return what the user's function gave for examples as the kind of array that batches are made of."""
        examples = np.asarray(given)
        if examples.dtype.kind not in "biuf":
            rule = f"{self._config.data} must give numbers as examples, in an array"
            raise Fault("examples", f"{rule}, but gave {_said(given)}")
        return np.require(examples, requirements=["C", "W"])

    def _filled_up(self, examples: Any, missing: int) -> Any:
        return np.concatenate([examples, np.repeat(self._like, missing, axis=0)])

    def _placed(self, values: npt.NDArray[Any]) -> Any:
        """Return labels or weights as batches have them."""
        return values

    def _pass(self, split: str, epoch: int) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of one pass over this rank's part."""
        config, word = self._config, self._config.data
        handed = {
            "rank": self._ring.rank,
            "size": self._ring.size,
            "batch_size": config.batch_size,
            "seed": config.repeat_seed,
            "split": split,
            "epoch": epoch,
            "image_size": config.image_size,
            "classes": config.classes,
        }
        given = functions.called("data", config, handed)
        with functions.blamed(word):
            if not hasattr(given, "__iter__"):
                raise Fault("not batches", f"{word} must give an iterable of batches, but gave {_said(given)}")
            batches = iter(given)
        short = 0
        while True:
            with functions.blamed(word):
                batch = next(batches, END)
            if batch is END:
                return
            if short:
                rule = f"{word} must give batches of batch_size ({config.batch_size}), only the last of a pass shorter"
                raise Fault("batch size", f"{rule}, but gave one of {short} before others")
            checked = self._checked(batch)
            if (count := int(checked[1].shape[0])) < config.batch_size:
                short = count
            yield checked

    def _checked(self, batch: Any) -> tuple[Any, Any]:
        """Return a batch, its labels as the source gives them; raise what is wrong with it."""
        config, word = self._config, self._config.data
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise Fault("not a batch", f"{word} must give pairs (examples, labels), but gave {_said(batch)}")
        with functions.blamed(word):
            labels = np.asarray(batch[1])
            examples = self._examples(batch[0])
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            rule = f"{word} must give a whole number as each label, in one row (of one-hot labels, their argmax)"
            raise Fault("labels", f"{rule}, but gave {_said(labels)}")
        if not len(examples.shape) or examples.shape[0] != len(labels) or not 0 < len(labels) <= config.batch_size:
            rule = f"{word} must give batches of batch_size ({config.batch_size}) examples, a label each"
            raise Fault("batch size", f"{rule}, but gave {_said(examples)} and {len(labels)} labels")
        if not 0 <= labels.min() <= labels.max() < config.classes:
            found = labels.min() if labels.min() < 0 else labels.max()
            rule = f"{word} must give labels from 0 to {config.classes - 1} (`classes` of the sweep file)"
            raise Fault("label out of range", f"{rule}, but gave {found}")
        form = (examples.shape[1:], examples.dtype)
        if form != (self._form or form):
            rule = f"{word} must give all examples in one shape and type: {_form(*self._form)}"
            raise Fault("unlike examples", f"{rule}, but gave {_form(*form)}")
        if self._form is None:
            self._form, self._like = form, self._examples(np.array(examples[:1]))
        return examples, self._placed(labels.astype(np.int32))

    def _full(self) -> Iterator[tuple[Any, Any]]:
        """Yield full batches, pass after pass."""
        size = self._config.batch_size
        for epoch in itertools.count():
            examples, fullness = 0, 0
            for batch in self._pass("train", epoch):
                examples += (count := int(batch[1].shape[0]))
                if count == size:
                    fullness += 1
                    yield batch
            if not fullness:
                raise self._too_few(self._ring.rank, examples)

    def _filled(self, split: str, epoch: int, weights: npt.NDArray[np.float32]) -> Iterator[Batch]:
        """Yield a batch for each of these weights: of a pass, and then what fills up, which weighs nothing."""
        size, given = self._config.batch_size, 0
        batches = self._pass(split, epoch)
        for weight in weights:
            examples, labels = next(batches, (self._like[:0], np.zeros(0, np.int32)))
            real = int(labels.shape[0])
            given += real
            if real < size:
                examples = self._filled_up(examples, size - real)
                labels = self._placed(np.pad(labels, (0, size - real)))
            yield examples, labels, self._placed(np.where(np.arange(size) < real, weight, 0).astype(np.float32))
        given += sum(int(labels.shape[0]) for _, labels in batches)
        counted = int(self._counts[split][self._ring.rank])
        if given != counted:
            rule = f"{self._config.data} must give as many examples each time, {counted} of {split} at this rank"
            raise Fault("data changes", f"{rule}, but gave {given} in epoch {epoch}")

    def _counted(self, split: str) -> npt.NDArray[np.int64]:
        """Return the examples of each rank's part, gone through once."""
        ring, word = self._ring, self._config.data
        own: list[int] = []
        known: set[int] = set()
        for n, batch in enumerate(self._pass(split, 0)):
            self._beat("count", n)
            found = [_digest(example, label) for example, label in zip(*map(np.asarray, batch), strict=True)]
            own += found
            known.update(found)
            if len(own) - len(known) > max(len(known), self._config.batch_size):  # it may have no end
                raise self._repeats(split, len(own), len(own) - len(known), "one pass of a rank")
        shared = np.zeros(ring.size)
        shared[ring.rank] = len(own)
        counts = ring.total(shared).round().astype(np.int64)
        if not counts.sum():
            raise Fault("no data", f"{word} must give examples of the split {split}, but gave none at any rank")
        at = int(counts[: ring.rank].sum())
        digests = np.zeros(counts.sum())
        digests[at : at + len(own)] = own
        again = counts.sum() - len(np.unique(ring.total(digests)))
        if again > REPEATED * counts.sum():
            raise self._repeats(split, int(counts.sum()), int(again), "all ranks")
        return counts

    def _require_parts(self, batch: tuple[Any, Any]) -> None:
        """Refuse ranks that begin with one batch: then each has all of the data."""
        digest = _digest(*map(np.asarray, batch))
        words = gathered(self._ring, str(digest))
        for rank, word in enumerate(words):
            if (first := words.index(word)) < rank:
                rule = f"{self._config.data} must give each rank a part of its own, such as examples[rank::size]"
                raise Fault("data repeats", f"{rule}, but ranks {first} and {rank} began with the same batch")

    def _repeats(self, split: str, examples: int, again: int, of: str) -> Fault:
        rule = f"{self._config.data} must give each example of {split} once: rank's part is examples[rank::size]"
        return Fault("data repeats", f"{rule}, but of {examples} that {of} gave, {again} had come before")

    def _too_few(self, rank: int, count: int) -> Infeasible:
        asked = f"a batch of {self._config.batch_size}"
        return Infeasible(
            "batch larger than the data", f"{self._config.data} gave rank {rank} {count} examples for {asked}"
        )


def _digest(example: Any, label: Any) -> int:
    content = hashlib.blake2b(np.ascontiguousarray(example).tobytes(), digest_size=DIGEST_BYTES)
    content.update(np.asarray(label).tobytes())
    return int.from_bytes(content.digest(), "big")


def _said(value: Any) -> str:
    shape, kind = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and kind is not None:
        return _form(shape, kind)
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else "")


def _form(shape: Any, kind: Any) -> str:
    return f"{tuple(shape)} {getattr(kind, 'name', kind)}"
