"""GoogLeNet of "Going deeper with convolutions", 2014."""

from __future__ import annotations

from typing import Any

from workers.frameworks.tensorflow.models.inception import convolution

# Per module: 1×1 | 1×1 before 3×3, 3×3 | 1×1 before the next, 3×3 | 1×1 after the pool.
STAGES = (
    (
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
    ),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    (
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    ),
)


def googlenet(image_size: int, classes: int) -> Any:
    """Return the variant of 6.6 M parameters: batch normalisation, and 3×3 where the paper has 5×5 (7.0 M)."""
    from keras import Input, Model, layers

    images = Input((image_size, image_size, 3))
    x = convolution(images, 64, 7, strides=2)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = convolution(x, 64, 1)
    x = convolution(x, 192, 3)
    for stage in STAGES:
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        for one, before_two, two, before_three, three, after_pool in stage:
            x = layers.Concatenate()(
                [
                    convolution(x, one, 1),
                    convolution(convolution(x, before_two, 1), two, 3),
                    convolution(convolution(x, before_three, 1), three, 3),
                    convolution(layers.MaxPooling2D(3, strides=1, padding="same")(x), after_pool, 1),
                ]
            )
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.4)(x)
    return Model(images, layers.Dense(classes, dtype="float32")(x), name="googlenet")
