"""The networks, by name. Each is a Keras model from images to logits in float32."""

from __future__ import annotations

from typing import Any, get_args

from workers.contract import Model


def build(name: Model, *, image_size: int, classes: int) -> Any:
    """A freshly initialised network for square RGB images, channels last."""
    from workers.models import resnet, tiny

    networks = {"tiny": tiny.tiny, "resnet50": resnet.resnet50}
    assert set(networks) == set(get_args(Model))
    return networks[name](image_size, classes)
