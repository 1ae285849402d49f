"""Every network: published size and cost, and one training step at its smallest image size.

TensorFlow runs in one child process (`main`), which is asked for a part of what there is to find of a network.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from sweeps.simulator import gradients, model
from tests.integration import child
from tests.integration.child import Child
from workers.contract.messages import IMAGE_SIZES, Model

ROOT = Path(__file__).parents[2]
PUBLISHED: dict[Model, tuple[float, float]] = {  # millions of parameters, billions of multiply-adds
    "alexnet": (61.1, 0.71),
    "googlenet": (6.6, 1.5),
    "inception_v3": (23.9, 5.7),
    "inception_v4": (42.7, 12.3),
    "vgg16": (138.4, 15.5),
    "vgg19": (143.7, 19.6),
    "resnet50": (25.6, 3.8),
    "resnet50_v1.5": (25.6, 4.1),
    "resnet101": (44.6, 7.6),
    "resnet152": (60.3, 11.3),
}
NETWORKS: tuple[Model, ...] = get_args(Model)
CLASSES = 7
# The code of one that is not among them, with more of its blocks, or another variant of them.
DEEPER: tuple[Model, ...] = ("vgg19", "resnet101", "resnet152", "inception_v4", "resnet50_v1.5")
TRAINED = [pytest.param(name, marks=pytest.mark.long if name in DEEPER else ()) for name in NETWORKS]


def main() -> None:
    import keras

    child.answer(PARTS, after=keras.backend.clear_session)


def flops_by_hand(_: str) -> dict[str, int]:
    from keras import Input, Model, Sequential, layers

    from workers.frameworks.tensorflow.models import flops

    cases = {
        "strided": layers.Conv2D(8, 3, strides=2, padding="same"),
        "grouped": layers.Conv2D(8, 3, groups=2, padding="same"),
        "depthwise": layers.DepthwiseConv2D(3, padding="same"),
        "dense": layers.Dense(10),
    }
    counted = {}
    for name, layer in cases.items():
        images = Input((6, 6, 4) if name != "dense" else (4,))
        counted[name] = flops(Model(images, layer(images)))
    inner = Sequential([Input((4,)), layers.Dense(10)])
    outer = Input((4,))
    counted["nested"] = flops(Model(outer, layers.Dense(1)(inner(outer))))
    return counted


def shapes_of(name: Model, side: int, classes: int) -> Any:
    """The network with weights that have shapes and no numbers: to draw tens of millions of them takes most of the
    time in which one is built."""
    from keras import StatelessScope

    from workers.frameworks.tensorflow import models

    with StatelessScope(initialize_variables=False):
        return models.build(name, image_size=side, classes=classes)


def at_published_size(name: Model) -> dict[str, Any]:
    from keras import layers

    from workers.frameworks.tensorflow import models

    network = shapes_of(name, IMAGE_SIZES[name][1], 1000)
    kept = (layers.Conv2D, layers.Dense, layers.BatchNormalization)
    return {
        "parameters": network.count_params(),
        "multiply_adds": models.flops(network) / 2,
        "activations": sum(math.prod(layer.output.shape[1:]) for layer in network.layers if isinstance(layer, kept)),
        "features": network.layers[-1].kernel.shape[0],
        "appeared": appeared(network),
    }


def appeared(network: Any) -> list[tuple[float, float]]:
    """Return FLOPs and parameters from the last layer on: after each layer, as the backward pass goes."""
    from keras import Model, layers

    from workers.frameworks.tensorflow import models

    worked, passed, found = 0, 0, []
    for layer in reversed([layer for layer in network.layers if layer.trainable_weights]):
        if isinstance(layer, (layers.Conv2D, layers.Dense)):
            worked += models.flops(Model(layer.input, layer.output))
        passed += sum(math.prod(weight.shape) for weight in layer.trainable_weights)
        found.append((worked, passed))
    return [(work / worked, parameters / passed) for work, parameters in found]


def at_smallest_size(name: Model) -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    from workers.frameworks.tensorflow import models

    side = IMAGE_SIZES[name][0]
    images = np.random.default_rng(1).standard_normal((2, side, side, 3)).astype("float32")
    keras.utils.set_random_seed(1)
    again = models.build(name, image_size=side, classes=CLASSES)(images, training=True)
    keras.utils.set_random_seed(1)
    network = models.build(name, image_size=side, classes=CLASSES)
    with tf.GradientTape() as tape:
        logits = network(images, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1], logits))
    weights = network.trainable_variables
    gradients = tape.gradient(loss, weights)
    keras.optimizers.SGD(0.01).apply(gradients, weights)
    return {
        "loss": float(loss),
        "dtype": logits.dtype.name,
        "outputs": [again.numpy().tolist(), logits.numpy().tolist()],
        "is_finite_after": all(bool(np.isfinite(weight.numpy()).all()) for weight in weights),
        "without_gradient": [w.path for w, gradient in zip(weights, gradients, strict=True) if gradient is None],
    }


def in_shape(name: Model) -> dict[str, Any]:
    side = IMAGE_SIZES[name][0]
    weights = shapes_of(name, side, CLASSES).trainable_variables
    return {
        "misnamed": [w.path for w in weights if (w.ndim > 1) != w.path.endswith("/kernel")],
        "takes_smaller": side == 32 or builds(name, side - 1),
    }


def builds(name: Model, side: int) -> bool:
    try:
        shapes_of(name, side, CLASSES)
    except ValueError:
        return False
    return True


def in_half_precision(name: Model) -> dict[str, Any]:
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    network = shapes_of(name, IMAGE_SIZES[name][0], CLASSES)
    keras.config.set_dtype_policy("float32")
    computed = {layer.compute_dtype for layer in network.layers[1:-1]}  # between images and logits
    return {"half": [*computed, network.output.dtype]}


PARTS = {
    "flops": flops_by_hand,
    "published": at_published_size,
    "step": at_smallest_size,
    "shape": in_shape,
    "half": in_half_precision,
}


@pytest.fixture(scope="module")
def found() -> Iterator[Child]:
    with child.started(__name__) as process:
        yield process


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_has_the_published_number_of_parameters(found: Child, name: Model) -> None:
    assert found("published", name)["parameters"] / 1e6 == pytest.approx(PUBLISHED[name][0], rel=0.01)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_costs_the_published_multiply_adds(found: Child, name: Model) -> None:
    assert found("published", name)["multiply_adds"] / 1e9 == pytest.approx(PUBLISHED[name][1], rel=0.02)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_simulator_knows_what_a_network_costs(found: Child, name: Model) -> None:
    known = model.NETWORKS[name]
    assert known.parameters_m == pytest.approx(found("published", name)["parameters"] / 1e6, rel=0.01)
    assert known.gflops == pytest.approx(2 * found("published", name)["multiply_adds"] / 1e9, rel=0.01)
    assert known.activations_m == pytest.approx(found("published", name)["activations"] / 1e6, rel=0.01)
    assert known.features == found("published", name)["features"]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_simulator_knows_when_a_network_s_gradients_appear(found: Child, name: Model) -> None:
    curve = [tuple(pair) for pair in found("published", name)["appeared"]]
    assert gradients.APPEARED[name][-1] == (1, 1)
    for work, parameters in gradients.APPEARED[name]:
        assert any(abs(work - w) < 0.001 and abs(parameters - p) < 0.001 for w, p in curve), (work, parameters)


def test_flops_agree_with_a_count_by_hand(found: Child) -> None:
    assert found("flops", "by-hand") == {
        "strided": 2 * (3 * 3 * 4 * 8) * 3 * 3,
        "grouped": 2 * (3 * 3 * 2 * 8) * 6 * 6,
        "depthwise": 2 * (3 * 3 * 4) * 6 * 6,
        "dense": 2 * 4 * 10,
        "nested": 2 * (4 * 10 + 10 * 1),
    }


@pytest.mark.parametrize("name", TRAINED)
def test_a_network_trains_a_step_at_its_smallest_size(found: Child, name: Model) -> None:
    assert math.isfinite(found("step", name)["loss"])
    assert found("step", name)["is_finite_after"]
    assert found("step", name)["without_gradient"] == []


@pytest.mark.parametrize("name", [name for name in NETWORKS if IMAGE_SIZES[name][0] > 32])
def test_a_network_takes_no_image_below_its_smallest_size(found: Child, name: Model) -> None:
    assert not found("shape", name)["takes_smaller"]


@pytest.mark.parametrize("name", TRAINED)
def test_logits_are_float32_one_per_class(found: Child, name: Model) -> None:
    assert found("step", name)["dtype"] == "float32"
    assert [len(logits) for logits in found("step", name)["outputs"][0]] == [CLASSES] * 2


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_stay_float32_when_the_network_computes_in_half_precision(found: Child, name: Model) -> None:
    assert found("half", name)["half"] == ["float16", "float32"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_seed_settles_the_weights_and_the_dropout(found: Child, name: Model) -> None:
    first, second = found("step", name)["outputs"]
    assert first == second


@pytest.mark.parametrize("name", NETWORKS)
def test_the_weights_that_decay_are_those_named_kernel(found: Child, name: Model) -> None:
    assert found("shape", name)["misnamed"] == []


def test_importing_the_networks_leaves_tensorflow_out() -> None:
    code = "import sys, workers.frameworks.tensorflow.models; assert not {'keras', 'tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
