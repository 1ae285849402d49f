"""How records are counted: right, by few reads, once, and so that every rank is seen to live meanwhile."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.records import config
from workers.contract import messages
from workers.inputs import record_counts, shards
from workers.launch import supervisor
from workers.strategies.ring import Solo


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, lengths: Sequence[int]) -> Path:
    """A file of records of these lengths; their contents are holes."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        for length in lengths:
            head = length.to_bytes(8, "little")
            file.write(head + shards.CHECKSUM.pack(shards.masked_crc(head)))
            file.seek(length + shards.CHECKSUM.size, os.SEEK_CUR)
        file.truncate(file.tell())
    return path


def folder_of(folder: Path, *file_sizes: int, length: int = 100) -> Path:
    for n, size in enumerate(file_sizes):
        write(folder / f"train-{n:05d}-of-{len(file_sizes):05d}", [length] * size)
    return folder


def counts(folder: Path, ring: Any = None, beat: record_counts.Beat = lambda phase, n: None) -> list[int]:
    ring = ring or Solo()
    parts = shards.deal(shards.files_of(str(folder), "train"), ring.rank, ring.size)
    found: list[int] = record_counts.of_ranks(parts, str(folder), ring, beat).tolist()
    return found


class Disk:
    """Reads that take a time each and a time a byte, by a clock that only they move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, read_s: float = 0.001, bytes_per_s: float = 1e12) -> None:
        self.reads = self.bytes = 0
        self.now = 0.0
        pread = os.pread

        def slow(file: int, size: int, at: int) -> bytes:
            got = pread(file, size, at)
            self.reads, self.bytes = self.reads + 1, self.bytes + len(got)
            self.now += read_s + len(got) / bytes_per_s
            return got

        monkeypatch.setattr(os, "pread", slow)
        monkeypatch.setattr(shards.time, "perf_counter", lambda: self.now)


@given(lengths=st.lists(st.integers(0, 300), max_size=60), block=st.integers(12, 700))
def test_every_head_is_found_however_it_is_read(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], block: int
) -> None:
    path = write(tmp_path_factory.mktemp("heads") / "file", lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BLOCK_BYTES", block)
        patch.setattr(shards, "ALONE_FIRST", 2)
        found = list(shards.heads(str(path)))
    ends = np.cumsum([length + 16 for length in lengths], dtype=int).tolist()
    assert found == list(zip([0, *ends], lengths, strict=False))


def test_where_an_answer_takes_a_millisecond_many_heads_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, read_s=1e-3)
    assert counts(folder_of(tmp_path / "set", 5000, 5000, length=10_000)) == [10_000]
    assert disk.now < 0.01 * 10_000 * 1e-3  # of what one read a record takes


def test_where_bytes_come_slowly_hardly_more_than_the_heads_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, read_s=1e-4, bytes_per_s=100e6)
    folder = folder_of(tmp_path / "set", 1250, length=110_000)  # as one of ImageNet's 1024
    assert counts(folder) == [1250]
    assert disk.bytes < 0.05 * (folder / "train-00000-of-00001").stat().st_size
    assert disk.now < 0.2 * 1250 * 110_000 / 100e6


def test_a_kept_count_costs_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "set", 30, 40)
    assert counts(folder) == [70]
    before = {path.name for path in folder.iterdir()}
    disk = Disk(monkeypatch)
    assert counts(folder) == [70]
    assert disk.reads == 0
    assert {path.name for path in folder.iterdir()} == before  # nothing is kept beside the data


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_file_of_another_size_or_time_is_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    folder = folder_of(tmp_path / "set", 30, 40, length=84)
    assert counts(folder) == [70]
    path = folder / "train-00000-of-00002"
    was = path.stat()
    write(path, [84] * 31 if change == "size" else [184] * 15)  # the second is as long as 30 of 84 bytes
    if change == "size":
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    else:
        assert path.stat().st_size == was.st_size
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns + 1))
    disk = Disk(monkeypatch)
    assert counts(folder) == [71 if change == "size" else 55]
    assert 0 < disk.reads <= 6  # of the one file alone


def test_another_folder_has_counts_of_its_own(tmp_path: Path) -> None:
    one, two = folder_of(tmp_path / "one", 30, length=84), folder_of(tmp_path / "two", 15, length=184)
    stamps = [next(folder.iterdir()) for folder in (one, two)]
    for path in stamps:
        os.utime(path, ns=(0, 0))
    assert len({path.stat().st_size for path in stamps}) == 1
    assert (counts(one), counts(two), counts(one)) == ([30], [15], [30])


def test_a_file_that_is_written_to_while_it_is_counted_is_not_kept(tmp_path: Path, own_cache: Path) -> None:
    folder = folder_of(tmp_path / "set", 30)
    (path,) = folder.iterdir()
    kept = record_counts.StoredCounts(str(folder))
    progress = record_counts.so_far(shards.deal([str(path)], 0, 1), kept)
    next(progress)
    os.utime(path, ns=(1, 1))
    assert max(progress) == 30
    assert not own_cache.exists()


def test_a_damaged_file_has_no_count(tmp_path: Path, own_cache: Path) -> None:
    folder = folder_of(tmp_path / "set", 30)
    (path,) = folder.iterdir()
    os.truncate(path, path.stat().st_size - 1)
    for _ in range(2):
        with pytest.raises(shards.Fault, match="record 29: must be whole, but got 115 bytes"):
            counts(folder)
    assert not own_cache.exists()


def test_counts_that_cannot_be_kept_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWEEP_CACHE", "/proc/nowhere")
    folder = folder_of(tmp_path / "set", 30)
    assert counts(folder) == counts(folder) == [30]
    assert capsys.readouterr().out.count("the next trial counts train-00000-of-00001 again") == 2


@pytest.mark.parametrize("rubbish", ['{"file": "train-00000-of-00001", "si', "[]", '{"records": 7}', "\0\0", "7"])
def test_a_line_that_is_no_count_is_passed_over(tmp_path: Path, own_cache: Path, rubbish: str) -> None:
    folder = folder_of(tmp_path / "set", 30)
    counts(folder)
    (lines,) = own_cache.rglob("*.jsonl")
    (entry,) = lines.read_text().split("\n")[1:-1]
    lines.write_text(f"{rubbish}\n{entry}\n{rubbish}")
    record_counts.StoredCounts(str(folder)).keep(record_counts.Stamp("other", 1, 2), 3)  # behind a torn line
    kept = record_counts.StoredCounts(str(folder))
    found = json.loads(entry)
    assert kept.get(record_counts.Stamp("other", 1, 2)) == 3
    assert kept.get(record_counts.Stamp(found["file"], found["size_bytes"], found["mtime_ns"])) == 30


def _keep(folder: str, writer: int) -> None:
    kept = record_counts.StoredCounts(folder)
    for n in range(100):
        kept.keep(record_counts.Stamp(f"file-{writer}-{n}", writer, n), 1000 * writer + n)


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path / "set")
    writers = [get_context("fork").Process(target=_keep, args=(folder, writer)) for writer in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    kept = record_counts.StoredCounts(folder)
    found = [kept.get(record_counts.Stamp(f"file-{writer}-{n}", writer, n)) for writer in range(6) for n in range(100)]
    assert found == [1000 * writer + n for writer in range(6) for n in range(100)]


class Rings:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self._meeting = threading.Barrier(size)
        self._told: dict[int, Any] = {}
        self.ranks = [self._Rank(self, rank, size) for rank in range(size)]

    class _Rank:
        def __init__(self, rings: Rings, rank: int, size: int) -> None:
            self._rings, self.rank, self.size = rings, rank, size

        def total(self, values: Any) -> Any:
            rings = self._rings
            rings._told[self.rank] = values
            rings._meeting.wait(20)
            summed = sum(rings._told.values())
            rings._meeting.wait(20)
            return summed


def test_a_rank_with_nothing_left_to_count_beats_until_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path / "set", 40, 2)  # rank 1's are counted at once
    monkeypatch.setattr(record_counts, "ROUND_S", 0.02)
    monkeypatch.setattr(shards, "BLOCK_BYTES", 12)
    pread, held_up = os.pread, os.stat(folder / "train-00000-of-00002").st_ino

    def slow(file: int, size: int, at: int) -> bytes:
        if os.fstat(file).st_ino == held_up:
            threading.Event().wait(0.01)
        return pread(file, size, at)

    monkeypatch.setattr(os, "pread", slow)
    beats: dict[int, list[int]] = {0: [], 1: []}
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(counts, folder, ring, lambda phase, n, rank=ring.rank: beats[rank].append(n))
            for ring in Rings(2).ranks
        ]
        assert [run.result() for run in runs] == [[40, 2], [40, 2]]
    for told in beats.values():
        assert told == sorted(told)
        assert told[-1] == 42
    assert len(set(beats[1])) > 5  # it said something new again and again while it waited


def test_a_read_that_never_returns_is_a_stall_that_says_how_far_it_was() -> None:
    assert messages.Deadlines(build_s=7, step_s=1).for_phase("count") == 7
    ended = supervisor._stalled(config(), ("count", 1_234_567), 600, 0)
    assert (
        ended["message"]
        == "stopped answering while it counted the data's records, 1,234,567 so far: no progress for 600 s"
    )
