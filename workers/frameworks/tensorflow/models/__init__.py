"""The networks, by name. Each is a Keras model from normalised images to logits in float32, whatever the policy.

The weights of convolutions and dense layers, and no others, are variables named `kernel`. No auxiliary heads.
Importing this is cheap: Keras comes with the first `build`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from workers.contract.messages import Model
from workers.frameworks.tensorflow.models import alexnet, googlenet, inception, resnet, tiny, vgg

NETWORKS: dict[Model, Callable[[int, int], Any]] = {  # image size, classes
    "alexnet": alexnet.alexnet,
    "googlenet": googlenet.googlenet,
    "inception_v3": inception.inception_v3,
    "inception_v4": inception.inception_v4,
    "vgg16": vgg.vgg16,
    "vgg19": vgg.vgg19,
    "resnet50": resnet.resnet50,
    "resnet50_v1.5": resnet.resnet50_v1_5,
    "resnet101": resnet.resnet101,
    "resnet152": resnet.resnet152,
    "tiny": tiny.tiny,
}


def build(name: str, *, image_size: int, classes: int) -> Any:
    """Return a freshly initialised network for square RGB images, channels last; `IMAGE_SIZES` has the smallest
    size."""
    return NETWORKS[cast(Model, name)](image_size, classes)


def flops(model: Any) -> int:
    """Floating-point operations of one image's forward pass: two per multiply-add of convolutions and dense layers.

    Biases, normalisation, activations and pooling are not counted, as in published tables (which often give
    multiply-adds: half of this). A training step is about three times as much: the backward pass costs two forwards.
    """
    from keras import layers

    total = 0
    for layer in model.layers:
        if hasattr(layer, "layers"):
            total += flops(layer)
        elif isinstance(layer, (layers.Conv2D, layers.DepthwiseConv2D, layers.Dense)):
            # Each place of the output meets each weight once, grouped and depthwise kernels included.
            total += 2 * math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:-1])
    return total
