"""Draws images that a small network can learn: each class has colours, stripes and a blob of its own."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

JPEG_QUALITY = 91
POOL_MARGIN_PX = 512

Floats = npt.NDArray[np.float32]


class Painter:
    """Draws images of one size: texture, over a sum of few products of a column and a row."""

    def __init__(self, width_px: int, height_px: int, seed: int) -> None:
        self.x = np.arange(width_px) / width_px
        self.y = np.arange(height_px) / width_px
        pool = (height_px + POOL_MARGIN_PX, width_px + POOL_MARGIN_PX)
        self.texture = texture(*pool, np.random.default_rng((seed, 2)))

    def jpeg(self, label: int, rng: np.random.Generator) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(self.paint(label, rng)).save(buffer, "JPEG", quality=JPEG_QUALITY)
        return buffer.getvalue()

    def paint(self, label: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
        shared = np.random.default_rng((label, 1))
        ground, blob = shared.uniform(50, 200, (2, 3))
        stripe = shared.uniform(-45, 45, 3)
        cycles = shared.uniform(2, 12) * rng.uniform(0.9, 1.1)
        angle = shared.uniform(0, math.pi) + rng.uniform(-0.1, 0.1)
        radius = shared.uniform(0.06, 0.2)

        x0, y0 = rng.uniform(0.15, 0.85, 2) * (1, len(self.y) / len(self.x))
        across = 2 * math.pi * (cycles * math.cos(angle) * self.x + rng.uniform())
        down = 2 * math.pi * cycles * math.sin(angle) * self.y
        light, slope = rng.normal(0, (12, 30))
        flat_x, flat_y = np.ones_like(self.x), np.ones_like(self.y)
        columns = [flat_y, self.y, np.cos(down), -np.sin(down), bump(self.y - y0, radius)]
        rows = [flat_x, flat_x, np.cos(across), np.sin(across), bump(self.x - x0, radius)]
        colours = [ground + light, np.full(3, slope), stripe, stripe, blob - ground]
        left = np.stack(columns, axis=1, dtype=np.float32)
        right = np.einsum("kx,kc->kxc", rows, colours).astype(np.float32)
        image = (left @ right.reshape(len(rows), -1)).reshape(len(self.y), len(self.x), 3)

        top, start = rng.integers(0, POOL_MARGIN_PX, 2)
        grain = self.texture[top : top + len(self.y), start : start + len(self.x)]
        image += grain * np.float32(rng.uniform(0.6, 1.4))
        pixels: npt.NDArray[np.uint8] = np.clip(image, 0, 255, out=image).astype(np.uint8)
        return pixels


def bump(distance: npt.NDArray[np.float64], width: float) -> Any:
    return np.exp(-((distance / width) ** 2) / 2)


def texture(height_px: int, width_px: int, rng: np.random.Generator) -> Floats:
    """Grain to cut pieces from: coarse and fine, mostly grey, so that JPEGs get the size of photographs."""
    total = rng.normal(0, 5, (height_px, width_px, 3)).astype(np.float32)
    for scale_px, deviation in ((1, 14), (2, 10), (4, 8), (16, 8), (64, 8)):
        coarse = rng.normal(0, deviation, (height_px // scale_px + 2, width_px // scale_px + 2))
        layer = Image.fromarray(coarse.astype(np.float32))
        total += np.asarray(layer.resize((width_px, height_px), Image.Resampling.BICUBIC))[:, :, None]
    return total
