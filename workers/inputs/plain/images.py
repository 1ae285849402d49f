"""From a record to an image and its label. While the work is done, other threads of Python's can run.

An image is a JPEG (grey, RGB or CMYK), a PNG (of any depth, its alpha dropped), a GIF (its first picture) or a BMP,
whatever the record says that it is, as in `workers.inputs.images`. JPEGs are decoded by libjpeg-turbo in its fast way,
which changes a value here and there by one or two; the others, those in CMYK, and what it can't read, by Pillow. A
window of it is brought to its size by OpenCV, whose linear interpolation is TensorFlow's: each pixel from the four that
are nearest to it, none smoothed.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageChops

from workers.inputs import crops
from workers.inputs.formats import JPEG_START, STARTS
from workers.inputs.plain import examples

Pixels = npt.NDArray[np.uint8]

cv2.setNumThreads(0)  # what calls it is one of many threads already


class Undecodable(Exception):  # noqa: N818 — a finding about a record, not an error of ours
    """No image with a label can be had from this record."""


class Scratch(threading.local):
    """Memory of one thread's, which a JPEG is decoded into before its window is cut out."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def of(self, size_bytes: int) -> bytearray:
        if len(self._memory) < size_bytes:
            self._memory = bytearray(size_bytes)
        return self._memory


_scratch = Scratch()


class Encoded(NamedTuple):
    """An image that is not decoded yet."""

    content: bytes
    label: int  # as it is in the record
    height: int
    width: int
    is_for_turbo: bool


def looked_at(record: bytes) -> Encoded | Undecodable:
    """Return what a record holds, as far as its heads tell."""
    try:
        content, label = examples.parsed(record)
        if content.startswith(JPEG_START):
            with contextlib.suppress(ValueError):  # then Pillow may know better
                height, width, space, _ = simplejpeg.decode_jpeg_header(content)
                return Encoded(content, label, height, width, is_for_turbo=space not in ("CMYK", "YCCK"))
        with opened(content) as image:
            return Encoded(content, label, image.height, image.width, is_for_turbo=False)
    except examples.NoExample as why:
        return Undecodable(str(why))
    except Undecodable as why:
        return why


def fill(image: Pixels, encoded: Encoded | Undecodable, view: crops.CropView) -> int | Undecodable:
    """Fill an image with what is seen of another, larger or smaller; return its label."""
    if isinstance(encoded, Undecodable):
        return encoded
    try:
        whole = by_turbo(encoded) if encoded.is_for_turbo else None
        whole = by_pillow(encoded.content) if whole is None else whole
    except Undecodable as why:
        return why
    top, left, height, width = view.window
    part = whole[top : top + height, left : left + width]
    cv2.resize(part, image.shape[1::-1], dst=image, interpolation=cv2.INTER_LINEAR)
    if view.is_flipped:
        cv2.flip(image, 1, dst=image)
    return encoded.label


def by_turbo(encoded: Encoded) -> Pixels | None:
    """Return a JPEG's pixels, good until this thread decodes the next; none where it has a fault, which may be one that
    harms no pixel."""
    memory = _scratch.of(3 * encoded.height * encoded.width)
    try:
        whole: Pixels = simplejpeg.decode_jpeg(encoded.content, fastdct=True, fastupsample=True, buffer=memory)
    except ValueError:
        return None
    return whole


def by_pillow(content: bytes) -> Pixels:
    with opened(content) as image:
        image.load()
        if image.mode.startswith("I"):  # 16 bits of grey: the upper eight
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
        if image.mode == "CMYK" and "adobe" not in image.info:
            image = ImageChops.invert(image)  # Pillow takes all inks to be turned over, as Adobe's are
        image.info.pop("transparency", None)  # as alpha, it is dropped
        return np.asarray(image.convert("RGB"))


@contextlib.contextmanager
def opened(content: bytes) -> Iterator[Any]:
    """Open an image by Pillow, whose readers raise whatever a bad byte leads them to."""
    try:
        with Image.open(io.BytesIO(content), formats=tuple(STARTS.values())) as image:
            yield image
    except MemoryError:
        raise
    except Exception as error:
        raise Undecodable(str(error)) from error
