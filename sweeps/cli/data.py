"""`sweep data make` and `sweep data check`: a folder of images in TFRecords."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sweeps import errors
from sweeps.errors import DataError, RefusedError
from workers.contract import datafiles, imagenet
from workers.inputs import labels

SPLITS = datafiles.SPLITS["convergence"]


def arguments(to: argparse.ArgumentParser) -> None:
    commands = to.add_subparsers(title="commands", metavar="COMMAND", required=True)
    says = {
        "make": "make a set of images that a small network can learn",
        "check": "name what is wrong with a set of images",
    }
    making, checking = (
        commands.add_parser(name, help=it, description=it, allow_abbrev=False) for name, it in says.items()
    )
    making.set_defaults(answer=make)
    checking.set_defaults(answer=check)
    for one in (making, checking):
        one.add_argument("folder", metavar="DIR", type=Path, help="the folder that holds the set")
        classes = f"how many classes it has ({imagenet.CLASSES})"
        one.add_argument("--classes", type=_whole, default=imagenet.CLASSES, metavar="N", help=classes)
    making.add_argument("--images", type=_whole, required=True, metavar="N", help="how many images to make")
    making.add_argument("--shards", type=_whole, default=8, metavar="N", help="files to spread them over (8)")
    making.add_argument("--size", type=_size, default=(500, 375), metavar="WxH", help="of an image in pixels (500x375)")
    making.add_argument("--seed", type=_whole, default=0, metavar="N", help="another one makes other images (0)")
    making.add_argument("--split", choices=SPLITS, default=SPLITS[0], help=f"what the set is for ({SPLITS[0]})")
    first = "the first class's label: 1, as in ImageNet's files, or 0 (1)"
    checking.add_argument("--labels-from", type=int, choices=labels.FIRST, default=1, help=first)


def make(args: argparse.Namespace) -> int:
    from workers.inputs import dataset

    with _refusals():
        recipe = dataset.Recipe(
            images=args.images,
            shards=args.shards,
            width_px=args.size[0],
            height_px=args.size[1],
            classes=args.classes,
            seed=args.seed,
            split=args.split,
        )
        print(dataset.make(args.folder, recipe))
    return errors.DONE


def check(args: argparse.Namespace) -> int:
    from workers.inputs import dataset

    with _refusals():
        print(dataset.check(args.folder, args.classes, args.labels_from))
    return errors.DONE


@contextmanager
def _refusals() -> Iterator[None]:
    """What the data plane refuses, as an error of this command."""
    from workers.inputs.dataset import Refusal

    try:
        yield
    except Refusal as refusal:
        raise (RefusedError if refusal.is_of_machine else DataError)(str(refusal)) from None


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,15}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, but got {text!r}")
    return int(text)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", text)
    if not match:
        raise argparse.ArgumentTypeError(f"must be WxH as in 500x375, but got {text!r}")
    return int(match[1]), int(match[2])
