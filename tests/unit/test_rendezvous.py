"""Where a gang meets: what it does for those who have the trial's word, and for those who have not."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract import proof
from workers.contract.ranks import Fault, Seat
from workers.strategies import horovod, rendezvous
from workers.strategies.rendezvous import Rendezvous

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
METHODS = ("GET", "PUT", "DELETE", "HEAD", "POST", "OPTIONS")
KEY = "global/rank_0"


def seats(size: int) -> list[Seat]:
    return [
        Seat(rank=r, size=size, local_rank=r, local_size=size, cross_rank=0, cross_size=1, host=HERE, interface="lo")
        for r in range(size)
    ]


@contextlib.contextmanager
def open_for(size: int) -> Iterator[Rendezvous]:
    made = Rendezvous(seats(size), HERE)
    try:
        yield made
    finally:
        made.close()


def asked(meeting: Rendezvous, method: str, path: str, body: bytes | None = None, by: str = HERE) -> tuple[int, bytes]:
    """Status and value of an answer; 0 where the line was cut before one."""
    host, port = rendezvous.place(meeting.address)
    line = http.client.HTTPConnection(host, port, timeout=10, source_address=(by, 0))
    try:
        line.request(method, path, body)
        answer = line.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        line.close()


def urls(meeting: Rendezvous) -> str:
    """The beginning of the paths that Horovod asks for: its HTTPStore makes URLs so, and cuts them at the first `/`."""
    told = horovod.environment(Seat(**{**vars(seats(2)[0]), "rendezvous": meeting.address}), {})
    url = f"{told['HOROVOD_GLOO_RENDEZVOUS_ADDR']}:{told['HOROVOD_GLOO_RENDEZVOUS_PORT']}/"
    place, _, path = url.partition("/")
    assert place == ":".join(map(str, rendezvous.place(meeting.address)))
    return f"/{path}"


def listens(meeting: Rendezvous) -> bool:
    with socket.socket() as line:
        return line.connect_ex(rendezvous.place(meeting.address)) == 0


def test_whoever_has_the_word_finds_what_was_left() -> None:
    with open_for(2) as meeting:
        path = f"{urls(meeting)}{KEY}"
        assert asked(meeting, "GET", path) == (404, b"")
        for value in (b"10.0.0.7", b"", bytes(range(256)) * 300):
            assert asked(meeting, "PUT", path, value) == (200, b"")
            assert asked(meeting, "GET", path) == (200, value)
        assert asked(meeting, "DELETE", path) == (200, b"")
        assert asked(meeting, "GET", f"{urls(meeting)}global/rank_1") == (404, b"")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", [f"/{KEY}", "/", "/WORD/global/rank_0", "/joined/0", "//WORD/joined/1"])
def test_without_the_word_nothing_is_done_or_told(method: str, path: str) -> None:
    with open_for(2) as meeting:
        assert asked(meeting, "PUT", f"{urls(meeting)}{KEY}", b"kept") == (200, b"")
        wrong = path.replace("WORD", f"{'x' * 43}:{rendezvous.place(meeting.address)[1]}")
        status, value = asked(meeting, method, wrong, b"forged" if method in ("PUT", "POST") else None)
        assert (status, value) in [(403, b""), (0, b"")]  # the line may be cut before a body was read
        assert asked(meeting, "GET", f"{urls(meeting)}{KEY}") == (200, b"kept")


@pytest.fixture(scope="module")
def meeting() -> Iterator[Rendezvous]:
    with open_for(2) as made:
        yield made


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=80))
def test_no_path_but_with_the_word_leads_anywhere(meeting: Rendezvous, path: str) -> None:
    assert asked(meeting, "GET", f"/{path}") == (403, b"")


def line_to(meeting: Rendezvous) -> tuple[http.client.HTTPConnection, bytes]:
    """A line, and the question that it is asked."""
    line = http.client.HTTPConnection(*rendezvous.place(meeting.address), timeout=10)
    line.request("GET", f"/{rendezvous.QUESTION}")
    answer = line.getresponse()
    assert answer.status == 401
    return line, answer.read()


def test_a_proof_is_good_for_one_request_on_its_own_line() -> None:
    """Whoever has seen it can't use it on another line, for another path or method, or a second time."""
    with open_for(2) as meeting:
        word = f"{rendezvous.word(meeting.address)}:{rendezvous.place(meeting.address)[1]}".encode()
        rendezvous.tell(meeting.address, KEY, b"kept")

        def status(method: str, path: str, claim: bytes, asked: bytes = b"", word: bytes = word) -> int:
            line, own = line_to(meeting)
            with contextlib.closing(line):
                line.request(method, f"/{proof.of(word, asked or own, claim).hex()}/{path}")
                return line.getresponse().status

        seen, question = line_to(meeting)
        assert status("GET", KEY, b"GET " + KEY.encode()) == 200
        assert status("GET", KEY, b"GET " + KEY.encode(), asked=question) == 403
        assert status("GET", KEY, b"GET global/rank_1") == 403
        assert status("DELETE", KEY, b"GET " + KEY.encode()) == 403
        assert status("GET", KEY, b"GET " + KEY.encode(), word=b"x" * 43) == 403
        again = f"/{proof.of(word, question, b'GET ' + KEY.encode()).hex()}/{KEY}".encode()
        with contextlib.closing(seen):
            assert seen.sock
            seen.sock.sendall(b"".join(b"GET " + again + b" HTTP/1.1\r\n\r\n" for _ in range(2)))
            assert sum(len(one.split(b"kept")) - 1 for one in iter(lambda: seen.sock.recv(1 << 12), b"")) == 1


