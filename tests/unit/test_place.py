"""One meaning of an address: every command, with every form of one."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sweeps import cli, place, service

URL, RAY = "http://head:8265", "head:6379"
WORDS = {  # of each command, beside its name
    "plan": ["x.yaml"],
    "run": ["x.yaml"],
    "submit": ["x.yaml"],
    "status": ["x"],
    "logs": ["x"],
    "stop": ["x"],
    "resume": ["x"],
    "retry": ["x"],
    "trials": ["x"],
    "list": [],
    "diff": ["x", "y"],
    "reproduce": ["x"],
    "report": ["x"],
    "sync": ["x"],
    "gc": [],
    "doctor": ["--cluster"],
}
DRIVES = {
    "plan",
    "run",
    "resume",
    "retry",
    "reproduce",
    "doctor",
}  # trials, or asks nodes: in the cluster of this machine
NOT_AFAR = {"plan", "run"}
ALWAYS_AFAR = {"submit"}

# By the form of the address: who has it done.
FORMS = {
    "": "here",
    "local": "here",
    "auto": "ray",
    RAY: "ray",
    "[fe80::1]:6379": "ray",
    URL: "afar",
    "https://head": "afar",
    "head": "nonsense",
    "ray://head:10001": "nonsense",
    "head:port": "nonsense",
}


def expected(command: str, kind: str) -> str:
    can = {
        "here": command not in ALWAYS_AFAR,
        "ray": command in DRIVES,
        "afar": command not in NOT_AFAR,
        "nonsense": False,
    }
    return kind if can[kind] else "refused"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Where what was asked for has been done, and with which address or which words."""
    found: list[tuple[str, object]] = []

    def here(args: Any) -> int:
        found.append(("ray" if args.address else "here", args.address))
        return 0

    def afar(args: Any, command: Sequence[str], url: str) -> int:
        found.append(("afar", (url, list(command))))
        return 0

    for variable in (place.JOB_SERVER, place.RAY):
        monkeypatch.delenv(variable, raising=False)
    for name in vars(cli).copy():
        if name.startswith("_") and name.removeprefix("_") in WORDS.keys() - {"plan"}:
            monkeypatch.setattr(cli, name, here)
        elif name.endswith("_afar") or name == "_relay":
            monkeypatch.setattr(cli, name, afar)
    monkeypatch.setattr("sweeps.driver.preview", lambda *given: here(given[2]))
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize("told_by", ["--address", "--address=", place.JOB_SERVER, place.RAY])
def test_an_address_means_the_same_to_every_command(
    command: str,
    form: str,
    told_by: str,
    done: list[tuple[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [command, *WORDS[command]]
    option = {"--address": ["--address", form], "--address=": [f"--address={form}"]}.get(told_by, [])
    if not option:
        monkeypatch.setenv(told_by, form)
    kind = FORMS[form]
    if told_by == place.RAY and kind != "afar" and command not in DRIVES:
        kind = "here"  # on a cluster's own machines it is set; who only asks for results finds them there
    if told_by == place.JOB_SERVER and command == "plan":
        kind = "here"  # it starts nothing
    code = cli.main([*words[:1], *option, *words[1:]])
    if expected(command, kind) == "refused":
        assert (code, done) == (2, [])
        told = capsys.readouterr().err
        assert told_by.removesuffix("=") in told or (told_by == place.RAY and command in ALWAYS_AFAR)
        assert "http://HEAD:8265" in told
        return
    ((where, what),) = done
    assert (code, where) == (0, kind)
    assert what == {"here": None, "ray": form, "afar": (form, words)}[kind]


def test_what_is_given_counts_before_the_environment(
    done: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(place.JOB_SERVER, URL)
    monkeypatch.setenv(place.RAY, RAY)
    assert cli.main(["status", "x"]) == 0
    assert cli.main(["status", "x", "--address", "local"]) == 0
    assert cli.main(["resume", "x", "--address", "auto"]) == 0
    assert [where for where, _ in done] == ["afar", "here", "ray"]


def test_a_simulated_sweep_needs_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(place.JOB_SERVER, URL)
    assert cli.main(["run", str(tmp_path / "none.yaml"), "--simulate", "nodes=1,gpus=1,gpu=v100"]) == 2
    assert "none.yaml" in capsys.readouterr().err
    assert cli.main(["run", str(tmp_path / "none.yaml")]) == 2
    told = capsys.readouterr().err
    assert f"{place.JOB_SERVER}" in told
    assert "submit FILE" in told
    assert "--address local" in told


def test_what_comes_through_a_job_s_log_is_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "relay", lambda *_: pytest.fail("it was asked"))
    assert cli.main(["trials", "x", "--format", "parquet", "--address", URL]) == 2
    assert "--format: must be table, csv or json" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["ui"], ["ui", "--cluster", "my cluster.yaml"], ["ui", "x", "--cluster", "c.yaml"]])
def test_where_a_port_is_taken_the_same_command_is_proposed_with_another(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main([*words, "--port", str(port)]) == 3
    assert f"{shlex.join(words)} --port {port + 1}" in capsys.readouterr().err
