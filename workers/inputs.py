"""Images and labels for a rank: synthetic, or decoded from ImageNet-convention TFRecords.

A folder holds `train-00000-of-00008`, …; a record holds `image/encoded` (JPEG) and `image/class/label`. Labels
count from 1, as in ImageNet's files, where 0 is the background class.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from workers.contract import TrialConfig
from workers.rank import Infeasible
from workers.ring import Ring

MEAN_RGB = (123.675, 116.28, 103.53)
STDDEV_RGB = (58.395, 57.12, 57.375)


def shards(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob("train-*-of-*"))


def cores_here() -> int:
    """Physical cores of this node."""
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def threads_for(config: TrialConfig, ring: Ring, cores: int) -> int:
    """This rank's part of the node's decode threads."""
    wanted = config.decode_threads
    threads = max(ring.local_size, cores - 4 * ring.local_size) if isinstance(wanted, str) else wanted
    if threads < ring.local_size:
        raise Infeasible(
            "too few decode threads",
            f"every rank needs one, but {threads} are asked for the {ring.local_size} ranks of this node",
        )
    return threads // ring.local_size + (ring.local_rank < threads % ring.local_size)


def open_input(config: TrialConfig, ring: Ring, cores: int) -> Iterator[tuple[Any, Any]]:
    """An endless stream of (images, labels), one batch of this rank's at a time."""
    if config.data == "synthetic":
        return synthetic(config, ring)
    return iter(records(config, ring, threads_for(config, ring, cores)))


def synthetic(config: TrialConfig, ring: Ring) -> Iterator[tuple[Any, Any]]:
    """One random batch, made once and already on the device."""
    import tensorflow as tf

    seed = (config.seed, ring.rank)
    shape = (config.batch_size, config.image_size, config.image_size, 3)
    images = tf.random.stateless_normal(shape, seed)
    labels = tf.random.stateless_uniform((config.batch_size,), seed, 0, config.classes, tf.int32)
    while True:
        yield images, labels


def records(config: TrialConfig, ring: Ring, threads: int) -> Any:
    """Read, shuffle, decode with `threads` threads of the pipeline's own, batch, prefetch."""
    import tensorflow as tf

    files = shards(config.data)
    if not files:
        raise FileNotFoundError(f"no TFRecords named train-*-of-* in {config.data}")
    data = tf.data.TFRecordDataset(files).shard(ring.size, ring.rank)
    if sum(1 for _ in zip(range(config.batch_size), data, strict=False)) < config.batch_size:
        raise Infeasible(
            "batch larger than the data",
            f"rank {ring.rank} reads fewer than {config.batch_size} images of {config.data}",
        )
    data = data.repeat().shuffle(2 * config.batch_size, seed=config.seed)

    def image_and_label(record: Any) -> tuple[Any, Any]:
        return decode(record, config.image_size, config.classes)

    plain = tf.autograph.experimental.do_not_convert(image_and_label)  # converted, it leaves a file in /tmp
    data = data.map(plain, num_parallel_calls=threads, deterministic=False)
    data = data.batch(config.batch_size, drop_remainder=True).prefetch(2)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = threads
    return data.with_options(options)


def decode(record: Any, image_size: int, classes: int) -> tuple[Any, Any]:
    """A random crop of the JPEG, decoded alone (the rest of the image is skipped), resized, flipped, normalised."""
    import tensorflow as tf

    fields = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    encoded = fields["image/encoded"]
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.zeros([1, 0, 4]),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_FAST")
    image = tf.image.resize(image, (image_size, image_size))
    image = tf.image.random_flip_left_right(image)
    image = (image - tf.constant(MEAN_RGB)) / tf.constant(STDDEV_RGB)
    label = tf.cast(fields["image/class/label"], tf.int32) - 1
    return image, tf.ensure_shape(tf.minimum(label, classes - 1), [])
