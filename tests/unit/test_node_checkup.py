"""What takes a check-up's bytes: from the node that was told the word, whoever else knocks."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from workers.checks import node_checkup
from workers.contract import proof

HERE = "127.0.0.1"
WORD = bytes(range(32))
STRANGE = {
    "silence": b"",
    "zeros": bytes(32),
    "the word": WORD,
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "much": bytes(5 << 20),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_checkup, "PROOF_S", 0.3)
    monkeypatch.setattr(node_checkup, "PATIENCE_S", 5.0)
    monkeypatch.setattr(node_checkup, "LINK_MIB", 4)


@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE)
def test_a_stranger_is_hung_up_on_and_the_sender_still_served(said: bytes) -> None:
    port = node_checkup.Sink(HERE, WORD).port_number()
    for _ in range(3):
        with socket.create_connection((HERE, port), timeout=5) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(said)
            assert _until_the_end(stranger) in (proof.BYTES, 0)  # it was asked, and told nothing
    assert node_checkup.send(HERE, port, WORD) > 0


def _until_the_end(line: socket.socket) -> int:
    """The number of bytes that come before the other side hangs up."""
    count = 0
    with contextlib.suppress(ConnectionResetError):
        while more := line.recv(1 << 12):
            count += len(more)
    return count


def test_the_proof_of_one_line_proves_nothing_on_another() -> None:
    port = node_checkup.Sink(HERE, WORD).port_number()
    with socket.create_connection((HERE, port), timeout=5) as seen:
        shown = proof.of(WORD, proof.received(seen))
    with socket.create_connection((HERE, port), timeout=5) as stranger:
        stranger.sendall(shown)
        assert _until_the_end(stranger) == proof.BYTES
    assert node_checkup.send(HERE, port, WORD) > 0


def test_it_takes_once_and_closes() -> None:
    port = node_checkup.Sink(HERE, WORD).port_number()
    assert node_checkup.send(HERE, port, WORD) > 0
    give_up = time.monotonic() + 5
    while True:
        with socket.socket() as line:
            if line.connect_ex((HERE, port)):
                break
        assert time.monotonic() < give_up


def test_it_waits_for_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_checkup, "PATIENCE_S", 0.3)
    port = node_checkup.Sink(HERE, WORD).port_number()
    time.sleep(1)
    with socket.socket() as line:
        assert line.connect_ex((HERE, port))


def test_it_listens_on_its_own_address_only() -> None:
    port = node_checkup.Sink(HERE, WORD).port_number()
    with socket.socket() as line:
        assert line.connect_ex(("127.0.0.2", port))
