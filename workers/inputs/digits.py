"""scikit-learn's handwritten digits as TensorFlow's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from workers.inputs.plain.digits import PlainDigits
from workers.inputs.source import Batch


class Digits(PlainDigits):
    def _batches(self, order: npt.NDArray[Any], weighs: Any) -> Iterator[Batch]:
        for images, labels, weights in super()._batches(order, weighs):
            yield tf.constant(images), tf.constant(labels), tf.constant(weights)
