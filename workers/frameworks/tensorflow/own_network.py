"""A network of the user's own: a function that gives a Keras model, and what is asked of it.

A sweep's network takes a batch of examples and gives one number a class, of which no softmax is taken (logits). It must
have its weights when it is given back. Its own penalties (`kernel_regularizer` and the like) are part of the loss.
"""

from __future__ import annotations

import math
from typing import Any

from workers.contract import functions
from workers.contract.messages import TrialConfig
from workers.contract.ranks import Fault

# Operations that reach into graphs of their own, or run so often as their input says: what is in them is not counted.
UNCOUNTED = (
    *("PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf", "XlaLaunch"),
    *("Conv3D", "CudnnRNN", "CudnnRNNV2", "CudnnRNNV3", "SparseTensorDenseMatMul", "FFT", "FFT2D", "RFFT"),
)


def build(config: TrialConfig) -> Any:
    """Return the network that the trial's function gives."""
    import keras

    word = config.model
    handed = {"image_size": config.image_size, "classes": config.classes, "framework": config.framework}
    network = functions.called("model", config, handed)
    if not isinstance(network, keras.Model):
        raise Fault("no network", f"{word} must give a Keras model, but gave {type(network).__name__}")
    if not network.built or not getattr(network, "outputs", None):
        rule = f"{word} must give a model that has its weights and its output already: begin it with keras.Input(shape)"
        raise Fault("network not built", f"{rule}, but {network.name} has none")
    if len(network.inputs) != 1:
        raise Fault("network", f"{word} must give a model of one input, but {network.name} has {len(network.inputs)}")
    if len(network.outputs) != 1 or tuple(network.outputs[0].shape[1:]) != (config.classes,):
        shapes = ", ".join(str(tuple(one.shape)) for one in network.outputs)
        rule = f"{word} must give one number a class, (batch, {config.classes}), as `classes` of the sweep file says"
        raise Fault("network does not fit the classes", f"{rule}, but its output is {shapes}")
    if not network.trainable_variables:
        raise Fault("nothing to learn", f"{word} must give a model with weights to learn, but {network.name} has none")
    return network


def check_fits(network: Any, batch: Any, config: TrialConfig) -> None:
    """Raise a fault where a batch is not of the shape that the network takes."""
    takes, given = tuple(network.inputs[0].shape), tuple(batch.shape)
    if len(takes) != len(given) or any(a not in (None, b) for a, b in zip(takes[1:], given[1:], strict=True)):
        rule = f"the batches of {config.data} must be of the shape that {config.model} takes, {takes}"
        cure = "" if functions.named("", config.data) else f" (image_size is {config.image_size})"
        raise Fault("batch does not fit the network", f"{rule}, but are {given}{cure}")


def flops(network: Any) -> int:
    """Return the floating-point operations of one example's forward pass, as `models.flops` counts them; 0 where some
    of its operations can't be counted."""
    import tensorflow as tf

    one = network.inputs[0]
    if any(side is None for side in one.shape[1:]):
        return 0
    form = tf.TensorSpec([1, *one.shape[1:]], one.dtype)
    traced = tf.function(lambda x: network(x, training=False), autograph=False).get_concrete_function(form)
    total = 0
    for operation in traced.graph.get_operations():
        counted = _flops(operation)
        if counted is None:
            return 0
        total += counted
    return total


def _flops(operation: Any) -> int | None:
    """Return those of one operation of a graph; None where they can't be told."""
    shapes = [one.shape for one in (*operation.inputs, *operation.outputs)]
    match operation.type:
        case "Conv2D" | "DepthwiseConv2dNative":
            places = operation.outputs[0].shape  # each meets each weight once; NHWC
            return _product(operation.inputs[1].shape, places[1:3])
        case "Conv2DBackpropInput":  # a transposed convolution: each place of its input meets each weight once
            return _product(operation.inputs[1].shape, operation.inputs[2].shape[1:3])
        case "MatMul" | "BatchMatMulV2":
            inner = operation.inputs[0].shape[-2 if _is_turned(operation) else -1]
            return _product(operation.outputs[0].shape, [inner])
        case "Einsum":
            return _of_einsum(operation.get_attr("equation").decode(), shapes[:-1])
        case kind if kind in UNCOUNTED:
            return None
    return 0


def _is_turned(operation: Any) -> bool:
    return bool(operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x"))


def _of_einsum(equation: str, shapes: Any) -> int | None:
    sides: dict[str, int | None] = {}
    for letters, shape in zip(equation.partition("->")[0].split(","), shapes, strict=True):
        if "." in letters:
            return None
        sides |= dict(zip(letters, shape, strict=True))
    return _product(sides.values()) if len(shapes) > 1 else 0


def _product(*shapes: Any) -> int | None:
    """Two operations for each multiplication; None where a side is not known."""
    sides = [side for shape in shapes for side in shape]
    return None if None in sides else 2 * math.prod(sides)
