"""Whoever asks a cluster from elsewhere: waits as long as it takes, leaves nothing behind, and is told what to do where
they are."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import types
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sweeps.cli import main, on_head
from sweeps.cluster import connection, job_log, marked_output, ray_jobs, versions
from sweeps.cluster.site import Simulated
from sweeps.errors import InputError, RefusedError
from sweeps.record import ledger, ownership
from sweeps.run import driver, ending, preflight, preview, status
from sweeps.run.terms import Setting, Terms
from sweeps.spec import plan, sweep_file
from sweeps.store import access, query, tracking
from sweeps.text import addresses, caller, screen
from tests.unit import commands
from tests.unit.records import record

pytestmark = pytest.mark.unit

URL = "http://127.0.0.1:1"
TEXT = "{name: end, model: tiny, device: cpu, repeats: 1, space: {batch_size: [8, 16], gpus: 1}}"


class Slow:
    """A cluster whose driver names its sweep after so many looks, each of which takes ten seconds; before that it says
    one thing after the other."""

    def __init__(self, named_at: float, *says: str) -> None:
        self._named_at, self._says, self.now, self.looks = named_at, says, 0.0, 0
        self.sent: dict[str, Any] = {}

    def list_jobs(self) -> list[Any]:
        return []

    def submit_job(self, **of: Any) -> None:
        self.sent = of

    def get_job_status(self, _: str) -> str:
        return "RUNNING"

    def get_job_logs(self, _: str) -> str:
        self.now, self.looks = self.now + 10, self.looks + 1
        if self.looks >= self._named_at:
            return "sweep|b|study\n"
        return "".join(f"{words}\n" for words in self._says[: self.looks // 5])

    def get_job_info(self, _: str) -> Any:
        return types.SimpleNamespace(message="Job has not started yet.", status="PENDING")


def submitted(
    cluster: Slow, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str = TEXT
) -> dict[str, str]:
    """By a user who is in `tmp_path`; the variables of the job."""
    monkeypatch.setattr(connection, "client", lambda _: contextlib.nullcontext(cluster))
    clock = types.SimpleNamespace(monotonic=lambda: cluster.now, sleep=lambda _: None)
    monkeypatch.setattr(ray_jobs, "time", clock)
    here = tmp_path / "here"
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(text)
    assert main.main(["submit", file, "--address", URL]) == 0
    variables: dict[str, str] = cluster.sent["runtime_env"]["env_vars"]
    return variables


def test_a_sweep_that_gets_its_name_late_is_named_all_the_same_and_what_it_waits_for_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Slow(30, "connecting to Ray at auto …", "asking every node for its images …")
    submitted(cluster, "x.yaml", tmp_path, monkeypatch)
    told = capsys.readouterr()
    assert told.out == "study\n"
    said = re.findall(r"^  it says: (.*)$", told.err, re.MULTILINE)
    assert said == ["Job has not started yet.", "connecting to Ray at auto …", "asking every node for its images …"]
    job = cluster.sent["submission_id"]
    assert told.err.count(f"{job} has not begun yet; Ctrl-C ends it") == 1
    assert f"`RAY_AUTH_MODE=token ray job stop {job}`" in told.err


def test_a_sweep_that_is_named_soon_says_nothing_of_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(Slow(1), "x.yaml", tmp_path, monkeypatch)
    assert "it says" not in capsys.readouterr().err


def test_a_driver_says_what_it_asks_of_nodes_before_they_answer(capsys: pytest.CaptureFixture[str]) -> None:
    spec = sweep_file.parse(TEXT.replace("cpu,", "cpu, data: /images, env_from: [TOKEN],", 1), "x")
    said: list[str] = []

    def asked(*_: object) -> dict[str, list[str]]:
        said.append(capsys.readouterr().err)
        return {}

    nodes = [types.SimpleNamespace(name="a", cpus=8, gpus=0)]
    site: Any = types.SimpleNamespace(nodes=nodes, without=asked, unset=asked)
    preflight.possible(plan.plan(spec), Setting(Terms(), site, screen.beside(), "x"))
    assert said[0] == "asking every node for its images and variables …\n"


class Helpers:
    """A cluster that runs commands for those who follow, each for a while, and says what each is to say."""

    def __init__(self, *says: list[str], **logs: list[str]) -> None:
        self._says, self._logs = iter(says), logs
        self.started: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []

    def submit_job(self, submission_id: str, **of: Any) -> None:
        self.started[submission_id] = of
        self._logs[submission_id] = next(self._says)

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for line in self._logs[job]:
            yield f"{line}\n"

    def get_job_logs(self, job: str) -> str:
        return "".join(f"{line}\n" for line in self._logs[job])

    def list_jobs(self) -> list[Any]:
        return [types.SimpleNamespace(submission_id=job) for job in self._logs]

    def get_job_status(self, _: str) -> str:
        return "SUCCEEDED"

    def stop_job(self, job: str) -> None:
        pytest.fail(f"{job} was stopped")

    def delete_job(self, job: str) -> None:
        self.deleted.append(job)


def followed(helpers: Helpers, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(connection, "client", lambda _: contextlib.nullcontext(helpers))
    return main.main([*words, "--address", URL])


def test_a_command_that_is_followed_may_run_for_a_while_and_is_asked_again_as_long_as_anyone_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more, differs = f"sweep|x|{marked_output.ASK_AGAIN}", f"sweep|e|{versions.DIFFERS} (x)"
    helpers = Helpers(
        [differs, 'sweep|o|{"n": 1}', 'sweep|o|{"n": 2}', more],
        [differs, 'sweep|o|{"n": 3}', more],
        [differs, 'sweep|o|{"n": 4}', "sweep|x|0"],
    )
    assert followed(helpers, monkeypatch, "status", "x", "-f", "--format", "json") == 0
    told = capsys.readouterr()
    assert [json.loads(line)["n"] for line in told.out.splitlines()] == [1, 2, 3, 4]
    assert told.err.count(versions.DIFFERS) == 1
    assert helpers.deleted == [*helpers.started]
    for job in helpers.started.values():
        assert 0 < float(job["runtime_env"]["env_vars"][marked_output.FOLLOWED_S]) <= 120


def test_a_drivers_log_is_followed_without_a_command_on_the_head(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drives = ["Running entrypoint for job drives: python", "one", "two"]
    helpers = Helpers(["sweep|e|by the way", "sweep|j|drives", "sweep|x|0"], drives=drives)
    seen: list[list[str]] = []
    follow = job_log.follow
    monkeypatch.setattr(
        job_log, "follow", lambda *given: (seen.append([given[1], *helpers.deleted]), follow(*given))[1]
    )
    assert followed(helpers, monkeypatch, "logs", "x", "--follow") == 0
    assert capsys.readouterr() == ("one\ntwo\n", "by the way\n")
    (ask,) = helpers.started
    assert seen == [[ask], ["drives", ask]], "the driver's log is followed when the question has gone"
    assert helpers.deleted == [ask], "the driver's own job stays"


def test_a_drivers_log_that_ray_has_forgotten_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert followed(Helpers(["sweep|j|drives", "sweep|x|0"]), monkeypatch, "logs", "x", "--follow") == 0
    assert capsys.readouterr() == ("", f"{ray_jobs.NOT_KEPT}\n")


def on_a_head(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """What a command says there."""
    import sys

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", sys.stdout)  # which `on_head` replaces
        patch.setattr(sys, "stderr", sys.stderr)
        on_head.main(arguments)
    return [marked_output.parsed(line) for line in capsys.readouterr().out.splitlines()]


def test_a_head_whose_follower_is_silent_ends_the_command_though_the_sweep_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(
        status, "time", types.SimpleNamespace(monotonic=lambda: float(next(clock)), sleep=lambda _: None)
    )
    monkeypatch.setattr(
        status, "look", lambda _: {"state": "running"} if next(clock) < 10_000 else pytest.fail("it never ends")
    )
    monkeypatch.setenv(marked_output.FOLLOWED_S, "90")
    told = on_a_head(["status", "x", "-f", "--format", "json"], monkeypatch, capsys)
    assert told[-1] == ("x", str(marked_output.ASK_AGAIN))
    monkeypatch.setattr(status, "look", lambda _: {"state": "complete"})
    told = on_a_head(["status", "x", "-f", "--format", "json"], monkeypatch, capsys)
    assert told == [("o", '{"state": "complete"}'), ("x", "0")]


@pytest.mark.parametrize("can_follow", [True, False])
def test_a_head_names_the_drivers_job_to_whoever_can_follow_it_and_follows_it_for_others(
    can_follow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    monkeypatch.setenv(ledger.JOB, "drives")
    if can_follow:
        monkeypatch.setenv(marked_output.FOLLOWED_S, "90")
    monkeypatch.setattr(connection, "client", lambda _: contextlib.nullcontext(Helpers(drives=["one"])))
    with contextlib.closing(ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)):
        told = on_a_head(["logs", "end", "-f"], monkeypatch, capsys)
    assert told == [("j", "drives") if can_follow else ("o", "one"), ("x", "0")]


def concluded(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, simulated: str = "") -> None:
    """A sweep of two cells that has ended, its store told nothing."""
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path / "results"))
    planned = plan.plan(sweep_file.parse(TEXT, "x"))
    with contextlib.closing(ownership.create(planned, TEXT, simulated=simulated)) as book:
        for config in planned.trials:
            book.write(record(config, 100.0 * config.batch_size))
        book.end("complete")
    monkeypatch.setattr(tracking, "attach", lambda *_: None)
    trials = ledger.read(book.facts.name).trials
    setting = Setting(Terms(simulate=simulated), Simulated(()), screen.beside(), "end", caller.named(file))
    ending._conclude(planned, book, trials, setting, [], "", 0.0)


def suggested(told: str) -> dict[str, list[str]]:
    """The commands at a sweep's end, by their word."""
    lines = re.findall(r"^  (report|look|query|next|which|check) +(sweep .*?)(?:   \(.*)?$", told, re.MULTILINE)
    return {word: shlex.split(command) for word, command in lines}


