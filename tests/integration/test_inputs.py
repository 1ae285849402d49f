"""What a rank is given to learn from: its part of the images, how they are weighed, and what is said of bad data.

TensorFlow runs in one other process, for other tests fork this one. There, ranks are simulated one after the
other: a stand-in for the ring knows what the others would have said.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import MARK
from tests.integration.gangs import gang
from workers import contract, inputs, pinning
from workers.inputs import padding, shards, threads
from workers.rank import Fault, Infeasible, Seat, Voice
from workers.ring import Solo, joined

CLASSES = 3000  # in these sets a label tells one image from another


class Elsewhere:
    """Calls functions of this module in a process that may start TensorFlow."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=without_gpu)
        mark = os.environ.pop(MARK, None)  # the process it starts is nothing that a nursery left behind
        self._pool.submit(os.getpid).result()
        if mark:
            os.environ[MARK] = mark

    def __call__(self, function: Callable[..., Any], *arguments: object) -> Any:
        return self._pool.submit(function, *arguments).result(timeout=240)

    def close(self) -> None:
        self._pool.shutdown()


def without_gpu() -> None:
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    process = Elsewhere()
    yield process
    process.close()


# ---- made here, read there


class Ring:
    """Rank r of n: knows each rank's count of a set with these files."""

    def __init__(self, rank: int, size: int, *file_sizes: Sequence[int]) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = 0, 1
        self._counts = [counts(sizes, size) for sizes in file_sizes]

    def total(self, values: Any) -> Any:
        (known,) = (known for known in self._counts if known[self.rank] == values[self.rank])
        assert values.sum() == values[self.rank]
        return np.array(known)


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
    return contract.trial_config({**contract.to_json(base), **content})


def open_source(folder: Path | str, ring: Any = None, **fields: Any) -> inputs.Source:
    asked, ring = config(folder, **fields), ring or Solo()
    return inputs.open_source(asked, ring, inputs.cores_here(asked, ring.local_size))


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


# ---- every image once


LAYOUTS = [  # ranks, batch, records in each file, records in each validation file
    (1, 4, [10], [7]),
    (1, 5, [6, 1, 10], [4, 3]),
    (2, 4, [8, 8], [5, 2]),
    (2, 3, [9, 2, 12], [3]),
    (3, 2, [14, 15], [6, 1, 1]),
    (4, 2, [3, 11, 17], [3]),
    (5, 2, [23], [1, 1]),
    (3, 7, [7, 6, 6, 7, 6, 6, 5, 8], [1] * 8),
]


def passes(folder: Path, ranks: int, batch: int, train: Sequence[int], validation: Sequence[int]) -> Any:
    """Labels and weights of an epoch and of the validation, [rank, step, image]."""
    write(folder, train)
    write(folder, validation, "validation")
    epochs, validations = [], []
    for rank in range(ranks):
        ring = Ring(rank, ranks, train, validation)
        source = open_source(folder, ring, batch_size=batch, protocol="convergence")
        assert (source.train_images, source.validation_images) == (sum(train), sum(validation))
        epochs.append(labels_and_weights(source.epoch(3)))
        validations.append(labels_and_weights(source.validation()))
        assert source.skipped == 0
        source.check()
    return [[np.array(values) for values in zip(*ranked, strict=True)] for ranked in (epochs, validations)]


