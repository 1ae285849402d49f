"""Where a gang's ranks find each other: a store of keys over HTTP, as Horovod's ranks ask it of who launched them.

Horovod's own listens on every address and does what anyone asks. This one listens on the gang's address, hears the
gang's nodes only, does nothing for who does not know the trial's word, and closes once every rank has said that it
needs it no more. The word is 256 bits, drawn for one trial. Who asks in Python sends a proof of it (`proof`), for the
question of their line. Horovod's client, which is C++, sends no header and signs nothing; but it puts what it was told
of the server's address into the URL as it stands, and so the word with it, in clear.

Standard library only.
"""

from __future__ import annotations

import contextlib
import hmac
import http
import http.client
import http.server
import secrets
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from workers.contract import proof
from workers.contract.ranks import Seat

WORD_BYTES = 32
SILENCE_S = 3.0  # of who asks, at most
LARGEST_VALUE = 1 << 24  # bytes
ASK_EVERY_S = 0.02
ASKING = 32  # ranks may ask so often; of more, each asks the less often
QUESTION = "question"  # the path at which a line is asked one
JOINED = "joined"  # the scope in which ranks say that they have


class Rendezvous:
    """The place where one gang meets, on a free port, until all of it has or it is closed."""

    def __init__(self, seats: Sequence[Seat], address: str) -> None:
        word = secrets.token_urlsafe(WORD_BYTES)
        self._store = _Store(address, word, {address, *(seat.host for seat in seats)}, len(seats), self.close)
        self.address = f"{address}:{self._store.port}/{word}"
        threading.Thread(target=self._serve, name="rendezvous", daemon=True).start()

    def close(self) -> None:
        """Return at once: it looks twice a second whether it is to stop, and the next gang need not wait."""
        threading.Thread(target=self._store.shutdown).start()

    def _serve(self) -> None:
        with self._store:
            self._store.serve_forever()


def place(address: str) -> tuple[str, int]:
    """Return host and port of a rendezvous's address, without the word."""
    host, _, port = address.partition("/")[0].rpartition(":")
    return host, int(port)


def word(address: str) -> str:
    """Return the trial's word of a rendezvous's address."""
    return address.partition("/")[2]


def tell(address: str, path: str, value: bytes) -> None:
    """Leave a value where every rank of the gang can ask for it."""
    status, _ = _request(address, "PUT", path, value)
    if status != http.HTTPStatus.OK:
        raise ConnectionError(f"the rendezvous took no value: {status}")


def value_at(address: str, path: str) -> bytes:
    """Return what a rank has left there; nothing before it has."""
    status, value = _request(address, "GET", path)
    return value if status == http.HTTPStatus.OK else b""


def awaited(seat: Seat, path: str) -> bytes:
    """Return what a rank leaves there, once it has."""
    while not (value := value_at(seat.rendezvous, path)):
        time.sleep(ASK_EVERY_S * max(1, seat.size / ASKING))
    return value


def _request(address: str, method: str, path: str, value: bytes | None = None) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(*place(address), timeout=SILENCE_S)) as line:
        line.request(method, _proved(line, address, method, path), value)
        answer = line.getresponse()
        return answer.status, answer.read()


def leave(address: str, rank: int) -> None:
    """Tell a rendezvous that this rank needs it no more. It waits for its question only: other ranks wait for this
    one."""
    path = f"{JOINED}/{rank}"
    with (
        contextlib.suppress(OSError, http.client.HTTPException),
        contextlib.closing(http.client.HTTPConnection(*place(address), timeout=SILENCE_S)) as line,
    ):
        line.request("PUT", _proved(line, address, "PUT", path), b"")


def _proved(line: http.client.HTTPConnection, address: str, method: str, path: str) -> str:
    """Return the path of a request with the proof that its line is asked for in the word's place."""
    line.request("GET", f"/{QUESTION}")
    asked = line.getresponse().read()
    shown, _, path = f"{_in_path(word(address), place(address)[1])}/{path}".partition("/")
    return f"/{proof.of(shown.encode(), asked, _claim(method, path)).hex()}/{path}"


def _claim(method: str, path: str) -> bytes:
    """Return what is proved beside the word: that this is asked."""
    return f"{method} {path}".encode()


def _in_path(word: str, port: int) -> str:
    """Return what stands first in the path of Horovod's requests: it ends the address that it was told by the port."""
    return f"{word}:{port}"


class _Store(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128  # at least: a gang asks all at once

    def __init__(
        self, address: str, word: str, welcome: Collection[str], size: int, on_joined: Callable[[], None]
    ) -> None:
        self.request_queue_size = max(self.request_queue_size, size)
        super().__init__((address, 0), _Request)
        self.port = int(self.server_address[1])
        self.word = _in_path(word, self.port).encode()
        self.kept: dict[str, bytes] = {}  # by scope/key
        self._welcome = frozenset(welcome)
        self._size, self._on_joined = size, on_joined
        self._joined: set[str] = set()

    def keep(self, path: str, value: bytes) -> None:
        scope, _, key = path.partition("/")
        if scope != JOINED:
            self.kept[path] = value
            return
        self._joined.add(key)
        if len(self._joined) == self._size:
            self._on_joined()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return client_address[0] in self._welcome

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up in the middle is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Request(http.server.BaseHTTPRequestHandler):
    server: _Store
    timeout = SILENCE_S
    wbufsize = -1  # an answer goes out in one piece
    server_version, sys_version = "rendezvous", ""
    _asked: bytes | None = None  # the question of this line, if it wanted one

    def parse_request(self) -> bool:
        """Go on with a request that shows the word, or the proof of it for this line; what follows is its path."""
        if not super().parse_request():
            return False
        shown, _, self.path = self.path.removeprefix("/").partition("/")
        if self._knows_the_word(shown.encode()):
            return True
        if shown == QUESTION and self._asked is None:
            self._ask()
        else:
            self._answer(403)
        return False

    def _knows_the_word(self, shown: bytes) -> bool:
        if self._asked is None:
            return hmac.compare_digest(shown, self.server.word)
        proved = proof.of(self.server.word, self._asked, _claim(self.command, self.path))
        return hmac.compare_digest(shown, proved.hex().encode())

    def _ask(self) -> None:
        """Ask the line's question, and hear one request more."""
        self._asked, self.close_connection = proof.question(), False
        self._answer(401, self._asked, {"Connection": "keep-alive"})
        self.wfile.flush()

    def do_GET(self) -> None:
        value = self.server.kept.get(self.path)
        if value is None:
            self._answer(404)
        else:
            self._answer(200, value)

    def do_PUT(self) -> None:
        header = self.headers.get("Content-Length", "")
        length = int(header) if header.isdecimal() and len(header) < 10 else LARGEST_VALUE + 1
        value = self.rfile.read(length) if length <= LARGEST_VALUE else b""
        if len(value) != length:
            self._answer(400)
            return
        self.server.keep(self.path, value)
        self._answer(200)

    def do_DELETE(self) -> None:
        """Answer a rank that has met those of a scope. All that is here goes with the gang."""
        self._answer(200)

    def _answer(self, status: int, value: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        for name, said in {**headers, "Content-Length": str(len(value))}.items():
            self.send_header(name, said)
        self.end_headers()
        self.wfile.write(value)

    def log_message(self, *_: object) -> None: ...
