"""From the ledger to MLflow: one parent run a sweep, one nested run a trial. The only writer.

A run is looked up by its tags before it is made, so that writing a ledger again (`sweep sync`, or `tracker` for a sweep
that is resumed) doubles nothing. Everything here may be written twice, but for the call that makes a run: MLflow's own
retries are off, because one of a request that the server has carried out would make a second run.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sweeps import note, rows, savedview, shape
from sweeps.errors import RefusedError
from sweeps.ledger import SweepFacts, SweepRecord, TrialRecord
from sweeps.note import Conclusion
from sweeps.plan import is_varied, namer
from sweeps.spec import AXES, SweepSpec

RUN_STATUS = {"failed": "FAILED", "lost": "FAILED", "cancelled": "KILLED"}
EPOCH_SERIES = ("loss", "rate", "train_s", "evaluate_s", "checkpoint_s", "top1", "top5")
NOTE = "mlflow.note.content"
FINDINGS = "sweep.findings"
NODES = "sweep.nodes"  # that the sweep was planned for: on them its cells are those that its trials have
SPENT = "sweep.gpu_hours"  # by the whole sweep
KIND = {"mlflow.experimentKind": "custom_model_development"}  # the pages show runs then, not traces of a language model
ALWAYS = ("batch_size", "gpus")  # what charts are drawn over, across sweeps as well
TIMEOUT_S = 20
TIMEOUT, RETRIES = "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"  # MLflow's own, in the environment
SQLITE = "sqlite:///"
Result = TypeVar("Result")
UNLIKE = ("out-of-date database schema", "Can't locate revision")  # says MLflow of a store of another version


def client(store: str | None = None) -> Any:
    """MLflow's client; on the store of its own rules, MLFLOW_TRACKING_URI or its default here, unless one is named."""
    # MLflow's own patience is eight minutes.
    os.environ.setdefault(RETRIES, "1")
    os.environ.setdefault(TIMEOUT, str(TIMEOUT_S))
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient

    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return MlflowClient(store)


