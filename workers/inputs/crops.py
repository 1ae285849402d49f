"""Which part of an image is looked at: a random one in training, the middle in validation."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

AREA = (0.08, 1.0)  # of the image, that a random crop covers
ASPECT = (3 / 4, 4 / 3)  # its width over its height
CENTRAL = 0.875  # of each side, that validation looks at
ATTEMPTS = 10  # at a crop that fits, before the whole image is taken


class CropWindow(NamedTuple):
    top: int
    left: int
    height: int
    width: int


class CropView(NamedTuple):
    """What is seen of an image."""

    window: CropWindow
    is_flipped: bool = False


def random_view(rng: random.Random, height: int, width: int) -> CropView:
    return CropView(random_window(rng, height, width), is_flipped=rng.random() < 0.5)


def random_window(rng: random.Random, height: int, width: int) -> CropWindow:
    """Return a window as TensorFlow's `sample_distorted_bounding_box` draws it: its aspect first, then one of the
    heights that its area allows, each as likely as the next, then its place."""
    least, most = (part * height * width for part in AREA)
    for _ in range(ATTEMPTS):
        aspect = rng.uniform(*ASPECT)
        tallest = min(height, round(math.sqrt(most / aspect)), int((width + 0.499) / aspect))
        high = rng.randint(min(round(math.sqrt(least / aspect)), tallest), tallest)
        wide = round(high * aspect)
        if least <= high * wide <= most and 0 < wide <= width:
            return CropWindow(rng.randint(0, height - high), rng.randint(0, width - wide), high, wide)
    return CropWindow(0, 0, height, width)


def middle(height: int, width: int) -> CropView:
    high, wide = round(CENTRAL * height), round(CENTRAL * width)
    return CropView(CropWindow((height - high) // 2, (width - wide) // 2, high, wide))
