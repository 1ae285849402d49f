"""What a rank is given to learn from: its part of the images, how they are weighed, and what is said of bad data.

The same of the sources of either framework's ranks. TensorFlow runs in one other process, for other tests fork this
one. There, ranks are simulated one after the other: a stand-in for the ring knows what the others would have said.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.integration.gangs import gang
from tests.integration.input_sets import Sources, open_source
from tests.unit.planted_sets import CLASSES, Ring, counts, jpeg, labels_and_weights, write
from workers.contract import messages
from workers.contract.ranks import Seat, Voice
from workers.inputs import opening, padding, shards, storage
from workers.inputs.source import Source
from workers.strategies.horovod import joined
from workers.workloads.images import train

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
    sources: Sources, tmp_path: Path, ranks: int, batch: int, train: list[int], validation: list[int]
) -> None:
    epoch, judged = sources(passes, tmp_path / "set", ranks, batch, train, validation)
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


def orders(folder: Path) -> dict[str, Any]:
    from workers.inputs import dataset

    recipe = dataset.Recipe(images=60, shards=3, width_px=48, height_px=40, classes=60, seed=1)
    dataset.make(folder, recipe)

    def images_of(batches: Any) -> Any:
        return np.concatenate([np.asarray(images) for images, _, _ in batches])

    def ordered(**fields: Any) -> Source:
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
        "stream": [(np.asarray(images), np.asarray(labels), np.asarray(weights)) for images, labels, weights in stream],
        "stream again": np.asarray(next(again.stream())[0]),
        "streams of ranks": [np.asarray(next(rank.stream())[1]) for rank in (rank0, rank1)],
    }
    found["left behind"] = set(os.listdir(tempfile.gettempdir())) - before
    return found


@pytest.fixture(scope="module")
def ordered(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return sources(orders, tmp_path_factory.mktemp("ordered") / "set")


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
    train = np.concatenate([np.asarray(images) for images, _, _ in source.epoch(0)])
    return train, np.asarray(next(source.validation())[0])[0]


def test_training_sees_random_crops_half_of_them_turned_and_validation_the_middle(
    sources: Sources, tmp_path: Path
) -> None:
    train, judged = sources(transformed, tmp_path / "set")
    rises = (train[:, :, 8:].mean(axis=(1, 2, 3)) > train[:, :, :8].mean(axis=(1, 2, 3))).mean()
    assert 0.4 < rises < 0.6
    spans = np.abs(train[:, :, -1].mean(axis=(1, 2)) - train[:, :, 0].mean(axis=(1, 2)))
    assert spans.min() < 80
    assert spans.max() > 150
    middle = Image.open(io.BytesIO(jpeg())).crop((2, 2, 38, 30)).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.abs(judged.astype(int) - np.asarray(middle).astype(int)).mean() < 4


def check_two_ranks(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    """Runs in every rank: an epoch and a validation, added up over the ring."""
    with joined(seat) as ring:
        source = opening.open_source(config, ring, opening.cores_here(config, ring.local_size))
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


def test_two_real_ranks_share_a_set(fork_server: Any, tmp_path: Path) -> None:
    two_splits(tmp_path / "set")
    fields = {"data": str(tmp_path / "set"), "batch_size": 3, "classes": CLASSES, "protocol": "convergence"}
    ends = gang(2, tmp_path, entry="tests.integration.test_inputs:check_two_ranks", **fields)
    assert [(end.kind, end.message) for end in ends] == [("checked", "all holds")] * 2


SLOW = messages.Deadlines(fork_server_s=60, ring_s=20, build_s=3, step_s=60)
READ_S = 0.05


def reads_slowly(read_s: float) -> list[int]:
    """From here on every read of this process takes so long; their sizes, as they come."""
    pread, sizes = os.pread, list[int]()

    def slow(file: int, size: int, at: int) -> bytes:
        time.sleep(read_s)
        sizes.append(size)
        return pread(file, size, at)

    os.pread = slow
    return sizes


def counts_on_slow_storage(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    """Rank 0's storage is slow; the other has nothing left to count soon, and waits."""
    reads = reads_slowly(READ_S if seat.rank == 0 else 0.0)
    with joined(seat) as ring:
        voice.beat("build")  # whose deadline is short
        source = opening.open_source(config, ring, opening.cores_here(config, ring.local_size), voice.beat)
        images, most = source.train_images, ring.total(np.array([len(reads) if ring.rank == 0 else 0])).item()
    voice.beat("finish")
    voice.say("failed", kind="counted", message=f"{images} images, rank 0 read {most} times")


