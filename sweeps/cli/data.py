"""`sweep data make` and `sweep data check`: a folder of images in TFRecords."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sweeps import errors
from sweeps.cli import completion, options
from sweeps.cli.grammar import CommandGroup, OneOf, Whole
from sweeps.errors import DataError, RefusedError
from workers.contract import datafiles, imagenet
from workers.inputs import labels

if TYPE_CHECKING:
    from workers.inputs.dataset import Split

SPLITS = datafiles.SPLITS["convergence"]

data = CommandGroup("data", help="Make or check a folder of JPEG images in TFRecords.")
folder = options.argument(
    "folder",
    metavar="DIR",
    type=options.FILE,
    help="the folder that holds the set",
    shell_complete=completion.folders,
)
classes = options.option(
    "--classes",
    type=Whole(),
    default=imagenet.CLASSES,
    metavar="N",
    help=f"how many classes it has ({imagenet.CLASSES})",
)


class ImageSize(click.ParamType[tuple[int, int]]):
    name = "WxH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", value)
        if not match:
            self.fail("must be WxH as in 500x375", param, ctx)
        return int(match[1]), int(match[2])


@data.command("make")
@folder
@classes
@options.option("--images", type=Whole(), required=True, metavar="N", help="how many images to make")
@options.option("--shards", type=Whole(), default=8, metavar="N", help="files to spread them over (8)")
@options.option("--size", type=ImageSize(), default="500x375", metavar="WxH", help="of an image in pixels (500x375)")
@options.option("--seed", type=Whole(), default=0, metavar="N", help="another one makes other images (0)")
@options.option("--split", type=OneOf(SPLITS), default=SPLITS[0], help=f"what the set is for ({SPLITS[0]})")
def make(folder: Path, classes: int, images: int, shards: int, size: tuple[int, int], seed: int, split: Split) -> int:
    """Make a set of images that a small network can learn."""
    from workers.inputs import dataset

    width, height = size
    with _refusals():
        recipe = dataset.Recipe(
            images=images,
            shards=shards,
            width_px=width,
            height_px=height,
            classes=classes,
            seed=seed,
            split=split,
        )
        print(dataset.make(folder, recipe))
    return errors.DONE


@data.command("check")
@folder
@classes
@options.option(
    "--labels-from",
    type=OneOf(labels.FIRST),
    default=1,
    help="the first class's label: 1, as in ImageNet's files, or 0 (1)",
)
def check(folder: Path, classes: int, labels_from: int) -> int:
    """Name what is wrong with a set of images."""
    from workers.inputs import dataset

    with _refusals():
        print(dataset.check(folder, classes, labels_from))
    return errors.DONE


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Raise what the data plane refuses as an error of this command."""
    from workers.inputs.dataset import Refusal

    try:
        yield
    except Refusal as refusal:
        raise (RefusedError if refusal.is_of_machine else DataError)(str(refusal)) from None


COMMANDS = (data,)
