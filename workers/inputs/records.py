"""Batches from a folder of ImageNet-convention TFRecords: `train-00000-of-00008`, …, `validation-00000-of-00008`, ….

A record holds `image/encoded` (see `images`) and `image/class/label`, which counts from `labels_from`: from 1 in
ImageNet's files, where 0 is the background class. What happens to a record on its way:

    files → interleaved, shuffled → numbered, in groups → decoded by group → batched, weighed → on the device

An image that can't be decoded is left out and the next image takes its place. Each group is a dataset of its own, so
that its errors can be ignored where those of reading are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from workers.contract.messages import TrialConfig
from workers.contract.ranks import Fault, Infeasible
from workers.inputs import images, labels, padding, record_counts, shards
from workers.inputs.dropped_images import RecordPlace, Tally, number_of
from workers.inputs.source import GROUP, Batch, Cores
from workers.inputs.threads import Decoders
from workers.strategies.ring import Ring

SPLITS: tuple[shards.Split, ...] = ("train", "validation")
FILES = {split: f"{split}-00000-of-00008" for split in SPLITS}
FILES_AT_ONCE = 8
SHUFFLED = 1024  # records that the next one is drawn from
TOLERATED = 1e-3  # part of the images, that may be impossible to decode
GOLDEN = 0x9E3779B97F4A7C15 - 2**64

plain = tf.autograph.experimental.do_not_convert  # a converted function leaves a file in the temporary folder

Transform = Callable[[Any, Any, Any], tuple[Any, Any]]  # of a record, its position in the pass and its number


class Records:
    def __init__(self, config: TrialConfig, ring: Ring, cores: Cores, beat: record_counts.Beat) -> None:
        """A convergence trial's records are counted here, before its data is brought to a known state and timed."""
        self._config, self._ring, self._beat = config, ring, beat
        self._decode_threads, self.decoders = cores.decode_threads, Decoders(cores.decode)
        paths = {split: shards.found(config.data, split) for split in SPLITS}
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
        self._tallies: list[Tally] = []
        if config.protocol == "convergence":
            for split in SPLITS:
                self._count(split)

    @property
    def _in_flight(self) -> int:
        """Records that may be between the files and a batch that is taken."""
        return 4 * GROUP * (self._decode_threads + 2) + 2 * self._config.batch_size

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
        key = self._key(0, rank)
        records = read(table(parts).shuffle(len(parts), key).repeat()).shuffle(SHUFFLED, key)
        weights = tf.data.Dataset.from_tensors(tf.constant(1 / size)).repeat()
        return self._run("train", records, weights, self._random(key, by_position=True))

    def epoch(self, number: int) -> Iterator[Batch]:
        rank, size, parts = self._ring.rank, self._config.batch_size, self._parts["train"]
        counts = self._count("train")
        if counts.min() < size:
            raise self._too_few(int(counts.argmin()), int(counts.min()))
        key = self._key(1, number)
        order = np.random.default_rng((key, rank)).permutation(len(parts))
        records = read(table([parts[n] for n in order])).shuffle(SHUFFLED, key, reshuffle_each_iteration=False)
        weights = tf.data.Dataset.from_tensor_slices(padding.step_weights(counts, size))
        return self._run("train", records.concatenate(fillers(parts)), weights, self._random(key, by_position=False))

    def validation(self) -> Iterator[Batch]:
        counts, parts = self._count("validation"), self._parts["validation"]
        if not counts.any():
            return iter(())
        spare = parts if counts[self._ring.rank] else self._whole["validation"]
        weights = tf.data.Dataset.from_tensors(1.0).repeat(padding.steps(counts, self._config.batch_size))
        return self._run(
            "validation",
            read(table(parts)).concatenate(fillers(spare)),
            weights,
            lambda record, position, number: images.for_validation(record, self._config.image_size),
        )

    @property
    def skipped(self) -> int:
        return sum(len(tally.undecodable()) for tally in self._tallies)

    def check(self) -> None:
        for tally in self._tallies:
            for place, label in tally.mislabelled()[:1]:
                why = labels.fault(label, self._config.classes, self._config.labels_from)
                raise Fault("label out of range", f"{self._name(tally, place)}: {why}")
        left = [(tally, tally.undecodable()) for tally in self._tallies]
        skipped = sum(len(places) for _, places in left)
        seen = skipped + sum(tally.decoded for tally in self._tallies)
        if skipped > TOLERATED * seen:
            first = next(self._name(tally, places[0]) for tally, places in left if places)
            rule = f"of 1000 images one may be impossible to decode, but got {skipped} of {seen}"
            raise Fault("corrupt images", f"{rule}, the first {first}")

    def _count(self, split: shards.Split) -> record_counts.Numbers:
        """Records of each rank. At its first call, all ranks tell each other."""
        if split not in self._counts:
            parts, data = self._parts[split], self._config.data
            self._counts[split] = record_counts.of_ranks(parts, data, self._ring, self._beat)
        return self._counts[split]

    def _key(self, *purpose: int) -> int:
        state = np.random.SeedSequence((self._config.repeat_seed, *purpose)).generate_state(1, np.uint64)
        return int(state[0] >> np.uint64(1))

    def _random(self, key: int, by_position: bool) -> Transform:
        """Other crops at every position of the pass, or the same of every image in any pass with this key."""

        def transform(record: Any, position: Any, number: Any) -> tuple[Any, Any]:
            draw = position if by_position else number
            is_flipped = (draw + key) * GOLDEN < 0
            return images.for_training(record, self._config.image_size, tf.stack([key, draw]), is_flipped)

        return transform

    def _run(self, split: shards.Split, records: Any, weights: Any, transform: Transform) -> Iterator[Batch]:
        """Batches of endless records, as many as there are weights."""
        size, decoders = self._config.batch_size, self._decode_threads + 1  # one more, so that no thread waits for work
        tally = Tally(split, self._labels, self._in_flight)
        self._tallies.append(tally)

        def decode(record: Any, position: Any, number: Any) -> tuple[Any, ...]:
            return *transform(record, position, number), position, number

        def decode_group(nth: Any, group: Any) -> Any:
            files, (places, contents) = group
            positions, numbers = nth * GROUP + tf.range(GROUP, dtype=tf.int64), number_of(files, places)
            with tf.control_dependencies([tally.enter(positions, numbers)]):
                members = tf.data.Dataset.from_tensor_slices((contents, positions, numbers))
            return members.map(plain(decode)).ignore_errors()

        def weigh(weight: Any, batch: Any) -> Batch:
            pictures, given, positions, numbers = batch
            counts = tally.strike_out(positions, numbers, given)
            first, last = self._labels[0], self._labels[-1]
            classes = tf.cast(tf.clip_by_value(given, first, last) - first, tf.int32)
            return pictures, classes, tf.where(counts, weight, 0.0)

        groups = records.batch(GROUP, drop_remainder=True).enumerate()
        decoded = groups.interleave(plain(decode_group), decoders, GROUP, num_parallel_calls=decoders)
        batches = tf.data.Dataset.zip((weights, decoded.batch(size, drop_remainder=True))).map(plain(weigh))
        options = tf.data.Options()
        options.autotune.enabled = False
        options.deterministic = True
        options.threading.private_threadpool_size = self._decode_threads
        options.threading.max_intra_op_parallelism = 1
        batches = batches.with_options(options)
        if self._config.device == "gpu":
            batches = batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0", 2))
        else:
            batches = batches.prefetch(2)
        return self._guarded(split, batches)

    def _guarded(self, split: shards.Split, batches: Any) -> Iterator[Batch]:
        try:
            yield from self.decoders.iterate(batches)
        except tf.errors.OpError as error:
            self.check()
            raise shards.blame([part.path for part in self._parts[split]], error.message) from error

    def _name(self, tally: Tally, place: RecordPlace) -> str:
        return shards.place(self._whole[tally.split][place.file].path, place.record)

    def _too_few(self, rank: int, count: int) -> Infeasible:
        batch = f"a batch of {self._config.batch_size}"
        return Infeasible(
            "batch larger than the data", f"rank {rank} has {count} images of {self._config.data} for {batch}"
        )


def table(parts: Sequence[shards.Part]) -> Any:
    files, paths, every, first = (list(column) for column in zip(*parts, strict=True))
    return tf.data.Dataset.from_tensor_slices(
        (tf.constant(files, tf.int64), paths, tf.constant(every, tf.int64), tf.constant(first, tf.int64))
    )


def read(files: Any) -> Any:
    """(file, (index, content)) of every record that is in these parts of files."""

    def records(file: Any, path: Any, every: Any, first: Any) -> Any:
        numbered = tf.data.TFRecordDataset(path).enumerate().shard(every, first)
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(file).repeat(), numbered))

    return files.interleave(plain(records), FILES_AT_ONCE, 1, num_parallel_calls=None)


def fillers(parts: Sequence[shards.Part]) -> Any:
    """The records again, endlessly, marked by their files."""
    return read(table([part._replace(file=~part.file) for part in parts])).repeat()
