"""Images for ranks of any framework: read, decoded and put into batches by threads of Python's own.

What holds for the sources of both frameworks' ranks is in tests/integration: each image once, weights, formats, faults.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.unit import planted_sets
from workers.contract.ranks import Fault
from workers.inputs import crops, shards
from workers.inputs.plain import digits, examples, images, opening, reading
from workers.inputs.plain.pipeline import Arrays, Pipeline
from workers.inputs.plain.reading import Record
from workers.inputs.source import GROUP, Cores, Source
from workers.inputs.threads import Decoders
from workers.strategies.ring import Solo

FRAMEWORKS = {"tensorflow", "keras", "torch", "horovod", "ray", "mlflow"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))


def opened(folder: Path | str, cores: Cores = Cores(2), ring: Any = None, **fields: Any) -> Source:  # noqa: B008
    return opening.open_source(planted_sets.config(folder, **fields), ring or Solo(), cores)


# ---- what it loads


def test_no_framework_is_imported(tmp_path: Path) -> None:
    planted_sets.write(tmp_path / "set", [8])
    code = f"""
import sys
from tests.unit import planted_sets
from workers.inputs.plain import opening
from workers.inputs.source import Cores
from workers.strategies.ring import Solo
for data in ("synthetic", "digits", {str(tmp_path / "set")!r}):
    next(opening.open_source(planted_sets.config(data), Solo(), Cores(1)).stream())
print(*sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {*ran.stdout.split()}
    assert {"cv2", "simplejpeg", "workers.inputs.plain.records", "workers.inputs.plain.own"} <= loaded
    assert not loaded & FRAMEWORKS


# ---- records


@pytest.mark.parametrize("label", [0, 7, 1000, -5, 1 << 40])
def test_a_record_s_image_and_label_are_found_among_other_fields(label: int) -> None:
    record = planted_sets.example(b"image", label, **{"image/format": b"JPEG", "image/class/text": b"a dog"})
    assert examples.parsed(record) == (b"image", label)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"no example at all", "must be a tf.train.Example"),
        (b"", "must have one image/encoded and one image/class/label, but got 0, 0"),
        (planted_sets.example(b"image", 1).replace(b"image/class/label", b"image/class/lebal"), "but got 1, 0"),
        (planted_sets.example(b"image", 1)[:20], "must be a tf.train.Example"),
    ],
)
def test_what_is_no_image_with_a_label_is_told(record: bytes, said: str) -> None:
    with pytest.raises(examples.NoExample, match=said):
        examples.parsed(record)


def read(parts: Sequence[shards.Part]) -> list[int]:
    return [examples.parsed(record.content)[1] for record in reading.interleaved(parts)]


def test_parts_of_files_are_read_in_turn_and_nothing_of_the_others(tmp_path: Path) -> None:
    paths = shards.files_of(str(planted_sets.write(tmp_path / "set", [3, 4, 5])), "train")
    assert read(shards.deal(paths, 0, 1)) == [1, 4, 8, 2, 5, 9, 3, 6, 10, 7, 11, 12]
    dealt = [read(shards.deal(paths, rank, 2)) for rank in range(2)]
    assert dealt == [[1, 8, 2, 10, 3, 12], [4, 9, 5, 11, 6, 7]]


def test_more_files_than_are_open_at_once_are_all_read(tmp_path: Path) -> None:
    paths = shards.files_of(str(planted_sets.write(tmp_path / "set", [2] * 20)), "train")
    assert sorted(read(shards.deal(paths, 0, 1))) == list(range(1, 41))


def test_shuffling_draws_each_record_once_from_the_next_thousand() -> None:
    drawn = list(reading.shuffled((Record(n, b"") for n in range(5000)), np.random.default_rng(1)))
    again = list(reading.shuffled((Record(n, b"") for n in range(5000)), np.random.default_rng(1)))
    assert drawn == again
    assert sorted(record.number for record in drawn) == list(range(5000))
    assert all(record.number <= at + reading.SHUFFLED for at, record in enumerate(drawn))
    assert sum(record.number > at + 500 for at, record in enumerate(drawn)) > 500


def test_a_file_that_is_cut_behind_what_was_read_is_named(tmp_path: Path) -> None:
    (path,) = shards.files_of(str(planted_sets.write(tmp_path / "set", [10])), "train")
    records = reading.interleaved(shards.deal([path], 0, 1))
    heads = list(shards.heads(path))
    for _ in range(6):
        next(records)
    os.truncate(path, heads[3][0] + 5)
    assert planted_sets.refusal(Fault, lambda: list(records)) == (
        "damaged data",
        "train-00000-of-00001, record 3: must be whole, but got 5 bytes",
    )


