"""Every format that is found in sets of images: decoded as Pillow decodes it, at its place, none left out."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.integration.input_sets import Sources, open_source
from tests.unit.planted_sets import jpeg, labels_and_weights, refusal, write
from workers.contract.ranks import Fault

WIDTH, HEIGHT, SIDE = 60, 44, 24
ACROSS = np.linspace(0, 255, WIDTH)[None, :] + np.zeros((HEIGHT, 1))
DOWN = np.linspace(0, 255, HEIGHT)[:, None] + np.zeros((1, WIDTH))
GREY = ACROSS.astype(np.uint8)
RGB = np.stack([ACROSS, DOWN, 255 - (ACROSS + DOWN) / 2], axis=-1).astype(np.uint8)
CMYK = np.stack([ACROSS, DOWN, 255 - ACROSS, DOWN / 3], axis=-1).astype(np.uint8)
ALPHA = np.concatenate([RGB, GREY[..., None]], axis=-1)
DEEP = (ACROSS * 257 - 100).clip(0).astype(np.uint16)  # 16 bits


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def cmyk(inks: Any = CMYK) -> bytes:
    return saved(Image.frombytes("CMYK", (WIDTH, HEIGHT), inks.tobytes()), "JPEG", quality=95)


def without_adobe(encoded: bytes) -> bytes:
    """The same without Adobe's marker, which says that the inks are turned over."""
    at = encoded.index(b"\xff\xee")
    return encoded[:at] + encoded[at + 2 + int.from_bytes(encoded[at + 2 : at + 4], "big") :]


def as_ycck(encoded: bytes) -> bytes:
    """The same numbers, said by Adobe's marker to be luma, two of chroma, and black."""
    at = encoded.index(b"Adobe") + 11
    assert encoded[at] == 0
    return encoded[:at] + b"\2" + encoded[at + 1 :]


FORMATS: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: saved(Image.fromarray(RGB), "JPEG", quality=95),
    "jpeg, progressive": lambda: saved(Image.fromarray(RGB), "JPEG", quality=95, progressive=True),
    "jpeg, grey": lambda: saved(Image.fromarray(GREY), "JPEG", quality=95),
    "jpeg, CMYK": cmyk,
    "jpeg, YCCK": lambda: as_ycck(cmyk()),
    "jpeg, CMYK without Adobe's marker": lambda: without_adobe(cmyk(255 - CMYK)),
    "png": lambda: saved(Image.fromarray(RGB), "PNG"),
    "png, alpha": lambda: saved(Image.fromarray(ALPHA), "PNG"),
    "png, grey": lambda: saved(Image.fromarray(GREY), "PNG"),
    "png, grey and alpha": lambda: saved(Image.fromarray(ALPHA).convert("LA"), "PNG"),
    "png, palette": lambda: saved(Image.fromarray(RGB).quantize(64), "PNG"),
    "png, 1 bit": lambda: saved(Image.fromarray(GREY).convert("1"), "PNG"),
    "png, 16 bits": lambda: saved(Image.fromarray(DEEP), "PNG"),
    "gif": lambda: saved(Image.fromarray(RGB), "GIF"),
    "gif, of two pictures": lambda: saved(
        Image.fromarray(RGB), "GIF", save_all=True, append_images=[Image.fromarray(255 - RGB)]
    ),
    "bmp": lambda: saved(Image.fromarray(RGB), "BMP"),
}


def in_rgb(name: str) -> Image.Image:
    """As Pillow has it, which can't bring 16 bits to 8, and takes all inks to be turned over."""
    image = Image.open(io.BytesIO(cmyk() if "without Adobe" in name else FORMATS[name]()))
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    return image.convert("RGB")


def decoded(folder: Path) -> tuple[Any, Any]:
    """Each format's image as validation sees it, and as three epochs of training do."""
    change = {n: (encode(), n + 1) for n, encode in enumerate(FORMATS.values())}
    for split in ("train", "validation"):
        write(folder, [len(FORMATS)], split, change)
    fields = {"protocol": "convergence", "image_size": SIDE, "classes": len(FORMATS), "batch_size": len(FORMATS)}
    source = open_source(folder, **fields)
    ((judged, labels, weights),) = source.validation()
    assert np.asarray(labels).tolist() == list(range(len(FORMATS)))
    assert np.asarray(weights).tolist() == [1] * len(FORMATS)
    learnt: list[Any] = [None] * len(FORMATS)
    for epoch in range(3):
        ((pictures, labels, weights),) = source.epoch(epoch)
        assert np.asarray(weights).min() > 0
        for picture, label in zip(np.asarray(pictures), np.asarray(labels), strict=True):
            learnt[label] = [*(learnt[label] or []), picture]
    assert source.skipped == 0
    source.check()
    return np.asarray(judged), np.array(learnt)


