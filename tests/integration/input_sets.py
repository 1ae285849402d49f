"""Sets of images made for tests, rings that know their counts, and a process of its own that may read them."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.conftest import MARK
from workers.contract import messages
from workers.inputs import opening
from workers.inputs.source import Source
from workers.strategies.ring import Solo

CLASSES = 3000  # in these sets a label tells one image from another


class Elsewhere:
    """Calls functions of this module in a process that may start TensorFlow."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=without_gpu)
        mark = os.environ.pop(MARK, None)  # the process it starts is nothing that a fork server left behind
        self._pool.submit(os.getpid).result()
        if mark:
            os.environ[MARK] = mark

    def __call__(self, function: Callable[..., Any], *arguments: object) -> Any:
        return self._pool.submit(function, *arguments).result(timeout=240)

    def close(self) -> None:
        self._pool.shutdown()


def without_gpu() -> None:
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


class Ring:
    """Rank r of n: knows each rank's count of a set with these files."""

    def __init__(self, rank: int, size: int, *file_sizes: Sequence[int]) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = 0, 1
        self._counts = [counts(sizes, size) for sizes in file_sizes]

    def total(self, values: Any) -> Any:
        """Of ranks that have counted as far as this one has."""
        *counts, is_counting = values.tolist()
        assert sum(counts) == counts[self.rank]
        if is_counting:
            return values
        (known,) = (known for known in self._counts if known[self.rank] == counts[self.rank])
        return np.array([*known, 0])


def counts(file_sizes: Sequence[int], ranks: int) -> list[int]:
    """Records of each rank, by the rule: whole files first, then record by record."""
    whole = len(file_sizes) // ranks * ranks
    owned = [0] * ranks
    for file, size in enumerate(file_sizes):
        for record in range(size):
            owned[file % ranks if file < whole else record % ranks] += 1
    return owned


def config(folder: Path | str, **fields: Any) -> Any:
    from tests.unit import records

    base = records.config(batch_size=4)
    content = {"data": str(folder), "image_size": 8, "classes": CLASSES, "decode_threads": 2} | fields
    return messages.trial_config({**messages.to_json(base), **content})


def open_source(folder: Path | str, ring: Any = None, **fields: Any) -> Source:
    asked, ring = config(folder, **fields), ring or Solo()
    return opening.open_source(asked, ring, opening.cores_here(asked, ring.local_size))


def jpeg(width: int = 40, height: int = 32, seed: int = 0) -> bytes:
    """A smooth gradient: light changes from left to right."""
    light = np.linspace(20, 235, width)[None, :, None] + np.zeros((height, 1, 3)) + seed % 16
    buffer = io.BytesIO()
    Image.fromarray(light.astype(np.uint8)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write(folder: Path, file_sizes: Sequence[int], split: str = "train", change: Any = None) -> Path:
    """Files of so many records, the n-th labelled n + 1. `change` may give other (jpeg, label) for an n."""
    import tensorflow as tf

    folder.mkdir(exist_ok=True)
    numbers, picture = itertools.count(), jpeg()
    for file, size in enumerate(file_sizes):
        with tf.io.TFRecordWriter(str(folder / f"{split}-{file:05d}-of-{len(file_sizes):05d}")) as writer:
            for n in itertools.islice(numbers, size):
                encoded, label = (change or {}).get(n, (picture, n + 1))
                writer.write(encoded if label is None else example(encoded, label))
    return folder


def example(encoded: bytes, label: int) -> bytes:
    import tensorflow as tf

    made = tf.train.Example()
    made.features.feature["image/encoded"].bytes_list.value.append(encoded)
    made.features.feature["image/class/label"].int64_list.value.append(label)
    return bytes(made.SerializeToString())


def labels_and_weights(batches: Any) -> tuple[Any, Any]:
    """Of every batch of a pass."""
    read = [(labels.numpy(), weights.numpy()) for _, labels, weights in batches]
    return np.array([labels for labels, _ in read]), np.array([weights for _, weights in read])


def refusal(kind: type[Exception], call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except kind as refused:
        return refused.kind, str(refused)  # type: ignore[attr-defined]
    raise AssertionError("nothing was raised")
