"""What a submitted driver says outlives the Ray that it was said to; who interrupts a submission leaves none behind."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeps import errors
from sweeps.cli import main
from sweeps.cluster import connection, driver_log, job_log, marked_output, ray_jobs
from sweeps.record import ledger
from sweeps.run import driver
from sweeps.text import screen

pytestmark = pytest.mark.unit


def test_all_that_is_said_is_in_the_file_and_where_it_was_said_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with driver_log.kept():
        print("before the sweep has a name")
        driver_log.into(tmp_path / "logs")
        screen.beside().print("on the other stream")
        print("after")
    print("when it is over")
    said = capsys.readouterr()
    assert said.out == "before the sweep has a name\nafter\nwhen it is over\n"
    assert said.err == "on the other stream\n"
    assert driver_log.read(tmp_path / "logs") == "before the sweep has a name\non the other stream\nafter\n"


@pytest.mark.parametrize("is_over", [True, False])
def test_who_submitted_a_sweep_reads_its_name_and_nobody_else_is_shown_that_line(
    is_over: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with driver_log.kept():
        driver_log.into(tmp_path)
        print("one")
        driver_log.name_sweep("mine-2", is_over)
        print("two")
    log = capsys.readouterr().out
    assert marked_output.named(log) == ("mine-2", is_over)
    assert job_log.of_ours(log) == driver_log.read(tmp_path) == "one\ntwo\n"
    assert job_log._split(log) == ["one", "two"]
    driver_log.name_sweep("mine-2", is_over)  # in a terminal
    assert capsys.readouterr().out == ""


def test_a_name_is_read_once_its_line_is_whole() -> None:
    assert marked_output.named("results in /shared/other\nsweep|o|b\nsweep|b|min") is None
    assert marked_output.named("sweep|b|mine\n") == ("mine", False)


def test_a_driver_that_crashes_leaves_its_traceback_in_the_file_and_says_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def crashes() -> None:
        with driver_log.kept():
            driver_log.into(tmp_path)
            print("step 1")
            raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError):
        crashes()
    kept = driver_log.read(tmp_path)
    assert kept.startswith("step 1\nTraceback (most recent call last)")
    assert kept.endswith("ZeroDivisionError: division by zero\n")
    assert capsys.readouterr() == ("step 1\n", "")


def test_a_later_driver_adds_to_what_the_earlier_ones_said(tmp_path: Path) -> None:
    for words in ("one", "two"):
        with driver_log.kept():
            driver_log.into(tmp_path)
            print(words)
    assert driver_log.read(tmp_path) == "one\ntwo\n"


def test_nothing_is_kept_of_a_driver_in_a_terminal(tmp_path: Path) -> None:
    stdout = sys.stdout
    driver_log.into(tmp_path / "logs")
    assert not (tmp_path / "logs").exists()
    assert driver_log.read(tmp_path) == ""
    assert sys.stdout is stdout


@pytest.mark.parametrize("is_submitted", [True, False])
def test_why_a_submitted_driver_ended_is_in_its_file_too(
    is_submitted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, terms: Any) -> int:
        driver_log.into(tmp_path)
        raise errors.RefusedError("the disk is full")

    monkeypatch.setattr(driver, "resume", refused)
    monkeypatch.setenv(ledger.JOB, "job") if is_submitted else monkeypatch.delenv(ledger.JOB, raising=False)
    assert main.main(["resume", "x", "--address", "local"]) == errors.REFUSED
    assert driver_log.read(tmp_path) == ("the disk is full\n" if is_submitted else "")


class Jobs:
    """A cluster's job server: what was submitted, what it says, and whether it has been told to stop."""

    def __init__(self, log: str, *known: str) -> None:
        self.log, self.known, self.stopped = log, list(known), False

    def submit_job(self, submission_id: str, **_: object) -> None:
        self.known.append(submission_id)

    def list_jobs(self) -> list[Any]:
        return [SimpleNamespace(submission_id=job, status="RUNNING", end_time=None) for job in self.known]

    def get_job_status(self, job: str) -> str:
        if job not in self.known:
            raise RuntimeError("Request failed with status code 404: Job does not exist.")
        return "STOPPED" if self.stopped else "RUNNING"

    def get_job_logs(self, job: str) -> str:
        self.get_job_status(job)
        return self.log

    def stop_job(self, job: str) -> None:
        self.get_job_status(job)
        self.stopped = True


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Any:
    def serve(jobs: Jobs) -> Jobs:
        @contextlib.contextmanager
        def client(_: str) -> Iterator[Jobs]:
            yield jobs

        monkeypatch.setattr(connection, "client", client)
        return jobs

    return serve


@pytest.mark.parametrize(("log", "told"), [("", "nothing has begun"), ("sweep|b|mine-2\n", "resume mine-2")])
def test_an_interrupted_submission_runs_nothing_and_names_what_had_begun(
    log: str, told: str, served: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = served(Jobs(log))

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_jobs, "_named", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ray_jobs.drive(["run", "x.yaml"], "mine", "cluster.yaml")
    assert jobs.stopped
    assert told in capsys.readouterr().err


def test_one_that_is_interrupted_before_the_cluster_has_it_is_taken_back_too(
    served: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    jobs = served(Jobs(""))
    monkeypatch.setattr(jobs, "submit_job", interrupted)
    monkeypatch.setattr(ray_jobs, "ARRIVES_WITHIN_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        ray_jobs.drive(["run", "x.yaml"], "mine", "cluster.yaml")
    assert "nothing has begun" in capsys.readouterr().err


@pytest.mark.parametrize("is_followed", [True, False])
def test_the_log_of_a_sweep_from_before_the_last_ray_up_is_its_folders(
    is_followed: bool, served: Any, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = submitted_before(workplace)
    with driver_log.kept():
        driver_log.into(folder / "logs")
        print("all 8 completed")
    capsys.readouterr()
    served(Jobs("of Ray"))
    assert ray_jobs.logs("old", is_followed) == errors.DONE
    assert capsys.readouterr().out == "all 8 completed\n"


def submitted_before(workplace: Path) -> Path:
    """The folder of a sweep whose driver was a job of the cluster."""
    folder = workplace / "results/old"
    folder.mkdir(parents=True)
    signed = {"kind": "driver", "pid": 1, "host": "head", "user": "u", "job": "sweep-old-1", "at": 1.0}
    (folder / "ledger.jsonl").write_text(json.dumps(signed) + "\n")
    return folder


def test_without_ray_a_log_is_read_from_the_sweeps_folder(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `ray down`, on the head."""
    logs = submitted_before(workplace) / "logs"
    logs.mkdir()
    (logs / driver_log.NAME).write_text("all 8 completed\n")
    monkeypatch.setattr(connection, "client", lambda _: pytest.fail("it was asked"))
    assert ray_jobs.logs("old", False) == errors.DONE
    assert capsys.readouterr().out == "all 8 completed\n"


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_log_that_was_deleted_is_said_to_be(
    is_followed: bool, served: Any, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted_before(workplace)
    served(Jobs("of Ray"))
    assert ray_jobs.logs("old", is_followed) == errors.DONE
    told = capsys.readouterr()
    assert told == ("", f"{ray_jobs.NOT_KEPT}\n")


def test_what_an_earlier_version_s_driver_said_is_asked_of_ray(
    served: Any, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted_before(workplace)
    served(Jobs("of Ray\n", "sweep-old-1"))
    assert ray_jobs.logs("old", False) == errors.DONE
    assert capsys.readouterr().out == "of Ray\n"