@pytest.mark.parametrize("file", ["../beside/my sweep.yaml", "{}/else where/x.yaml", "sweeps/cli/x.yaml", "./x.yaml"])
def test_what_is_said_from_afar_names_the_file_as_its_user_did(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = file.format(tmp_path)
    variables = submitted(cluster := Slow(1), file, tmp_path, monkeypatch)
    there = Path(shlex.split(cluster.sent["entrypoint"])[4])
    on_the_head = tmp_path / "packed"
    (on_the_head / there).parent.mkdir(parents=True)
    (on_the_head / there).write_text(TEXT)
    monkeypatch.chdir(on_the_head)
    monkeypatch.setenv(caller.CALLED, variables[caller.CALLED])
    capsys.readouterr()
    concluded(tmp_path, there, monkeypatch)
    command = suggested(capsys.readouterr().out)["next"]
    assert command[:2] == ["sweep", "submit"]
    assert (tmp_path / "here" / command[2]).samefile(tmp_path / "here" / file)
    wrong = ("batch_size=none",)
    for asks in (
        lambda: driver.drive(there, wrong, Terms()),
        lambda: preview.preview(there, wrong, Terms(), "table"),
    ):
        with pytest.raises(InputError) as refused:
            asks()
        assert str(refused.value).startswith(str(Path(file)))


@pytest.mark.parametrize("variable", [addresses.JOB_SERVER, addresses.RAY])
@pytest.mark.parametrize("given", [[], ["--address", "head:6379"], ["--address", "local"]])
@pytest.mark.parametrize("is_led_away", [True, False])
def test_what_is_suggested_after_a_simulated_run_is_done_where_its_results_are(
    is_led_away: bool,
    given: list[str],
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (file := tmp_path / "x.yaml").write_text(TEXT)
    shape = "nodes=1,gpus=1,gpu=v100"
    for name in (addresses.JOB_SERVER, addresses.RAY):
        monkeypatch.delenv(name, raising=False)
    if is_led_away:
        monkeypatch.setenv(variable, URL)
    monkeypatch.setattr(driver, "drive", lambda *_: concluded(tmp_path, file, monkeypatch, shape) or 0)
    assert main.main(["run", str(file), "--simulate", shape, *given]) == 0
    steps = suggested(capsys.readouterr().out)
    assert {"look", "query", "next"} <= {*steps}
    went: list[str] = []
    commands.replace(monkeypatch, "trials", lambda at, **_: went.append("afar" if at.is_afar else "here") or 0)
    assert main.main(steps["query"][1:]) == 0
    assert went == ["here"]
    if not (is_led_away or given):
        assert "--address" not in steps["query"]


def full_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)


def full_disk(tmp_path: Path) -> None:
    with contextlib.closing(ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)) as book:
        book._file.close()
        book._file = Path("/dev/full").open("w")  # noqa: SIM115
        book.end("complete")


