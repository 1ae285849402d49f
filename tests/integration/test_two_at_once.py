"""Two commands on a sweep at the same instant, with MLflow itself: every trial has one run, and the sweep one of its
own."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sweeps.cli import main
from sweeps.record import ledger, ownership
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.store import tracking
from tests.unit.records import record
from tests.unit.test_ownership import together

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("workplace")]

ROUNDS = 5
SHAPE = "nodes=1,gpus=1,gpu=v100"
TEXT = "{name: study, model: resnet50, device: gpu, explain: false, repeats: 3, space: {batch_size: 64, gpus: 1}}"


def stopped() -> list[ledger.SweepFacts]:
    """Sweeps of three trials on a simulated cluster, of which the first has ended; the store knows of none."""
    made = []
    for _ in range(ROUNDS):
        planned = plan.plan(sweep_file.parse(TEXT, "x"), nodes=[Node("sim-0", 1, 1)])
        with contextlib.closing(ownership.create(planned, TEXT, simulated=SHAPE)) as book:
            book.plan(planned)
            book.write(record(planned.trials[0]))
            book.end("stopped")
            made.append(book.facts)
    return made


def runs(of: ledger.SweepFacts) -> tuple[Counter[str], Counter[str]]:
    """How many a sweep has by trial ("" for its own), and by status."""
    wanted = f"""SELECT coalesce(trial.value, ''), status FROM runs JOIN tags AS id USING (run_uuid)
                 LEFT JOIN tags AS trial ON trial.run_uuid = runs.run_uuid AND trial.key = 'sweep.trial'
                 WHERE id.key = 'sweep.id' AND id.value = '{of.id}' AND lifecycle_stage = 'active'"""
    with contextlib.closing(sqlite3.connect("mlflow.db", timeout=20)) as store:
        found = store.execute(wanted).fetchall()
    return Counter(trial for trial, _ in found), Counter(status for _, status in found)


def test_of_two_reports_at_once_into_a_store_without_the_sweep_s_run_only_one_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = tracking.Store._begin

    def begins(self: tracking.Store, *given: Any) -> str:
        time.sleep(0.3)  # since it has looked for one
        return begin(self, *given)

    monkeypatch.setattr(tracking.Store, "_begin", begins)
    sweeps = stopped()
    codes = together(*[lambda number: main.main(["report", sweeps[number].name])] * 2, rounds=ROUNDS)
    assert {tuple(sorted(pair)) for pair in codes} == {(0, 0)}, "the page is written, whoever logs it"
    assert [runs(of) for of in sweeps] == [({"": 1}, {"KILLED": 1})] * ROUNDS


def test_of_two_that_resume_a_sweep_at_once_one_brings_each_trial_to_the_store() -> None:
    sweeps = stopped()
    codes = together(*[lambda number: main.main(["resume", sweeps[number].name])] * 2, rounds=ROUNDS)
    assert {tuple(sorted(pair)) for pair in codes} <= {(0, 0), (0, 3)}
    for of in sweeps:
        assert len(ledger.read(of.name).trials) == 3
        assert runs(of) == ({"": 1, **{trial.trial: 1 for trial in of.trials}}, {"FINISHED": 4})
        assert Path(f"results/{of.name}/report.html").exists()
