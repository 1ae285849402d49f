"""Random images, on the device of a TensorFlow rank."""

from __future__ import annotations

import tensorflow as tf

from workers.inputs.plain.synthetic import PlainSynthetic
from workers.inputs.source import Batch


class Synthetic(PlainSynthetic):
    def _batch(self) -> Batch:
        with tf.device(self._config.device):
            images, labels, weights = (tf.identity(tf.constant(values)) for values in super()._batch())
        return images, labels, weights
