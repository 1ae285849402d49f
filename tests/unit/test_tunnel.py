"""A cluster that is reached by its launcher file: what goes through SSH, and what ends with it. An ssh that only
forwards, on this machine, stands in."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.cluster import ray_jobs
from sweeps.errors import InputError, RefusedError

TOKEN = "0" * 64
SITE = "provider: {type: local, head_ip: 10.0.0.10}\nauth: {ssh_user: ubuntu, ssh_private_key: ~/.ssh/some_key}\n"
SSH = """
import os, socket, sys, threading

with open(os.environ["SEEN"], "w") as seen:
    print(*sys.argv[1:], sep="\\n", file=seen)
if "DEAF" in os.environ:
    sys.exit("Permission denied (publickey).")
_, port, _, _ = sys.argv[sys.argv.index("-L") + 1].split(":")
door = socket.create_server(("127.0.0.1", int(port)))

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


class Head(http.server.BaseHTTPRequestHandler):
    """The job server of a cluster of another Ray."""

    shown: list[str | None]

    def do_GET(self) -> None:
        self.shown.append(self.headers.get("Authorization"))
        told = {"version": "4", "ray_version": "2.41.0", "ray_commit": "c", "session_name": "s"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """What is shown to the head of `cluster.yaml`, which only SSH reaches."""
    monkeypatch.setattr(Head, "shown", [], raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Head)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin/ssh"
    ssh.write_text(f"#!{sys.executable}\n{SSH}")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("HEAD", str(server.server_port))
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://nowhere")
    (tmp_path / "cluster.yaml").write_text(SITE)
    monkeypatch.chdir(tmp_path)
    yield Head.shown
    server.shutdown()
    server.server_close()


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


def test_a_cluster_is_asked_through_ssh_where_its_launcher_file_is_its_address(shown: list[str | None]) -> None:
    with pytest.raises(RefusedError, match=r"there 2\.41\.0"):
        ray_jobs.relay(["list"], "cluster.yaml")
    port, words = forwarded()
    assert f"127.0.0.1:{port}:127.0.0.1:8265" in words
    assert words[-2:] == ["ubuntu@10.0.0.10", "cat"]
    assert words[words.index("-i") + 1] == os.path.expanduser("~/.ssh/some_key")
    assert shown  # all of it came through
    assert ends(port)


def test_the_tunnel_ends_with_who_opened_it_however_that_ends(shown: list[str | None]) -> None:
    opens = (
        "import pathlib, time; from sweeps.cluster import ray_jobs\n"
        "with ray_jobs.tunnel(pathlib.Path('cluster.yaml'), ray_jobs._free_port(), 8265): print('up', flush=True); "
        "time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", opens], stdout=subprocess.PIPE, cwd=Path.cwd(), env=with_project())
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"up\n"
        port, _ = forwarded()
        assert is_open(port)
        holder.send_signal(signal.SIGKILL)
    assert ends(port)


def with_project() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def test_what_ssh_says_is_said(shown: list[str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEAF", "1")
    with pytest.raises(RefusedError, match=r"SSH must reach the head ubuntu@10\.0\.0\.10, but says: Permission denied"):
        ray_jobs.relay(["list"], "cluster.yaml")
    assert not shown


def test_without_ssh_that_is_said(shown: list[str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RefusedError, match="openssh-client"):
        ray_jobs.relay(["list"], "cluster.yaml")


def test_a_cloud_s_file_says_which_other_way_leads_to_its_head() -> None:
    file = Path(__file__).parents[2] / "clusters/aws.yaml"
    with pytest.raises(InputError) as refused:
        ray_jobs.relay(["list"], str(file))
    told = str(refused.value)
    assert f"`ray dashboard {file}` and give --address http://127.0.0.1:8265" in told
    assert f"`ray attach {file}`" in told
    assert told.endswith("but got aws")


def test_a_file_of_ones_own_machines_without_a_head_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("provider: {type: local, worker_ips: [10.0.0.11]}")
    with pytest.raises(InputError, match=r"provider\.head_ip: must be given"):
        ray_jobs.cluster_file(tmp_path / "cluster.yaml")


def test_a_file_that_is_none_is_named(shown: list[str | None]) -> None:
    with pytest.raises(InputError, match=r"clutser\.yaml: must be a file that exists"):
        ray_jobs.relay(["list"], "clutser.yaml")


@pytest.mark.parametrize(
    ("url", "is_said"),
    [
        ("http://head:8265", True),
        ("http://10.0.0.10:8265", True),
        ("http://127.evil.example", True),
        ("https://head", False),
        ("http://127.0.0.1:8265", False),
        ("http://localhost:8265", False),
        ("http://[::1]:8265", False),
    ],
)
def test_a_token_that_others_can_read_on_its_way_is_mentioned(
    url: str, is_said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_jobs, "_connected", lambda *_: iter([None]))
    with ray_jobs._client(url):
        pass
    said = capsys.readouterr()
    assert not said.out
    assert ("in clear text" in said.err) is is_said