def many_files(folder: Path) -> None:
    write(folder, [3] * 80)
    write(folder, [4, 5], "validation")


def test_counting_for_longer_than_a_deadline_is_no_stall_and_is_done_once(fork_server: Any, tmp_path: Path) -> None:
    many_files(tmp_path / "set")
    fields = {"data": str(tmp_path / "set"), "batch_size": 3, "classes": CLASSES, "protocol": "convergence"}
    entry = "tests.integration.test_inputs:counts_on_slow_storage"
    began = time.perf_counter()
    ends = gang(2, tmp_path, entry=entry, deadlines=SLOW, **fields)
    took_s = time.perf_counter() - began
    assert [end.kind for end in ends] == ["counted"] * 2, ends
    reads = int(ends[0].message.split()[-2])
    assert reads * READ_S > SLOW.build_s  # so without a beat it would have been given up
    assert took_s > reads * READ_S
    again = gang(2, tmp_path, entry=entry, deadlines=SLOW, **fields)
    assert [end.message for end in again] == ["240 images, rank 0 read 0 times"] * 2, again


def trains_on_slow_storage(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    """A trial on storage where every read takes a millisecond; notes how many reads it was, and what it told."""
    reads = reads_slowly(1e-3)
    told: list[str] = []
    beat = voice.beat

    def noted(phase: messages.Phase, step: int = 0) -> None:
        told.append(phase)
        beat(phase, step)

    voice.beat = noted  # type: ignore[method-assign]
    prepare = storage.prepare

    def prepared(*what: Any) -> None:
        told.append("cache")
        prepare(*what)

    storage.prepare = prepared
    report = voice.report

    def last(measured: messages.RankReport) -> None:
        phases = [phase for phase, _ in itertools.groupby(told)]
        Path(seat.checkpoint).with_suffix(".json").write_text(json.dumps({"reads": len(reads), "phases": phases}))
        report(measured)

    voice.report = last  # type: ignore[method-assign]
    train.run(config, seat, voice)


def two_thousand(folder: Path) -> None:
    write(folder, [500] * 4)
    write(folder, [200], "validation")


def test_a_trial_trains_where_every_read_takes_a_millisecond_and_the_next_counts_nothing(
    fork_server: Any, tmp_path: Path
) -> None:
    two_thousand(tmp_path / "set")
    fields = {"data": str(tmp_path / "set"), "batch_size": 250, "classes": CLASSES, "protocol": "convergence"}
    fields |= {"epochs": 1, "evaluate_every": 1, "warmup_steps": 0, "measured_steps": 0, "cache": "cold"}
    notes = []
    for name in ("first", "second"):
        log = tmp_path / name
        (end,) = gang(1, log, entry="tests.integration.test_inputs:trains_on_slow_storage", **fields)
        assert end.what == "measured", end
        assert end.report
        assert [epoch.images for epoch in end.report.epochs] == [2000]
        notes.append(json.loads((log / "checkpoint.json").read_text()))
    assert 0 < notes[0]["reads"] < 0.1 * 2200
    assert notes[1]["reads"] == 0
    # counted before the cache is made cold, so that a cold trial finds nothing of it there
    assert notes[0]["phases"] == ["ring", "build", "count", "build", "cache", "step", "evaluate", "finish"]
