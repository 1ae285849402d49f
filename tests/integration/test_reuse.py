"""A copy of the project whose code is edited between sweeps, as on a cluster without git: what is measured again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from sweeps import analysis
from sweeps.record import ledger, rows
from sweeps.record.ledger import SweepRecord, TrialRecord
from sweeps.store import query
from tests.integration.clusters import eventually
from workers.workloads.images import checkpoint
from workers.workloads.images.checkpoint import Kept

# Long: tests/cluster/test_hosts.py edits the loop and the files on hosts, tests/unit/test_stale_code.py all the rest.
pytestmark = [pytest.mark.alone, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
CHECKPOINTS = Path("results/small/checkpoints")
EPOCHS = 40
SMALL = f"""
name: small
model: tiny
data: digits
device: cpu
protocol: convergence
epochs: {EPOCHS}
checkpoint_every: 1
space: {{batch_size: 64, gpus: 1, lr_schedule: 0.05}}
repeats: 2
probe_every_min: 0
"""


@dataclasses.dataclass
class Edited:
    """A sweep that was stopped in its second trial and went on with other code, and its file once more after that."""

    stopped: SweepRecord
    kept: Kept  # of the trial that was on its way
    said: str  # when it went on
    gone_on: SweepRecord
    kept_last: Kept | None
    table: pd.DataFrame
    again: SweepRecord  # after an edit of a page, too

    @property
    def first(self) -> TrialRecord:
        """The one that was over before the edit."""
        (trial,) = completed(self.stopped)
        return next(one for one in self.gone_on.trials if one.config == trial.config)

    @property
    def second(self) -> TrialRecord:
        return next(one for one in self.gone_on.trials if one.config != self.first.config)


def completed(record: SweepRecord) -> list[TrialRecord]:
    return [trial for trial in record.trials if trial.outcome.status == "completed"]


def software(trial: TrialRecord) -> str:
    return str(rows.row(trial)["software"])


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory, blank: Path) -> Edited:
    place = tmp_path_factory.mktemp("place")
    shutil.copy(blank, place)
    project = place / "project"
    for name in ("sweeps", "workers", "docs", "references"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))

    def sweep(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sweeps.cli", *arguments]
        there = os.environ | {"PYTHONPATH": str(project)}
        return subprocess.Popen(command, env=there, stderr=subprocess.PIPE, text=True)

    def told(driver: subprocess.Popen[str]) -> str:
        said = driver.communicate(timeout=200)[1]
        assert driver.returncode == 0, said
        return said

    def is_in_its_second_trial() -> bool:
        assert driver.poll() is None
        return len([*CHECKPOINTS.glob("*.npz")]) == 2

    with contextlib.chdir(place), pytest.MonkeyPatch.context() as patched:
        for name in ("MLFLOW_TRACKING_URI", "SWEEP_RESULTS", "RAY_ADDRESS"):
            patched.delenv(name, raising=False)
        Path("small.yaml").write_text(SMALL)
        driver = sweep("run", "small.yaml")
        assert eventually(is_in_its_second_trial, 120)
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=100)
        stopped = ledger.read("small")
        (over,) = completed(stopped)
        (second,) = {trial.trial for trial in stopped.facts.trials} - {over.config.trial}
        kept = checkpoint.peek(CHECKPOINTS / f"{second}.npz")
        assert kept
        loop = project / "workers" / "workloads" / "images" / "convergence.py"
        loop.write_text(loop.read_text() + "# edited\n")
        said = told(sweep("resume", "small"))
        kept_last = checkpoint.peek(CHECKPOINTS / f"{second}.npz")
        (project / "docs" / "axes.md").write_text("other words")
        told(sweep("run", "small.yaml"))
        table = query.trials("small")
        return Edited(stopped, kept, said, ledger.read("small"), kept_last, table, ledger.read("small-2"))


def test_an_edited_training_loop_is_measured_and_an_edited_page_is_not(edited: Edited) -> None:
    assert Counter(trial.outcome.kind for trial in edited.again.trials) == {"": 1, "cached": 1}
    (anew,) = [trial for trial in edited.again.trials if not trial.outcome.kind]
    (cached,) = [trial for trial in edited.again.trials if trial.outcome.kind]
    assert anew.config.trial == edited.first.config.trial, "it was measured by the code as it was"
    assert cached.config.trial == edited.second.config.trial, "and this one by the code as it is"
    assert software(edited.first) != software(edited.second) == software(cached) == software(anew)


def test_a_sweep_resumed_after_an_edit_says_so_and_does_not_pool(edited: Edited) -> None:
    assert edited.said.count("the code in workers/ has changed") == 1
    assert "since 1 of this sweep's trials were" in edited.said
    table = analysis.cells(edited.table)
    assert [*table["n"]] == [1, 1]
    assert table["software"].nunique() == 2


def test_a_trial_to_an_accuracy_begins_anew_where_other_code_has_left_its_checkpoint(edited: Edited) -> None:
    """Else the epochs of the old code would stand in a record that is signed by the new. That it goes on with the same
    code is among the tests of training."""
    assert 0 < len(edited.kept.epochs) < EPOCHS
    measured = edited.second.outcome.measurement
    assert measured
    assert [epoch.epoch for epoch in measured.epochs] == list(range(1, EPOCHS + 1))
    before = [epoch.train_s for epoch in edited.kept.epochs]
    assert [epoch.train_s for epoch in measured.epochs[: len(before)]] != before
    assert "begins anew" in edited.said
    assert measured.ranks[0].begun_anew
    assert edited.kept.made
    before_and_now = f"(then {edited.kept.made['software']}, now {measured.ranks[0].software})"
    assert f"other software or code in workers/ {before_and_now}" in edited.said
    assert edited.kept_last == Kept(measured.epochs, {**edited.kept.made, "software": measured.ranks[0].software})
