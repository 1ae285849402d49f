"""From the ledger to MLflow: one parent run a sweep, one nested run a trial. The only writer.

A thread beside the sweep, in batches, so that a slow or absent store never holds a trial up. A run is looked up
by its tags before it is made, so that writing a ledger again (`sweep sync`) doubles nothing.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeps import rows
from sweeps.errors import RefusedError
from sweeps.ledger import SweepFacts, SweepRecord, TrialRecord
from sweeps.observer import Observer
from sweeps.plan import namer
from sweeps.spec import AXES

RUN_STATUS = {"failed": "FAILED", "lost": "FAILED", "cancelled": "KILLED"}
LARGEST_BATCH = 1000  # metrics a call, MLflow's own limit
EPOCH_SERIES = ("loss", "rate", "train_s", "evaluate_s", "top1", "top5")
LONGEST_NOTE = 4000  # characters; a tag holds 5,000
RETRY_S = 2.0


def client() -> Any:
    """MLflow's client on the store of its own rules: MLFLOW_TRACKING_URI, else its default in this folder."""
    # MLflow's own patience is eight minutes; ours is a thread that tries again.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient

    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return MlflowClient()


class Store:
    """One sweep in a tracking store."""

    def __init__(self, facts: SweepFacts) -> None:
        self._facts = facts
        self._name = namer(facts.spec)
        _never_locked(store_name())
        self._client = client()
        self._experiment = self._experiment_id()
        self._runs = self._existing_runs()
        overrides = f"\nwith `{' '.join(facts.overrides)}`" if facts.overrides else ""
        where = f"**simulated** on {facts.simulated}\n\n" if facts.simulated else ""
        counted = f"{len(facts.trials)} trials of" if facts.trials else f"A {facts.spec.search.method} search:"
        note = f"{where}{counted}\n```yaml\n{facts.file[:LONGEST_NOTE]}\n```{overrides}"
        self._parent = self._run("", facts.name, facts.created_at, {"mlflow.note.content": note})

    def log(self, record: TrialRecord) -> None:
        """A trial with all it measured, as one finished run. Doing it twice is doing it once."""
        from mlflow.entities import Metric, Param

        config, outcome = record.config, record.outcome
        at = int(record.ended_at * 1000)
        tags = {
            "mlflow.parentRunId": self._parent,
            "sweep.cell": config.cell,
            "sweep.outcome": outcome.status,
        }
        note = f"**{outcome.status}**: {outcome.kind}. {outcome.message}" if outcome.message else ""
        told = {
            "sweep.kind": outcome.kind,
            "sweep.message": outcome.message[:LONGEST_NOTE],
            "mlflow.note.content": note,
        }
        is_known = config.trial in self._runs  # what was told of an earlier attempt holds no longer
        tags |= {name: text for name, text in told.items() if text or is_known}
        fingerprints = {f"sweep.{side}": rows.fingerprint(record, side) for side in rows.SIDES}
        tags |= {name: digest for name, digest in fingerprints.items() if digest}
        if limited_by := rows.limited_by(record):
            tags["sweep.limited_by"] = limited_by
        if outcome.measurement:
            tags |= {f"{rows.VARIABLE}{k}": v for k, v in outcome.measurement.ranks[0].in_force.items()}
        run = self._run(config.trial, f"{self._name(config)} #{config.repeat}", record.started_at, tags)
        # Parameters are text in MLflow; as metrics the axes can be axes of a chart.
        axes = {f"axis/{name}": value for name in AXES if type(value := getattr(config, name)) in (int, float)}
        figures = {rows.METRICS[name]: value for name, value in rows.metrics(record).items()}
        metrics = [Metric(name, value, at, 0) for name, value in (figures | axes | rows.system(record)).items()]
        if outcome.measurement:
            first = outcome.measurement.ranks[0].steps
            slowest = rows.step_ms(outcome.measurement)
            metrics += [Metric("steps/step_ms", ms, at, n) for n, ms in enumerate(slowest)]
            metrics += [Metric("steps/loss", step.loss, at, step.step) for step in first]
            metrics += [
                Metric(f"epochs/{name}", value, at, epoch.epoch)
                for epoch in outcome.measurement.epochs
                for name in EPOCH_SERIES
                if (value := getattr(epoch, name)) is not None
            ]
        params = [Param(name, str(value)) for name, value in rows.params(config).items()]
        for start in range(0, len(metrics), LARGEST_BATCH):
            self._client.log_batch(run, metrics[start : start + LARGEST_BATCH], params if start == 0 else [])
        self._client.set_terminated(run, RUN_STATUS.get(outcome.status, "FINISHED"), at)

    def describe(self, node: Mapping[str, Any]) -> None:
        """What a node is made of, at the sweep's own run, under its fingerprints."""
        for side in rows.SIDES:
            facts = json.dumps(node[side], sort_keys=True)[:LONGEST_NOTE]
            self._client.set_tag(self._parent, f"sweep.{side}.{node[side]['digest']}", facts)

    def attach(self, file: Path) -> None:
        self._client.log_artifact(self._parent, str(file))

    def close(self, status: str) -> None:
        self._client.set_terminated(self._parent, status)

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        with contextlib.suppress(MlflowException):  # another sweep may make it at this moment
            return str(self._client.create_experiment(self._facts.study))
        return str(self._client.get_experiment_by_name(self._facts.study).experiment_id)

    def _existing_runs(self) -> dict[str, str]:
        """Trial ('' for the sweep itself) to run, of this sweep."""
        found: dict[str, str] = {}
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment],
                f"tags.`sweep.id` = '{self._facts.id}'",
                page_token=token,
                max_results=1000,
            )
            found |= {run.data.tags.get("sweep.trial", ""): run.info.run_id for run in page}
            token = page.token
            if not token:
                return found

    def _run(self, trial: str, name: str, started_at: float, tags: dict[str, str]) -> str:
        from mlflow.entities import RunTag

        if trial not in self._runs:
            run = self._client.create_run(
                self._experiment,
                start_time=int(started_at * 1000),
                run_name=name,
                tags={
                    "sweep.id": self._facts.id,
                    "sweep.name": self._facts.name,
                    "mlflow.source.name": "sweep",
                    "mlflow.user": getpass.getuser(),
                    **({"sweep.trial": trial} if trial else {}),
                    **({"sweep.simulated": self._facts.simulated} if self._facts.simulated else {}),
                    **tags,
                },
            )
            self._runs[trial] = run.info.run_id
        else:  # of an earlier attempt, or written before
            self._client.log_batch(self._runs[trial], tags=[RunTag(*tag) for tag in tags.items()])
        return self._runs[trial]


