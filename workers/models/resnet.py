"""Residual networks."""

from __future__ import annotations

from typing import Any


def resnet50(image_size: int, classes: int) -> Any:
    """ResNet-50 as first published (v1: the stride is in the first convolution of a block)."""
    import keras

    return keras.applications.ResNet50(
        weights=None, input_shape=(image_size, image_size, 3), classes=classes, classifier_activation=None
    )
