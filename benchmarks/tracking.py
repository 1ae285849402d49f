"""Bringing a trial to MLflow: ours against the plain batch, the fluent calls, and Ray's `MLflowLoggerCallback`.

All four write the same trials, in turns, in one run: what ours sends of one (42 parameters, 9 tags, 33 figures, two
series of 150 points) is caught and written again by the others; on an sqlite store, and over HTTP. The plain batch is
`create_run`, `log_batch` and `set_terminated` with everything ready at hand: what MLflow itself takes. `handed` is what
a trial's end waits for: a line to the process that does the rest, long after the trial's window.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from query import gauge, served
from sweeps.record import ownership
from sweeps.record.ledger import SweepFacts, TrialRecord
from sweeps.run.tracker import Tracker
from sweeps.spec import plan, sweep_file
from sweeps.store import access, tracking
from verdicts import conclude
from workers.contract.messages import Measurement, RankReport, StepRecord, TrialOutcome

SWEEP = """
name: traced
model: resnet50
device: gpu
space: {batch_size: [64, 128, 256], gpus: [1, 2], precision: [fp32, fp16]}
repeats: 10
"""
POINTS = 150
READINGS = {f"reading_{n}": float(n) for n in range(3)}


@dataclasses.dataclass(frozen=True)
class Sent:
    """One trial as MLflow gets it."""

    name: str
    tags: dict[str, str]
    params: dict[str, str]
    figures: dict[str, float]
    series: dict[str, list[tuple[int, float]]]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20, help="of ours and of the plain batch, at most 120")
    parser.add_argument("--slow", type=int, default=2, help="of the others")
    parser.add_argument("--local", action="store_true", help="no server")
    args = parser.parse_args()
    figures: dict[str, float] = {"trials": args.trials}
    for where in ("local",) if args.local else ("local", "http"):
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            store = f"sqlite:///{Path('mlflow.db').absolute()}"
            access.client(store).search_experiments()
            with contextlib.nullcontext(store) if where == "local" else served() as uri:
                os.environ["MLFLOW_TRACKING_URI"] = uri
                found = measured(args.trials, args.slow if where == "local" else 1)
        figures |= {f"{where}_{side}_ms": 1000 * took for side, took in found.items()}
        figures[f"{where}_ratio"] = found["ours"] / found["plain"]
        figures |= {f"{where}_{side}_over_ours": found[side] / found["ours"] for side in ("fluent", "callback")}
        for side, took in found.items():
            print(f"{where:<7}{side:<10}{1000 * took:>10,.3f} ms a trial{took / found['plain']:>10.2f}×", flush=True)
    bounds = {name: "<= 1.3" for name in figures if name.endswith("_ratio")}
    bounds |= {name: "<= 1" for name in figures if name.endswith("handed_ms")}
    return conclude("tracking", figures, bounds)


def measured(count: int, slow: int) -> dict[str, float]:
    """Seconds a trial, of each side: the median."""
    import mlflow

    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    trials = records()
    store = tracking.Store(facts())
    client = access.client()
    experiment = client.create_experiment("others")
    mlflow.set_experiment("others")
    took: dict[str, list[float]] = {side: [] for side in ("ours", "plain", "fluent", "callback", "handed")}
    store.log(trials[:1])  # what is loaded at the first is no trial's
    plain(client, experiment, sent(store, trials[0]))
    for n, record in enumerate(trials[1 : count + 1]):
        content = sent(store, record)
        for side in ("ours", "plain") if n % 2 else ("plain", "ours"):
            with gauge() as spent:
                store.log([record]) if side == "ours" else plain(client, experiment, content)
            took[side] += spent
    for record in trials[:slow]:
        for side, write in (("fluent", fluent), ("callback", callback)):
            content = sent(store, record)
            with gauge() as spent:
                write(content)
            took[side] += spent
    book = ownership.create(plan.plan(sweep_file.parse(SWEEP, "traced")), SWEEP)
    book.begin()
    tracker = Tracker(book.facts)
    tracker.ready()
    for record in trials[:count]:
        book.write(record)
        with gauge() as spent:
            tracker.ended(record)
        took["handed"] += spent
    assert tracker.close(is_complete=True) == 0
    book.end("complete")
    check(client, count + 1)
    return {side: statistics.median(times) for side, times in took.items()}


def check(client: Any, count: int) -> None:
    """Ours and the plain batch have written the same."""
    experiments = [client.get_experiment_by_name(name).experiment_id for name in ("traced", "others")]
    pages = [client.search_runs([experiment], max_results=1000) for experiment in experiments]
    mine, theirs = ({run.info.run_name: run for run in page} for page in pages)
    assert len({name for name in mine if "#" in name}) >= count
    for name, run in theirs.items():
        assert mine[name].data.params == run.data.params
        assert mine[name].data.metrics.keys() >= run.data.metrics.keys()


def facts() -> SweepFacts:
    return SweepFacts(name="traced", id="0" * 32, study="traced", created_at=time.time(), file=SWEEP, overrides=(),
                      trials=plan.plan(sweep_file.parse(SWEEP, "traced")).trials)  # fmt: skip


def records() -> list[TrialRecord]:
    steps = tuple(StepRecord(step=n, step_ms=100 + n / 7, loss=7 - n / 50) for n in range(POINTS))
    made = []
    for config in facts().trials:
        rank = RankReport(rank=0, images=6400, window_s=10.0, steps=steps, entered_at=time.time(), build_s=1.0,
                          peak_memory_mib=900.0, parameters=25_000_000, flops=7_700_000_000)  # fmt: skip
        outcome = TrialOutcome(status="completed", measurement=Measurement(ranks=(rank,)), usage=READINGS)
        made.append(TrialRecord(config=config, outcome=outcome, started_at=time.time(), ended_at=time.time() + 60))
    return made


def sent(store: tracking.Store, record: TrialRecord) -> Sent:
    """Send what ours writes of a trial."""
    entry = store.entry(record)
    series: dict[str, list[tuple[int, float]]] = {}
    for name, value, step in entry.metrics:
        series.setdefault(name, []).append((step, value))
    return Sent(
        name=entry.name,
        tags=entry.tags,
        params=entry.params,
        figures={key: points[0][1] for key, points in series.items() if len(points) == 1},
        series={key: points for key, points in series.items() if len(points) > 1},
    )


def plain(client: Any, experiment: str, content: Sent) -> None:
    from mlflow.entities import Metric, Param

    at = int(time.time() * 1000)
    metrics = [Metric(key, value, at, 0) for key, value in content.figures.items()]
    metrics += [Metric(key, value, at, step) for key, points in content.series.items() for step, value in points]
    params = [Param(key, value) for key, value in content.params.items()]
    run = client.create_run(experiment, start_time=at, run_name=content.name, tags=content.tags).info.run_id
    client.log_batch(run, metrics, params)
    client.set_terminated(run, "FINISHED", at)


def fluent(content: Sent) -> None:
    """Write a trial as most scripts do it: a call for each value."""
    import mlflow

    with mlflow.start_run(run_name=content.name):
        for key, text in content.tags.items():
            mlflow.set_tag(key, text)
        for key, text in content.params.items():
            mlflow.log_param(key, text)
        for key, value in content.figures.items():
            mlflow.log_metric(key, value)
        for key, points in content.series.items():
            for step, value in points:
                mlflow.log_metric(key, value, step=step)


def callback(content: Sent) -> None:
    """Write a trial as `tune.run(callbacks=[MLflowLoggerCallback()])` does: a result for each step."""
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    made = MLflowLoggerCallback(tracking_uri=os.environ["MLFLOW_TRACKING_URI"], experiment_name="callback",
                                tags=content.tags)  # fmt: skip
    made.setup()
    trial = StandInTrial(content.name, content.params)
    made.log_trial_start(trial)
    for step in range(POINTS):
        result = {key: dict(points).get(step, 0.0) for key, points in content.series.items()}
        result |= content.figures if step == POINTS - 1 else {}
        made.log_trial_result(step, trial, result | {"training_iteration": step, "timesteps_total": step})
    made.log_trial_end(trial)


class StandInTrial:
    """Stands in for Tune's."""

    def __init__(self, name: str, config: dict[str, str]) -> None:
        self.name, self.config, self.trial_id, self.local_path = name, config, name, ""

    def __str__(self) -> str:
        return self.name


if __name__ == "__main__":
    sys.exit(main())
