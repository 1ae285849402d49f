"""A copy of the project whose code is edited between sweeps, as on a cluster without git: what is measured again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeps import analysis
from sweeps.record import ledger, rows
from sweeps.store import query
from workers.workloads.images import checkpoint
from workers.workloads.images.checkpoint import Kept

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
SMALL = """
name: small
model: tiny
device: cpu
image_size: 32
classes: 10
space: {batch_size: 8, gpus: 1, placement: [pack]}
repeats: REPEATS
steps: {warmup: 2, measured: STEPS}
probe_every_min: 0
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    copy = tmp_path / "project"
    for name in ("sweeps", "workers", "docs", "references"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def sweep(project: Path, workplace: Path) -> Callable[..., subprocess.Popen[str]]:
    there = os.environ | {"PYTHONPATH": str(project)}

    def started(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sweeps.cli", *arguments]
        return subprocess.Popen(command, cwd=workplace, env=there, stderr=subprocess.PIPE, text=True)

    return started


def told(driver: subprocess.Popen[str]) -> str:
    said = driver.communicate(timeout=200)[1]
    assert driver.returncode == 0, said
    return said


def kinds(name: str) -> Counter[str]:
    return Counter(trial.outcome.kind for trial in ledger.read(name).trials)


def edit(project: Path) -> None:
    loop = project / "workers" / "workloads" / "images" / "throughput.py"
    loop.write_text(loop.read_text().replace("work.steps += 1", "work.steps += 1; time.sleep(0.002)", 1))


def written(repeats: int, steps: int) -> None:
    Path("small.yaml").write_text(SMALL.replace("REPEATS", str(repeats)).replace("STEPS", str(steps)))


def test_an_edited_training_loop_is_measured_and_an_edited_page_is_not(
    project: Path, sweep: Callable[..., subprocess.Popen[str]]
) -> None:
    written(repeats=1, steps=5)
    told(sweep("run", "small.yaml"))
    (project / "docs" / "axes.md").write_text("other words")
    told(sweep("run", "small.yaml"))
    assert (kinds("small"), kinds("small-2")) == ({"": 1}, {"cached": 1})
    edit(project)
    told(sweep("run", "small.yaml"))
    assert kinds("small-3") == {"": 1}
    software = [rows.row(ledger.read(name).trials[0])["software"] for name in ("small", "small-2", "small-3")]
    assert software[0] == software[1] != software[2]


def test_a_sweep_resumed_after_an_edit_says_so_and_does_not_pool(
    project: Path, sweep: Callable[..., subprocess.Popen[str]]
) -> None:
    written(repeats=4, steps=300)
    driver = sweep("run", "small.yaml")
    give_up = time.monotonic() + 120
    while not (Path("results/small").exists() and ledger.read("small").trials):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=100)
    before = sum(trial.outcome.status == "completed" for trial in ledger.read("small").trials)
    assert 0 < before < 4
    edit(project)
    said = told(sweep("resume", "small"))
    assert said.count("the code in workers/ has changed") == 1
    assert f"since {before} of this sweep's trials were" in said
    table = analysis.cells(query.trials("small"))
    assert sorted(table["n"]) == sorted([before, 4 - before])
    assert table["software"].nunique() == 2


CONVERGING = """
name: small
model: tiny
data: digits
device: cpu
protocol: convergence
epochs: 60
checkpoint_every: 1
space: {batch_size: 64, gpus: 1, lr_schedule: 0.05}
repeats: 1
probe_every_min: 0
"""


def interrupted_after_its_first_checkpoint(sweep: Callable[..., subprocess.Popen[str]]) -> Kept:
    """A trial whose driver was stopped on the way; what it left."""
    driver = sweep("run", "small.yaml")
    give_up = time.monotonic() + 120
    while not (found := [*Path("results/small/checkpoints").glob("*.npz")]):
        assert time.monotonic() < give_up
        assert driver.poll() is None
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=100)
    kept = checkpoint.left(found[0])
    assert kept
    assert 0 < len(kept.epochs) < 60
    assert not [one for one in ledger.read("small").trials if one.outcome.status == "completed"]
    return kept


def test_a_trial_to_an_accuracy_begins_anew_where_other_code_has_left_its_checkpoint(
    project: Path, sweep: Callable[..., subprocess.Popen[str]]
) -> None:
    """Else the epochs of the old code would stand in a record that is signed by the new. That it goes on with the same
    code is among the tests of training."""
    Path("small.yaml").write_text(CONVERGING)
    kept = interrupted_after_its_first_checkpoint(sweep)
    loop = project / "workers" / "workloads" / "images" / "convergence.py"
    loop.write_text(loop.read_text() + "# edited\n")
    said = told(sweep("resume", "small"))
    (trial,) = ledger.read("small").trials
    measured = trial.outcome.measurement
    assert measured
    assert [epoch.epoch for epoch in measured.epochs] == list(range(1, 61))
    before = [epoch.train_s for epoch in kept.epochs]
    assert [epoch.train_s for epoch in measured.epochs[: len(before)]] != before
    assert "begins anew" in said
    assert measured.ranks[0].begun_anew
    assert kept.made
    before_and_now = f"(then {kept.made['software']}, now {measured.ranks[0].software})"
    assert f"other software or code in workers/ {before_and_now}" in said
    assert checkpoint.left(next(Path("results/small/checkpoints").glob("*.npz"))) == Kept(
        measured.epochs, {**kept.made, "software": measured.ranks[0].software}
    )
