"""A file's pages in and out of the page cache, by what the system says was read from the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.inputs import storage

SIZE_MIB = 16.0


def read_from_disk_mib(act: Callable[[Path], None], path: Path) -> float:
    before = storage.read_mib()
    act(path)
    return storage.read_mib() - before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.write_bytes(os.urandom(int(SIZE_MIB) << 20))
    os.sync()
    storage.drop(made)
    if read_from_disk_mib(storage.read, made) < SIZE_MIB:
        pytest.skip("this file system keeps no pages that can be dropped, or does not count what it reads")
    return made


def test_what_was_read_in_is_not_read_from_the_disk_again(path: Path) -> None:
    storage.drop(path)
    assert read_from_disk_mib(storage.read, path) == pytest.approx(SIZE_MIB, rel=0.05)
    assert read_from_disk_mib(storage.read, path) < 0.05 * SIZE_MIB


def test_reading_in_a_large_file_beats_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHUNK", 1000)
    (tmp_path / "data").write_bytes(bytes(4500))
    beats: list[None] = []
    storage.read(tmp_path / "data", lambda: beats.append(None))
    assert len(beats) == 5


def test_a_file_that_does_not_count_reads_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert storage.read_mib() == 0.0
