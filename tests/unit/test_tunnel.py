"""A cluster that is reached by its launcher file: what goes through SSH, and what ends with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.cluster import connection, ray_jobs
from sweeps.errors import InputError, RefusedError
from tests import older_ray


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    with older_ray.behind_ssh(tmp_path, monkeypatch) as tokens:
        yield tokens


def test_the_tunnel_ends_with_who_opened_it_however_that_ends(shown: list[str | None]) -> None:
    opens = (
        "import pathlib, time; from sweeps.cluster import connection\n"
        "with connection.tunnel(pathlib.Path('cluster.yaml'), connection._free_port(), 8265): print('up', flush=True); "
        "time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", opens], stdout=subprocess.PIPE, cwd=Path.cwd(), env=with_project())
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"up\n"
        port, _ = older_ray.forwarded()
        assert older_ray.is_open(port)
        holder.send_signal(signal.SIGKILL)
    assert older_ray.ends(port)


def test_who_else_listens_where_the_tunnel_was_to_begin_is_told_nothing(shown: list[str | None]) -> None:
    """Anybody with an account on this machine, who has read the port off SSH's command line."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0.2)
        with (
            pytest.raises(RefusedError, match="Could not request local forwarding"),
            connection.tunnel(Path("cluster.yaml"), stranger.getsockname()[1], 8265),
        ):
            raise AssertionError("it is not ours")
        with pytest.raises(TimeoutError):
            stranger.accept()
    assert not shown


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
        connection.cluster_file(tmp_path / "cluster.yaml")


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
    monkeypatch.setattr(connection, "_connected", lambda *_: iter([None]))
    with connection.client(url):
        pass
    said = capsys.readouterr()
    assert not said.out
    assert ("in clear text" in said.err) is is_said
