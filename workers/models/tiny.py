"""A network small enough for a laptop and for tests: three strided convolutions and a classifier."""

from __future__ import annotations

from typing import Any


def tiny(image_size: int, classes: int) -> Any:
    from keras import Input, Model, layers

    images = Input((image_size, image_size, 3))
    x = images
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return Model(images, layers.Dense(classes, dtype="float32")(x), name="tiny")
