"""What became of the records that went into a pipeline, written down inside it.

A record is entered when it is read and struck out when its image comes through. What is left over could not be
decoded. It costs a look-up a group of records and one a batch, and nothing an image.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from workers.inputs.record_places import FILLERS, HOPELESS, RecordPlace, place_of
from workers.inputs.shards import Split


class Tally:
    """The images dropped in one pass through the data. A record is known by its place in the set, as one number."""

    def __init__(self, split: Split, labels: range, in_flight: int) -> None:
        self.split = split
        self._labels = labels
        self._in_flight = in_flight  # records that may be between entry and batch
        with tf.device("CPU"):
            self._left = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, FILLERS)
            self._mislabelled = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
            self._last = tf.Variable(-1, dtype=tf.int64, trainable=False)  # position, of those in batches
            self._decoded = tf.Variable(0, dtype=tf.int64, trainable=False)

    def enter(self, positions: Any, records: Any) -> Any:
        """Call for each group, in order. Fails when nearly nothing comes through, for then nobody would ever see it."""
        limit = self._in_flight + HOPELESS + positions[0] // 100
        with tf.control_dependencies([tf.debugging.assert_less(self._left.size(), limit)]):
            return self._left.insert(positions, records)

    def strike_out(self, positions: Any, records: Any, labels: Any) -> Any:
        """Call for each batch, in order. Says which images count: real ones, with the label of a class."""
        is_sound = (labels >= self._labels.start) & (labels < self._labels.stop)
        is_real = records > FILLERS
        mislabelled = (tf.boolean_mask(values, ~is_sound & is_real) for values in (records, labels))
        struck_out = [self._left.remove(positions), self._mislabelled.insert(*mislabelled)]
        with tf.control_dependencies(struck_out):  # before it is said how far the batches are
            counted = [self._last.assign(positions[-1]), self._decoded.assign_add(tf.math.count_nonzero(is_real))]
        with tf.control_dependencies(counted):
            return is_sound & is_real

    @property
    def decoded(self) -> int:
        return int(self._decoded.numpy())

    def undecodable(self) -> list[RecordPlace]:
        """Return those that can't be decoded, in the order in which they were read."""
        end = int(self._last.numpy())  # read first: the pipeline goes on
        left = dict(zip(*(values.numpy().tolist() for values in self._left.export()), strict=True))
        if len(left) > self._in_flight + HOPELESS:  # nothing may ever have come as far as a batch
            end = max(end, max(left) - self._in_flight)
        return [place_of(left[position]) for position in sorted(left) if position < end and left[position] > FILLERS]

    def mislabelled(self) -> list[tuple[RecordPlace, int]]:
        records, labels = (values.numpy().tolist() for values in self._mislabelled.export())
        return [(place_of(record), label) for record, label in sorted(zip(records, labels, strict=True))]