def test_no_question_is_asked_twice_on_a_line() -> None:
    with open_for(2) as meeting:
        line, _ = line_to(meeting)
        with contextlib.closing(line):
            line.request("GET", f"/{rendezvous.QUESTION}")
            assert line.getresponse().status == 403


def test_a_stranger_can_not_say_that_the_last_rank_has_joined() -> None:
    with open_for(2) as meeting:
        rendezvous.leave(meeting.address, 0)
        host, port = rendezvous.place(meeting.address)
        rendezvous.leave(f"{host}:{port}/{'x' * 43}", 1)
        assert asked(meeting, "PUT", "/joined/1", b"")[0] == 403
        time.sleep(1.2)
        assert listens(meeting)


def test_two_trials_have_words_of_their_own() -> None:
    with open_for(2) as one, open_for(2) as other:
        assert len(one.address.partition("/")[2]) >= 43  # 256 bits
        assert asked(one, "GET", f"{urls(other)}{KEY}") == (403, b"")
        assert one.address not in repr(Seat(**{**vars(seats(2)[0]), "rendezvous": one.address}))


def test_it_hears_the_gangs_nodes_only() -> None:
    with open_for(2) as meeting:
        assert asked(meeting, "GET", f"{urls(meeting)}{KEY}", by=HERE) == (404, b"")
        assert asked(meeting, "GET", f"{urls(meeting)}{KEY}", by=ELSEWHERE) == (0, b"")


def test_it_listens_on_the_gangs_address_only() -> None:
    with open_for(2) as meeting, socket.socket() as line:
        assert listens(meeting)
        assert line.connect_ex((ELSEWHERE, rendezvous.place(meeting.address)[1]))


@pytest.mark.parametrize(
    "sent", [b"", b"\0" * 300, b"GET\r\n\r\n", b"PUT /x HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf", b"x" * 70000]
)
def test_whoever_speaks_something_else_holds_nobody_up(sent: bytes) -> None:
    with open_for(2) as meeting:
        strangers = [socket.create_connection(rendezvous.place(meeting.address)) for _ in range(50)]
        for stranger in strangers:
            stranger.sendall(sent)
        assert asked(meeting, "PUT", f"{urls(meeting)}{KEY}", b"v") == (200, b"")
        assert asked(meeting, "GET", f"{urls(meeting)}{KEY}") == (200, b"v")
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize("length", ["", "-1", "x", "1e3", "99999999999999999999", str((1 << 24) + 1)])
def test_a_value_of_no_sound_length_is_not_kept(length: str) -> None:
    with open_for(2) as meeting, socket.create_connection(rendezvous.place(meeting.address), timeout=10) as line:
        line.sendall(f"PUT {urls(meeting)}{KEY} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())
        assert line.recv(1 << 12).split()[1] == b"400"
        assert asked(meeting, "GET", f"{urls(meeting)}{KEY}") == (404, b"")


def test_half_a_value_is_not_kept() -> None:
    with open_for(2) as meeting:
        with socket.create_connection(rendezvous.place(meeting.address), timeout=10) as line:
            line.sendall(f"PUT {urls(meeting)}{KEY} HTTP/1.1\r\nContent-Length: 8\r\n\r\nhalf".encode())
            line.shutdown(socket.SHUT_WR)
            assert line.recv(1 << 12).split()[1] == b"400"
        assert asked(meeting, "GET", f"{urls(meeting)}{KEY}") == (404, b"")


def test_it_closes_when_the_last_rank_has_joined_and_not_before() -> None:
    with open_for(3) as meeting:
        for rank in (0, 2, 2):  # who says it twice is still one
            rendezvous.leave(meeting.address, rank)
        time.sleep(1.2)
        assert asked(meeting, "GET", f"{urls(meeting)}{KEY}") == (404, b"")
        rendezvous.leave(meeting.address, 1)
        give_up = time.monotonic() + 5
        while listens(meeting):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        rendezvous.leave(meeting.address, 1)  # says nothing to whoever comes late


def test_closed_early_it_closes_as_soon_and_may_be_closed_again() -> None:
    with open_for(2) as meeting:
        began = time.monotonic()
        meeting.close()
        assert time.monotonic() - began < 0.2  # the next gang need not wait
        meeting.close()
        while listens(meeting):
            assert time.monotonic() - began < 5
            time.sleep(0.05)


@pytest.mark.parametrize("leads_to", ["127.0.1.1", "::1"])
def test_a_name_that_leads_to_loopback_is_no_name_between_nodes(leads_to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", (leads_to, 0))])
    alone = seats(2)[0]
    horovod.check_own_name(alone)
    with pytest.raises(Fault, match=rf"leads to {leads_to}; add it to the node's /etc/hosts: 10\.0\.0\.7 "):
        horovod.check_own_name(Seat(**{**vars(alone), "interface": "eth0", "host": "10.0.0.7"}))
