"""Whole sweeps by the real command: a real Ray, real ranks, a real MLflow store."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import psutil
import pytest

from sweeps import analysis
from sweeps.cli import main
from sweeps.record import ledger, rows
from sweeps.spec import plan, sweep_file
from sweeps.store import query
from tests.integration import bad_ranks, sampled_groups

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
SWEEP = Path(sys.executable).with_name("sweep")
SMALL = """
name: small
model: tiny
device: cpu
image_size: 32
classes: 10
space: {batch_size: 8, gpus: [1, 2], precision: fp32}
repeats: 2
steps: {warmup: 2, measured: 5}
probe_every_min: 0
"""


def sweep(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SWEEP), *arguments], capture_output=True, text=True, env=os.environ | environment, check=False
    )


def told(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which has loaded already what a command takes seconds to load."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main.main(arguments)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def test_a_sweep_from_its_file_to_mlflow_and_back(workplace: Path, left_behind: Callable[[], list[str]]) -> None:
    (workplace / "mlflow.db").unlink()  # MLflow makes it, as for a new user
    (workplace / "small.yaml").write_text(SMALL)
    command = [sys.executable, "-m", sampled_groups.__name__, "run", "small.yaml"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "4/4" in ran.stderr  # plain lines where there is no terminal
    assert "what was found" in ran.stdout
    assert not left_behind()

    record = ledger.read("small")
    planned = plan.plan(sweep_file.load(Path("small.yaml")), "small.yaml", record.facts.nodes).trials
    assert [trial.config for trial in record.trials] == list(planned)
    assert len(record.nodes) == 1
    for trial in record.trials:
        assert {place.hardware for place in trial.outcome.granted} == {record.nodes[0]["hardware"]["digest"]}
        assert {place.software for place in trial.outcome.granted} == {record.nodes[0]["software"]["digest"]}
    assert {trial.outcome.status for trial in record.trials} == {"completed"}
    assert [len(trial.outcome.granted) for trial in record.trials] == [trial.config.gpus for trial in record.trials]

    # A gang keeps its node's cores between two trials and until it is gone: each wait is a line, and is spent.
    entries = [json.loads(line) for line in ledger.paths("small").ledger.read_text().splitlines()]
    waits = [entry for entry in entries if entry["kind"] == "wait"]
    (node,) = record.facts.nodes
    assert {wait["gpus"] for wait in waits} == {node.cpus}, "all of them, whatever its ranks"
    assert all(wait["since"] <= wait["at"] for wait in waits)
    waited = sum(wait["gpus"] * (wait["at"] - wait["since"]) / 3600 for wait in waits)
    assert record.spent == pytest.approx(sum(trial.gpu_hours for trial in record.trials) + waited)
    samples = json.loads(sampled_groups.NOTED.read_text())
    assert record.spent * 3600 == pytest.approx(sampled_groups.held(samples), rel=0.1), "as Ray tells, to a tenth"

    # What MLflow gives back is what the ledger holds, value by value and type by type.
    table = query.trials("small")
    expected = analysis.frame([rows.row(trial) for trial in record.trials])
    assert table.dtypes.to_dict() == expected.dtypes.to_dict()
    for column in table.columns.drop("started_at"):
        assert table[column].tolist() == pytest.approx(expected[column].tolist(), nan_ok=True), column

    printed = told("trials", "small", "--format", "json")
    assert len(json.loads(printed.stdout)) == 4
    assert told("trials", "smal", "--format", "csv").returncode == 2

    # Syncing again doubles nothing.
    assert told("sync", "small").returncode == 0
    with sqlite3.connect("mlflow.db") as store:
        assert store.execute("SELECT count(*) FROM runs").fetchone() == (5,)
        assert store.execute("SELECT status, count(*) FROM runs GROUP BY status").fetchall() == [("FINISHED", 5)]
        steps = store.execute("SELECT count(*) FROM metrics WHERE key = 'steps/step_ms'").fetchone()
        assert steps == (4 * 5,)


def test_a_sweep_goes_on_after_every_way_a_rank_can_end(
    workplace: Path, left_behind: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [8, *range(bad_ranks.RAISES, bad_ranks.NO_MEMORY + 1), 16]
    text = SMALL.replace("batch_size: 8, gpus: [1, 2]", f"batch_size: {sizes}, gpus: 2").replace(
        "repeats: 2", "repeats: 1"
    )
    text += "deadlines: {ring_s: 4, step_s: 2}\n"
    (workplace / "small.yaml").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ran = driven("tests.integration.bad_ranks:run")
    assert ran.returncode == 1, ran.stderr
    assert not left_behind()
    ended = {trial.config.batch_size: trial.outcome for trial in ledger.read("small").trials}
    assert {size: outcome.kind for size, outcome in ended.items()} == {
        8: "",
        bad_ranks.RAISES: "raised",
        bad_ranks.KILLED: "killed",
        bad_ranks.STOPPED: "stalled",
        bad_ranks.NEVER_JOINS: "no rendezvous",
        bad_ranks.EXITS: "exited",
        bad_ranks.NO_MEMORY: "host memory",
        16: "",
    }
    assert Counter(outcome.status for outcome in ended.values()) == {"completed": 2, "failed": 5, "infeasible": 1}
    assert all(outcome.rank == bad_ranks.BAD_RANK for outcome in ended.values() if outcome.status != "completed")
    assert "rank 1, step 3: killed: killed by signal 9 (SIGKILL)" in ran.stdout
    assert "log: " in ran.stdout
    with sqlite3.connect("mlflow.db") as store:
        statuses = dict(store.execute("SELECT status, count(*) FROM runs GROUP BY status").fetchall())
    assert statuses == {"FINISHED": 4, "FAILED": 5}  # the sweep's own run, two completed, one infeasible


def driven(entry: str) -> subprocess.CompletedProcess[str]:
    """`sweep run small.yaml` with other ranks than the real ones."""
    return subprocess.run(planted("run", entry), capture_output=True, text=True, check=False)


def planted(command: Literal["run", "resume"], entry: str, address: str | None = None) -> list[str]:
    """The command line of a driver of `small` whose ranks run something else than the training."""
    call = "drive(Path('small.yaml'), (), terms)" if command == "run" else "resume('small', terms)"
    return [
        sys.executable,
        "-c",
        "import sys; from pathlib import Path; from sweeps.run import driver; from sweeps.run.terms import Terms;"
        f"terms = Terms(rank={entry!r}, address={address!r}); sys.exit(driver.{call})",
    ]


CONVERGING = """
name: small
model: tiny
data: digits
device: cpu
protocol: convergence
epochs: 3
space: {batch_size: 64, gpus: 1, lr_schedule: 0.05}
repeats: 1
probe_every_min: 0
"""


@pytest.mark.parametrize(
    ("checkpoint_every", "ends"),
    [
        pytest.param(1, [("completed", "", 3)], marks=pytest.mark.long),  # `test_asha` has one that goes on, too
        (0, [("failed", "killed", 0)]),
    ],
)
def test_a_trial_that_is_cut_short_goes_on_from_its_checkpoint(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_every: int, ends: list[tuple[str, str, int]]
) -> None:
    (workplace / "small.yaml").write_text(f"{CONVERGING}checkpoint_every: {checkpoint_every}\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ran = driven("tests.integration.learning:dies_in_the_second_epoch")
    assert ran.returncode == (ends[0][0] == "failed"), ran.stderr
    outcomes = [trial.outcome for trial in ledger.read("small").trials]
    epochs = [len(outcome.measurement.epochs) if outcome.measurement else 0 for outcome in outcomes]
    assert [(o.status, o.kind, n) for o, n in zip(outcomes, epochs, strict=True)] == ends


def started(*arguments: str) -> subprocess.Popen[str]:
    """A sweep of which a trial has just completed and another is under way."""
    running = subprocess.Popen(
        [str(SWEEP), *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    )
    await_completed(running)
    time.sleep(0.5)
    return running


def await_completed(running: subprocess.Popen[str], count: int = 1) -> None:
    """Until it has told of so many more trials."""
    assert running.stderr
    for line in running.stderr:
        count -= "images/s" in line
        if not count:
            return
    raise AssertionError("the sweep ended before that")


def completed() -> set[str]:
    return {trial.config.trial for trial in ledger.read("small").trials if trial.outcome.status == "completed"}


ALL = 10  # trials


@pytest.mark.timeout(900)
def test_a_sweep_whose_driver_is_killed_whose_fork_server_dies_and_that_is_stopped_measures_every_trial_once(
    workplace: Path, left_behind: Callable[[], list[str]]
) -> None:
    (workplace / "small.yaml").write_text(
        SMALL.replace("measured: 5", "measured: 100").replace("repeats: 2", f"repeats: {ALL // 2}")
    )

    # Nobody has time for a word.
    running = started("run", "small.yaml")
    running.kill()
    running.communicate(timeout=60)
    assert not left_behind()
    first = completed()
    assert 0 < len(first) < ALL

    # It goes on, and so it does behind a fork server that dies.
    running = started("resume", "small")
    below = psutil.Process(running.pid).children(recursive=True)
    fork_servers = {process.pid: process for process in below if "workers.launch.fork_server" in process.cmdline()}
    (fork_server,) = [
        process for process in fork_servers.values() if process.ppid() not in fork_servers
    ]  # the rest are ranks
    killed_at = time.time()
    fork_server.kill()
    await_completed(running, 2)

    # Ctrl-C ends ranks and Ray, and leaves a ledger that reads.
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the whole group
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in errors + output
    assert "stopped after" in errors
    assert not left_behind()
    record, second = ledger.read("small"), completed()
    assert {trial.outcome.status for trial in record.trials} <= {"completed", "cancelled"}
    assert first < second
    assert len(second) < ALL
    attempts = Counter(attempt.outcome.kind for attempt in record.attempts)
    assert attempts["fork server gone"] <= 1
    assert [one for one in record.trials if one.started_at > killed_at and one.outcome.status == "completed"], (
        "there was no other fork server"
    )
    with sqlite3.connect("mlflow.db") as store:
        assert store.execute("SELECT count(*) FROM runs WHERE status = 'RUNNING'").fetchone() == (0,)

    # What is left is measured, and nothing twice.
    ran = sweep("resume", "small")
    assert ran.returncode == 0, ran.stderr
    assert f"{ALL - len(second)} of {ALL} trials are left" in ran.stderr
    trials = ledger.read("small").trials
    assert sorted(trial.config.trial for trial in trials) == sorted(t.trial for t in ledger.read("small").facts.trials)
    assert {trial.outcome.status for trial in trials} == {"completed"}
    with sqlite3.connect("mlflow.db") as store:
        assert store.execute("SELECT status, count(*) FROM runs GROUP BY status").fetchall() == [("FINISHED", ALL + 1)]
        outcomes = store.execute(
            "SELECT value, count(*) FROM tags WHERE key = 'sweep.outcome' GROUP BY value"
        ).fetchall()
        assert outcomes == [("completed", ALL)]
    again = told("resume", "small")
    assert again.returncode == 0
    assert f"nothing is left to run: all {ALL} trials have ended" in again.stderr
    assert not left_behind()


REFUSED: list[tuple[dict[str, str], tuple[str, ...], int, str]] = [
    ({"MLFLOW_TRACKING_URI": "sqlite:////proc/nowhere/mlflow.db"}, (), 3, "the tracking store must be writable"),
    ({"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}, (), 3, "the tracking store must answer"),
    ({"RAY_ADDRESS": "127.0.0.1:9"}, (), 3, "a Ray head must answer"),
    ({"SWEEP_RESULTS": "/proc/nowhere"}, (), 3, "the results folder must be writable"),
    ({}, ("--set", "gpus=[1, 2]", "cores_per_worker=512"), 2, "space.gpus: this cluster"),  # it would wait for ever
]


def test_what_can_t_be_written_or_held_is_refused_in_words(
    workplace: Path, left_behind: Callable[[], list[str]]
) -> None:
    def ran(refused: tuple[dict[str, str], tuple[str, ...], int, str]) -> subprocess.CompletedProcess[str]:
        environment, overrides, *_ = refused
        place = workplace / str(REFUSED.index(refused))
        place.mkdir()
        (place / "small.yaml").write_text(SMALL)
        command = [str(SWEEP), "run", "small.yaml", *overrides]
        return subprocess.run(
            command, cwd=place, capture_output=True, text=True, env=os.environ | environment, check=False
        )

    with ThreadPoolExecutor() as at_once:  # each starts a Ray and waits more than it works
        ends = [*at_once.map(ran, REFUSED)]
    for (_, _, code, message), end in zip(REFUSED, ends, strict=True):
        assert end.returncode == code, end.stderr
        assert message in end.stderr
        assert "Traceback" not in end.stderr
    assert not [*workplace.glob("*/results/[!.]*")]  # nothing was measured, nothing is left
    assert not (workplace / str(len(REFUSED) - 1) / "results").exists()
    assert not left_behind()
