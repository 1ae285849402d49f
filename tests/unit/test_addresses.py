"""One meaning of an address: every command, with every form of one."""

from __future__ import annotations

import shlex
import socket
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sweeps.cli import inspect, main
from sweeps.cli.place import At
from sweeps.cluster import ray_jobs
from sweeps.text import addresses, caller
from tests.unit import commands

URL, RAY = "http://head:8265", "head:6379"
OWN_CALL = {"plan", "reproduce", "doctor"}  # of which more than the address is looked at
OF_THE_HEAD = {"--address", "auto", "--cluster"}  # what a command for the head may get beside its words
WORDS = {  # of each command, beside its name; what changes where it happens is part of the name here
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
    "reproduce --measured": ["y", "x"],  # what y has measured, of table x
    "report": ["x"],
    "sync": ["x"],
    "gc": [],
    "doctor": [],
    "doctor --cluster": [],
    "ui": ["x"],
    "backup": ["x"],
    "restore": ["x"],
}
DRIVES = {  # trials, or asks nodes: in the cluster of this machine
    "plan",
    "run",
    "resume",
    "retry",
    "reproduce",
    "reproduce --measured",
    "doctor",
    "doctor --cluster",
}
AT_THE_STORE = {"backup", "restore"}
NOT_AFAR = {"run", "reproduce", *AT_THE_STORE}
BY_SSH_ALONE = {"ui"}
ALWAYS_AFAR = {"submit"}

# By the form of the address: who has it done.
FORMS = {
    "": "here",
    "local": "here",
    "auto": "ray",
    RAY: "ray",
    "[fe80::1]:6379": "ray",
    URL: "http",
    "https://head": "http",
    "cluster.yaml": "ssh",
    "our sites/one.yml": "ssh",
    "head": "nonsense",
    "head:8265": "nonsense",  # http:// was forgotten
    "127.0.0.1:8265": "nonsense",
    "ray://head:10001": "nonsense",
    "head:port": "nonsense",
}


def expected(command: str, kind: str) -> str:
    can = {
        "here": command not in ALWAYS_AFAR | {"doctor --cluster"},
        "ray": command in DRIVES,
        "ssh": command not in NOT_AFAR,
        "http": command not in NOT_AFAR | BY_SSH_ALONE,
        "nonsense": False,
    }
    return kind if can[kind] else "refused"


CURES = {  # of a refusal, by command; of all others it names the form that goes everywhere
    "ui": "must be cluster.yaml",
    "backup": "ray attach cluster.yaml",
    "restore": "ray attach cluster.yaml",
    "reproduce": "sweep submit table.yaml",
    "run": "sweep submit x.yaml",
}


FOUND: list[tuple[str, object]] = []


def here(ray: str | None) -> int:
    FOUND.append(("ray" if ray else "here", ray))
    return 0


def afar(words: Sequence[str], url: str) -> int:
    FOUND.append(("afar", (url, [word for word in words if word not in OF_THE_HEAD])))
    return 0


def followed(name: str, _: bool, url: str) -> Iterator[Any]:
    afar(["status", name], url)
    return iter(())


def recorded(name: str) -> Callable[..., int]:
    """A command that does afar what it does, and says here that it would be done."""
    call = main.sweep.commands[name].callback
    real: Callable[..., int] = call.__wrapped__  # type: ignore[union-attr]

    def instead(at: At, **given: Any) -> int:
        return real(at, **given) if at.is_afar or name in OWN_CALL else here(at.ray)

    return instead


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Where what was asked for has been done, and with which address or which words. What may refuse an address
    is not replaced, nor what leads to a cluster elsewhere."""
    FOUND.clear()
    for variable in (addresses.JOB_SERVER, addresses.RAY):
        monkeypatch.delenv(variable, raising=False)
    for name in {word.split()[0] for word in WORDS}:
        commands.replace(monkeypatch, name, recorded(name))
    monkeypatch.setattr(ray_jobs, "relay", lambda words, url, _=None: afar(words, url))
    monkeypatch.setattr(ray_jobs, "drive", lambda words, _, url: afar(words, url))
    monkeypatch.setattr(ray_jobs, "submit", lambda file, _, url, __: afar(["submit", str(file)], url))
    monkeypatch.setattr(ray_jobs, "report", lambda name, *given: afar(["report", name], given[-1]))
    monkeypatch.setattr(ray_jobs, "bulletins", followed)
    monkeypatch.setattr("sweeps.run.status.render", lambda *_: 0)
    monkeypatch.setattr(inspect, "_through_tunnel", lambda file, name, _: afar(["ui", name], str(file)))
    monkeypatch.setattr("sweeps.run.preview.preview", lambda *given: here(given[2].address))
    monkeypatch.setattr("sweeps.run.reproduce.answer", lambda _, terms: here(terms.address))
    monkeypatch.setattr("sweeps.cluster.doctor.examine", lambda _: here(None) or [])
    checkup: Any = types.ModuleType("sweeps.cluster.checkup")  # in place of all of it, which loads Ray
    checkup.examine = lambda address, _: here(address) or []
    monkeypatch.setitem(sys.modules, "sweeps.cluster.checkup", checkup)
    monkeypatch.setattr("sweeps.cluster.checkup", checkup, raising=False)
    return FOUND


@pytest.fixture
def in_a_clusters_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/cluster.md has a user set it."""
    for variable in (addresses.JOB_SERVER, addresses.RAY):
        monkeypatch.setenv(variable, "/there/cluster.yaml")


