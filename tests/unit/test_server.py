"""The log of the MLflow that a head keeps up: it is rotated, and no line is lost but the oldest."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.cluster import server

pytestmark = pytest.mark.unit

LINES = [f"line {n:04} of what MLflow says" for n in range(500)]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    monkeypatch.setattr(server, "LOG_BYTES", 4000)
    made = server._log(tmp_path / "server.log")
    yield made
    for handler in list(made.handlers):
        made.removeHandler(handler)
        handler.close()


def test_a_log_that_is_full_is_rotated_and_the_last_ones_read_as_one(log: logging.Logger, tmp_path: Path) -> None:
    server._copy((f"{line}\n" for line in LINES), log)
    names = ["server.log.3", "server.log.2", "server.log.1", "server.log"]  # the oldest first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert all((tmp_path / name).stat().st_size <= 4000 for name in names)
    said = [line for name in names for line in (tmp_path / name).read_text().splitlines()]
    assert len(said) > 200
    assert [line.split(" ", 2)[2] for line in said] == LINES[-len(said) :]