def no_store(tmp_path: Path) -> None:
    query._read(f"sqlite:///{tmp_path}/none.db", (), None)


def no_store_of_a_run(tmp_path: Path) -> None:
    query._run_of("t", "x", f"sqlite:///{tmp_path}/none.db")


def store_refuses(_: Path) -> None:
    raise access.refused("be writable", "no answer")


def older_store(_: Path) -> None:
    raise access.refused("be writable", access.UNLIKE[0])


@pytest.mark.parametrize(
    ("fails", "variable", "sets"),
    [
        (full_folder, "SWEEP_RESULTS", "SWEEP_SHARED"),
        (full_disk, "SWEEP_RESULTS", "SWEEP_SHARED"),
        (no_store, "MLFLOW_TRACKING_URI", "MLFLOW_STORE"),
        (no_store_of_a_run, "MLFLOW_TRACKING_URI", "MLFLOW_STORE"),
        (store_refuses, "MLFLOW_TRACKING_URI", "MLFLOW_STORE"),
        (older_store, "MLFLOW_TRACKING_URI", "MLFLOW_STORE"),
    ],
)
def test_a_cure_by_a_variable_is_for_who_can_set_it_and_others_are_told_what_sets_the_heads(
    fails: Callable[[Path], None],
    variable: str,
    sets: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fails is full_folder:
        monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path / "file" / "results"))
    else:
        monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path / "results"))
    with pytest.raises((InputError, RefusedError)) as here:
        fails(tmp_path)
    assert variable in str(here.value)
    assert sets not in str(here.value)
    with caller.introduce("our.yaml", "ssh", "our.yaml"):
        monkeypatch.setenv(caller.CALLED, caller.as_json())
    with pytest.raises((InputError, RefusedError)) as afar:
        fails(tmp_path)
    told = str(afar.value)
    assert f"the head's {variable} counts, not yours; for another one: {sets} in " in told
    assert "ray up our.yaml" in told
    assert f"{variable}=" not in told
    assert f"with {variable}" not in told
    cluster_file = (Path(__file__).parents[2] / "cluster.yaml").read_text()
    assert f"{sets}=" in cluster_file