def test_what_tests_call_is_done_here_whatever_shell_they_are_run_in(
    in_a_clusters_shell: None, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gc --yes` of a test would be done on the real cluster."""
    assert main.main(["list"]) == 0
    assert capsys.readouterr().out == "there are no sweeps yet\n"


def test_every_command_that_takes_an_address_is_in_the_table() -> None:
    assert {name for name, one in commands.every() if commands.address(one)} == {word.split()[0] for word in WORDS}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize("told_by", ["--address", "--address=", addresses.JOB_SERVER, addresses.RAY])
def test_an_address_means_the_same_to_every_command(
    command: str,
    form: str,
    told_by: str,
    done: list[tuple[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*command.split(), *WORDS[command]]
    option = {"--address": ["--address", form], "--address=": [f"--address={form}"]}.get(told_by, [])
    if not option:
        monkeypatch.setenv(told_by, form)
    kind = FORMS[form]
    if told_by == addresses.RAY and kind not in addresses.AFAR and command not in DRIVES:
        kind = "here"  # on a cluster's own machines it is set; who only asks for results finds them there
    if command == "doctor" and not option:
        kind = "here"  # without --cluster it looks at this machine, whatever the environment says
    if command == "doctor --cluster" and not form:
        form, kind = "auto", "ray"
    code = main.main([*words[:1], *option, *words[1:]])
    if expected(command, kind) == "refused":
        assert (code, done) == (2, [])
        told = capsys.readouterr().err
        assert told_by.removesuffix("=") in told or (told_by == addresses.RAY and command in ALWAYS_AFAR)
        assert CURES.get(command, "http://HEAD:8265") in told or (kind == "nonsense" and "http://HEAD:8265" in told)
        return
    ((where, what),) = done
    assert (code, where) == (0, "afar" if kind in addresses.AFAR else kind)
    asked = [word for word in words if word not in OF_THE_HEAD]
    assert what == {"here": None, "ray": form}.get(kind, (form, asked))


def test_a_head_elsewhere_is_sent_no_address_however_often_it_was_given(done: list[tuple[str, object]]) -> None:
    assert main.main(["status", "--address", URL, "x", f"--address={RAY}", "--address", "cluster.yaml"]) == 0
    assert done == [("afar", ("cluster.yaml", ["status", "x"]))]
    done.clear()
    assert main.main(["logs", "--address", URL, "x", "-f", f"--address={URL}"]) == 0
    assert done == [("afar", (URL, ["logs", "x", "-f"]))]


def test_what_is_given_counts_before_the_environment(
    done: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(addresses.JOB_SERVER, URL)
    monkeypatch.setenv(addresses.RAY, RAY)
    assert main.main(["status", "x"]) == 0
    assert main.main(["status", "x", "--address", "local"]) == 0
    assert main.main(["resume", "x", "--address", "auto"]) == 0
    assert [where for where, _ in done] == ["afar", "here", "ray"]


@pytest.mark.parametrize("told_by", ["--address", addresses.JOB_SERVER, addresses.RAY])
@pytest.mark.parametrize("form", ["local", "auto", RAY, URL, "our sites/one.yml"])
@pytest.mark.parametrize("command", WORDS)
def test_a_command_that_is_suggested_goes_where_the_one_that_suggests_it_was_done(
    command: str, form: str, told_by: str, done: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was asked there, and told who asks, suggests the same."""
    kind = FORMS[form]
    is_given = told_by == "--address"
    if not is_given:
        monkeypatch.setenv(told_by, form)
    elif kind == "here":
        monkeypatch.setenv(addresses.RAY, "other.yaml")  # which `local` is against
    goes = kind if expected(command, kind) != "refused" else "here"
    if command == "ui" and kind == "http":
        goes = "ssh"
    elif kind in addresses.AFAR and goes == "here":
        return  # it can't be done there: no message suggests it
    if command in ALWAYS_AFAR and kind not in addresses.AFAR:
        return
    if told_by == addresses.JOB_SERVER and kind == "ray" and command not in DRIVES:
        return  # the environment itself is refused
    if command.startswith("doctor") and goes == "here" and (not is_given or "--cluster" in command):
        return  # not the same question
    if command == "doctor" and not is_given:
        command = "doctor --cluster"
    verb, *options = command.split()
    with caller.introduce(form if is_given else "", kind):  # type: ignore[arg-type]
        here = caller.command(verb, *options, *WORDS[command])
        told = caller.as_json()
    monkeypatch.setenv(caller.CALLED, told)
    assert caller.command(verb, *options, *WORDS[command]) == here
    words = ["cluster.yaml" if word == caller.FILE else word for word in shlex.split(here)]  # as the user fills it in
    assert words[0] == "sweep"
    assert (form in words) is (is_given and goes == kind)
    assert main.main(words[1:]) == 0
    ((where, what),) = done
    assert where == ("afar" if goes in addresses.AFAR else goes)
    if goes == kind and kind != "here":
        assert what[0] == form if kind in addresses.AFAR else what == form  # type: ignore[index]


def test_a_simulated_sweep_needs_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, address in ((addresses.RAY, RAY), (addresses.RAY, URL), (addresses.JOB_SERVER, URL)):
        monkeypatch.setenv(variable, address)
        assert main.main(["run", str(tmp_path / "none.yaml"), "--simulate", "nodes=1,gpus=1,gpu=v100"]) == 2
        assert "none.yaml" in capsys.readouterr().err
    assert main.main(["run", str(tmp_path / "none.yaml")]) == 2
    told = capsys.readouterr().err
    assert f"{addresses.JOB_SERVER}" in told
    assert f"submit {tmp_path / 'none.yaml'}" in told
    assert "--address local" in told


def test_what_comes_through_a_job_s_log_is_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_jobs, "relay", lambda *_: pytest.fail("it was asked"))
    assert main.main(["trials", "x", "--format", "parquet", "--address", URL]) == 2
    assert "--format: must be table, csv or json" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["ui"], ["ui", "--address", "my cluster.yaml"], ["ui", "x", "--address", "c.yaml"]])
def test_where_a_port_is_taken_the_same_command_is_proposed_with_another(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main.main([*words, "--port", str(port)]) == 3
    again = capsys.readouterr().err.split("choose another: sweep ")[1]
    assert sorted(shlex.split(again)) == sorted([*words, "--port", str(port + 1)])


@pytest.mark.parametrize("variable", [addresses.JOB_SERVER, addresses.RAY])
@pytest.mark.parametrize("words", [[], ["a-table-5", "--plan"], ["x", "--export", "x.csv"]])
def test_a_table_is_listed_planned_and_exported_here_whatever_the_environment_says(
    words: list[str], variable: str, done: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "cluster.yaml")
    assert main.main(["reproduce", *words]) == 0
    assert done == [("here", None)]


@pytest.mark.parametrize("where", [["--address", URL], []])
def test_the_way_to_reproduce_a_table_afar_keeps_what_was_asked_and_its_steps_are_accepted(
    where: list[str],
    done: list[tuple[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not where:
        monkeypatch.setenv(addresses.JOB_SERVER, URL)
    asked = [*where, "a-table-5", "--system", "C4140 K", "--repeats", "5", "--set", "batch_size=[8, 16]", "device=cpu"]
    assert main.main(["reproduce", *asked]) == 2
    told = capsys.readouterr().err.split("from elsewhere: ")[1].split("; --address")[0].split(", but got")[0]
    steps = [shlex.split(step) for step in told.replace("and ", "").split(", sweep ")]
    plans, submits, compares = ([word for word in step if word != "sweep"] for step in steps)
    table = ["reproduce", "a-table-5", "--system", "C4140 K"]
    assert plans == [*table, "--repeats", "5", "--plan", ">", "table.yaml"]
    assert submits == ["submit", "table.yaml", "--set", "batch_size=[8, 16]", "device=cpu", *where]
    assert compares == [*table, "--measured", "NAME", *where]
    assert [main.main(step) for step in (plans[: plans.index(">")], submits, compares)] == [0, 0, 0]
    assert [where for where, _ in done] == ["here", "afar", "afar"]


def test_a_table_of_ones_own_goes_to_the_head_with_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []

    def relay(_: object, __: object, file: object) -> int:
        sent.append(file)
        return 0

    monkeypatch.setattr(ray_jobs, "relay", relay)
    monkeypatch.chdir(tmp_path)
    for table in ("mine.csv", "a-table-5"):
        assert main.main(["reproduce", table, "--measured", "x", "--address", URL]) == 0
        Path("mine.csv").write_text("model,batch_size,gpus,images_per_s\ntiny,8,1,10\n")
    assert main.main(["reproduce", "mine.csv", "--measured", "x", "--address", URL]) == 0
    assert sent == [None, None, Path("mine.csv")]


@pytest.mark.parametrize(("words", "is_refused"), [(["resume", "x"], False), (["run", "x.yaml"], True)])
def test_where_http_was_forgotten_the_cure_is_one_that_the_command_takes(
    words: list[str], is_refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not Ray's 20 s of waiting for a head at the port of its dashboard."""
    assert main.main([*words, "--address", "head:8265"]) == 2
    told = capsys.readouterr().err
    assert ("must begin with http://" in told) is not is_refused
    assert ("submit x.yaml --address http://head:8265" in told) is is_refused
