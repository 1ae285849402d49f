"""What jobs leave on a head goes some time after their end; what runs, is new or is not ours stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from sweeps.cluster import job_traces
from sweeps.cluster.job_traces import DAY_S
from sweeps.record import ledger

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
ME = "ask-0123456789ab"
AGES = {  # of what has ended, in days, and whether it goes
    "ask-00000000000a": (1.1, True),
    "ask-00000000000b": (0.9, False),
    "sweep-study-1234abcd": (91, True),
    "sweep-study-2-1234abcd": (89, False),
    "raysubmit_ask-1": (1000, False),  # is somebody else's
    "asking": (1000, False),
}


class Table:
    """Ray's, of jobs."""

    def __init__(self, refuses: Callable[[], None] = lambda: None) -> None:
        self._refuses = refuses
        ended = [self._job(name, days, "SUCCEEDED") for name, (days, _) in AGES.items()]
        driver = SimpleNamespace(submission_id=None, status="SUCCEEDED", end_time=1)  # of a script, which is no job
        going = SimpleNamespace(submission_id="sweep-x-1", status="RUNNING", end_time=None)
        self.jobs = [driver, going, *ended, self._job("ask-00000000000c", 5, "STOPPED")]

    @staticmethod
    def _job(name: str, days: float, status: str) -> Any:
        return SimpleNamespace(submission_id=name, status=status, end_time=int(1000 * (time.time() - days * DAY_S)))

    def list_jobs(self) -> list[Any]:
        return [*self.jobs]

    def delete_job(self, name: str) -> None:
        self._refuses()
        (gone,) = [job for job in self.jobs if job.submission_id == name]
        self.jobs.remove(gone)


def test_records_of_jobs_that_ended_long_ago_go() -> None:
    table = Table()
    job_traces.forget(table)  # type: ignore[arg-type]
    left = [job.submission_id for job in table.jobs]
    assert left == [None, "sweep-x-1", *(name for name, (_, goes) in AGES.items() if not goes)]


@pytest.mark.parametrize("error", [requests.ReadTimeout("Read timed out"), RuntimeError("Request failed: 404")])
def test_a_cluster_that_deletes_no_record_holds_up_no_submission(error: Exception) -> None:
    def refuses() -> None:
        raise error

    job_traces.forget(Table(refuses))  # type: ignore[arg-type]


def test_a_question_deletes_the_logs_of_jobs_that_ended_long_ago(tmp_path: Path) -> None:
    """As Ray starts one: its standard output is its log."""
    others = dict.fromkeys(("worker-ask-1.log", "job-driver-ask-1.txt", "raylet.out"), 1000.0)
    for name, days in ({f"job-driver-{job}.log": age for job, (age, _) in AGES.items()} | others).items():
        (tmp_path / name).write_text("sweep|o|said\n")
        os.utime(tmp_path / name, times=(time.time(), time.time() - days * DAY_S))
    own = tmp_path / f"job-driver-{ME}.log"
    with own.open("w") as log:
        command = [sys.executable, "-m", "sweeps.cli.on_head", "schema"]
        subprocess.run(command, cwd=ROOT, stdout=log, env=os.environ | {ledger.JOB: ME}, check=True)
    kept = {f"job-driver-{job}.log" for job, (_, goes) in AGES.items() if not goes}
    assert {path.name for path in tmp_path.iterdir()} == {own.name, *kept, *others}
    assert own.read_text().endswith("sweep|x|0\n"), "the question was answered"


def test_a_question_whose_words_go_elsewhere_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(_: object) -> str:
        return str(tmp_path / "out.log")

    old = tmp_path / "ask-00000000000a"
    old.touch()
    os.utime(old, times=(0, 0))
    monkeypatch.setattr(os, "readlink", elsewhere)
    for job in (ME, ""):
        job_traces.delete_logs(job)
    assert old.exists()
