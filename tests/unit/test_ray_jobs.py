"""What goes to a cluster through Ray Jobs and comes back: a submission, what follows it, and what ends it."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import signal
import types
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests

from sweeps.cli import main
from sweeps.cluster import connection, job_log, private_ray, ray_jobs
from sweeps.errors import InputError, RefusedError
from sweeps.run import status
from sweeps.text import addresses as place
from sweeps.text import caller

pytestmark = pytest.mark.unit

TEXT = "name: x\nmodel: tiny\ndevice: cpu\nspace: {batch_size: 8, gpus: [1, 2]}\nrepeats: 1\n"


class Followed:
    """A job whose log comes in pieces; once it has ended it may be fetched whole."""

    def __init__(self, *pieces: str) -> None:
        self.pieces, self.has_ended = pieces, False

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for piece in self.pieces:
            yield piece
        self.has_ended = True

    def get_job_status(self, job: str) -> str:
        return "SUCCEEDED" if self.has_ended else "RUNNING"

    def get_job_logs(self, job: str) -> str:
        assert self.has_ended
        return "".join(self.pieces)


@pytest.mark.parametrize("cuts", [(), (1,), (5, 6, 30), tuple(range(1, 60, 7))])
def test_what_is_followed_comes_line_by_line_however_its_bytes_come(cuts: tuple[int, ...]) -> None:
    text = "Running entrypoint for job x: y\nfirst\n\n  second, with [words]\nthe last has no end"
    ends = [0, *cuts, len(text)]
    client: Any = Followed(*(text[start:end] for start, end in itertools.pairwise(ends)))
    assert [*job_log.follow(client, "x")] == ["first", "", "  second, with [words]", "the last has no end"]


def test_one_who_stops_following_leaves_nothing_open() -> None:
    client: Any = Followed("one\n", "two\n")
    lines = job_log.follow(client, "x")
    assert next(lines) == "one"
    lines.close()  # type: ignore[attr-defined]


def test_a_sweeps_name_from_elsewhere_never_leaves_the_results_folder() -> None:
    for name in ("../x", "/etc/passwd", "a/b", "..", "x\n"):
        with pytest.raises(InputError):
            status.look(name)


class Jobs:
    """A cluster that takes a job: its driver names its sweep after a while, and ends soon after it was told to. At one
    of the calls the user presses Ctrl-C, before the cluster has heard of it, or while it does as it was asked."""

    def __init__(self, pressed_at: Sequence[int], is_heard: bool, names_it_after: int = 3) -> None:
        self._pressed_at, self._is_heard, self._names_it_after = pressed_at, is_heard, names_it_after
        self._calls = 0
        self._arrives_at = self._ends_at = math.inf
        self.job = ""

    @property
    def is_running(self) -> bool:
        return self._arrives_at <= self._calls < self._ends_at

    def _called(self) -> None:
        if self._calls in self._pressed_at:
            raise KeyboardInterrupt

    def _asked_of(self, job: str) -> None:
        self._calls += 1
        if job != self.job or self._calls < self._arrives_at:
            raise RuntimeError(f"Request failed with status code 404: Job {job} does not exist")

    def list_jobs(self) -> list[Any]:
        return []

    def submit_job(self, submission_id: str, **_: object) -> str:
        self._calls += 1
        if self._calls in self._pressed_at:
            if self._is_heard:  # it arrives though nobody waits for the answer
                self.job, self._arrives_at = submission_id, self._calls + 2
            raise KeyboardInterrupt
        self.job, self._arrives_at = submission_id, self._calls
        return submission_id

    def get_job_status(self, job: str) -> str:
        self._asked_of(job)
        self._called()
        return "RUNNING" if self.is_running else "STOPPED"

    def get_job_logs(self, job: str) -> str:
        self._asked_of(job)
        self._called()
        return "sweep|b|study\n" if self._calls > self._names_it_after else "starting Ray\n"

    def stop_job(self, job: str) -> bool:
        self._asked_of(job)
        if self._calls not in self._pressed_at or self._is_heard:
            self._ends_at = min(self._ends_at, self._calls + 3)
        self._called()
        return True


def submitted(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    @contextlib.contextmanager
    def client(_: str) -> Iterator[Jobs]:
        yield jobs

    monkeypatch.setattr(connection, "client", client)
    monkeypatch.setattr(job_log, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(ray_jobs, "ARRIVES_WITHIN_S", 0.05)
    (tmp_path / "x.yaml").write_text(TEXT)
    return ray_jobs.submit(tmp_path / "x.yaml", (), "http://127.0.0.1:1", ())


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("call", range(1, 7))
def test_a_ctrl_c_while_a_sweep_is_submitted_ends_it_or_comes_after_its_name_was_told(
    call: int, is_heard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs([call], is_heard, names_it_after=6)
    with pytest.raises(KeyboardInterrupt):
        submitted(jobs, tmp_path, monkeypatch)
    assert not jobs.is_running
    told = capsys.readouterr()
    assert not told.out, "no name of a sweep that has been ended"
    assert f"{jobs.job} has ended: nothing has begun" in told.err or "study is stopped; to go on" in told.err


def test_without_a_ctrl_c_a_sweep_that_is_submitted_goes_on_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs([], is_heard=True)
    assert submitted(jobs, tmp_path, monkeypatch) == 0
    assert jobs.is_running
    assert capsys.readouterr().out.startswith("study\n")


def test_a_submission_deletes_the_records_of_questions_whose_askers_fell_silent_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = types.SimpleNamespace(submission_id="ask-0123456789ab", status="STOPPED", end_time=1)
    jobs, deleted = Jobs([], is_heard=True), list[str]()
    monkeypatch.setattr(jobs, "list_jobs", lambda: [asked])
    monkeypatch.setattr(jobs, "delete_job", deleted.append, raising=False)
    assert submitted(jobs, tmp_path, monkeypatch) == 0
    assert deleted == [asked.submission_id]


class Over(Jobs):
    """A driver that finds nothing left to run, says what was found, and ends with this code."""

    def __init__(self, code: int | None) -> None:
        super().__init__([], is_heard=True)
        self._code = code

    def get_job_status(self, job: str) -> str:
        super().get_job_status(job)
        return "RUNNING" if self._calls < 8 else "SUCCEEDED"

    def get_job_logs(self, job: str) -> str:
        table = super().get_job_logs(job).replace("sweep|b|study", "its table")
        return f"study: all 6 trials have ended\nsweep|v|study\n{table}"

    def get_job_info(self, _: str) -> Any:
        return types.SimpleNamespace(driver_exit_code=self._code)


@pytest.mark.parametrize(("code", "exits"), [(0, 0), (1, 1), (3, 3), (None, 3)])
def test_a_complete_sweep_that_is_resumed_from_afar_shows_its_results_and_exits_as_on_the_head(
    code: int | None, exits: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Over(code)
    monkeypatch.setattr(connection, "client", lambda _: contextlib.nullcontext(jobs))
    monkeypatch.setattr(job_log, "LOOK_EVERY_S", 0.001)
    assert main.main(["resume", "study", "--address", "http://127.0.0.1:1"]) == exits
    told = capsys.readouterr()
    assert "its table" in told.out
    assert "sweep status" not in told.err, "nothing runs that could be looked at"


def test_what_was_submitted_is_followed_and_stopped_with_the_address_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text(TEXT)
    monkeypatch.setattr(job_log, "LOOK_EVERY_S", 0.001)
    for given in ("http://127.0.0.1:1", ""):
        jobs, sent = Jobs([], is_heard=True), list[dict[str, Any]]()
        submit = jobs.submit_job
        monkeypatch.setattr(connection, "client", lambda _, jobs=jobs: contextlib.nullcontext(jobs))
        monkeypatch.setattr(jobs, "submit_job", lambda submit=submit, sent=sent, **of: (sent.append(of), submit(**of)))
        monkeypatch.setenv(place.JOB_SERVER, "http://127.0.0.1:1")
        where = ["--address", given] if given else []
        assert main.main(["submit", str(tmp_path / "x.yaml"), *where]) == 0
        lines = [line.split() for line in capsys.readouterr().err.splitlines()]
        assert ["status", "sweep", "status", "study", "-f", *where] in lines
        assert ["stop", "sweep", "stop", "study", *where] in lines
        (of,) = sent
        asked = json.loads(of["runtime_env"]["env_vars"][caller.CALLED])
        named = {"file": "", "sweep": str(tmp_path / "x.yaml")}
        assert asked == {"me": "sweep", "kind": "http", "address": given, **named}


def test_a_second_ctrl_c_leaves_the_job_and_says_how_to_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs([3, 4], is_heard=False)
    with pytest.raises(KeyboardInterrupt):
        submitted(jobs, tmp_path, monkeypatch)
    assert jobs.is_running
    assert f"on the head RAY_AUTH_MODE=token ray job stop {jobs.job} ends it" in capsys.readouterr().err


class Terminated(Jobs):
    """Told to end while its name is waited for: by `timeout`, which tells the process and then its group, or by a
    terminal that is closed, which the shell tells and then the kernel."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__([3], is_heard=True, names_it_after=99)
        self._number = number

    def _called(self) -> None:
        if self._calls in self._pressed_at:
            os.kill(os.getpid(), self._number)

    def stop_job(self, job: str) -> bool:
        os.kill(os.getpid(), self._number)
        return super().stop_job(job)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_sweep_is_taken_back_where_what_submits_it_is_ended_before_its_name_was_told(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unheard(*_: object) -> None:
        raise AssertionError("it would have ended this process")

    jobs, before = Terminated(number), signal.signal(number, unheard)
    try:
        with pytest.raises(KeyboardInterrupt):
            submitted(jobs, tmp_path, monkeypatch)
        assert signal.getsignal(number) is unheard
    finally:
        signal.signal(number, before)
    assert jobs.job
    assert not jobs.is_running
    told = capsys.readouterr()
    assert not told.out
    assert f"{jobs.job} has ended: nothing has begun" in told.err


class Asked:
    """A cluster that runs one job at once; what was sent with it, as paths and their text."""

    def __init__(self) -> None:
        self.command, self.sent = "", dict[str, str]()

    def submit_job(self, entrypoint: str, runtime_env: dict[str, Any], **_: object) -> None:
        self.command = entrypoint
        folder = Path(runtime_env["working_dir"])
        self.sent = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}

    def get_job_status(self, _: str) -> str:
        return "SUCCEEDED"

    def get_job_logs(self, _: str) -> str:
        return "sweep|o|a plan\nsweep|x|0\n"

    def delete_job(self, _: str) -> None: ...


