"""A cluster of another version of Ray, reached directly or through SSH. A dashboard and an ssh that only forwards stand
in, on this machine."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

VERSION = "2.41.0"
TOKEN = "0" * 64
SITE = "provider: {type: local, head_ip: 10.0.0.10}\nauth: {ssh_user: ubuntu, ssh_private_key: ~/.ssh/some_key}\n"
SSH = """
import os, socket, sys, threading

with open(os.environ["SEEN"], "w") as seen:
    print(*sys.argv[1:], sep="\\n", file=seen)
if "DEAF" in os.environ:
    sys.exit("Permission denied (publickey).")
_, port, _, _ = sys.argv[sys.argv.index("-L") + 1].split(":")
try:
    door = socket.create_server(("127.0.0.1", int(port)))
except OSError:
    sys.exit("Could not request local forwarding.")
print("Welcome to this head!")
print(sys.argv[-1].removeprefix("echo ").removesuffix("; cat"), flush=True)

def copy(source, to):
    while part := source.recv(65536):
        to.sendall(part)
    to.shutdown(socket.SHUT_WR)

def serve():
    while True:
        line, _ = door.accept()
        head = socket.create_connection(("127.0.0.1", int(os.environ["HEAD"])))
        for one, other in ((line, head), (head, line)):
            threading.Thread(target=copy, args=(one, other), daemon=True).start()

threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()
"""


class OlderRay(http.server.ThreadingHTTPServer):
    """The dashboard: it says its version, and keeps the tokens that it was shown."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.shown: list[str | None] = []


class _Answer(http.server.BaseHTTPRequestHandler):
    server: OlderRay

    def do_GET(self) -> None:
        self.server.shown.append(self.headers.get("Authorization"))
        told = {"version": "4", "ray_version": VERSION, "ray_commit": "c", "session_name": "s"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[OlderRay]:
    """Within the block the dashboard answers, and whoever asks has a token."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with OlderRay() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextlib.contextmanager
def behind_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """Within the block SSH alone reaches the head of this folder's `cluster.yaml`; yields the tokens it is shown."""
    (folder / "bin").mkdir()
    ssh = folder / "bin/ssh"
    ssh.write_text(f"#!{sys.executable}\n{SSH}")
    ssh.chmod(0o755)
    (folder / "cluster.yaml").write_text(SITE)
    with serving(monkeypatch) as server:
        monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("SEEN", str(folder / "seen"))
        monkeypatch.setenv("HEAD", str(server.server_port))
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://nowhere")
        monkeypatch.chdir(folder)
        yield server.shown


def forwarded() -> tuple[int, list[str]]:
    """The port here, and all that ssh was told."""
    words = Path("seen").read_text().splitlines()
    return int(words[words.index("-L") + 1].split(":")[1]), words


def is_open(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def ends(port: int) -> bool:
    give_up = time.monotonic() + 10
    while is_open(port) and time.monotonic() < give_up:
        time.sleep(0.05)
    return not is_open(port)
