"""What `status -f` and `logs -f` take over the wire: the bytes between client and a real job server, counted."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeps import service
from sweeps.status import Bulletin
from workers.paths import SweepPaths, written_whole

NODES, QUEUED, FOLLOWED = 8, 5, 20  # of a bulletin; bulletins or lines
FRAMES = 512  # bytes that a message may cost beside its own, with its marks, WebSocket's frames and Ray's pings


class Counted:
    """A door to a port of this machine that counts the bytes that come back through it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.bytes = 0
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := one.recv(65536):
                self.bytes += len(said)
                other.sendall(said)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._door.close()


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    import ray

    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as put:
        put.setenv("SWEEP_RESULTS", str(folder))
        put.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        port = service._free_port()
        context = ray.init("local", num_cpus=2, include_dashboard=True, dashboard_port=port, log_to_driver=False)
        counted = Counted(int(context.dashboard_url.rsplit(":", 1)[1]))
        yield counted
        counted.close()
        ray.shutdown()


def bulletin() -> Bulletin:
    """Of a sweep on some nodes, all of them busy."""
    node = {"node": "node-00", "cpus": 64, "gpus": 8, "kind": "V100-SXM2", "ranks": 8}
    running = {"trial": "batch_size 256, gpus 8, precision fp16", "nodes": ["node-00"], "stage": "measuring"}
    one = running | {"images_per_s": 12345.678, "since_s": 123.4, "ends_at": time.time() + 100.5}
    queued = {"trial": "batch_size 256, gpus 8, precision fp16", "gpus": 8, "starts_at": time.time() + 100.5}
    head = {"sweep": "x", "state": "running", "at": time.time(), "trials": 100, "ended": {"completed": 20}}
    cost = {"waiting": 72, "spent": 12.5, "expected": 40.5, "left_s": 1234.5, "unit": "GPU-hours"}
    return head | cost | {"nodes": [node] * NODES, "running": [one] * NODES, "queue": [queued] * QUEUED}


@contextlib.contextmanager
def driven() -> Iterator[int]:
    """A driver that writes its bulletin every second; how long each is."""
    paths, is_over = SweepPaths("x"), threading.Event()
    paths.folder.mkdir(parents=True)

    def write() -> None:
        with written_whole(paths.status) as path:
            path.write_text(json.dumps(bulletin()))

    def drive() -> None:
        while not is_over.wait(1.0):
            write()

    write()
    at = threading.Thread(target=drive)
    at.start()
    yield len(json.dumps(bulletin()))
    is_over.set()
    at.join()


def test_a_status_that_is_followed_costs_each_bulletin_once(wire: Counted) -> None:
    with driven() as length:
        told = service.bulletins("x", True, wire.url)
        next(told)
        next(told)
        before, began = wire.bytes, time.monotonic()
        for _ in range(FOLLOWED):
            next(told)
        spent, took_s = wire.bytes - before, time.monotonic() - began
        told.close()  # type: ignore[attr-defined]
    print(f"status -f: {spent / took_s:,.0f} bytes a second, bulletins of {length:,} bytes", file=sys.stderr)
    assert spent >= FOLLOWED * length, "it did not go through the door"
    assert spent <= (FOLLOWED + 2) * (length + FRAMES)  # two may have been on their way


def test_a_log_that_is_followed_costs_each_line_once(wire: Counted) -> None:
    line = "batch_size 256, gpus 8, precision fp16   12,345.6 images/s  " * 2
    says = f"import time\nprint({line!r} * 400, flush=True)\nwhile True: print({line!r}, flush=True); time.sleep(0.5)"
    with service._client(wire.url) as client:
        service._start(client, "speaker", ["python", "-c", says], {})
        lines: Any = service._tailed(client, "speaker")
        next(lines)  # the long one, which a log that is fetched whole would have in it each time
        next(lines)
        before, began = wire.bytes, time.monotonic()
        for _ in range(FOLLOWED):
            next(lines)
        spent, took_s = wire.bytes - before, time.monotonic() - began
        lines.close()
        service._forget(client, "speaker")
    print(f"logs -f: {spent / took_s:,.0f} bytes a second, lines of {len(line)} bytes", file=sys.stderr)
    assert FOLLOWED * len(line) <= spent <= (FOLLOWED + 2) * (len(line) + FRAMES)
