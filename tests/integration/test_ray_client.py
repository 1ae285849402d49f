"""Ray itself, asked by us where no Ray runs: its client of a cluster's jobs, over links that break; and its start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import types
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import ray
import requests
from aiohttp import web

from sweeps.cluster import connection, job_log, private_ray, ray_jobs
from sweeps.cluster import ray_cluster as cluster
from sweeps.errors import RefusedError
from sweeps.record import ledger
from sweeps.text import addresses as place
from tests import older_ray


def test_a_cluster_of_another_ray_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    with older_ray.serving(monkeypatch) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", url)
        with pytest.raises(RefusedError) as refused:
            ray_jobs.relay(["list"], url)
    assert f"there {older_ray.VERSION}" in str(refused.value)
    assert "make setup" in str(refused.value)


def test_a_cluster_is_asked_through_ssh_where_its_launcher_file_is_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with older_ray.behind_ssh(tmp_path, monkeypatch) as shown:
        with pytest.raises(RefusedError, match=f"there {older_ray.VERSION}"):
            ray_jobs.relay(["list"], "cluster.yaml")
        port, words = older_ray.forwarded()
        assert f"127.0.0.1:{port}:127.0.0.1:8265" in words
        assert words[-2:] == ["ubuntu@10.0.0.10", connection.THERE]
        assert words[words.index("-i") + 1] == os.path.expanduser("~/.ssh/some_key")
        assert shown  # all of it came through
        assert older_ray.ends(port)


@pytest.mark.parametrize("kind", [Exception, ConnectionError, TypeError])
def test_a_ray_that_does_not_start_in_time_is_told_in_a_line_and_a_mistake_of_ours_is_not_hidden(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(**_: object) -> None:
        raise kind("The current node timed out during startup.\nThis could happen")

    monkeypatch.setattr(cluster.ray, "init", late)
    with (
        pytest.raises(TypeError if kind is TypeError else RefusedError, match="The current node timed out") as told,
        cluster.connected(None),
    ):
        pass
    assert kind is TypeError or "\n" not in str(told.value)


@pytest.mark.parametrize("comes", [True, False])
def test_nodes_that_take_their_time_are_told_of_and_waited_for(comes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ray starts a process first that takes seconds; where a node hangs nobody waits for longer than its name."""
    waited, told = list[float](), list[float]()

    def wait(refs: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        waited.append(timeout)
        return (refs, []) if comes and len(waited) > 1 else ([], refs)

    node = types.SimpleNamespace(name="a")
    monkeypatch.setattr(cluster.lease_actor, "Member", lambda: None)
    monkeypatch.setattr(cluster.Cluster, "nodes", [node])
    monkeypatch.setattr(cluster.Cluster, "id", lambda *_: "1")
    monkeypatch.setattr(cluster, "on", lambda *_: types.SimpleNamespace(remote=lambda about: "asked"))
    monkeypatch.setattr(cluster.ray, "wait", wait)
    monkeypatch.setattr(cluster.ray, "get", lambda refs: [["x"]])
    site = cluster.Cluster(is_our_own=True)
    with contextlib.nullcontext() if comes else pytest.raises(RefusedError, match="within 60 s, but a: not yet"):
        assert site.without(["x"], lambda: told.append(sum(waited))) == {"a": ["x"]}
    assert told == [cluster.NODE_ANSWERS_SOON_S]
    assert waited == [15.0, 45.0]


@pytest.mark.parametrize("is_a_job", [True, False])
def test_auto_is_this_machines_cluster_whatever_variable_ray_would_rather_heed(
    is_a_job: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But in a job, where the variable is Ray's own."""
    seen: list[str | None] = []

    def init(**_: object) -> None:
        seen.append(os.environ.get(place.RAY))
        raise ConnectionError("none here")

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setenv(place.RAY, "other:6379")
    monkeypatch.setenv(ledger.JOB, "job") if is_a_job else monkeypatch.delenv(ledger.JOB, raising=False)
    with pytest.raises(RefusedError, match="none here"), cluster.connected("auto"):
        pass
    assert seen == ["other:6379" if is_a_job else None]
    assert os.environ[place.RAY] == "other:6379"


def test_a_cluster_of_another_python_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses a driver of another Python, to the last digit, by a RuntimeError in these words."""
    there, here = "Ray: 2.60.0\n    Python: 3.9.1", "Ray: 2.60.0\n    Python: 3.11.2"
    said = f"Version mismatch: The cluster was started with:\n    {there}\nThis process was started with:\n    {here}\n"

    def init(**_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(cluster.ray, "init", init)
    with pytest.raises(RefusedError) as refused, cluster.connected("auto"):
        pass
    rule, cure = str(refused.value).splitlines()
    assert "here is Ray 2.60.0 on Python 3.11.2, and its cluster has Ray 2.60.0 on Python 3.9.1" in rule
    assert "make clean setup PYTHON=/path/to/python3.9.1" in cure
    said = "something else"
    with pytest.raises(RuntimeError, match=said), cluster.connected("auto"):
        pass


class Head:
    """What answers Ray's own client: a job whose words come, and then the link is as a test says."""

    def __init__(self, then: Callable[[Head, web.WebSocketResponse, web.Request], Awaitable[None]]) -> None:
        self._then = then
        self.status, self.log, self.asked = "RUNNING", "one\ntwo\n", 0

    async def _version(self, _: web.Request) -> web.Response:
        theirs = {"version": "4", "ray_version": ray.__version__, "ray_commit": "c", "session_name": "s"}
        return web.json_response(theirs)

    async def _info(self, _: web.Request) -> web.Response:
        self.asked += 1
        if self.status == "silent":
            await asyncio.sleep(1000)
        return web.json_response({"type": "SUBMISSION", "entrypoint": "x", "status": self.status})

    async def _logs(self, _: web.Request) -> web.Response:
        return web.json_response({"logs": self.log})

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        if self.status == "refused":
            return web.Response(status=403)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("one\ntw")
        await self._then(self, socket, request)
        return socket

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        app = web.Application()
        app.add_routes([web.get("/api/version", self._version), web.get("/api/jobs/job", self._info)])
        app.add_routes([web.get("/api/jobs/job/logs", self._logs), web.get("/api/jobs/job/logs/tail", self._tail)])
        loop, runner = asyncio.new_event_loop(), web.AppRunner(app, shutdown_timeout=0)
        loop.run_until_complete(runner.setup())
        loop.run_until_complete((site := web.TCPSite(runner, "127.0.0.1", 0)).start())
        assert site._server
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            for task in asyncio.all_tasks(loop):  # those that sleep
                loop.call_soon_threadsafe(task.cancel)
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def ends(head: Head, socket: web.WebSocketResponse, request: web.Request) -> None:
    await socket.send_str("o\n")
    head.status = "SUCCEEDED"
    await socket.close()


async def ends_after_a_while(head: Head, socket: web.WebSocketResponse, request: web.Request) -> None:
    await asyncio.sleep(0.5)
    await ends(head, socket, request)


async def ends_unheard(head: Head, socket: web.WebSocketResponse, request: web.Request) -> None:
    """The link is dead, which nobody has been told, and others work."""
    head.status = "SUCCEEDED"
    await asyncio.sleep(1000)


async def is_cut(head: Head, socket: web.WebSocketResponse, request: web.Request) -> None:
    assert request.transport
    request.transport.abort()


async def is_cut_as_it_ends(head: Head, socket: web.WebSocketResponse, request: web.Request) -> None:
    head.status = "SUCCEEDED"
    await is_cut(head, socket, request)


async def says_no_more(head: Head, socket: web.WebSocketResponse, request: web.Request) -> None:
    await asyncio.sleep(1000)


async def answers_no_more(head: Head, socket: web.WebSocketResponse, request: web.Request) -> None:
    head.status = "silent"
    await asyncio.sleep(1000)


def followed_by(head: Head, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(job_log, "SILENT_S", 0.1)
    monkeypatch.setattr(job_log, "LOOKED_AT_EVERY", 3)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with head.serving() as url:
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", url)
        return list(job_log.follow(private_ray.client_of(url, within_s=1), "job"))


@pytest.mark.parametrize("then", [ends, ends_after_a_while, ends_unheard, is_cut_as_it_ends])
def test_a_job_is_followed_to_its_end_whatever_the_link_does(
    then: Callable[..., Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Head(then)
    assert followed_by(head, monkeypatch) == ["one", "two"]
    assert head.asked


@pytest.mark.parametrize(
    ("then", "log", "says"),
    [
        (is_cut, "one\ntwo\n", "the link was cut, and job goes on"),
        (says_no_more, "one\ntwo\nthree\nfour\n", "nothing comes over the link any more"),
        (answers_no_more, "one\ntwo\n", "[Tt]imed out"),
    ],
)
def test_whoever_follows_is_told_that_the_link_is_gone(
    then: Callable[..., Awaitable[None]], log: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Head(then)
    head.log = log
    with pytest.raises((ConnectionError, requests.RequestException), match=says):
        followed_by(head, monkeypatch)


def test_what_lets_no_websockets_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(ends)
    head.status = "refused"
    with pytest.raises(ConnectionError, match=r"must let WebSockets pass \(status 403\)"):
        followed_by(head, monkeypatch)


NOWHERE = "http://127.0.0.1:9"  # a proxy that nobody has
HEAD = "http://head.invalid:8265"  # whose name leads nowhere: it is reached by a proxy alone, in which it answers here


def through(proxy: str, monkeypatch: pytest.MonkeyPatch, past: str = "") -> None:
    """Have the environment name a proxy for all but what goes past it."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, past)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")


def test_no_proxy_stands_before_a_tunnel_nor_before_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    through(NOWHERE, monkeypatch)
    head = Head(ends)
    assert followed_by(head, monkeypatch) == ["one", "two"]
    assert head.asked


def test_a_log_is_followed_by_the_proxy_that_its_cluster_is_asked_by(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(ends)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", HEAD)
    with head.serving() as proxy:
        through(proxy, monkeypatch)
        assert list(job_log.follow(private_ray.client_of(HEAD, within_s=5), "job")) == ["one", "two"]
    assert head.asked


def test_what_goes_past_the_proxy_is_asked_and_followed_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(ends)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", HEAD)
    with head.serving() as proxy:
        through(proxy, monkeypatch)
        client = private_ray.client_of(HEAD, within_s=5)
        through(proxy, monkeypatch, past="head.invalid")
        with pytest.raises(ConnectionError, match="Failed to connect"):
            private_ray.client_of(HEAD, within_s=5)
        assert client.get_job_status("job") == "RUNNING", "what began by it goes on by it"
