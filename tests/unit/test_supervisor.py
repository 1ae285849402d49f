"""What a supervisor does around its rank: it clears away the folders of ranks that were killed with their supervisor
and fork server, asks for the fork server that is wanted, and says what is missing."""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.util
import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from tests.unit.records import config
from workers.contract import paths
from workers.contract.ranks import Seat
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


def test_a_node_without_torch_says_so_and_what_to_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    trial = dataclasses.replace(config(), framework="torch")
    seat = Seat(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1, host="127.0.0.1")
    order = supervisor.Order(config=trial, seat=seat, entry="", env={}, log=str(tmp_path / "rank-0.log"))
    (end,) = supervisor.supervise(order, "none", lambda: False)
    assert isinstance(end, supervisor.RankEnd)
    assert (end.what, end.kind) == ("failed", "no torch")
    assert "needs torch on every node" in end.message
    assert "make setup TORCH=1" in end.message


def test_a_node_is_asked_for_the_fork_server_that_a_trial_wants_and_that_is_not_there(tmp_path: Path) -> None:
    key = f"asked-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wanted:
        wanted.bind(paths.wanted_address(key))
        wanted.settimeout(5)
        assert not supervisor.is_answering(key, "torch")
        assert wanted.recv(64) == b"torch"
    assert paths.fork_server_address(key) != paths.fork_server_address(key, "torch")
    assert not supervisor.is_answering(key, "torch"), "also where nobody hears"


def test_a_node_s_fork_servers_are_awaited_but_for_those_of_frameworks_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, asked = f"awaited-{os.getpid()}", list[str]()
    there = {"tensorflow": 3, "torch": 5}  # looks until it is

    def is_answering(fork_server: str, framework: str) -> bool:
        asked.append(framework)
        return fork_server == key and asked.count(framework) >= there[framework]

    monkeypatch.setattr(supervisor, "is_answering", is_answering)
    monkeypatch.setattr(supervisor.time, "sleep", lambda _: None)
    monkeypatch.setattr(supervisor, "is_installed", lambda _: True)
    supervisor.await_all(key, ("tensorflow", "torch"), 60.0)
    assert asked.count("torch") == 5
    asked.clear()
    monkeypatch.setattr(supervisor, "is_installed", lambda name: name == "tensorflow")
    supervisor.await_all(key, ("torch", "tensorflow"), 60.0)
    assert asked == ["tensorflow"] * 3