# ---- images

SIDES = st.integers(1, 700)


@given(SIDES, SIDES, st.integers(0, 2**64))
def test_a_random_window_lies_within_the_image(height: int, width: int, seed: int) -> None:
    top, left, high, wide = crops.random_window(random.Random(seed), height, width)
    assert 0 <= top <= top + high <= height
    assert 0 <= left <= left + wide <= width
    assert high > 0
    assert wide > 0


def test_random_windows_are_of_all_shapes_and_places_that_are_asked_for() -> None:
    rng, pixels = random.Random(1), 375 * 500
    found = [crops.random_view(rng, 375, 500) for _ in range(4000)]
    areas = np.array([high * wide / pixels for (_, _, high, wide), _ in found])
    aspects = np.array([wide / high for (_, _, high, wide), _ in found])
    tops = np.array([top for (top, _, _, _), _ in found])
    assert 0.08 <= areas.min() < 0.09
    assert 0.95 < areas.max() <= 1
    assert 0.74 < aspects.min() < 0.76
    assert 1.32 < aspects.max() < 1.345
    assert tops.min() == 0
    assert tops.max() > 200
    assert 0.47 < np.mean([view.is_flipped for view in found]) < 0.53


def test_an_image_that_no_window_fits_is_seen_whole() -> None:
    assert crops.random_window(random.Random(0), 1, 300) == (0, 0, 1, 300)


def photograph(width: int, height: int) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((width, height)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def is_held_up(work: Callable[[], object]) -> bool:
    """Say whether this thread stands still while another one works: it gets the interpreter only when the other lets go
    of it."""
    is_begun, is_done = threading.Event(), threading.Event()

    def other() -> None:
        is_begun.set()
        work()
        is_done.set()

    before, rounds = sys.getswitchinterval(), 0
    sys.setswitchinterval(100)
    try:
        thread = threading.Thread(target=other)
        thread.start()
        is_begun.wait()
        while not is_done.is_set():
            time.sleep(1e-4)
            rounds += 1
    finally:
        sys.setswitchinterval(before)
    thread.join()
    return rounds < 5


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_other_threads_run_while_one_decodes(form: str) -> None:
    encoded = photograph(2000, 1500)
    if form != "JPEG":
        buffer = io.BytesIO()
        Image.open(io.BytesIO(encoded)).save(buffer, form)
        encoded = buffer.getvalue()
    look = images.looked_at(planted_sets.example(encoded, 3))
    picture = np.empty((224, 224, 3), np.uint8)

    def decode() -> None:
        for _ in range(3):
            assert images.fill(picture, look, crops.middle(1500, 2000)) == 3

    assert not is_held_up(decode)
    assert is_held_up(lambda: sum(range(1_000_000)))  # so it is seen where one is


# ---- batches

SIDE = 8


def numbered() -> Iterator[Record]:
    return (Record(n, b"") for n in itertools.count())


def labelling(group: Sequence[Record], first: int, pictures: Sequence[Any]) -> list[Any]:
    for record, picture in zip(group, pictures, strict=True):
        picture[:] = record.number % 256
    return [record.number for record in group]


def pipeline(records: Iterator[Record], decode: Any = labelling, size: int = 10, threads: int = 2) -> Pipeline:
    return Pipeline(records, decode, size, SIDE, 2 * size + GROUP * threads)


def test_batches_are_in_the_order_of_the_records_whichever_is_decoded_first() -> None:
    delays = random.Random(1)

    def late(group: Sequence[Record], first: int, pictures: Sequence[Any]) -> list[Any]:
        time.sleep(delays.random() * 0.01)
        return labelling(group, first, pictures)

    batches = pipeline(numbered(), late, threads=6).batches(6, Decoders())
    for n, filling in enumerate(itertools.islice(batches, 40)):
        assert filling.labels.tolist() == filling.numbers.tolist() == list(range(10 * n, 10 * n + 10))
        assert (filling.images == (filling.labels % 256)[:, None, None, None]).all()


def test_what_cannot_be_decoded_is_left_out_and_the_next_takes_its_place() -> None:
    def picky(group: Sequence[Record], first: int, pictures: Sequence[Any]) -> list[Any]:
        labels = labelling(group, first, pictures)
        return [images.Undecodable("") if label % 7 == 3 else label for label in labels]

    made = list(itertools.islice(pipeline(numbered(), picky).batches(2, Decoders()), 30))
    kept = [n for n in range(400) if n % 7 != 3][:300]
    assert np.concatenate([filling.labels for filling in made]).tolist() == kept
    assert [n for filling in made for n in filling.left_out] == [n for n in range(kept[-1]) if n % 7 == 3]


def broken(after: int) -> Iterator[Record]:
    yield from itertools.islice(numbered(), after)
    raise Fault("damaged data", "file, record 57")


@pytest.mark.parametrize("threads", [1, 5])
def test_what_ends_the_reading_is_told_behind_the_last_full_batch(threads: int) -> None:
    batches = pipeline(broken(57), threads=threads).batches(threads, Decoders())
    assert [next(batches).labels[0] for _ in range(5)] == [0, 10, 20, 30, 40]
    with pytest.raises(Fault, match="record 57"):
        next(batches)


def test_an_error_of_a_thread_reaches_who_waits_for_a_batch() -> None:
    def fails(group: Sequence[Record], first: int, pictures: Sequence[Any]) -> list[Any]:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        next(pipeline(numbered(), fails).batches(2, Decoders()))


def settled(count: Callable[[], int]) -> int:
    """A count that no longer goes up."""
    before = -1
    while (now := count()) != before:
        before = now
        time.sleep(0.2)
    return now


def test_threads_make_two_batches_ahead_and_wait() -> None:
    taken = itertools.count(1)
    counted = [0]

    def records() -> Iterator[Record]:
        for record in numbered():
            counted[0] = next(taken)
            yield record

    batches = pipeline(records(), size=10, threads=2).batches(2, Decoders())
    next(batches)
    for handed in (10, 20, 30):
        assert handed + 20 <= settled(lambda: counted[0]) <= handed + 20 + 2 * GROUP
        next(batches)


def of_pipelines() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("decode-")}


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_pass_that_is_given_up_leaves_no_thread(tmp_path: Path, has_begun: bool) -> None:
    before = of_pipelines()
    source = opened(planted_sets.write(tmp_path / "set", [40]), Cores(3))
    batches = source.stream()
    if has_begun:
        next(batches)
        assert len(of_pipelines() - before) == 3
    del batches
    until = time.monotonic() + 20
    while of_pipelines() - before and time.monotonic() < until:
        time.sleep(0.01)
    assert not of_pipelines() - before


