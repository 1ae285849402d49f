"""A user's own data as TensorFlow's tensors, on the device on which the user's function left them."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import tensorflow as tf

from workers.inputs.plain.own import PlainOwn


class Own(PlainOwn):
    def _examples(self, given: Any) -> Any:
        return tf.convert_to_tensor(given)

    def _filled_up(self, examples: Any, missing: int) -> Any:
        return tf.concat([examples, tf.repeat(self._like, missing, axis=0)], axis=0)

    def _placed(self, values: npt.NDArray[Any]) -> Any:
        return tf.constant(values)
