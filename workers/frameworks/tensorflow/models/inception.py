"""Inception v3 of "Rethinking the Inception architecture", 2015, and v4 of "Inception-v4", 2016."""

from __future__ import annotations

from typing import Any

Size = int | tuple[int, int]


def inception_v3(image_size: int, classes: int) -> Any:
    import keras

    trunk = keras.applications.InceptionV3(
        include_top=False, weights=None, input_shape=(image_size, image_size, 3), pooling="avg"
    )
    logits = keras.layers.Dense(classes, dtype="float32")(trunk.output)
    return keras.Model(trunk.input, logits, name="inception_v3")


def inception_v4(image_size: int, classes: int) -> Any:
    from keras import Input, Model, layers

    images = Input((image_size, image_size, 3))
    x = _stem(images)
    for _ in range(4):
        x = _module_a(x)
    x = _reduction_a(x)
    for _ in range(7):
        x = _module_b(x)
    x = _reduction_b(x)
    for _ in range(3):
        x = _module_c(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.2)(x)
    return Model(images, layers.Dense(classes, dtype="float32")(x), name="inception_v4")


def convolution(x: Any, filters: int, size: Size, strides: int = 1, padding: str = "same") -> Any:
    """Add a convolution with batch normalisation and ReLU."""
    from keras import layers

    x = layers.Conv2D(filters, size, strides=strides, padding=padding, use_bias=False, kernel_initializer="he_normal")(
        x
    )
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-3)(x)
    return layers.Activation("relu")(x)


def _chain(x: Any, *steps: tuple[int, Size]) -> Any:
    for filters, size in steps:
        x = convolution(x, filters, size)
    return x


def _halve(x: Any, filters: int) -> Any:
    return convolution(x, filters, 3, strides=2, padding="valid")


def _join(*branches: Any) -> Any:
    from keras import layers

    return layers.Concatenate()(list(branches))


def _halve_by_pool(x: Any) -> Any:
    from keras import layers

    return layers.MaxPooling2D(3, strides=2)(x)


def _average(x: Any) -> Any:
    from keras import layers

    return layers.AveragePooling2D(3, strides=1, padding="same")(x)


def _stem(images: Any) -> Any:
    x = _halve(images, 32)
    x = convolution(x, 32, 3, padding="valid")
    x = convolution(x, 64, 3)
    x = _join(_halve_by_pool(x), _halve(x, 96))
    x = _join(
        convolution(_chain(x, (64, 1)), 96, 3, padding="valid"),
        convolution(_chain(x, (64, 1), (64, (1, 7)), (64, (7, 1))), 96, 3, padding="valid"),
    )
    return _join(_halve(x, 192), _halve_by_pool(x))


def _module_a(x: Any) -> Any:
    return _join(
        _chain(x, (96, 1)),
        _chain(x, (64, 1), (96, 3)),
        _chain(x, (64, 1), (96, 3), (96, 3)),
        _chain(_average(x), (96, 1)),
    )


def _reduction_a(x: Any) -> Any:
    return _join(_halve(x, 384), _halve(_chain(x, (192, 1), (224, 3)), 256), _halve_by_pool(x))


def _module_b(x: Any) -> Any:
    return _join(
        _chain(x, (384, 1)),
        _chain(x, (192, 1), (224, (1, 7)), (256, (7, 1))),
        _chain(x, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
        _chain(_average(x), (128, 1)),
    )


def _reduction_b(x: Any) -> Any:
    return _join(
        _halve(_chain(x, (192, 1)), 192),
        _halve(_chain(x, (256, 1), (256, (1, 7)), (320, (7, 1))), 320),
        _halve_by_pool(x),
    )


def _module_c(x: Any) -> Any:
    short = _chain(x, (384, 1))
    long = _chain(x, (384, 1), (448, (3, 1)), (512, (1, 3)))
    return _join(
        _chain(x, (256, 1)),
        _chain(short, (256, (1, 3))),
        _chain(short, (256, (3, 1))),
        _chain(long, (256, (1, 3))),
        _chain(long, (256, (3, 1))),
        _chain(_average(x), (256, 1)),
    )