def test_a_process_that_ends_while_its_threads_decode_ends_well(tmp_path: Path) -> None:
    planted_sets.write(tmp_path / "set", [40])
    code = f"""
import cv2, numpy
from tests.unit import planted_sets
from workers.inputs.plain import images, opening
from workers.inputs.source import Cores
from workers.strategies.ring import Solo
large = numpy.zeros((1500, 1500, 3), numpy.uint8)
def fill(*asked):
    cv2.resize(large, (1400, 1400))
    return 1
images.fill = fill
batches = opening.open_source(planted_sets.config({str(tmp_path / "set")!r}), Solo(), Cores(4)).stream()
next(batches)
next(batches)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_decode_threads_keep_to_their_cores(tmp_path: Path) -> None:
    kept = frozenset([max(os.sched_getaffinity(0))])
    source = opened(planted_sets.write(tmp_path / "set", [40]), Cores(3, kept))
    assert source.ahead == -(-(2 * 4 + 3 * GROUP) // 4)
    batches = source.stream()
    next(batches)
    assert len(source.decoders.threads) == 3
    assert {frozenset(os.sched_getaffinity(thread)) for thread in source.decoders.threads} == {kept}
    assert source.decoders.affinity() == kept
    assert threading.get_native_id() not in source.decoders.threads


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    arrays = Arrays(4, 4)
    first = arrays.take()
    view, address = first[1:], first.ctypes.data
    del first
    assert arrays.take().ctypes.data != address  # a view holds it too
    del view
    assert address in {arrays.take().ctypes.data, arrays.take().ctypes.data}


def test_a_batch_that_is_kept_does_not_change(tmp_path: Path) -> None:
    batches = opened(planted_sets.write(tmp_path / "set", [40])).stream()
    kept = [next(batches) for _ in range(12)]
    copies = [pictures.copy() for pictures, _, _ in kept]
    for _ in range(30):
        next(batches)
    assert all(np.array_equal(pictures, copy) for (pictures, _, _), copy in zip(kept, copies, strict=True))


# ---- digits


@pytest.mark.parametrize("after", [8, 16, 32, 11, 5])
def test_digits_are_enlarged_between_their_pixels(after: int) -> None:
    matrix = digits.bilinear(8, after)
    assert matrix.shape == (after, 8)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-6)
    assert (matrix > 0).sum(axis=1).max() <= 2
    if after == 8:
        assert np.array_equal(matrix, np.eye(8))
    if after == 16:
        assert matrix[:3, :2].tolist() == [[1, 0], [0.75, 0.25], [0.25, 0.75]]
