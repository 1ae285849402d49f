"""A rank's part of a folder of ImageNet-convention TFRecords, whatever decodes it: `train-00000-of-00008`, …,
`validation-00000-of-00008`, ….

A record holds `image/encoded` and `image/class/label`, which counts from `labels_from`: from 1 in ImageNet's files,
where 0 is the background class. Which records are a rank's, how many they are, which images fill up its batches, what
each weighs, and how much may be wrong with them is decided here. Reading, decoding and making batches is the part of
those who inherit it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from workers.contract.messages import TrialConfig
from workers.contract.ranks import Fault, Infeasible
from workers.inputs import labels, padding, record_counts, shards
from workers.inputs.record_places import RecordPlace
from workers.inputs.source import Batch, Cores
from workers.inputs.threads import Decoders
from workers.strategies.ring import Ring

SPLITS: tuple[shards.Split, ...] = ("train", "validation")
FILES = {split: f"{split}-00000-of-00008" for split in SPLITS}
FILES_AT_ONCE = 8
SHUFFLED = 1024  # records that the next one is drawn from
TOLERATED = 1e-3  # part of the images, that may be impossible to decode


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pass:
    """A way through a split's records.

    In training they are shuffled and cropped at random. One that never ends comes by each record again and again, in
    another order and with other crops.
    """

    split: shards.Split
    parts: Sequence[shards.Part]  # in the order in which they are read
    fillers: Sequence[shards.Part] = ()  # read behind them, endlessly, to fill up batches; none: the pass never ends
    weights: record_counts.Numbers  # of a real image in each batch; in one that never ends, one for all
    key: int = 0  # of all that is random

    @property
    def is_endless(self) -> bool:
        return not self.fillers

    @property
    def is_random(self) -> bool:
        return self.split == "train"


class Dropped(Protocol):
    """What is wrong with the images of one pass, so far."""

    @property
    def split(self) -> shards.Split: ...

    @property
    def decoded(self) -> int:
        """Images that came through, fillers left out."""

    def undecodable(self) -> list[RecordPlace]:
        """Return those that can't be decoded, in the order in which they were read."""

    def mislabelled(self) -> list[tuple[RecordPlace, int]]: ...


class DealtRecords(abc.ABC):
    def __init__(self, config: TrialConfig, ring: Ring, cores: Cores, beat: record_counts.Beat) -> None:
        """Count a convergence trial's records, before its data is brought to a known state and timed."""
        self._config, self._ring, self._beat = config, ring, beat
        self._decode_threads, self.decoders = cores.decode_threads, Decoders(cores.decode)
        paths = {split: shards.files_of(config.data, split) for split in SPLITS}
        if not paths["train"]:
            raise Fault("no data", f"data must be a folder with files as {FILES['train']}, but got {config.data}")
        if config.protocol == "convergence" and not paths["validation"]:
            cure = f"sweep data make {config.data} --split validation … makes them"
            needed = f"convergence needs files as {FILES['validation']}, but got none in {config.data}"
            raise Fault("no validation data", f"{needed}: {cure}")
        self._parts = {split: shards.deal(paths[split], ring.rank, ring.size) for split in SPLITS}
        self._whole = {split: shards.deal(paths[split], 0, 1) for split in SPLITS}
        self._labels = range(config.labels_from, config.labels_from + config.classes)
        self._counts: dict[shards.Split, record_counts.Numbers] = {}
        self._passes: list[Dropped] = []
        if config.protocol == "convergence":
            for split in SPLITS:
                self._count(split)

    @property
    @abc.abstractmethod
    def _in_flight(self) -> int:
        """Records that may be between the files and a batch that is taken."""

    @abc.abstractmethod
    def _batches(self, asked: Pass) -> Iterator[Batch]:
        """Batches of a pass, as many as it has weights."""

    @property
    def ahead(self) -> int:
        return -(-self._in_flight // self._config.batch_size)

    @property
    def train_images(self) -> int:
        return int(self._count("train").sum())

    @property
    def validation_images(self) -> int:
        return int(self._count("validation").sum())

    def stream(self) -> Iterator[Batch]:
        rank, size, parts = self._ring.rank, self._config.batch_size, self._parts["train"]
        if not shards.holds(parts, size):
            raise self._too_few(
                rank, max(record_counts.so_far(parts, record_counts.StoredCounts(self._config.data)), default=0)
            )
        weights = np.array([1 / size], np.float32)
        return self._batches(Pass(split="train", parts=parts, weights=weights, key=self._key(0, rank)))

    def epoch(self, number: int) -> Iterator[Batch]:
        rank, size, parts = self._ring.rank, self._config.batch_size, self._parts["train"]
        counts = self._count("train")
        if counts.min() < size:
            raise self._too_few(int(counts.argmin()), int(counts.min()))
        key = self._key(1, number)
        order = [parts[n] for n in np.random.default_rng((key, rank)).permutation(len(parts))]
        weights = padding.step_weights(counts, size)
        return self._batches(Pass(split="train", parts=order, fillers=parts, weights=weights, key=key))

    def validation(self) -> Iterator[Batch]:
        counts, parts = self._count("validation"), self._parts["validation"]
        if not counts.any():
            return iter(())
        spare = parts if counts[self._ring.rank] else self._whole["validation"]
        weights = np.ones(padding.steps(counts, self._config.batch_size), np.float32)
        return self._batches(Pass(split="validation", parts=parts, fillers=spare, weights=weights))

    @property
    def skipped(self) -> int:
        return sum(len(seen.undecodable()) for seen in self._passes)

    def check(self) -> None:
        for seen in self._passes:
            for place, label in seen.mislabelled()[:1]:
                why = labels.fault(label, self._config.classes, self._config.labels_from)
                raise Fault("label out of range", f"{self._name(seen, place)}: {why}")
        left = [(seen, seen.undecodable()) for seen in self._passes]
        skipped = sum(len(places) for _, places in left)
        images = skipped + sum(seen.decoded for seen in self._passes)
        if skipped > TOLERATED * images:
            first = next(self._name(seen, places[0]) for seen, places in left if places)
            rule = f"of 1000 images one may be impossible to decode, but got {skipped} of {images}"
            raise Fault("corrupt images", f"{rule}, the first {first}")

    def _count(self, split: shards.Split) -> record_counts.Numbers:
        """Return the records of each rank. At its first call, all ranks tell each other."""
        if split not in self._counts:
            parts, data = self._parts[split], self._config.data
            self._counts[split] = record_counts.of_ranks(parts, data, self._ring, self._beat)
        return self._counts[split]

    def _key(self, *purpose: int) -> int:
        state = np.random.SeedSequence((self._config.repeat_seed, *purpose)).generate_state(1, np.uint64)
        return int(state[0] >> np.uint64(1))

    def _name(self, seen: Dropped, place: RecordPlace) -> str:
        return shards.place(self._whole[seen.split][place.file].path, place.record)

    def _too_few(self, rank: int, count: int) -> Infeasible:
        batch = f"a batch of {self._config.batch_size}"
        return Infeasible(
            "batch larger than the data", f"rank {rank} has {count} images of {self._config.data} for {batch}"
        )
