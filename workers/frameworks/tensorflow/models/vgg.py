"""VGG, configurations D and E of "Very deep convolutional networks for large-scale image recognition", 2014."""

from __future__ import annotations

from typing import Any


def vgg16(image_size: int, classes: int) -> Any:
    return _vgg("vgg16", (2, 2, 3, 3, 3), image_size, classes)


def vgg19(image_size: int, classes: int) -> Any:
    return _vgg("vgg19", (2, 2, 4, 4, 4), image_size, classes)


def _vgg(name: str, depths: tuple[int, ...], image_size: int, classes: int) -> Any:
    from keras import Input, Model, layers

    images = Input((image_size, image_size, 3))
    x = images
    for filters, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu", kernel_initializer="he_normal")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dense(4096, activation="relu", kernel_initializer="he_normal")(x)
        x = layers.Dropout(0.5)(x)
    return Model(images, layers.Dense(classes, dtype="float32")(x), name=name)
