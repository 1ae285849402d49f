"""Batches from a folder of TFRecords by `tf.data`.

What happens to a record on its way:

    files → interleaved, shuffled → numbered, in groups → decoded by group → batched, weighed → on the device

An image that can't be decoded is left out and the next image takes its place. Each group is a dataset of its own, so
that its errors can be ignored where those of reading are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from workers.inputs import images, shards
from workers.inputs.dealt_records import FILES_AT_ONCE, SHUFFLED, DealtRecords, Pass
from workers.inputs.dropped_images import Tally
from workers.inputs.record_places import number_of
from workers.inputs.source import GROUP, Batch

GOLDEN = 0x9E3779B97F4A7C15 - 2**64

plain = tf.autograph.experimental.do_not_convert  # a converted function leaves a file in the temporary folder

Transform = Callable[[Any, Any, Any], tuple[Any, Any]]  # of a record, its position in the pass and its number


class Records(DealtRecords):
    @property
    def _in_flight(self) -> int:
        return 4 * GROUP * (self._decode_threads + 2) + 2 * self._config.batch_size

    def _batches(self, asked: Pass) -> Iterator[Batch]:
        weights = tf.data.Dataset.from_tensor_slices(asked.weights)
        return self._run(asked, read_in(asked), weights.repeat() if asked.is_endless else weights)

    def _transform(self, asked: Pass) -> Transform:
        """Other crops at every position of a pass that never ends, else the same of every image whenever it has this
        key."""
        if not asked.is_random:
            return lambda record, position, number: images.for_validation(record, self._config.image_size)

        def transform(record: Any, position: Any, number: Any) -> tuple[Any, Any]:
            draw = position if asked.is_endless else number
            is_flipped = (draw + asked.key) * GOLDEN < 0
            return images.for_training(record, self._config.image_size, tf.stack([asked.key, draw]), is_flipped)

        return transform

    def _run(self, asked: Pass, records: Any, weights: Any) -> Iterator[Batch]:
        """Batches of endless records, as many as there are weights."""
        size, decoders = self._config.batch_size, self._decode_threads + 1  # one more, so that no thread waits for work
        transform, tally = self._transform(asked), Tally(asked.split, self._labels, self._in_flight)
        self._passes.append(tally)

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
        return self._guarded(asked.split, batches)

    def _guarded(self, split: shards.Split, batches: Any) -> Iterator[Batch]:
        try:
            yield from self.decoders.iterate(batches)
        except tf.errors.OpError as error:
            self.check()
            raise shards.blame([part.path for part in self._parts[split]], error.message) from error


def read_in(asked: Pass) -> Any:
    """Return the records of a pass, without end."""
    files = table(asked.parts)
    if asked.is_endless:
        return read(files.shuffle(len(asked.parts), asked.key).repeat()).shuffle(SHUFFLED, asked.key)
    records = read(files)
    if asked.is_random:
        records = records.shuffle(SHUFFLED, asked.key, reshuffle_each_iteration=False)
    marked = [part._replace(file=~part.file) for part in asked.fillers]
    return records.concatenate(read(table(marked)).repeat())


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
