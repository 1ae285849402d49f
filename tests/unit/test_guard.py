"""A head that ends, or that another took the place of, is noticed at once; one that only hangs up is still there."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest

from sweeps import guard


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
    with guard.guarded(head.address, lambda: head.identity, heard.put):
        line = head.line()
        head.listener.close()
        line.close()
        assert heard.get(timeout=10) == f"the Ray head at {head.address} has gone"


def test_a_head_that_took_another_s_place_is_not_that(head: Head) -> None:
    heard: queue.Queue[str] = queue.Queue()
    with guard.guarded(head.address, lambda: head.identity, heard.put):
        line = head.line()
        head.identity = "second"
        line.close()
        assert heard.get(timeout=10) == f"the Ray head at {head.address} is another than before"


def test_a_head_that_only_hangs_up_is_still_there(head: Head) -> None:
    heard: queue.Queue[str] = queue.Queue()
    with guard.guarded(head.address, lambda: head.identity, heard.put):
        for _ in range(3):
            head.line().close()
    assert heard.empty()
