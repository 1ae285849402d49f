"""From a TFRecord to an image and its label, inside a pipeline. Each fails on a record that it can't read."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
AREA = (0.08, 1.0)  # of the image, that a random crop covers
ASPECT = (3 / 4, 4 / 3)
CENTRAL = 0.875  # of each side, that validation looks at


def for_training(record: Any, image_size: int, seed: Any, is_flipped: Any) -> tuple[Any, Any]:
    """A random crop, turned over or not, and the label as it is in the record."""
    encoded, label = parsed(record)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.zeros([1, 0, 4]),
        seed,
        aspect_ratio_range=ASPECT,
        area_range=AREA,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    image = resized_crop(encoded, tf.concat([begin[:2], size[:2]], axis=0), image_size)
    return tf.cond(is_flipped, lambda: tf.reverse(image, axis=[1]), lambda: image), label


def for_validation(record: Any, image_size: int) -> tuple[Any, Any]:
    """The middle, and the label as it is in the record."""
    encoded, label = parsed(record)
    shape = tf.io.extract_jpeg_shape(encoded)[:2]
    size = tf.cast(tf.round(CENTRAL * tf.cast(shape, tf.float32)), tf.int32)
    return resized_crop(encoded, tf.concat([(shape - size) // 2, size], axis=0), image_size), label


def parsed(record: Any) -> tuple[Any, Any]:
    fields = tf.io.parse_single_example(record, FEATURES)
    return fields["image/encoded"], fields["image/class/label"]


def resized_crop(encoded: Any, window: Any, image_size: int) -> Any:
    """Only the window is decoded: above it the bits are passed over, below it nothing is read. The way is the fast
    one, which changes a value here and there by one or two; and TensorFlow resizes floats faster than bytes."""
    image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3, fancy_upscaling=False, dct_method="INTEGER_FAST")
    image = tf.image.resize(tf.cast(image, tf.float32), (image_size, image_size))
    return tf.ensure_shape(tf.cast(image, tf.uint8), (image_size, image_size, 3))
