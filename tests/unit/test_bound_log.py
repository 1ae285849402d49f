"""A rank's log that grows while it is cut: its first and last part stay, and the line between them says what is not
there."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.launch import bound_log
from workers.launch.bound_log import MIB, BoundLog

pytestmark = pytest.mark.unit
KEPT = 1000


def lines(first: int, last: int) -> bytes:
    return b"".join(f"line {n:6d}\n".encode() for n in range(first, last))


def test_a_log_within_its_bound_stays_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    BoundLog(str(log)).look()
    assert not log.exists()
    log.write_bytes(lines(0, 1000))
    BoundLog(str(log), len(lines(0, 1000)), KEPT).look()
    assert log.read_bytes() == lines(0, 1000)


def test_of_a_longer_one_the_first_and_the_last_lines_stay_however_often_it_is_cut(tmp_path: Path) -> None:
    """The rank appends all the while."""
    log, written = tmp_path / "log", 0
    bound = BoundLog(str(log), 5 * KEPT, KEPT)
    with log.open("ab", buffering=0) as rank:
        for turn in range(100):
            rank.write(lines(turn * 1000, turn * 1000 + 1000))
            written += len(lines(0, 1000))
            bound.look()
    kept = log.read_bytes()
    first, said, last = kept.partition(b"\n[")[0], kept.partition(b"\n[")[2], kept.partition(b"]\n")[2]
    assert len(kept) < 3 * KEPT
    assert lines(0, 1000).startswith(first)
    assert len(first) == KEPT
    assert lines(99_000, 100_000).endswith(last)
    assert KEPT - 12 <= len(last) <= KEPT
    cut = written - len(first) - len(last)
    assert said.startswith(f"{cut / MIB:,.1f} MiB of this log were cut here".encode())


def test_one_endless_line_is_cut_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 10 * KEPT)
    BoundLog(str(log), 5 * KEPT, KEPT).look()
    assert 2 * KEPT < log.stat().st_size < 3 * KEPT


def test_what_is_kept_is_less_than_what_makes_a_cut() -> None:
    assert 2 * bound_log.KEPT < bound_log.MOST
