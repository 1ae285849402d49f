"""What a stranger gets out of a port: somebody on the network without the token, a trial's word or a seat in a gang.

Each port is tried in every protocol that a cluster speaks: HTTP, all of Ray's calls by gRPC, Gloo's, and bytes that
mean nothing. In what it speaks it must turn the stranger away; that it does not know a call is no answer.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import importlib
import itertools
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from tests.beside import beside

PATIENCE_S = 5.0
SILENCE_S = 0.5
AT_ONCE = 8  # ports
ENOUGH = 3  # complaints about one
TOKENS = (None, f"Bearer {'0' * 64}")
METHODS = ("GET", "PUT", "POST", "DELETE")
PATHS = (
    "/",
    "/metrics",
    "/logs",
    "/nodes?view=summary",
    "/api/version",
    "/api/jobs/",
    "/api/v0/nodes",
    "/api/job_agent/jobs/",
    "/get_or_create_runtime_env",
    "/delete_runtime_env_if_possible",
    "/global/rank_0",
    "/joined/0",
)
GLOO = struct.pack("<6Q", 48 + 8, 0, 0, 0, 8, 0) + bytes(8)  # its first message: eight bytes for the first buffer
NOISE = (b"", b"\r\n\r\n", bytes(4096), b"\xff" * 4096, GLOO)
GREETINGS = (b"GET / HTTP/1.0\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
SETTINGS, GOAWAY = 4, 7  # HTTP/2 frames, with which a gRPC server greets anyone, and parts
SERVICES = (
    "autoscaler",
    "core_worker",
    "events_event_aggregator_service",
    "gcs_service",
    "instance_manager",
    "node_manager",
    "pubsub",
    "ray_client",
    "reporter",
)
UNLISTED = (  # of servers that are C++ only
    ("unary_unary", "/ray.rpc.ObjectManagerService/Pull"),
    ("unary_unary", "/ray.rpc.ObjectManagerService/Push"),
)
DEADLY = "/ray.rpc.syncer.RaySyncer/StartSync"  # to Ray 2.60, from anyone who does not say which node they are
A_NODE = (("node_id", "ab" * 28),)


def opened(places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], list[str]]:
    """What is wrong with those of these ports that let a stranger in, or never turned one away."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda place: complaints(*place), places)
        return {place: said for place, said in zip(places, found, strict=True) if said}


def complaints(address: str, port: int) -> list[str]:
    if _speaks_grpc(address, port):
        tried = _by_grpc(address, port)
    elif _http(address, port, "GET", "/", None)[0]:
        tried = _by_http(address, port)
    else:
        tried = iter(["it speaks neither gRPC nor HTTP"])
    return [*itertools.islice(itertools.chain(_by_bytes(address, port), tried), ENOUGH)]


def _by_bytes(address: str, port: int) -> Iterator[str]:
    """Anything is said but that this is no way to speak."""
    for sent in NOISE:
        said = heard(address, port, sent)
        is_http_error = said.startswith(b"HTTP/1.") and said[9:10] in (b"4", b"5")
        is_http2 = len(said) > 3 and said[3] in (SETTINGS, GOAWAY)
        if said and not is_http_error and not is_http2:
            yield f"to {sent[:8]!r}…: {said[:100]!r}"


def answers(address: str, port: int) -> list[str]:
    """What is wrong with a port that must say nothing to anyone, in whatever protocol they speak."""
    said = {sent: heard(address, port, sent) for sent in (*NOISE, *GREETINGS)}
    return [f"to {sent[:8]!r}…: {told[:100]!r}" for sent, told in said.items() if told]


def heard(address: str, port: int, sent: bytes) -> bytes:
    """What comes back for some bytes, until the other side hangs up or is silent."""
    said = b""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=PATIENCE_S) as line:
        line.settimeout(SILENCE_S)
        line.sendall(sent)
        while len(said) < 1 << 16 and (more := line.recv(1 << 12)):
            said += more
    return said


