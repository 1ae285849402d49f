"""A sweep that was never run, and what MLflow's own client says of it once it is stored."""

from __future__ import annotations

import pandas as pd
from mlflow import MlflowClient

from sweeps.record.ledger import SweepFacts, SweepRecord
from sweeps.spec import plan, sweep_file
from sweeps.store import access, query, remote
from tests.unit import records
from workers.contract.messages import TrialOutcome

FILE = "{name: small, model: tiny, device: cpu, repeats: 2, space: {batch_size: [8, 16], gpus: [1, 2]}}"


def record(name: str = "small", **outcomes: TrialOutcome) -> SweepRecord:
    """A sweep of eight trials that was never run; the outcomes are by trial's number, as in `_3`."""
    trials = plan.plan(sweep_file.parse(FILE, "small")).trials
    facts = SweepFacts(
        name=name, id=f"id of {name}", study="small", created_at=1_700_000_000.0, file=FILE, overrides=(), trials=trials
    )
    ended = [
        records.record(config, 100.0 + n, outcomes.get(f"_{n}"), hardware="node") for n, config in enumerate(trials)
    ]
    return SweepRecord(facts, tuple(ended), is_complete=True)


def as_mlflow_says(name: str = "small") -> pd.DataFrame:
    """By MLflow's client, not by its tables."""
    uri = access.store_name()
    return query._frame(query._trials_of([name], remote.read(uri, [f"tags.`sweep.name` = '{name}'"])))


def run_of(trial: str) -> str:
    experiments = [experiment.experiment_id for experiment in MlflowClient().search_experiments()]
    (run,) = MlflowClient().search_runs(experiments, f"tags.`sweep.trial` = '{trial}'")
    return str(run.info.run_id)


def experiment(name: str) -> str:
    return str(MlflowClient().get_experiment_by_name(name).experiment_id)
