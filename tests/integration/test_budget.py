"""A budget and an owner through the whole program, on a simulated cluster: what runs, what is spent, who says so."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeps.cli import main as cli
from sweeps.record import ledger
from sweeps.record.ledger import TrialRecord
from sweeps.run import forecast
from sweeps.simulator import cluster as simulated
from sweeps.spec import plan, sweep_file
from tests.integration.conftest import ROOT

pytestmark = pytest.mark.timeout(600)

FILE = """
name: small
model: resnet50
device: gpu
explain: false
space: {batch_size: 32, gpus: [1, 16]}
repeats: 2
"""
SHAPE = "nodes=4,gpus=4,gpu=v100"


Sweep = Callable[..., tuple[int, str]]


def begun(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sweeps.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def sweep(capfd: pytest.CaptureFixture[str]) -> Sweep:
    """Its exit code and what it says; in this process: a new one takes longer to start than a sweep to run."""

    def run(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = cli.main(list(arguments))
        return code, "".join(capfd.readouterr())

    return run


def lines(name: str) -> list[dict[str, Any]]:
    entries = map(json.loads, ledger.paths(name).ledger.read_text().splitlines())
    return [entry for entry in entries if entry["kind"] == "trial"]


def stored(question: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect("mlflow.db") as store:
        return store.execute(question).fetchall()


def hours(records: tuple[TrialRecord, ...]) -> float:
    return sum(record.gpu_hours for record in records)


def spent_as_told(sweep: Sweep, name: str, said: str) -> float:
    """What the ledger, `status`, the report, MLflow and the console say: one figure."""
    record = ledger.read(name)
    code, told = sweep("status", name, "--format", "json")
    assert code == 0
    assert json.loads(told)["spent"] == record.spent
    words = f"{record.spent:.3g} GPU-hours"
    assert f"spent {words}" in said
    assert f"{words} spent" in ledger.paths(name).folder.joinpath("report.html").read_text()
    tag = "SELECT value FROM tags JOIN runs USING (run_uuid) WHERE key = 'sweep.gpu_hours' AND runs.name = '{}'"
    assert [float(value) for (value,) in stored(tag.format(name))] == [record.spent]
    return record.spent


def test_what_fits_runs_two_resumes_run_the_rest_once_and_hours_add_up(
    workplace: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    machine = simulated.parse(SHAPE)
    config, *_ = plan.plan(sweep_file.parse(FILE, "small.yaml"), "small.yaml", machine.nodes).trials
    alone = dataclasses.replace(config, gpus=1)
    cheap = 4 * forecast.learned(machine, is_real=False).predict(alone).seconds / 3600  # it has a node to itself
    Path("small.yaml").write_text(FILE + f"budget: {{gpu_hours: {3 * cheap}}}\n")
    first = begun("run", "small.yaml", "--simulate", SHAPE)  # one that has gone when another takes its sweep
    said = first.communicate(timeout=300)[0]
    assert first.returncode == 130, said
    name = "small-simulated"
    assert {(trial.config.gpus, trial.config.repeat) for trial in ledger.read(name).trials} == {(1, 0), (1, 1)}
    assert "nothing else fits in the budget" in said
    assert "not run, since each of these needs more than the budget has left" in said
    before = spent_as_told(sweep, name, said)
    assert 0 < before <= 3 * cheap

    drivers = [begun("resume", name, "--budget", "1000") for _ in range(2)]
    told = [driver.communicate(timeout=300)[0] for driver in drivers]
    codes = [driver.returncode for driver in drivers]
    assert sorted(codes) in ([0, 0], [0, 3]), told
    if 3 in codes:
        assert f"has one driver at a time, but process {drivers[codes.index(0)].pid} on" in told[codes.index(3)]
    assert Counter(line["trial"] for line in lines(name)) == dict.fromkeys((one["trial"] for one in lines(name)), 1)
    assert len(lines(name)) == 4
    assert stored(f"SELECT count(*) FROM tags WHERE key = 'sweep.name' AND value = '{name}'") == [(5,)]
    after = ledger.read(name)
    assert after.spent == pytest.approx(hours(after.trials))
    assert after.spent > before

    code, said = sweep("retry", name, "--status", "completed", "--budget", f"{after.spent + 1.3 * before}")
    assert code == 130, said
    assert len(lines(name)) == 6, "the two on one GPU once more"
    assert spent_as_told(sweep, name, said) == pytest.approx(after.spent + before, rel=0.2)
    assert ledger.read(name).spent == pytest.approx(
        sum(line["gpus_held"] * (line["ended_at"] - line["held_since"]) for line in lines(name)) / 3600
    )
    assert "Traceback" not in said