def _by_http(address: str, port: int) -> Iterator[str]:
    statuses = set()
    for method, path, token in itertools.product(METHODS, PATHS, TOKENS):
        status, body = _http(address, port, method, path, token)
        statuses.add(status)
        if 200 <= status < 300:
            yield f"{method} {path}: {status} {body[:100]!r}"
    if not statuses & {401, 403}:
        yield f"it speaks HTTP and turned nobody away: {sorted(statuses)}"


def _http(address: str, port: int, method: str, path: str, token: str | None) -> tuple[int, bytes]:
    """Status and body; 0 of what gave no such answer."""
    line = http.client.HTTPConnection(address, port, timeout=PATIENCE_S)
    try:
        body = b"{}" if method in ("PUT", "POST") else None
        line.request(method, path, body, {"Authorization": token} if token else {})
        answer = line.getresponse()
        return answer.status, answer.read(1 << 12)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        line.close()


def _channel(address: str, port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"{address}:{port}", options=[("grpc.enable_http_proxy", 0)])


def _speaks_grpc(address: str, port: int) -> bool:
    with _channel(address, port) as channel, contextlib.suppress(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=PATIENCE_S / 2)
        return True
    return False


def _by_grpc(address: str, port: int) -> Iterator[str]:
    with _channel(address, port) as channel:
        codes = set()
        for (kind, call), token in itertools.product(calls(), TOKENS):
            metadata = (*A_NODE, ("authorization", token)) if token else A_NODE
            code, said = _called(channel, kind, call, metadata)
            codes.add(code)
            if code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED):
                yield f"{call}: {code.name} {said[:100]!r}"
        if grpc.StatusCode.UNAUTHENTICATED not in codes:
            yield f"it speaks gRPC and turned nobody away: {sorted(code.name for code in codes)}"


def _called(
    channel: grpc.Channel, kind: str, call: str, metadata: Sequence[tuple[str, str]]
) -> tuple[grpc.StatusCode, object]:
    """How an empty call ends, and what was said."""
    ask = getattr(channel, kind)(call)
    given = iter([b""]) if kind.startswith("stream") else b""
    try:
        answer = ask(given, timeout=PATIENCE_S, metadata=metadata)
        return grpc.StatusCode.OK, next(answer, b"") if kind.endswith("stream") else answer
    except grpc.RpcError as error:
        return error.code(), error.details()


def deadly(address: str, port: int) -> None:
    """Make the call that ends Ray's head, or a node of it, without the token; docs/cluster.md names it."""
    with _channel(address, port) as channel:
        _called(channel, "stream_stream", DEADLY, ())


@functools.cache
def calls() -> tuple[tuple[str, str], ...]:
    """All of Ray's, each with its kind, as its own clients have them."""
    recorder = _Recorder()
    for name in SERVICES:
        module = importlib.import_module(f"ray.core.generated.{name}_pb2_grpc")
        for stub in (made for made_name, made in vars(module).items() if made_name.endswith("Stub")):
            stub(recorder)
    assert len(recorder.calls) > 100
    return (*dict.fromkeys(recorder.calls), *UNLISTED, ("stream_stream", DEADLY))


class _Recorder:
    """A channel that only notes what it is to carry."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, kind: str) -> Any:
        return lambda call, **_: self.calls.append((kind, call))


@contextlib.contextmanager
def in_the_way(address: str, port: int) -> Iterator[list[bytes]]:
    """Takes a seat where Gloo waits for a rank, as long as the block; what is said to whoever sits there."""
    said: list[bytes] = []
    with socket.create_connection((address, port), timeout=PATIENCE_S) as line:
        line.settimeout(SILENCE_S / 5)

        def listen(is_over: threading.Event) -> None:
            while not is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    try:
                        more = line.recv(1 << 16)
                    except ConnectionResetError:
                        return
                    if not more:
                        return
                    said.append(more)

        with beside(listen):
            yield said
