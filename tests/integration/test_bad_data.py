"""Data that is damaged, mislabelled, missing or too little: named by file and record."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.input_sets import Sources, open_source
from tests.unit.planted_sets import Ring, jpeg, labels_and_weights, refusal, write
from workers.contract.ranks import Fault, Infeasible
from workers.inputs import shards

NOT_JPEGS = {
    "no JPEG": b"GIF89a",
    "nothing": b"",
    "cut in its head": jpeg()[:60],
    "cut in the middle": jpeg()[: len(jpeg()) // 2],
    "a bad marker": jpeg()[:20] + b"\xff\x01\xff\xc8" + jpeg()[24:],
}


def skipping(folder: Path, images: int, change: dict[int, Any]) -> tuple[Any, Any, int, Any]:
    """Labels and weights of an epoch, what was skipped, and what the check says."""
    write(folder, [images // 2, images - images // 2], change=change)
    source = open_source(folder, batch_size=16)
    labels, weights = labels_and_weights(source.epoch(0))
    try:
        source.check()
    except Fault as fault:
        return labels, weights, source.skipped, (fault.kind, str(fault))
    return labels, weights, source.skipped, None


def test_one_corrupt_jpeg_of_a_thousand_is_left_out_and_counted(sources: Sources, tmp_path: Path) -> None:
    change = {700: (NOT_JPEGS["cut in the middle"], 701)}
    labels, weights, skipped, said = sources(skipping, tmp_path / "set", 1000, change)
    assert (skipped, said) == (1, None)
    assert sorted(labels[weights > 0]) == [n for n in range(1000) if n != 700]
    assert labels.shape == (63, 16)
    np.testing.assert_allclose(weights[:-1].sum(axis=1), 1, rtol=1e-6)


def test_more_than_a_thousandth_fails_and_names_the_first(sources: Sources, tmp_path: Path) -> None:
    change: dict[int, Any] = {
        n: (bad, n + 1) for n, bad in zip((40, 41, 250, 310, 499), NOT_JPEGS.values(), strict=True)
    }
    change[123] = (b"no example at all", None)
    labels, weights, skipped, said = sources(skipping, tmp_path / "set", 500, change)
    assert skipped == 6
    assert sorted(labels[weights > 0]) == [n for n in range(500) if n not in change]
    kind, message = said
    assert kind == "corrupt images"
    assert message.startswith("of 1000 images one may be impossible to decode, but got 6 of 500, the first train-0000")
    file, record = message.split("the first train-0000")[1].split("-of-00002, record ")
    assert 250 * int(file) + int(record) in change


def hopeless(folder: Path) -> Any:
    write(folder, [60], change={n: (b"no JPEG", n + 1) for n in range(60)})
    source = open_source(folder)
    return [refusal(Fault, lambda: next(source.stream())), refusal(Fault, lambda: next(source.epoch(0)))]


def test_a_set_without_one_sound_image_fails_instead_of_being_read_forever(sources: Sources, tmp_path: Path) -> None:
    for kind, message in sources(hopeless, tmp_path / "set"):
        assert kind == "corrupt images"
        assert "train-00000-of-00001, record " in message


def mislabelled(folder: Path, label: int) -> Any:
    write(folder, [30, 30], change={33: (jpeg(), label)})
    source = open_source(folder, classes=60, batch_size=20)
    labels, weights = labels_and_weights(source.epoch(0))
    assert len(labels[weights > 0]) == 59
    assert labels.min() >= 0
    assert labels.max() < 60
    return refusal(Fault, source.check)


@pytest.mark.parametrize("label", [0, 61, -5, 1 << 40])
def test_a_label_outside_the_classes_is_not_learnt_and_fails(sources: Sources, tmp_path: Path, label: int) -> None:
    rule = "image/class/label must be from 1 to 60 (labels_from: 1, classes: 60)"
    kind, message = sources(mislabelled, tmp_path / "set", label)
    assert kind == "label out of range"
    assert message.startswith(f"train-00001-of-00002, record 3: {rule}, but got {label}: ")
    assert message.endswith("set labels_from: 0") == (label == 0)


def damage(path: Path, how: str) -> None:
    """Record 40 of 100, or the first, or the last."""
    heads = list(shards.heads(str(path)))
    content = bytearray(path.read_bytes())
    if how == "cut in a record":
        content = content[: heads[40][0] + 100]
    elif how == "cut at the start":
        content = content[:5]
    elif how == "another byte":
        content[heads[40][0] + 100] ^= 1
    elif how == "another length":
        content[heads[40][0]] ^= 1
    path.write_bytes(content)


def damaged(folder: Path, how: str) -> Any:
    """What is said when an epoch is begun or run, and when a stream comes upon the damage."""
    write(folder, [100] * 4)
    damage(folder / "train-00002-of-00004", how)
    source = open_source(folder, batch_size=20)

    def epoch() -> None:
        for _ in source.epoch(0):
            pass

    def stream() -> None:
        for _ in itertools.islice(source.stream(), 100):
            pass

    return refusal(Fault, epoch), refusal(Fault, stream)


@pytest.mark.parametrize(
    ("how", "record", "what"),
    [
        ("cut in a record", 40, "must be whole, but got 100 bytes"),
        ("another byte", 40, "its content must match its checksum, but does not"),
        ("another length", 40, "its length must match its checksum, but does not"),
    ],
)
def test_a_damaged_shard_fails_with_its_name_and_record(
    sources: Sources, tmp_path: Path, how: str, record: int, what: str
) -> None:
    expected = ("damaged data", f"train-00002-of-00004, record {record}: {what}")
    assert sources(damaged, tmp_path / "set", how) == (expected, expected)


def cut_at_the_start(folder: Path) -> Any:
    write(folder, [100])
    damage(folder / "train-00000-of-00001", "cut at the start")
    source = open_source(folder)
    return refusal(Fault, lambda: source.epoch(0)), refusal(Fault, source.stream)


def test_a_shard_cut_at_its_start_fails_before_anything_is_read(sources: Sources, tmp_path: Path) -> None:
    expected = ("damaged data", "train-00000-of-00001, record 0: must be whole, but got 5 bytes")
    assert sources(cut_at_the_start, tmp_path / "set") == (expected, expected)


def cut_in_mid_run(folder: Path) -> Any:
    write(folder, [2500, 2500])
    batches = open_source(folder, batch_size=20, classes=5000).stream()
    next(batches)
    for name in ("train-00000-of-00002", "train-00001-of-00002"):
        path = folder / name
        os.truncate(path, list(shards.heads(str(path)))[2000][0] + 50)
    return refusal(Fault, lambda: [next(batches) for _ in range(1000)])


def test_a_shard_cut_in_mid_run_fails_with_its_name_and_record(sources: Sources, tmp_path: Path) -> None:
    kind, message = sources(cut_in_mid_run, tmp_path / "set")
    assert kind == "damaged data"
    assert message in [f"train-0000{n}-of-00002, record 2000: must be whole, but got 50 bytes" for n in (0, 1)]


def vanished(folder: Path) -> Any:
    write(folder, [100, 100])
    source = open_source(folder)
    batches = source.epoch(0)
    shutil.rmtree(folder)
    return refusal(Fault, lambda: list(batches))


def test_a_set_that_goes_away_fails_with_what_is_missing(sources: Sources, tmp_path: Path) -> None:
    kind, message = sources(vanished, tmp_path / "set")
    assert kind == "unreadable data"
    assert "train-0000" in message


def without_files(folder: Path) -> Any:
    folder.mkdir()
    empty = refusal(Fault, lambda: open_source(folder))
    write(folder, [10])
    return empty, refusal(Fault, lambda: open_source(folder, protocol="convergence"))


def test_a_folder_without_the_files_that_are_needed_is_refused(sources: Sources, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    empty, no_validation = sources(without_files, folder)
    assert empty == ("no data", f"data must be a folder with files as train-00000-of-00008, but got {folder}")
    needed = f"convergence needs files as validation-00000-of-00008, but got none in {folder}"
    cure = f"sweep data make {folder} --split validation … makes them"
    assert no_validation == ("no validation data", f"{needed}: {cure}")


def too_few(folder: Path) -> Any:
    write(folder, [5, 9])
    ring = Ring(0, 2, [5, 9])
    enough = open_source(folder, ring, batch_size=5)
    next(enough.stream())
    next(enough.epoch(0))
    source = open_source(folder, ring, batch_size=6)
    return refusal(Infeasible, source.stream), refusal(Infeasible, lambda: source.epoch(0))


def test_a_rank_without_a_full_batch_is_infeasible(sources: Sources, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    expected = ("batch larger than the data", f"rank 0 has 5 images of {folder} for a batch of 6")
    assert sources(too_few, folder) == (expected, expected)


def test_a_stream_looks_at_no_more_files_than_it_must(tmp_path: Path) -> None:
    head = shards.HEAD.pack(3, shards.masked_crc((3).to_bytes(8, "little")))
    whole = tmp_path / "train-00000-of-00002"
    whole.write_bytes((head + b"abc" + bytes(4)) * 10)
    parts = shards.deal([str(whole), str(tmp_path / "train-00001-of-00002")], 0, 1)  # the second is not there
    assert shards.holds(parts, 10)
    with pytest.raises(FileNotFoundError):
        shards.holds(parts, 11)


def test_checksums_are_those_of_tfrecord() -> None:
    assert shards.masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