class Store:
    """One sweep in a tracking store."""

    def __init__(self, facts: SweepFacts) -> None:
        self._facts = facts
        self._name = namer(facts.spec)
        uri = store_name()
        prepare(uri)
        os.environ[RETRIES] = "0"
        self._client = client(uri)
        self._late_s = float(os.environ[TIMEOUT]) if uri.startswith("http") else 0.0
        self._unheard_at: float | None = None  # when a run was last asked for without an answer; it may come yet
        self._is_unsure = False  # the last trial's calls did not all succeed
        self._described: set[str] = set()
        self._parent = ""
        self._experiment = once_more(self._experiment_id)
        self._parent = once_more(self._own_run)

    def log(self, record: TrialRecord) -> None:
        """A trial with all it measured, as one finished run, in three calls. Doing it twice is doing it once."""
        if self._is_unsure:  # the store may have made its run, and another writer may have deleted one
            self._runs = self._existing_runs()
        self._is_unsure = True
        self._write(record)
        self._is_unsure = False

    def _write(self, record: TrialRecord) -> None:
        from mlflow.entities import Metric, Param, RunTag

        config, outcome = record.config, record.outcome
        at = int(record.ended_at * 1000)
        tags = {
            "mlflow.parentRunId": self._parent,
            "sweep.cell": config.cell,
            "sweep.repeat": str(config.repeat),
            "sweep.outcome": outcome.status,
        }
        why = f"**{outcome.status}**: {outcome.kind}. {outcome.message}" if outcome.message else ""
        told = {
            "sweep.kind": outcome.kind,
            "sweep.message": outcome.message[: note.LONGEST],
            NOTE: why[: note.LONGEST],
        }
        is_known = config.trial in self._runs  # what was told of an earlier attempt holds no longer
        tags |= {name: text for name, text in told.items() if text or is_known}
        tags |= {f"sweep.{name}": told for name, told in rows.where(record).items() if told}
        for name, text in (
            ("limited_by", rows.limited_by(record)),
            ("why_withheld", rows.why_withheld(record)),
            ("pinned", rows.pinned(record)),
        ):
            if text:
                tags[f"sweep.{name}"] = text[: note.LONGEST]
        if outcome.measurement:
            tags |= {f"{rows.VARIABLE}{k}": v for k, v in outcome.measurement.ranks[0].in_force.items()}
        name = f"{self._name(config)} #{config.repeat}"
        run = self._runs.get(config.trial) or self._made(config.trial, name, record.started_at, tags)
        # Parameters are text in MLflow; as metrics the axes can be axes of a chart.
        axes = {
            f"axis/{name}": value
            for name in _axes(self._facts.spec)
            if type(value := getattr(config, name)) in (int, float)
        }
        known = rows.metrics(record)
        figures = {stored: known[name] for name, stored in rows.METRICS.items() if name in known}  # a page's order
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
        again = [RunTag(*tag) for tag in tags.items()] if is_known else []
        self._client.log_batch(run, metrics, params, again)  # as many calls as MLflow's limits ask for
        self._client.set_terminated(run, RUN_STATUS.get(outcome.status, "FINISHED"), at)

    def describe(self, node: Mapping[str, Any]) -> None:
        """What a node is made of, at the sweep's own run, under its fingerprints."""
        from mlflow.entities import RunTag

        facts = {f"sweep.{side}.{node[side]['digest']}": node[side] for side in rows.SIDES}
        new = {name: json.dumps(of, sort_keys=True)[: note.LONGEST] for name, of in facts.items()}
        if tags := [RunTag(*tag) for tag in new.items() if tag[0] not in self._described]:
            self._client.log_batch(self._parent, tags=tags)
            self._described |= {*new}

    def attach(self, file: Path) -> None:
        self._client.log_artifact(self._parent, str(file))

    def conclude(self, found: Conclusion) -> None:
        """Say what was found at the sweep's own run, as its note and as JSON, and what it has spent."""
        tags = {NOTE: note.of(self._facts, found.markdown), FINDINGS: found.findings, **self._nodes()}
        if found.gpu_hours is not None:
            tags[SPENT] = repr(found.gpu_hours)
        for name, text in tags.items():
            self._client.set_tag(self._parent, name, text)

    def show(self) -> None:
        """Write the sweep's saved views. They are for the eye alone: no trial waits for them or is lost with them."""
        trials = max(len(self._facts.trials), len(self._runs) - 1)
        with contextlib.suppress(Exception):
            for view in savedview.views(self._facts, trials):
                self._client.set_experiment_tag(self._experiment, *view.tag(self._facts.created_at, time.time()))

    def close(self, status: str) -> None:
        """End the sweep's own run, once what was asked for without an answer can hardly come any more."""
        self._client.set_terminated(self._parent, status)
        if self._unheard_at is not None:
            time.sleep(max(0.0, self._unheard_at + self._late_s - time.monotonic()))
            self._existing_runs()
        self.show()

    def _nodes(self) -> dict[str, str]:
        """What the sweep was planned for, if its ledger tells and a tag can hold it."""
        told = shape.written(self._facts.nodes) if self._facts.nodes else ""
        return {NODES: told} if told and len(told) <= note.LONGEST else {}

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.create_experiment(self._facts.study, tags=KIND))
        except MlflowException:  # it is there, or another sweep makes it at this moment
            found = self._client.get_experiment_by_name(self._facts.study)
            if not found:
                raise
            return str(found.experiment_id)

    def _own_run(self) -> str:
        self._runs = self._existing_runs()
        facts = self._facts
        tags = {NOTE: note.of(facts), **self._nodes()}
        return self._runs.get("") or self._made("", facts.name, facts.created_at, tags)

    def _existing_runs(self) -> dict[str, str]:
        """Trial ('' for the sweep itself) to run, of this sweep. Runs that were made twice are deleted, all but one."""
        runs = self._all_runs()
        parents = {run.data.tags.get("mlflow.parentRunId") for run in runs}

        def rank(run: Any) -> tuple[bool, bool, bool, str]:
            """The first of a trial's runs is the one to keep."""
            known = run.info.run_id
            return known != self._parent, known not in parents, run.info.status == "RUNNING", known

        found: dict[str, str] = {}
        for run in sorted(runs, key=rank):
            trial = run.data.tags.get("sweep.trial", "")
            if trial in found:
                self._client.delete_run(run.info.run_id)
            else:
                found[trial] = str(run.info.run_id)
        return found

    def _all_runs(self) -> list[Any]:
        found: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment],
                f"tags.`sweep.id` = '{self._facts.id}'",
                page_token=token,
                max_results=1000,
            )
            found += page
            token = page.token
            if not token:
                return found

    def _made(self, trial: str, name: str, started_at: float, tags: dict[str, str]) -> str:
        """A new run."""
        all_tags = {
            "sweep.id": self._facts.id,
            "sweep.name": self._facts.name,
            "mlflow.source.name": "sweep",
            "mlflow.user": getpass.getuser(),
            **({"sweep.trial": trial} if trial else {}),
            **({"sweep.simulated": self._facts.simulated} if self._facts.simulated else {}),
            **tags,
        }
        try:
            run = self._client.create_run(
                self._experiment, start_time=int(started_at * 1000), run_name=name, tags=all_tags
            )
        except Exception:  # whatever MLflow's HTTP library or database driver raises
            self._unheard_at = time.monotonic()
            raise
        self._runs[trial] = str(run.info.run_id)
        return self._runs[trial]