class Tracker(Observer):
    """Brings trials to the store as they end, in a thread of its own."""

    def __init__(self, facts: SweepFacts) -> None:
        self._facts = facts
        self._queue: queue.Queue[TrialRecord | Mapping[str, Any] | None] = queue.Queue()
        self._ready = threading.Event()
        self._refusal = ""
        self._store: Store | None = None
        self._give_up = float("inf")
        self._left = 0
        self._is_complete = False
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def ready(self) -> None:
        """Wait until the store is open."""
        self._ready.wait()
        if self._refusal:
            raise refused("be writable", self._refusal)

    def ended(self, record: TrialRecord) -> None:
        self._queue.put(record)

    def met(self, node: Mapping[str, Any]) -> None:
        self._queue.put(node)

    def close(self, is_complete: bool, patience_s: float = 60) -> int:
        """Wait for what is under way; the number of trials that the store did not take."""
        self._is_complete = is_complete
        self._give_up = time.monotonic() + patience_s
        self._queue.put(None)
        self._thread.join(patience_s + 60)
        return self._left

    def _work(self) -> None:
        try:
            self._store = Store(self._facts)
        except Exception as error:  # MLflow raises whatever its database driver raises
            self._refusal = _first_line(error)
            return
        finally:
            self._ready.set()
        while (news := self._queue.get()) is not None:
            is_trial = isinstance(news, TrialRecord)
            write = self._store.log if is_trial else self._store.describe
            self._left += not self._try(lambda news=news, write=write: write(news)) and is_trial
        self._try(lambda: self._store.close("FINISHED" if self._is_complete else "KILLED"))

    def _try(self, write: Any) -> bool:
        """Until it works, or the sweep is over and its patience too."""
        while True:
            try:
                write()
                return True
            except Exception as error:
                self._refusal = _first_line(error)
                if time.monotonic() + RETRY_S > self._give_up:
                    return False
                time.sleep(RETRY_S)

    @property
    def refusal(self) -> str:
        """What the store said last when it would not take a trial."""
        return self._refusal


def sync(record: SweepRecord) -> None:
    """Bring a whole ledger to the store; what stands there already is written again, not doubled."""
    try:
        store = Store(record.facts)
        for node in record.nodes:
            store.describe(node)
        for trial in record.trials:
            store.log(trial)
        store.close("FINISHED" if record.is_complete else "KILLED")
    except Exception as error:
        raise refused("be writable", error) from None


def attach(facts: SweepFacts, file: Path) -> None:
    """Log a file to a sweep's own run, in place of what had its name there."""
    try:
        store = Store(facts)
        store.attach(file)
    except Exception as error:
        raise refused("take the report", error) from None


def refused(must: str, error: Exception | str) -> RefusedError:
    return RefusedError(
        f"the tracking store must {must}, but it says: {_first_line(error)}\n"
        f"  {store_name()}\n  choose another one with MLFLOW_TRACKING_URI"
    )


def store_name() -> str:
    import mlflow

    return str(mlflow.get_tracking_uri())


def _first_line(error: Exception | str) -> str:
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line.rsplit("Caused by", 1)[-1].strip("() ")[:300]  # of a chain of HTTP errors, the one that began it


def _never_locked(uri: str) -> None:
    """A write-ahead log lets readers and writers of an SQLite store work at once; it stays with the file.

    A file that can't be written says so here, at once; MLflow would try for two minutes.
    """
    if uri.startswith("sqlite:///"):
        with contextlib.closing(sqlite3.connect(uri.removeprefix("sqlite:///"), timeout=20)) as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("BEGIN IMMEDIATE")
