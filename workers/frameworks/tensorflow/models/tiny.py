"""A network small enough for a laptop and for tests: three strided convolutions and a classifier.

It normalises by groups of channels, not by batch: what it learns does not depend on how a batch is split over ranks.
"""

from __future__ import annotations

from typing import Any


def tiny(image_size: int, classes: int) -> Any:
    from keras import Input, Model, layers

    images = Input((image_size, image_size, 3))
    x = images
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
        x = layers.GroupNormalization(groups=8)(x)
        x = layers.ReLU()(x)
    x = layers.AveragePooling2D(x.shape[1] // 2)(x)  # quarters: a digit is told by where its strokes are
    x = layers.Flatten()(x)
    return Model(images, layers.Dense(classes, dtype="float32")(x), name="tiny")
