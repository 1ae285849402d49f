"""Sets of images written by hand, for tests: TFRecord files of `tf.train.Example`s, without a framework.

A label tells one image from another. Rings that know how the records of a set are dealt, and what is asked of a source.
"""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.unit import records
from workers.contract import messages
from workers.inputs import shards

CLASSES = 3000
Change = Mapping[int, tuple[bytes, int | None]]


class Ring:
    """Rank r of n: knows each rank's count of a set with these files."""

    def __init__(self, rank: int, size: int, *file_sizes: Sequence[int]) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = 0, 1
        self._counts = [counts(sizes, size) for sizes in file_sizes]

    def total(self, values: Any) -> Any:
        """Sum over ranks that have counted as far as this one has."""
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


def config(folder: Path | str, **fields: Any) -> messages.TrialConfig:
    base = records.config(batch_size=4)
    content = {"data": str(folder), "image_size": 8, "classes": CLASSES, "decode_threads": 2} | fields
    return messages.trial_config({**messages.to_json(base), **content})


def jpeg(width: int = 40, height: int = 32, seed: int = 0) -> bytes:
    """A smooth gradient: light changes from left to right."""
    light = np.linspace(20, 235, width)[None, :, None] + np.zeros((height, 1, 3)) + seed % 16
    buffer = io.BytesIO()
    Image.fromarray(light.astype(np.uint8)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write(folder: Path, file_sizes: Sequence[int], split: str = "train", change: Change | None = None) -> Path:
    """Files of so many records, the n-th labelled n + 1. `change` may give other (jpeg, label) for an n."""
    folder.mkdir(exist_ok=True)
    numbers, picture = itertools.count(), jpeg()
    for file, size in enumerate(file_sizes):
        with (folder / f"{split}-{file:05d}-of-{len(file_sizes):05d}").open("wb") as stream:
            for n in itertools.islice(numbers, size):
                encoded, label = (change or {}).get(n, (picture, n + 1))
                stream.write(tfrecord(encoded if label is None else example(encoded, label)))
    return folder


def tfrecord(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return b"".join(part + struct.pack("<I", shards.masked_crc(part)) for part in (length, content))


def example(encoded: bytes, label: int, **others: bytes) -> bytes:
    """A `tf.train.Example` as protobuf lays it out: features (1) of entries (1) of a name (1) and its list (2)."""
    values = {name.encode(): delimited(1, delimited(1, value)) for name, value in others.items()}
    values[b"image/encoded"] = delimited(1, delimited(1, encoded))  # bytes_list
    values[b"image/class/label"] = delimited(3, delimited(1, varint(label % 2**64)))  # int64_list, packed
    entries = b"".join(delimited(1, delimited(1, name) + delimited(2, value)) for name, value in values.items())
    return delimited(1, entries)


def delimited(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def labels_and_weights(batches: Any) -> tuple[Any, Any]:
    """Return the labels and weights of every batch of a pass."""
    read = [(np.asarray(labels), np.asarray(weights)) for _, labels, weights in batches]
    return np.array([labels for labels, _ in read]), np.array([weights for _, weights in read])


def refusal(kind: type[Exception], call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except kind as refused:
        return refused.kind, str(refused)  # type: ignore[attr-defined]
    raise AssertionError("nothing was raised")