@pytest.mark.parametrize(("ranks", "batch", "train", "validation"), LAYOUTS)
def test_every_image_comes_once_at_one_rank_in_as_many_batches(
    elsewhere: Elsewhere, tmp_path: Path, ranks: int, batch: int, train: list[int], validation: list[int]
) -> None:
    epoch, judged = elsewhere(passes, tmp_path / "set", ranks, batch, train, validation)
    for (labels, weights), images in ((epoch, sum(train)), (judged, sum(validation))):
        assert labels.shape == weights.shape == (ranks, labels.shape[1], batch)  # so as many at every rank
        assert sorted(labels[weights > 0]) == list(range(images))
        assert set(labels[weights == 0]) <= set(range(images))  # real images fill up
    labels, weights = epoch
    assert labels.shape[1] == max(-(-count // batch) for count in counts(train, ranks))
    np.testing.assert_allclose(weights.sum(axis=2).mean(axis=0), 1, rtol=1e-6)
    for step in range(labels.shape[1]):
        assert len(set(weights[:, step][weights[:, step] > 0])) == 1  # each real image counts as much
    for rank, count in enumerate(counts(train, ranks)):
        assert (weights[rank] > 0).sum() == count
        assert set(labels[rank][weights[rank] == 0]) <= set(labels[rank][weights[rank] > 0])  # fillers are its own
    assert set(judged[1].ravel()) <= {0.0, 1.0}


def test_the_weights_of_a_step_add_up_to_the_number_of_ranks() -> None:
    images = np.array([10, 7, 3])
    assert padding.steps(images, 4) == 3
    weights = padding.step_weights(images, 4)
    np.testing.assert_allclose(weights, [3 / (4 + 4 + 3), 3 / (4 + 3), 3 / 2])


def test_whole_files_are_dealt_before_any_is_split() -> None:
    paths = [f"file-{n}" for n in range(11)]
    for ranks in (1, 2, 3, 4, 11, 12):
        parts = [shards.deal(paths, rank, ranks) for rank in range(ranks)]
        whole = [part.file for of_rank in parts for part in of_rank if part.every == 1]
        assert len(whole) == len(set(whole)) == 11 // ranks * ranks
        assert {sum(part.every == 1 for part in of_rank) for of_rank in parts} == {11 // ranks}
        for of_rank, rank in zip(parts, range(ranks), strict=True):
            split = [(part.file, part.every, part.first) for part in of_rank if part.file not in whole]
            assert split == [(file, ranks, rank) for file in range(len(whole), 11)]


# ---- order and crops


def orders(folder: Path) -> dict[str, Any]:
    from workers import dataset

    recipe = dataset.Recipe(images=60, shards=3, width_px=48, height_px=40, classes=60, seed=1)
    dataset.make(folder, recipe)

    def images_of(batches: Any) -> Any:
        return np.concatenate([images.numpy() for images, _, _ in batches])

    def ordered(**fields: Any) -> inputs.Source:
        return open_source(folder, classes=60, batch_size=10, **fields)

    one, again, more = ordered(), ordered(decode_threads=1), ordered(decode_threads=5)
    stream = itertools.islice(one.stream(), 12)  # two passes
    rank0, rank1 = (open_source(folder, Ring(rank, 2, [20] * 3), classes=60, batch_size=10) for rank in (0, 1))
    before = set(os.listdir(tempfile.gettempdir()))
    found = {
        "epoch 1": images_of(one.epoch(1)),
        "labels 1": labels_and_weights(one.epoch(1))[0],
        "epoch 1 of another source": images_of(again.epoch(1)),
        "epoch 1, more threads": images_of(more.epoch(1)),
        "epoch 2": images_of(one.epoch(2)),
        "labels 2": labels_and_weights(one.epoch(2))[0],
        "another seed": images_of(ordered(seed=9).epoch(1)),
        "another repeat": images_of(ordered(repeat=1).epoch(1)),
        "stream": [(images.numpy(), labels.numpy(), weights.numpy()) for images, labels, weights in stream],
        "stream again": next(again.stream())[0].numpy(),
        "streams of ranks": [next(rank.stream())[1].numpy() for rank in (rank0, rank1)],
    }
    found["left behind"] = set(os.listdir(tempfile.gettempdir())) - before
    return found


@pytest.fixture(scope="module")
def ordered(elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return elsewhere(orders, tmp_path_factory.mktemp("ordered") / "set")


def test_an_epoch_is_the_same_whenever_it_is_read(ordered: dict[str, Any]) -> None:
    assert np.array_equal(ordered["epoch 1"], ordered["epoch 1 of another source"])
    assert np.array_equal(ordered["epoch 1"], ordered["epoch 1, more threads"])


def test_another_epoch_seed_or_repeat_has_other_images(ordered: dict[str, Any]) -> None:
    for other in ("epoch 2", "another seed", "another repeat"):
        assert not np.array_equal(ordered["epoch 1"], ordered[other])


def test_another_epoch_has_another_order_and_other_crops(ordered: dict[str, Any]) -> None:
    labels_1, labels_2 = ordered["labels 1"].ravel(), ordered["labels 2"].ravel()
    assert sorted(labels_1) == sorted(labels_2) == list(range(60))
    assert (labels_1 == labels_2).mean() < 0.2
    by_label_1, by_label_2 = (ordered[f"epoch {n}"][np.argsort(ordered[f"labels {n}"].ravel())] for n in (1, 2))
    assert not any(np.array_equal(*pair) for pair in zip(by_label_1, by_label_2, strict=True))


def test_a_stream_is_endless_full_batches_that_differ_from_pass_to_pass(ordered: dict[str, Any]) -> None:
    images, labels, weights = (np.array(values) for values in zip(*ordered["stream"], strict=True))
    assert images.shape == (12, 10, 8, 8, 3)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int32
    np.testing.assert_allclose(weights, 0.1, rtol=1e-6)
    assert len(set(labels.ravel())) > 40
    assert len({image.tobytes() for image in images.reshape(120, -1)}) == 120
    assert np.array_equal(images[0], ordered["stream again"])


def test_ranks_stream_different_images(ordered: dict[str, Any]) -> None:
    assert set(ordered["streams of ranks"][0]) != set(ordered["streams of ranks"][1])


def test_nothing_is_left_in_the_temporary_folder(ordered: dict[str, Any]) -> None:
    assert not [name for name in ordered["left behind"] if "autograph" in name]


def transformed(folder: Path) -> tuple[Any, Any]:
    write(folder, [400])
    write(folder, [1], "validation")
    source = open_source(folder, image_size=16, batch_size=100, protocol="convergence")
    train = np.concatenate([images.numpy() for images, _, _ in source.epoch(0)])
    return train, next(source.validation())[0].numpy()[0]


def test_training_sees_random_crops_half_of_them_turned_and_validation_the_middle(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    train, judged = elsewhere(transformed, tmp_path / "set")
    rises = (train[:, :, 8:].mean(axis=(1, 2, 3)) > train[:, :, :8].mean(axis=(1, 2, 3))).mean()
    assert 0.4 < rises < 0.6
    spans = np.abs(train[:, :, -1].mean(axis=(1, 2)) - train[:, :, 0].mean(axis=(1, 2)))
    assert spans.min() < 80
    assert spans.max() > 150
    middle = Image.open(io.BytesIO(jpeg())).crop((2, 2, 38, 30)).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.abs(judged.astype(int) - np.asarray(middle).astype(int)).mean() < 4


# ---- bad data


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


def test_one_corrupt_jpeg_of_a_thousand_is_left_out_and_counted(elsewhere: Elsewhere, tmp_path: Path) -> None:
    change = {700: (NOT_JPEGS["cut in the middle"], 701)}
    labels, weights, skipped, said = elsewhere(skipping, tmp_path / "set", 1000, change)
    assert (skipped, said) == (1, None)
    assert sorted(labels[weights > 0]) == [n for n in range(1000) if n != 700]
    assert labels.shape == (63, 16)
    np.testing.assert_allclose(weights[:-1].sum(axis=1), 1, rtol=1e-6)


def test_more_than_a_thousandth_fails_and_names_the_first(elsewhere: Elsewhere, tmp_path: Path) -> None:
    change: dict[int, Any] = {
        n: (bad, n + 1) for n, bad in zip((40, 41, 250, 310, 499), NOT_JPEGS.values(), strict=True)
    }
    change[123] = (b"no example at all", None)
    labels, weights, skipped, said = elsewhere(skipping, tmp_path / "set", 500, change)
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


def test_a_set_without_one_sound_image_fails_instead_of_being_read_forever(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    for kind, message in elsewhere(hopeless, tmp_path / "set"):
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
def test_a_label_outside_the_classes_is_not_learnt_and_fails(elsewhere: Elsewhere, tmp_path: Path, label: int) -> None:
    rule = "image/class/label must be from 1 to 60"
    expected = ("label out of range", f"train-00001-of-00002, record 3: {rule}, but got {label}")
    assert elsewhere(mislabelled, tmp_path / "set", label) == expected


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
    elsewhere: Elsewhere, tmp_path: Path, how: str, record: int, what: str
) -> None:
    expected = ("damaged data", f"train-00002-of-00004, record {record}: {what}")
    assert elsewhere(damaged, tmp_path / "set", how) == (expected, expected)


def cut_at_the_start(folder: Path) -> Any:
    write(folder, [100])
    damage(folder / "train-00000-of-00001", "cut at the start")
    source = open_source(folder)
    return refusal(Fault, lambda: source.epoch(0)), refusal(Fault, source.stream)


def test_a_shard_cut_at_its_start_fails_before_anything_is_read(elsewhere: Elsewhere, tmp_path: Path) -> None:
    expected = ("damaged data", "train-00000-of-00001, record 0: must be whole, but got 5 bytes")
    assert elsewhere(cut_at_the_start, tmp_path / "set") == (expected, expected)


def cut_in_mid_run(folder: Path) -> Any:
    write(folder, [2500, 2500])
    batches = open_source(folder, batch_size=20, classes=5000).stream()
    next(batches)
    for name in ("train-00000-of-00002", "train-00001-of-00002"):
        path = folder / name
        os.truncate(path, list(shards.heads(str(path)))[2000][0] + 50)
    return refusal(Fault, lambda: [next(batches) for _ in range(1000)])


def test_a_shard_cut_in_mid_run_fails_with_its_name_and_record(elsewhere: Elsewhere, tmp_path: Path) -> None:
    kind, message = elsewhere(cut_in_mid_run, tmp_path / "set")
    assert kind == "damaged data"
    assert message in [f"train-0000{n}-of-00002, record 2000: must be whole, but got 50 bytes" for n in (0, 1)]


def vanished(folder: Path) -> Any:
    write(folder, [100, 100])
    source = open_source(folder)
    batches = source.epoch(0)
    shutil.rmtree(folder)
    return refusal(Fault, lambda: list(batches))


def test_a_set_that_goes_away_fails_with_what_is_missing(elsewhere: Elsewhere, tmp_path: Path) -> None:
    kind, message = elsewhere(vanished, tmp_path / "set")
    assert kind == "unreadable data"
    assert "train-0000" in message


def without_files(folder: Path) -> Any:
    folder.mkdir()
    empty = refusal(Fault, lambda: open_source(folder))
    write(folder, [10])
    return empty, refusal(Fault, lambda: open_source(folder, protocol="convergence"))


def test_a_folder_without_the_files_that_are_needed_is_refused(elsewhere: Elsewhere, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    empty, no_validation = elsewhere(without_files, folder)
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


def test_a_rank_without_a_full_batch_is_infeasible(elsewhere: Elsewhere, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    expected = ("batch larger than the data", f"rank 0 has 5 images of {folder} for a batch of 6")
    assert elsewhere(too_few, folder) == (expected, expected)


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


# ---- decode threads


@pytest.mark.parametrize(
    ("wanted", "physical_cores", "local_size", "threads_of_rank", "cores"),
    [
        (8, 64, 1, 8, None),
        (8, 64, 4, 2, None),
        (6, 64, 4, 2, {0, 1, 2, 3, 4, 5}),  # 8 threads on 6 cores
        (2, 64, 4, 1, {0, 1}),
        (1, 64, 1, 1, None),
        (15, 8, 4, 4, None),  # there are no 15 cores to keep to
        ("auto", 64, 8, 4, None),
        ("auto", 64, 1, 60, None),
        ("auto", 4, 2, 1, {0}),  # at least one, for both
        ("auto", 16, 3, 2, {0, 1, 2, 3}),  # 4 threads for 3 ranks
    ],
)  # fmt: skip
def test_decode_threads_are_shared_by_the_ranks_of_a_node(
    wanted: Any, physical_cores: int, local_size: int, threads_of_rank: int, cores: set[int] | None
) -> None:
    of_node = pinning.decode_threads(wanted, physical_cores, local_size)
    share = threads.share(of_node, local_size, range(8 if wanted == 15 else 64))
    assert share == (threads_of_rank, cores)


def busy_threads(folder: Path, decode_threads: int, local_size: int) -> Any:
    """The threads that do the work of a stream, each with its cores, and those of this thread."""
    if not folder.exists():
        from workers import dataset

        dataset.make(folder, dataset.Recipe(images=64, shards=2, width_px=500, height_px=375, classes=10, seed=0))
    ring = Ring(0, local_size)
    ring.local_size = local_size
    ring.size = 1
    source = open_source(folder, ring, decode_threads=decode_threads, image_size=224, batch_size=16, classes=10)
    batches = source.stream()
    for _ in range(3):
        next(batches)
    before = cpu_s()
    until = time.monotonic() + 2
    while time.monotonic() < until:
        next(batches)
    spent = {thread: at - before.get(thread, 0) for thread, at in cpu_s().items()}
    busy = [thread for thread, seconds in spent.items() if seconds > 0.2 * max(spent.values())]
    decoding = sum(spent[thread] for thread in busy) / sum(spent.values())
    return [os.sched_getaffinity(thread) for thread in busy], decoding, os.sched_getaffinity(0)


def cpu_s() -> dict[int, float]:
    found = {}
    for thread in os.listdir("/proc/self/task"):
        found[int(thread)] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    return found


@pytest.mark.parametrize("decode_threads", [1, 2, 3])
def test_a_pipeline_has_the_decode_threads_that_were_asked_for(
    elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory, decode_threads: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "photographs"
    cores, decoding, own = elsewhere(busy_threads, folder, decode_threads, 1)
    assert cores == [own] * decode_threads
    assert decoding > 0.8


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_ranks_with_more_threads_than_were_asked_for_keep_to_as_many_cores(
    elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "photographs"
    cores, decoding, own = elsewhere(busy_threads, folder, 1, 2)
    assert cores == [{min(own)}]
    assert decoding > 0.8
    assert len(own) == len(os.sched_getaffinity(0))


# ---- digits and synthetic


def digits() -> dict[str, Any]:
    def passed(batches: Any) -> list[Any]:
        return [[values.numpy() for values in batch] for batch in batches]

    def source(rank: int, ranks: int, batch: int, **fields: Any) -> inputs.Source:
        ring = Ring(rank, ranks)
        return open_source("digits", ring, batch_size=batch, classes=10, image_size=16, **fields)

    one, two = source(0, 1, 100), [source(rank, 2, 50) for rank in range(2)]
    return {
        "counts": (one.train_images, one.validation_images),
        "one": passed(one.epoch(4)),
        "two": [passed(half.epoch(4)) for half in two],
        "next": passed(one.epoch(5)),
        "judged by two": [passed(half.validation()) for half in two],
        "stream": passed(itertools.islice(one.stream(), 30)),
        "too few": refusal(Infeasible, lambda: source(0, 2, 1000).epoch(0)),
        "classes": refusal(Fault, lambda: open_source("digits", Ring(0, 1), classes=9)),
    }


@pytest.fixture(scope="module")
def of_digits(elsewhere: Elsewhere) -> dict[str, Any]:
    return elsewhere(digits)


def test_ranks_share_the_very_global_batches_of_one_rank(of_digits: dict[str, Any]) -> None:
    assert of_digits["counts"] == (1437, 360)
    assert len(of_digits["one"]) == len(of_digits["two"][0]) == 15
    for one, *halves in zip(of_digits["one"], *of_digits["two"], strict=True):
        images, labels, weights = (np.concatenate(values) for values in zip(*halves, strict=True))
        assert np.array_equal(one[0], images)
        assert np.array_equal(one[1], labels)
        np.testing.assert_allclose(one[2], weights / 2, rtol=1e-6)  # a mean over two ranks


def test_digits_come_once_an_epoch_in_another_order_each_time(of_digits: dict[str, Any]) -> None:
    one, after = ([image.tobytes() for batch in of_digits[name] for image in batch[0]] for name in ("one", "next"))
    assert len(set(one[:1437])) > 1400  # hardly any two are alike
    assert Counter(one[:1437]) == Counter(after[:1437])
    assert one[:1437] != after[:1437]
    weights = np.concatenate([batch[2] for batch in of_digits["one"]])
    assert (weights > 0).tolist() == [True] * 1437 + [False] * 63
    assert sum(batch[2].sum() for batch in of_digits["one"]) == pytest.approx(15)


def test_digits_are_rgb_bytes(of_digits: dict[str, Any]) -> None:
    images, labels, weights = of_digits["one"][0]
    assert (images.shape, images.dtype, labels.dtype, weights.dtype) == (
        (100, 16, 16, 3),
        np.uint8,
        np.int32,
        np.float32,
    )
    assert (images[..., 0] == images[..., 2]).all()
    assert images.min() == 0
    assert images.max() == 255
    assert set(labels) == set(range(10))


def test_digits_are_judged_once(of_digits: dict[str, Any]) -> None:
    batches = [batch for of_rank in of_digits["judged by two"] for batch in of_rank]
    weights = np.concatenate([batch[2] for batch in batches])
    assert sorted(set(weights)) == [0, 1]
    assert weights.sum() == 360
    assert len(of_digits["judged by two"][0]) == len(of_digits["judged by two"][1])


def test_a_stream_of_digits_has_only_full_batches(of_digits: dict[str, Any]) -> None:
    np.testing.assert_allclose([batch[2] for batch in of_digits["stream"]], 0.01, rtol=1e-6)


def test_digits_refuse_what_they_cannot_give(of_digits: dict[str, Any]) -> None:
    said = "digits have 1437 images for 2 ranks with a batch of 1000"
    assert of_digits["too few"] == ("batch larger than the data", said)
    assert of_digits["classes"] == ("label out of range", "digits have 10 classes, but got classes: 9")


def synthetic() -> Any:
    source = open_source("synthetic", Ring(1, 2), classes=10)
    batches = source.stream()
    first, second = next(batches), next(batches)
    assert all(a is b for a, b in zip(first, second, strict=True))
    other = next(open_source("synthetic", Ring(0, 2), classes=10).stream())
    refusals = refusal(Fault, lambda: source.epoch(0)), refusal(Fault, source.validation)
    return [values.numpy() for values in first], other[0].numpy(), refusals


def test_synthetic_data_is_one_random_batch_and_cannot_be_learnt(elsewhere: Elsewhere) -> None:
    (images, labels, weights), other, refusals = elsewhere(synthetic)
    assert (images.shape, images.dtype, labels.dtype) == ((4, 8, 8, 3), np.uint8, np.int32)
    assert images.max() - images.min() > 200
    assert not np.array_equal(images, other)
    assert weights.tolist() == [0.25] * 4
    assert {kind for kind, _ in refusals} == {"nothing to learn"}


# ---- two real ranks


def check_two_ranks(config: contract.TrialConfig, seat: Seat, voice: Voice) -> None:
    """Runs in every rank: an epoch and a validation, added up over the ring."""
    with joined(seat) as ring:
        source = inputs.open_source(config, ring, inputs.cores_here(config, ring.local_size))
        for batches, images in ((source.epoch(1), 23), (source.validation(), 9)):
            labels, weights = labels_and_weights(batches)
            seen = np.bincount(labels[weights > 0], minlength=images)
            assert ring.total(seen).tolist() == [1] * images
            steps = np.zeros(ring.size, np.int64)
            steps[ring.rank] = len(labels)
            assert len(set(ring.total(steps).tolist())) == 1
        assert (source.train_images, source.validation_images) == (23, 9)
    voice.beat("finish")
    voice.say("failed", kind="checked", message="all holds")


def two_splits(folder: Path) -> None:
    write(folder, [9, 2, 12])
    write(folder, [4, 5], "validation")


def test_two_real_ranks_share_a_set(elsewhere: Elsewhere, nursery: Any, tmp_path: Path) -> None:
    elsewhere(two_splits, tmp_path / "set")
    fields = {"data": str(tmp_path / "set"), "batch_size": 3, "classes": CLASSES, "protocol": "convergence"}
    ends = gang(2, tmp_path, entry="tests.integration.test_inputs:check_two_ranks", **fields)
    assert [(end.kind, end.message) for end in ends] == [("checked", "all holds")] * 2
