"""The networks, by name. Each is a module from normalised images, channels first, to logits, in float32 under autocast
too.

Each computes what its namesake in TensorFlow does and draws its weights from the same distributions. Its convolutions,
normalisations and dense layers are registered in the order in which the namesake makes them: so `weights` pairs them.
Two things are torch's own. Batch norm keeps the unbiased variance, n / (n - 1) of a batch's; and it refuses to train on
one number a channel, where TensorFlow's gives its bias. Importing this is cheap: torch comes with the first `build`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from workers.contract.messages import Model


def build(name: str, *, image_size: int, classes: int) -> Any:
    """Return a freshly initialised network for square RGB images; `IMAGE_SIZES` has the smallest size."""
    return networks()[cast(Model, name)](image_size, classes)


def networks() -> dict[Model, Callable[[int, int], Any]]:
    """Return who makes each network, of an image size and a number of classes."""
    from workers.frameworks.torch.models import alexnet, googlenet, inception, resnet, tiny, vgg

    return {
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
