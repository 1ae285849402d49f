"""Residual networks of "Deep residual learning for image recognition", 2015, with bottleneck blocks."""

from __future__ import annotations

from typing import Any


def resnet50(image_size: int, classes: int) -> Any:
    """Return ResNet-50 as first published (v1): the stride is in the first convolution of a block, 1×1."""
    return _resnet("resnet50", (3, 4, 6, 3), image_size, classes)


def resnet50_v1_5(image_size: int, classes: int) -> Any:
    """Return ResNet-50 as most later tables have it: the stride is in the 3×3 convolution, which costs some 6 %
    more."""
    return _resnet("resnet50_v1.5", (3, 4, 6, 3), image_size, classes, is_stride_in_3x3=True)


def resnet101(image_size: int, classes: int) -> Any:
    """Return ResNet-101 as first published (v1)."""
    return _resnet("resnet101", (3, 4, 23, 3), image_size, classes)


def resnet152(image_size: int, classes: int) -> Any:
    """Return ResNet-152 as first published (v1)."""
    return _resnet("resnet152", (3, 8, 36, 3), image_size, classes)


def _resnet(
    name: str, depths: tuple[int, ...], image_size: int, classes: int, *, is_stride_in_3x3: bool = False
) -> Any:
    from keras import Input, Model, layers

    images = Input((image_size, image_size, 3))
    x = layers.Activation("relu")(_convolution(images, 64, 7, strides=2))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            strides = 2 if stage and not block else 1
            x = _bottleneck(x, 64 * 2**stage, strides, is_stride_in_3x3, is_projected=not block)
    x = layers.GlobalAveragePooling2D()(x)
    return Model(images, layers.Dense(classes, dtype="float32")(x), name=name)


def _bottleneck(x: Any, filters: int, strides: int, is_stride_in_3x3: bool, is_projected: bool) -> Any:
    from keras import layers

    shortcut = _convolution(x, 4 * filters, 1, strides) if is_projected else x
    first, second = (1, strides) if is_stride_in_3x3 else (strides, 1)
    x = layers.Activation("relu")(_convolution(x, filters, 1, first))
    x = layers.Activation("relu")(_convolution(x, filters, 3, second))
    x = layers.Add()([shortcut, _convolution(x, 4 * filters, 1)])
    return layers.Activation("relu")(x)


def _convolution(x: Any, filters: int, size: int, strides: int = 1) -> Any:
    """Add a convolution with batch normalisation."""
    from keras import layers

    x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
