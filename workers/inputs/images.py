"""From a TFRecord to an image and its label, inside a pipeline. Each fails on a record that it can't read.

An image is a JPEG (grey, RGB or CMYK), a PNG (of any depth, its alpha dropped), a GIF (its first picture) or a BMP,
whatever the record says that it is: ImageNet's own files have a PNG and CMYK among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from workers.inputs.crops import AREA, ASPECT, ATTEMPTS, CENTRAL
from workers.inputs.formats import JPEG_START

FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}

Window = Callable[[Any], Any]  # from an image's shape to (top, left, height, width)


def for_training(record: Any, image_size: int, seed: Any, is_flipped: Any) -> tuple[Any, Any]:
    """Return a random crop, turned over or not, and the label as it is in the record."""
    encoded, label = parsed(record)

    def random_window(shape: Any) -> Any:
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            seed,
            aspect_ratio_range=ASPECT,
            area_range=AREA,
            max_attempts=ATTEMPTS,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([begin[:2], size[:2]], axis=0)

    image = resized_crop(encoded, random_window, image_size)
    return tf.cond(is_flipped, lambda: tf.reverse(image, axis=[1]), lambda: image), label


def for_validation(record: Any, image_size: int) -> tuple[Any, Any]:
    """Return the middle, and the label as it is in the record."""
    encoded, label = parsed(record)

    def middle(shape: Any) -> Any:
        size = tf.cast(tf.round(CENTRAL * tf.cast(shape[:2], tf.float32)), tf.int32)
        return tf.concat([(shape[:2] - size) // 2, size], axis=0)

    return resized_crop(encoded, middle, image_size), label


def parsed(record: Any) -> tuple[Any, Any]:
    fields = tf.io.parse_single_example(record, FEATURES)
    return fields["image/encoded"], fields["image/class/label"]


def resized_crop(encoded: Any, window: Window, image_size: int) -> Any:
    is_jpeg = tf.strings.substr(encoded, 0, len(JPEG_START)) == JPEG_START
    image = tf.cond(is_jpeg, lambda: jpeg_crop(encoded, window), lambda: other_crop(encoded, window))
    image = tf.image.resize(tf.cast(image, tf.float32), (image_size, image_size))  # faster than bytes are
    return tf.ensure_shape(tf.cast(image, tf.uint8), (image_size, image_size, 3))


def jpeg_crop(encoded: Any, window: Window) -> Any:
    """Only the window is decoded: above it the bits are passed over, below it nothing is read. The way is the fast
    one, which changes a value here and there by one or two. CMYK comes out as RGB."""
    at = window(tf.io.extract_jpeg_shape(encoded))
    return tf.image.decode_and_crop_jpeg(encoded, at, channels=3, fancy_upscaling=False, dct_method="INTEGER_FAST")


def other_crop(encoded: Any, window: Window) -> Any:
    """No other format can be decoded in part."""
    image = tf.ensure_shape(tf.io.decode_image(encoded, channels=3, expand_animations=False), (None, None, 3))
    at = window(tf.shape(image))
    return tf.slice(image, [at[0], at[1], 0], [at[2], at[3], 3])