@pytest.mark.parametrize(
    ("words", "sent", "asked"),
    [
        (["plan", "./x.yaml"], "x.yaml", "plan x.yaml --address auto"),
        (["plan", "--next", "study", "my/x.yaml"], "my/x.yaml", "plan --next study my/x.yaml"),
        (["plan", "sweeps/x.yaml", "--format", "csv"], "sweep.yaml", "plan sweep.yaml --format csv --address auto"),
    ],
)
def test_a_plan_for_a_cluster_elsewhere_takes_its_file_along_and_nothing_else(
    words: list[str],
    sent: str,
    asked: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = Asked()
    monkeypatch.setattr(connection, "client", lambda _: contextlib.nullcontext(cluster))
    monkeypatch.chdir(tmp_path)
    file = next(Path(word) for word in words if word.endswith(".yaml"))
    file.parent.mkdir(exist_ok=True)
    file.write_text(TEXT)
    assert main.main([*words, "--address", "http://127.0.0.1:1"]) == 0
    assert capsys.readouterr().out == "a plan\n"
    assert (cluster.command, cluster.sent) == (f"python -m sweeps.cli.on_head {asked}", {sent: TEXT})


def test_a_file_that_is_not_there_is_said_before_a_cluster_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "client", lambda _: pytest.fail("it was asked"))
    assert main.main(["plan", "none.yaml", "--address", "http://127.0.0.1:1"]) == 2
    assert "none.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("refusals", "said", "is_taken"), [(3, private_ray.NO_AGENT_YET, True), (1, "no space", False)]
)
def test_a_head_that_has_just_been_started_is_given_time_to_take_jobs(
    refusals: int, said: str, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [RuntimeError(f"Request failed with status code 500: {said}, please try again later..")] * refusals
    taken: list[object] = []

    def submit_job(**about: object) -> None:
        if answers:
            raise answers.pop()
        taken.append(about)

    monkeypatch.setattr(job_log, "LOOK_EVERY_S", 0.0)
    with contextlib.nullcontext() if is_taken else pytest.raises(RuntimeError, match="no space"):
        ray_jobs._start(types.SimpleNamespace(submit_job=submit_job), "job", ["true"], {})  # type: ignore[arg-type]
    assert bool(taken) is is_taken


class Broken(Jobs):
    """A cluster whose link breaks at one of the calls, when it may have heard of it already."""

    def __init__(self, call: int, is_heard: bool, error: Exception) -> None:
        super().__init__([call], is_heard, names_it_after=6)
        self._error = error

    def _called(self) -> None:
        if self._calls in self._pressed_at:
            raise self._error

    def submit_job(self, submission_id: str, **about: object) -> str:
        try:
            return super().submit_job(submission_id, **about)
        except KeyboardInterrupt:
            raise self._error from None


@pytest.mark.parametrize(
    "error",
    [
        requests.ConnectionError("Connection reset by peer"),
        requests.ReadTimeout("Read timed out"),
        RuntimeError("Request failed with status code 502: Bad Gateway"),  # as Ray's client says it
    ],
)
@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("call", range(1, 7))
def test_a_link_that_breaks_while_a_sweep_is_submitted_leaves_no_sweep_that_nobody_knows_of(
    call: int, is_heard: bool, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Broken(call, is_heard, error)
    with pytest.raises(RefusedError) as refused:
        submitted(jobs, tmp_path, monkeypatch)
    said = str(refused.value)
    assert str(error) in said
    assert re.search(r"sweep-x-\w+ may have begun there, and goes on: sweep list.* shows it", said)
    assert "ray job stop sweep-x-" in said


class Gone(Jobs):
    """A cluster that takes no question back: the link is gone."""

    def get_job_status(self, job: str) -> str:
        raise requests.ReadTimeout("Read timed out")


def test_a_question_that_is_taken_back_where_nobody_answers_is_left() -> None:
    ray_jobs._forget(Gone([], is_heard=True), "job")  # type: ignore[arg-type]
