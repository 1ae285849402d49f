"""A supervisor clears away the folders of ranks that were killed with their supervisor and fork server, and no
others."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from pathlib import Path

import pytest

from workers.launch import supervisor

pytestmark = pytest.mark.unit


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    supervisor._clear_away_what_nobody_holds.cache_clear()
    return tmp_path


def made(folder: Path, age_s: float) -> Path:
    folder.mkdir()
    (folder / "checkpoint").write_text("of a rank")
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


def test_what_nobody_holds_goes_and_what_is_held_or_new_or_not_ours_stays(temporary: Path) -> None:
    made(temporary / "sweep-rank-left", age_s=60)
    held = made(temporary / "sweep-rank-held", age_s=60)
    made(temporary / "sweep-rank-new", age_s=0)
    made(temporary / "another", age_s=60)
    (temporary / "elsewhere").mkdir()
    (temporary / "sweep-rank-link").symlink_to(temporary / "elsewhere")
    supervisors = os.open(held, os.O_RDONLY)
    fcntl.flock(supervisors, fcntl.LOCK_SH)
    supervisor._clear_away_what_nobody_holds()
    os.close(supervisors)
    left = {path.name for path in temporary.iterdir()}
    assert left == {"sweep-rank-held", "sweep-rank-new", "another", "elsewhere", "sweep-rank-link"}
