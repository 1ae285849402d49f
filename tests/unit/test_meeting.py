"""Ranks that meet beside what joins them: they add up, wait for each other, and hear which step is the last."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from workers.contract import proof
from workers.contract.ranks import Seat
from workers.strategies import meeting, rendezvous
from workers.strategies.meeting import Meeting, MeetingBroken
from workers.strategies.rendezvous import Rendezvous

SIZE = 4


@pytest.fixture
def seats() -> Iterator[list[Seat]]:
    of = {"size": SIZE, "local_size": SIZE, "cross_rank": 0, "cross_size": 1, "host": "127.0.0.1"}
    made = [Seat(rank=rank, local_rank=rank, **of) for rank in range(SIZE)]  # type: ignore[arg-type]
    store = Rendezvous(made, "127.0.0.1")
    yield [dataclasses.replace(seat, rendezvous=store.address) for seat in made]
    store.close()


def at_each(seats: list[Seat], do: Callable[[Meeting], Any]) -> list[Any]:
    """What it comes to at each rank, all at the same time."""

    def met(seat: Seat) -> Any:
        here = meeting.joined(seat)
        try:
            return do(here)
        finally:
            here.close()

    with ThreadPoolExecutor(len(seats)) as pool:
        return [found.result(20) for found in [pool.submit(met, seat) for seat in seats]]


def test_every_rank_has_the_sum(seats: list[Seat]) -> None:
    found = at_each(seats, lambda here: [here.total(np.array([1.0, here.rank * n])).tolist() for n in range(3)])
    assert found == [[[4.0, 6.0 * n] for n in range(3)]] * SIZE


def test_the_last_step_reaches_every_rank_before_the_next_barrier(seats: list[Seat]) -> None:
    def told(here: Meeting) -> int | None:
        if here.rank == 0:
            here.end_after(17)
        here.barrier()
        return here.last_step

    assert at_each(seats, told) == [17] * SIZE


def test_a_rank_that_goes_is_noticed_by_those_who_wait_for_it(seats: list[Seat]) -> None:
    def goes(here: Meeting) -> str:
        if here.rank == 2:
            return "gone"
        try:
            here.barrier()
        except MeetingBroken:
            here.close()  # as a rank's end does; the others hear of it
            return "broken"
        return "met"

    assert at_each(seats, goes) == ["broken", "broken", "gone", "broken"]


def test_who_does_not_know_the_word_is_no_rank(seats: list[Seat]) -> None:
    def first(here: Meeting) -> list[float]:
        return [*here.total(np.ones(1))]

    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(at_each, seats[:1], first)
        while not (told := rendezvous.value_at(seats[0].rendezvous, "meeting/0")):
            pass
        address, _, port = told.decode().rpartition(":")
        strangers = [socket.create_connection((address, int(port))) for _ in range(2)]
        asked = [proof.received(stranger) for stranger in strangers]
        wrong, claim = proof.of(b"wrong", asked[0], b"meeting/1"), rendezvous.word(seats[0].rendezvous).encode()
        strangers[0].sendall(meeting.FIRST_WORD.pack(wrong, 1))
        strangers[1].sendall(claim)  # the word itself is no proof of it
        assert [stranger.recv(100) for stranger in strangers] == [b"", b""], "both are turned away"
        assert at_each(seats[1:], first) == [[SIZE]] * (SIZE - 1)
        assert host.result(20) == [[SIZE]]


def test_the_proof_of_one_line_proves_nothing_on_another_nor_another_rank(seats: list[Seat]) -> None:
    """Whoever has seen one rank come can't come in its place."""
    first, word = seats[0], rendezvous.word(seats[0].rendezvous).encode()
    two = dataclasses.replace(first, size=2)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as open_lines:
        host = pool.submit(meeting.joined, two)
        seen, other, same = (
            open_lines.enter_context(socket.create_connection(meeting._host(two), timeout=20)) for _ in range(3)
        )
        shown = proof.of(word, proof.received(seen), b"meeting/1")
        for stranger, asked in ((other, proof.received(other)), (same, proof.received(same))):
            said = shown if stranger is other else proof.of(word, asked, b"meeting/2")
            stranger.sendall(meeting.FIRST_WORD.pack(said, 1))
            assert stranger.recv(1) == b""
        assert not host.done()
        seen.sendall(meeting.FIRST_WORD.pack(shown, 1) + b'{"at": ["", 0], "values": [4.0]}\n')
        here = host.result(20)
        assert here.total(np.array([1.0])).tolist() == [5.0]
        here.close()


def test_the_trial_s_word_is_in_nothing_that_a_rank_sends(seats: list[Seat], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    class Heard(socket.socket):
        def sendall(self, data: Any, *given: Any) -> None:
            sent.append(bytes(data))
            super().sendall(data, *given)

    monkeypatch.setattr(socket, "socket", Heard)
    assert at_each(seats, lambda here: here.total(np.ones(1)).tolist()) == [[SIZE]] * SIZE
    for seat in seats:
        rendezvous.leave(seat.rendezvous, seat.rank)
    word = rendezvous.word(seats[0].rendezvous).encode()
    assert any(b"GET /question" in one for one in sent)
    assert any(b"/joined/3" in one for one in sent)
    assert not [one for one in sent if word in one]


def test_one_rank_alone_meets_nobody(seats: list[Seat]) -> None:
    here = meeting.joined(dataclasses.replace(seats[0], size=1))
    here.end_after(5)
    assert (here.last_step, here.total(np.array([2.0])).tolist()) == (5, [2.0])


def test_strangers_hold_nobody_up_and_are_turned_away(seats: list[Seat]) -> None:
    """They say nothing, a part of a word, too much, what is none, or another's word."""
    first, *others = seats
    with ThreadPoolExecutor(SIZE) as pool, contextlib.ExitStack() as open_lines:
        host = pool.submit(meeting.joined, first)
        strangers = []
        said = b'{"wo', b"x" * 10_000, b"[]\n", b"\xff\n", b'{"word": "mine", "rank": 1}\n', b'{"word": 1}\n'
        for words in (b"", *said, b"[" * 2000 + b"\n", b"x" * 60_000 + b"\n"):
            line = open_lines.enter_context(socket.create_connection(meeting._host(first), timeout=20))
            line.sendall(words)
            strangers.append(line)
        met = [*pool.map(meeting.joined, others), host.result(20)]
        totals = [*pool.map(lambda here: here.total(np.array([1.0])).tolist(), met)]
        assert totals == [[float(SIZE)]] * SIZE
        for line in strangers:
            with contextlib.suppress(ConnectionResetError):  # of what it said something was not read
                assert len(proof.received(line)) == proof.BYTES  # it was asked, and told nothing
                assert line.recv(1) == b""
        for here in met:
            here.close()
