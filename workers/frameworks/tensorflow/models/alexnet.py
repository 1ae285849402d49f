"""AlexNet."""

from __future__ import annotations

from typing import Any


def alexnet(image_size: int, classes: int) -> Any:
    """Return the single tower of "One weird trick for parallelizing convolutional neural networks", 2014."""
    from keras import Input, Model, layers

    images = Input((image_size, image_size, 3))
    x = layers.ZeroPadding2D(2)(images)
    x = layers.Conv2D(64, 11, strides=4, activation="relu", kernel_initializer="he_normal")(x)
    x = layers.MaxPooling2D(3, strides=2)(x)
    x = layers.Conv2D(192, 5, padding="same", activation="relu", kernel_initializer="he_normal")(x)
    x = layers.MaxPooling2D(3, strides=2)(x)
    for filters in (384, 256, 256):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", kernel_initializer="he_normal")(x)
    x = layers.MaxPooling2D(3, strides=2)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(x)
        x = layers.Dense(4096, activation="relu", kernel_initializer="he_normal")(x)
    return Model(images, layers.Dense(classes, dtype="float32")(x), name="alexnet")