@pytest.fixture(scope="module")
def all_decoded(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    judged, learnt = sources(decoded, tmp_path_factory.mktemp("formats") / "set")
    return judged, learnt


@pytest.mark.parametrize("name", FORMATS)
def test_validation_sees_the_middle_of_the_image_that_pillow_sees(all_decoded: tuple[Any, Any], name: str) -> None:
    n = list(FORMATS).index(name)
    high, wide = round(0.875 * HEIGHT), round(0.875 * WIDTH)
    top, left = (HEIGHT - high) // 2, (WIDTH - wide) // 2
    whole = in_rgb(name)
    middle = whole.crop((left, top, left + wide, top + high))
    # without Pillow's smoothing, which neither TensorFlow's resizing has nor OpenCV's
    at = [((np.arange(SIDE) + 0.5) * side / SIDE - 0.5).clip(0, side - 1) for side in (high, wide)]
    low, part = zip(*((np.floor(a).astype(int), a % 1) for a in at), strict=True)
    pixels = np.asarray(middle).astype(float)
    rows = [np.minimum(low[0] + step, high - 1) for step in (0, 1)]
    columns = [np.minimum(low[1] + step, wide - 1) for step in (0, 1)]
    down, across = part[0][:, None, None], part[1][None, :, None]
    expected = sum(
        pixels[rows[y]][:, columns[x]] * (down if y else 1 - down) * (across if x else 1 - across)
        for y in (0, 1)
        for x in (0, 1)
    )
    difference = np.abs(all_decoded[0][n] - expected)
    assert difference.mean() < (2.5 if name.startswith("jpeg") else 0.6)
    assert difference.max() < (12 if name.startswith("jpeg") else 1.01)


@pytest.mark.parametrize("name", ["png", "gif", "bmp", "jpeg, CMYK"])
def test_training_sees_other_crops_of_it_in_its_colours(all_decoded: tuple[Any, Any], name: str) -> None:
    crops = all_decoded[1][list(FORMATS).index(name)]
    assert len({crop.tobytes() for crop in crops}) == len(crops)
    colours = np.asarray(in_rgb(name)).reshape(-1, 3).astype(int)
    for pixel in crops[:, 2:-2:7, 2:-2:7].reshape(-1, 3).astype(int):
        assert np.abs(colours - pixel).max(axis=1).min() <= 12  # a colour that the image has


def as_imagenet(folder: Path) -> tuple[Any, int]:
    """One PNG and 22 CMYK JPEGs among 500, as among ILSVRC2012's 1,281,167."""
    change = {n: (FORMATS["jpeg, CMYK"](), n + 1) for n in range(7, 500, 23)}
    change[123] = (FORMATS["png"](), 124)
    write(folder, [250, 250], change=change)
    source = open_source(folder, batch_size=20)
    labels, weights = labels_and_weights(source.epoch(0))
    source.check()
    return labels[weights > 0], source.skipped


def test_imagenets_png_and_its_cmyk_images_are_learnt_from(sources: Sources, tmp_path: Path) -> None:
    labels, skipped = sources(as_imagenet, tmp_path / "set")
    assert skipped == 0
    assert sorted(labels) == list(range(500))


def damaged_pngs(folder: Path) -> tuple[str, str]:
    png = FORMATS["png"]()
    bad = (png[:40], png[: len(png) // 2], png[:60] + b"\0\0\0\0" + png[64:])
    write(folder, [60], change={n: (encoded, n + 1) for n, encoded in zip((20, 30, 40), bad, strict=True)})
    source = open_source(folder, batch_size=20)
    labels, weights = labels_and_weights(source.epoch(0))
    assert sorted(labels[weights > 0]) == [n for n in range(60) if n not in (20, 30, 40)]
    assert source.skipped == 3
    return refusal(Fault, source.check)


def test_a_png_that_is_damaged_is_left_out_and_named(sources: Sources, tmp_path: Path) -> None:
    kind, message = sources(damaged_pngs, tmp_path / "set")
    assert kind == "corrupt images"
    assert message.split("the first ")[1] in [f"train-00000-of-00001, record {n}" for n in (20, 30, 40)]


def from_zero(folder: Path) -> Any:
    """Labels 0 to 59 read as such; then with 60 among them, and as ImageNet's would be."""
    write(folder, [60], change={n: (jpeg(), n) for n in range(60)})
    fields = {"batch_size": 20, "classes": 60}
    source = open_source(folder, labels_from=0, **fields)
    labels, weights = labels_and_weights(source.epoch(0))
    source.check()
    assert sorted(labels[weights > 0]) == list(range(60))
    said = []
    for change, labels_from in ((None, 1), ({n: (jpeg(), n or 60) for n in range(60)}, 0)):
        if change:
            write(folder, [60], change=change)
        source = open_source(folder, labels_from=labels_from, **fields)
        labels, weights = labels_and_weights(source.epoch(0))
        assert (weights == 0).sum() == 1
        assert (labels.min(), labels.max()) >= (0, 0)
        assert labels.max() < 60
        said.append(refusal(Fault, source.check)[1])
    return said


def test_labels_count_from_0_where_the_sweep_file_says_so(sources: Sources, tmp_path: Path) -> None:
    as_imagenets, too_far = sources(from_zero, tmp_path / "set")
    assert as_imagenets == (
        "train-00000-of-00001, record 0: image/class/label must be from 1 to 60 (labels_from: 1, classes: 60), "
        "but got 0: if the labels count from 0, set labels_from: 0"
    )
    assert too_far == (
        "train-00000-of-00001, record 0: image/class/label must be from 0 to 59 (labels_from: 0, classes: 60), "
        "but got 60: if the labels count from 1, set labels_from: 1"
    )
