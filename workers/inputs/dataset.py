"""Make an ImageNet-convention TFRecord set that a small network can learn, or name what is wrong with one.

A folder holds a set for training and, beside it, one for validation if that was made. Each is made again or
refused without a look at the other. A class looks alike in every set: its colours, its stripes, its blob. The
split and the seed decide the order of the labels and what differs between two images of a class.
`sweep data` asks for both; sweeps/cli/data.py reads its arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from workers.contract import datafiles
from workers.contract.paths import written_whole
from workers.inputs import labels
from workers.inputs.drawn_images import Painter
from workers.inputs.formats import STARTS

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = get_args(Split)
MANIFESTS = {"train": "dataset.json", "validation": "dataset-validation.json"}  # what a finished set was asked to be
UNFINISHED = {"train": "dataset.unfinished", "validation": "dataset-validation.unfinished"}  # while it is being made
SHARDS = {"train": "shards", "validation": "validation shards"}  # in sentences
FAULTS_SHOWN = 10  # of one shard, or missing shards
PLAIN_LINE_EVERY_S = 10.0

T = TypeVar("T")


class Refusal(Exception):  # noqa: N818 — an answer, not an error
    """What is said instead of a result, and whether the machine is why: not what was asked for, nor what is there."""

    def __init__(self, text: str, *, is_of_machine: bool = False) -> None:
        super().__init__(text)
        self.is_of_machine = is_of_machine


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides a set's bytes."""

    images: int
    shards: int
    width_px: int
    height_px: int
    classes: int
    seed: int
    split: Split = "train"
    version: int = 1  # counts up when the same arguments make other images

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= 99_999:
            raise Refusal(f"a set has from 1 to 99999 shards, but got {self.shards}")
        if self.images < self.shards:
            raise Refusal(f"every shard needs an image, but got {self.images} for {self.shards} shards")
        if not (32 <= self.width_px <= 4096 and 32 <= self.height_px <= 4096):
            raise Refusal(f"sides are from 32 to 4096 pixels, but got {self.width_px}x{self.height_px}")
        require_classes(self.classes)
        if self.seed < 0:
            raise Refusal(f"a seed is 0 or more, but got {self.seed}")

    def images_of(self, shard: int) -> int:
        return (shard + 1) * self.images // self.shards - shard * self.images // self.shards

    @property
    def names(self) -> list[str]:
        return shard_names(self.shards, self.split)

    @property
    def stream(self) -> int:
        """What all random numbers start from. No seed on a command line is as large as the step between splits."""
        return self.seed + (SPLITS.index(self.split) << 64)

    def labels(self) -> Iterator[int]:
        """Labels from 1, in a random order in which every class comes once before one comes again."""
        rng = np.random.default_rng((self.stream, 0))
        while True:
            yield from (rng.permutation(self.classes) + 1).tolist()

    def asked(self) -> dict[str, int]:
        """Return what a manifest holds of it. The split is in the manifest's name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "split"}


def require_classes(classes: int) -> None:
    if not 1 <= classes <= 100_000:
        raise Refusal(f"a set has from 1 to 100000 classes, but got {classes}")


def shard_names(shards: int, split: Split = "train") -> list[str]:
    return [f"{split}-{shard:05d}-of-{shards:05d}" for shard in range(shards)]


def found_names(folder: Path, split: Split = "train") -> list[str]:
    """Return the files that training or validation would read, see `workers.inputs.shards`."""
    return sorted(path.name for path in folder.glob(datafiles.pattern(split)))


def make(folder: Path, recipe: Recipe) -> str:
    """Make the set as asked, in the folder; return a line about it."""
    if is_made(folder, recipe):
        shards = f"{recipe.shards} {SHARDS[recipe.split]}"
        return f"{folder} already holds these {recipe.images} images in {shards}: nothing to do"
    claim(folder, recipe)
    tf = tensorflow()
    began, jpeg_bytes = time.perf_counter(), 0
    painter = Painter(recipe.width_px, recipe.height_px, recipe.stream)
    try:
        with contextlib.closing(counted(range(recipe.images), "making images")) as numbers:
            images = zip(recipe.labels(), numbers, strict=False)
            for shard, name in enumerate(recipe.names):
                with written_whole(folder / name) as partial, tf.io.TFRecordWriter(str(partial)) as writer:
                    for _ in range(recipe.images_of(shard)):
                        label, n = next(images)
                        jpeg = painter.jpeg(label, np.random.default_rng((recipe.stream, 3, n)))
                        writer.write(record(tf, recipe, n, label, jpeg))
                        jpeg_bytes += len(jpeg)
            next(numbers, None)  # the bar reaches its end
        seconds = time.perf_counter() - began
        with written_whole(folder / MANIFESTS[recipe.split]) as partial:
            partial.write_text(json.dumps(manifest(folder, recipe)) + "\n")
        (folder / UNFINISHED[recipe.split]).unlink()
    except (OSError, tf.errors.OpError) as error:
        raise Refusal(f"{folder} must take the whole set, but got {error}", is_of_machine=True) from error
    return (
        f"{recipe.images} images in {recipe.shards} {SHARDS[recipe.split]}, "
        f"mean {jpeg_bytes / recipe.images / 1e3:.1f} KB, {recipe.images / seconds:.0f} images/s, in {folder}"
    )


def manifest(folder: Path, recipe: Recipe) -> dict[str, int]:
    file_bytes = sum((folder / name).stat().st_size for name in recipe.names)
    return {**recipe.asked(), "file_bytes": file_bytes}


def is_made(folder: Path, recipe: Recipe) -> bool:
    with contextlib.suppress(OSError, ValueError):
        said = json.loads((folder / MANIFESTS[recipe.split]).read_text())
        return found_names(folder, recipe.split) == recipe.names and said == manifest(folder, recipe)
    return False


def is_begun(folder: Path, split: Split) -> bool:
    """Say whether a set of this split was made here, or its making begun."""
    return any((folder / name).exists() for name in (MANIFESTS[split], UNFINISHED[split]))


def claim(folder: Path, recipe: Recipe) -> None:
    """Take the folder's place for a split. Only a set that was made here, of as many shards, is ever replaced."""
    try:
        if folder.exists() and not folder.is_dir():
            raise Refusal(f"DIR must be a folder, but got a file: {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        found = found_names(folder, recipe.split)
        others = sorted(set(found) - set(recipe.names))
        if not others and not is_begun(folder, recipe.split):
            others = found
        if others:
            raise Refusal(
                f"{folder} must be free for {recipe.shards} {SHARDS[recipe.split]}, but got {len(others)} files of "
                f"another set, first {others[0]}: choose another folder or remove them"
            )
        with written_whole(folder / UNFINISHED[recipe.split]) as partial:
            partial.write_text(json.dumps(recipe.asked()) + "\n")
        (folder / MANIFESTS[recipe.split]).unlink(missing_ok=True)
    except OSError as error:
        raise Refusal(f"{folder} must be writable, but got {error}", is_of_machine=True) from error


def record(tf: Any, recipe: Recipe, n: int, label: int, jpeg: bytes) -> bytes:
    origin = "made" if recipe.split == "train" else f"made_{recipe.split}"
    example = tf.train.Example()
    for name, value in {
        "image/encoded": jpeg,
        "image/class/label": label,
        "image/height": recipe.height_px,
        "image/width": recipe.width_px,
        "image/filename": f"{origin}_{recipe.seed}_{n:08d}.JPEG".encode(),
        "image/colorspace": b"RGB",
        "image/format": b"JPEG",
    }.items():
        feature = example.features.feature[name]
        (feature.int64_list if isinstance(value, int) else feature.bytes_list).value.append(value)
    return bytes(example.SerializeToString(deterministic=True))


class Check:
    """What was found of a split so far."""

    def __init__(self, folder: Path, split: Split, classes: int, labels_from: int) -> None:
        self.split = split
        self.classes = classes
        self.labels_from = labels_from
        self.names = found_names(folder, split)
        self.problems = list(misnamed(self.names, split))
        if not self.names:
            self.problems.append(f"a set has files as {shard_names(8, split)[0]}, but got none in {folder}")
        if (folder / UNFINISHED[split]).exists():
            self.problems.append(f"a set must be finished, but got {UNFINISHED[split]}: make it again")
        self.images = 0
        self.image_bytes = 0
        self.formats: Counter[str] = Counter()
        self.seen: set[int] = set()

    def read(self, tf: Any, path: Path) -> None:
        """Every record of a shard, up to where it can no longer be read."""
        faults: list[str] = []
        index, end_byte = 0, 0
        try:
            # Not tf.data: it would take memory on the node's GPUs.
            for serialized in tf.compat.v1.io.tf_record_iterator(str(path)):
                faults += [f"{path.name}, record {index}: {fault}" for fault in self.faults(tf, serialized)]
                index, end_byte = index + 1, end_byte + len(serialized) + 16
            spare_bytes = path.stat().st_size - end_byte  # TensorFlow overlooks less than a record's head
            if spare_bytes:
                faults.append(f"{path.name}, record {index}: must be whole, but got {spare_bytes} bytes")
            elif not index:
                faults.append(f"{path.name}: a shard must hold records, but got an empty file")
        except (OSError, tf.errors.OpError) as error:
            faults.append(f"{path.name}, record {index}: must be readable, but got {error}")
        self.images += index
        self.problems += faults[:FAULTS_SHOWN]
        if len(faults) > FAULTS_SHOWN:
            self.problems.append(f"{path.name}: and {len(faults) - FAULTS_SHOWN} more")

    def faults(self, tf: Any, serialized: bytes) -> Iterator[str]:
        from google.protobuf.message import DecodeError

        try:
            feature = tf.train.Example.FromString(serialized).features.feature
        except DecodeError as error:
            yield f"must be a tf.train.Example, but got {error}"
            return
        encoded = feature["image/encoded"].bytes_list.value
        label = feature["image/class/label"].int64_list.value
        if len(encoded) != 1:
            yield f"must have one image/encoded, but got {len(encoded)}"
        elif not (form := next((name for start, name in STARTS.items() if encoded[0].startswith(start)), "")):
            yield f"image/encoded must start as a {' or '.join(STARTS.values())} does, but got {encoded[0][:4]!r}"
        else:
            self.formats[form] += 1
        if len(label) != 1:
            yield f"must have one image/class/label, but got {len(label)}"
        elif not labels.is_sound(label[0], self.classes, self.labels_from):
            yield labels.fault(label[0], self.classes, self.labels_from)
        self.image_bytes += sum(map(len, encoded))
        self.seen.update(label)

    def summary(self) -> str:
        among = ", ".join(f"{count} {form}" for form, count in self.formats.most_common() if form != "JPEG")
        return (
            f"{self.images} images{f' ({among})' if among else ''} in {len(self.names)} "
            f"{SHARDS[self.split]}, {len(self.seen)} of {self.classes} classes, "
            f"mean {self.image_bytes / self.images / 1e3:.1f} KB"
        )


def check(folder: Path, classes: int, labels_from: int = 1) -> str:
    """Return a line about each sound set; raise a `Refusal` with a line for each thing that is wrong."""
    require_classes(classes)
    if not os.path.isdir(folder):  # never raises
        raise Refusal(f"DIR must be a folder, but got {'a file' if os.path.exists(folder) else 'nothing'}: {folder}")
    train, validation = (Check(folder, split, classes, labels_from) for split in SPLITS)
    if not train.names:
        raise Refusal("\n".join(train.problems))
    checks = [train, validation] if validation.names or is_begun(folder, "validation") else [train]
    shards = [(check, folder / name) for check in checks for name in check.names]
    tf = tensorflow()
    with contextlib.closing(counted(shards, "checking shards")) as counted_shards:
        for found, path in counted_shards:
            found.read(tf, path)
    problems = [problem for found in checks for problem in found.problems]
    if problems:
        raise Refusal("\n".join(problems))
    return "\n".join(f"{found.summary()}, in {folder}" for found in checks)


def misnamed(names: Sequence[str], split: Split) -> Iterator[str]:
    """Yield what is wrong with a set's file names."""
    counts = {int(match[1]) for name in names if (match := re.fullmatch(rf"{split}-[0-9]{{5}}-of-([0-9]{{5}})", name))}
    right = {name for count in counts for name in shard_names(count, split)}
    for name in sorted(set(names) - right):
        yield f"a shard's name must be as {shard_names(8, split)[0]}, but got {name}"
    if len(counts) > 1:
        yield f"all {SHARDS[split]} must agree on their number, but got {' and '.join(map(str, sorted(counts)))}"
    for count in sorted(counts):
        missing = sorted(set(shard_names(count, split)) - set(names))
        if missing:
            more = f" and {len(missing) - FAULTS_SHOWN} more" if len(missing) > FAULTS_SHOWN else ""
            shown = ", ".join(missing[:FAULTS_SHOWN]) + more
            yield f"all {count} {SHARDS[split]} must be there, but got none named {shown}"


def tensorflow() -> Any:
    """TensorFlow, imported late because it takes seconds, and without what its import writes to stderr."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        import tensorflow as tf
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    tf.get_logger().setLevel("ERROR")
    return tf


def counted(items: Sequence[T], doing: str) -> Generator[T, None, None]:
    """Yield the items, with a bar on a terminal and a line now and then elsewhere."""
    if sys.stderr.isatty():
        from rich import console, progress

        yield from progress.track(items, doing, console=console.Console(stderr=True))
        return
    line_at_s = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() >= line_at_s:
            print(f"{doing}: {done} of {len(items)}", file=sys.stderr, flush=True)
            line_at_s = time.monotonic() + PLAIN_LINE_EVERY_S
        yield item
