"""How TensorFlow is set to a number format."""

from __future__ import annotations

from typing import Any

from workers.contract.messages import Precision


def apply(precision: Precision) -> None:
    """Set Keras and TensorFlow to a format, before a network is built. Weights stay fp32."""
    import keras
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    policy = {"fp16": "mixed_float16", "bf16": "mixed_bfloat16"}.get(precision, "float32")
    keras.config.set_dtype_policy(policy)


def loss_scaled(optimizer: Any, precision: Precision) -> Any:
    """fp16 gradients underflow: scale the loss, and skip a step whose gradients overflow."""
    import keras

    return keras.optimizers.LossScaleOptimizer(optimizer) if precision == "fp16" else optimizer
