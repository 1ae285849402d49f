"""A head that ends, or that another took the place of, is noticed at once; one that only hangs up is still there."""

from __future__ import annotations

import io
import queue
import socket
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from sweeps.cluster import head_watch
from sweeps.run import driver
from sweeps.run.terms import Terms
from sweeps.store import late_runs


class Head:
    def __init__(self) -> None:
        self.identity = "first"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def line(self) -> socket.socket:
        """The next that is opened to it."""
        return self.listener.accept()[0]


@pytest.fixture
def head() -> Iterator[Head]:
    made = Head()
    made.listener.settimeout(10)
    yield made
    made.listener.close()


def test_a_head_that_ends_has_gone(head: Head) -> None:
    heard: queue.Queue[str] = queue.Queue()
    with head_watch.guarded(head.address, lambda: head.identity, heard.put):
        line = head.line()
        head.listener.close()
        line.close()
        assert heard.get(timeout=10) == f"the Ray head at {head.address} has gone"


def test_a_head_that_took_another_s_place_is_not_that(head: Head) -> None:
    heard: queue.Queue[str] = queue.Queue()
    with head_watch.guarded(head.address, lambda: head.identity, heard.put):
        line = head.line()
        head.identity = "second"
        line.close()
        assert heard.get(timeout=10) == f"the Ray head at {head.address} is another than before"


def test_a_head_that_only_hangs_up_is_still_there(head: Head) -> None:
    heard: queue.Queue[str] = queue.Queue()
    with head_watch.guarded(head.address, lambda: head.identity, heard.put):
        for _ in range(3):
            head.line().close()
    assert heard.empty()


def test_whoever_is_told_is_waited_for_so_that_nothing_is_ended_twice(head: Head) -> None:
    has_begun, order = threading.Event(), list[str]()

    def gone(_: str) -> None:
        has_begun.set()
        time.sleep(0.3)
        order.append("told")

    with head_watch.guarded(head.address, lambda: head.identity, gone):
        line = head.line()
        head.listener.close()
        line.close()
        assert has_begun.wait(10)
    order.append("behind")
    assert order == ["told", "behind"]


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("address", [None, "10.0.0.1:6379", "auto"])
def test_whoever_loses_its_head_is_told_what_has_ended_and_how_to_go_on(
    address: str | None, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    told = io.StringIO()
    monkeypatch.setattr(driver.os, "_exit", ended.append)
    tracker = types.SimpleNamespace(close=lambda *_: 0, late=late)
    facts = types.SimpleNamespace(name="x")
    book: Any = types.SimpleNamespace(facts=facts, is_still_complete=False, is_blank=False, has_run=True)
    why = "the Ray head at 127.0.0.1:54321 has gone"
    driver._abandoned([book], tracker, Console(file=told, width=200), Terms(address=address), why)  # type: ignore[arg-type]
    assert ended == [3]
    if address:
        assert why in told.getvalue()
        assert "once it is back, or with another head's address: sweep resume x\n" in told.getvalue()
    else:
        assert "the Ray that this command had started on this machine has ended" in told.getvalue()
        assert "sweep resume x\n" in told.getvalue()
        assert "127.0.0.1" not in told.getvalue(), "nobody knows of an address: none was given"
    assert (late_runs.words(late, "x") in told.getvalue()) == bool(late)