def _axes(spec: SweepSpec) -> list[str]:
    """Those that are logged as numbers."""
    return [name for name in AXES if name in ALWAYS or (name in spec.axes and is_varied(spec.axes[name]))]


def once_more(write: Callable[..., Result], *given: Any) -> Result:
    """Write, and where that fails write again: the connection may have broken."""
    try:
        return write(*given)
    except Exception:
        return write(*given)


def sync(record: SweepRecord, found: Conclusion | None = None) -> None:
    """Bring a whole ledger to the store, and what was found; what stands there is written again, not doubled."""
    try:
        store = Store(record.facts)
        for node in record.nodes:
            once_more(store.describe, node)
        for trial in record.trials:
            once_more(store.log, trial)
        if found:
            once_more(store.conclude, found)
        once_more(store.close, "FINISHED" if record.is_complete else "KILLED")
    except Exception as error:
        raise refused("be writable", error) from None


def attach(facts: SweepFacts, file: Path, found: Conclusion) -> None:
    """Log a report to a sweep's own run, in place of what had its name there, and what it says first."""
    try:
        store = Store(facts)
        once_more(store.conclude, found)
        once_more(store.attach, file)
    except Exception as error:
        raise refused("take the report", error) from None


def refused(must: str, error: Exception | str) -> RefusedError:
    if any(said in str(error) for said in UNLIKE):
        return RefusedError(
            f"the tracking store must be of this MLflow's version, but it says: {first_line(error).split('. ')[0]}\n"
            f"  {store_name()}\n  an older store: back it up, then `mlflow db upgrade` and its address;"
            " a newer one: install the MLflow that wrote it; or choose another with MLFLOW_TRACKING_URI"
        )
    return RefusedError(
        f"the tracking store must {must}, but it says: {first_line(error)}\n"
        f"  {store_name()}\n  choose another one with MLFLOW_TRACKING_URI"
    )


def store_name() -> str:
    """The store by MLflow's own rules; says so without loading MLflow, which takes seconds, where they are plain."""
    if "mlflow" not in sys.modules:
        if uri := os.environ.get("MLFLOW_TRACKING_URI"):
            return uri
        default = Path("mlflow.db").absolute()
        if default.exists() and not any(Path("mlruns").glob("*/meta.yaml")):
            return f"sqlite:///{quote(str(default))}"
    import mlflow

    return str(mlflow.get_tracking_uri())


def first_line(error: Exception | str) -> str:
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line.rsplit("Caused by", 1)[-1].strip("() ")[:300]  # of a chain of HTTP errors, the one that began it


def prepare(uri: str) -> None:
    """Have a database of our own ready for many readers and writers; any other store is left as it is."""
    _made_whole(uri)
    _never_locked(uri)


def _made_whole(uri: str) -> None:
    """An SQLite store that is new appears at once or not at all: MLflow takes no step with one that it had half made
    when it was killed."""
    path = Path(uri.removeprefix(SQLITE))
    if not uri.startswith(SQLITE) or path.exists():
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.touch()  # what can't be written says so at once; MLflow would try for two minutes
    try:
        client(f"{SQLITE}{partial}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):  # another sweep has just made it
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _never_locked(uri: str) -> None:
    """A write-ahead log lets readers and writers of an SQLite store work at once; it stays with the file.

    A file that can't be written says so here, at once; MLflow would try for two minutes.
    """
    if uri.startswith(SQLITE):
        with contextlib.closing(sqlite3.connect(uri.removeprefix(SQLITE), timeout=20)) as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("BEGIN IMMEDIATE")
