"""From the ledger to MLflow: one parent run a sweep, one nested run a trial. The only writer, with `bulk`.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sweeps.errors import RefusedError
from sweeps.record import rows
from sweeps.record.discarded import OpenRun
from sweeps.record.ledger import SweepFacts, SweepRecord, TrialRecord
from sweeps.spec import arrangements, secrecy
from sweeps.spec.keys import AXES, SweepSpec
from sweeps.spec.plan import is_varied, namer
from sweeps.store import description, saved_views
from sweeps.store.bulk import Bulk, BulkError, Entry
from sweeps.store.description import Conclusion
from sweeps.text import caller
from workers.contract.redact import masked

RUN_STATUS = {"failed": "FAILED", "lost": "FAILED", "cancelled": "KILLED"}
EPOCH_SERIES = ("loss", "rate", "train_s", "evaluate_s", "checkpoint_s", "top1", "top5")
NOTE = "mlflow.note.content"
FINDINGS = "sweep.findings"
NODES = "sweep.nodes"  # that the sweep was planned for: on them its cells are those that its trials have
SPENT = "sweep.gpu_hours"  # by the whole sweep
OVERRIDES = "sweep.overrides"  # of the file's values, as JSON: a version that did not write it kept no file either
FILE = "sweep.yaml"  # among the artifacts of the sweep's own run
# Tags that hold no longer after another attempt.
OF_AN_END = (
    *("sweep.kind", "sweep.message", "sweep.inferred_from", "sweep.limited_by", "sweep.why_withheld", "sweep.pinned"),
    NOTE,
)
DISCARDED = "DISCARDED"  # in place of a run's status: no trial of the sweep has ended, and its ledger goes
AT_ONCE = 500  # trials in one transaction: a second's work at most, in which nobody else can write
KIND = {"mlflow.experimentKind": "custom_model_development"}  # the pages show runs then, not traces of a language model
ALWAYS = ("batch_size", "gpus")  # what charts are drawn over, across sweeps as well
TIMEOUT_S = 20
TIMEOUT, RETRIES = "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"  # MLflow's own, in the environment
SQLITE = "sqlite:///"
Result = TypeVar("Result")
# MLflow's codes for what it will not have, however often it is asked
REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
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


class UnopenedError(Exception):
    """The store refused before it was asked for any run: it has none of the sweep by whoever asked now."""


class Store:
    """One sweep in a tracking store."""

    def __init__(self, facts: SweepFacts) -> None:
        self._facts = facts
        self._name = namer(facts.spec)
        uri = store_name()
        self._experiment = self._opened(uri)
        self._late_s = float(os.environ[TIMEOUT]) if uri.startswith("http") else 0.0
        self._unheard_at: float | None = None  # when a run was last asked for without an answer; it may come yet
        self._is_unsure = False  # the last trials' writing did not wholly succeed
        self._described: set[str] = set()
        self._common = {
            "sweep.id": facts.id,
            "sweep.name": facts.name,
            "mlflow.source.name": "sweep",
            "mlflow.user": getpass.getuser(),
            **({"sweep.simulated": facts.simulated} if facts.simulated else {}),
        }
        self._axes = _axes(facts.spec)
        self._ends: dict[str, tuple[str, int | None]] = {}  # each run's status, and when it ended, if it has
        self._parent = ""
        self.is_new = False  # nobody has brought the sweep here before
        self._parent = once_more(self._own_run)
        if self.is_new:
            self._keep_file()
        if self.status == "RUNNING" and not self.is_new:  # a driver was killed: it may just have asked for a run
            self._unheard_at = time.monotonic()
        self._bulk = self._opened_for_bulk(uri)

    def go_on(self) -> None:
        """Have the sweep's own run say that it runs, whatever it had ended with. A trial's run says how the trial ended
        last until it has ended again."""
        if self.status != "RUNNING":
            self._client.update_run(self._parent, status="RUNNING")

    def log(self, records: Sequence[TrialRecord]) -> dict[str, str]:
        """Write trials with all that they measured, as finished runs. Doing it twice is doing it once.

        Return what the store says of each trial that it will not have, ever. Nothing of such a one stays there, and it
        holds up none of the others.
        """
        if self._is_unsure:  # the store may have made their runs, and another writer may have deleted one
            self._runs = self._existing_runs()
        self._is_unsure = True
        entries = {record.config.trial: self.entry(record) for record in records}  # the last of each
        for entry in entries.values():
            self._forget_earlier(entry)
        is_refused = self._bulk is not None and not self._is_written(self._bulk, entries)
        unwanted = {trial: said for trial, entry in entries.items() if (said := self._refusal(entry))}
        if is_refused and len(unwanted) < len(entries):  # though MLflow can write
            self._bulk = None
        self._is_unsure = False
        return unwanted

    def has(self, record: TrialRecord) -> bool:
        """Return whether a trial was here, whole, when the store was opened."""
        return self._ends.get(record.config.trial, ())[1:] == (_ms(record.ended_at),)

    @property
    def status(self) -> str:
        """Of the sweep's own run, when the store was opened."""
        return self._ends[""][0]

    @property
    def at_once(self) -> int:
        """Trials that it takes in hardly more time than one."""
        return AT_ONCE if self._bulk else 1

    def _is_written(self, bulk: Bulk, entries: dict[str, Entry]) -> bool:
        """Take out of `entries` those that are new, into the store, in one transaction."""
        new = [entry for entry in entries.values() if entry.is_plain and entry.trial not in self._runs]
        try:
            self._runs |= bulk.write(new)
        except BulkError:
            self._runs = self._existing_runs()
            return False
        for entry in new:
            self._ends[entry.trial] = entry.status, entry.ended_ms
            del entries[entry.trial]
        return True

    def _forget_earlier(self, entry: Entry) -> None:
        """Delete the run of another attempt at a trial that has measured something: MLflow takes no figure back."""
        if entry.trial in self._runs:
            status, ended_ms = self._ends[entry.trial]
            if status == "FINISHED" and ended_ms != entry.ended_ms:
                self._delete(entry.trial)

    def _delete(self, trial: str) -> None:
        self._client.delete_run(self._runs[trial])
        del self._runs[trial], self._ends[trial]

    def _refusal(self, entry: Entry) -> str:
        """Send a trial; return what the store says if it will not have it. A run that somebody has deleted meanwhile is
        made again."""
        from mlflow.exceptions import MlflowException

        said = ""
        for _ in range(2):
            try:
                self._send(entry)
                return ""
            except MlflowException as error:
                if error.error_code not in REFUSALS or not self._takes_any():
                    raise
                said = first_line(error)
            self._runs = self._existing_runs()
            if entry.trial in self._runs:
                self._delete(entry.trial)
        return said

    def _takes_any(self) -> bool:
        """Return whether it takes any trials of the sweep, for all that is known."""
        return bool(self._client.get_experiment(self._experiment).lifecycle_stage == "active")

    def _send(self, entry: Entry) -> None:
        """In three calls of MLflow's client."""
        from mlflow.entities import Metric, Param, RunTag

        is_known = entry.trial in self._runs  # what was told of an earlier attempt holds no longer
        run = self._runs[entry.trial] if is_known else self._made(entry.trial, entry.name, entry.started_ms, entry.tags)
        metrics = [Metric(name, value, entry.ended_ms, step) for name, value, step in entry.metrics]
        params = [Param(*param) for param in entry.params.items()]
        tags = {name: text for name, text in entry.tags.items() if name not in self._common}
        again = [RunTag(*tag) for tag in (dict.fromkeys(OF_AN_END, "") | tags).items()] if is_known else []
        self._client.log_batch(run, metrics, params, again)  # as many calls as MLflow's limits ask for
        self._client.set_terminated(run, entry.status, entry.ended_ms)
        self._ends[entry.trial] = entry.status, entry.ended_ms

    def entry(self, record: TrialRecord) -> Entry:
        """Return a trial as its run."""
        config, outcome = record.config, record.outcome
        tags = {
            "sweep.trial": config.trial,
            "mlflow.parentRunId": self._parent,
            "sweep.cell": config.cell,
            "sweep.repeat": str(config.repeat),
            "sweep.outcome": outcome.status,
        }
        texts = {
            "sweep.kind": outcome.kind,
            "sweep.message": outcome.message,
            "sweep.inferred_from": outcome.inferred_from,
            NOTE: f"**{outcome.status}**: {outcome.why}" if outcome.message else "",
            "sweep.limited_by": rows.limited_by(record),
            "sweep.why_withheld": rows.why_withheld(record),
            "sweep.pinned": rows.pinned(record),
        }
        tags |= {name: text[: description.LONGEST] for name, text in texts.items() if text}
        tags |= {f"sweep.{name}": where for name, where in rows.where(record).items() if where}
        if outcome.measurement:
            first = outcome.measurement.ranks[0]
            tags |= {f"{rows.VARIABLE}{name}": value for name, value in first.in_force.items()}
            tags |= {f"{rows.READ_BACK}{name}": value for name, value in first.runs.items()}
        return Entry(
            trial=config.trial,
            name=f"{self._name(config)} #{config.repeat}",
            status=RUN_STATUS.get(outcome.status, "FINISHED"),
            started_ms=_ms(record.started_at),
            ended_ms=_ms(record.ended_at),
            tags=self._common | tags,
            params={name: str(value) for name, value in rows.params(config).items()},
            metrics=tuple(self._metrics(record)),
        )

    def _metrics(self, record: TrialRecord) -> Iterator[tuple[str, float, int]]:
        """Yield name, value and step of each figure, in the order of a page."""
        known = rows.metrics(record)
        yield from ((stored, known[name], 0) for name, stored in rows.METRICS.items() if name in known)
        for name in self._axes:  # parameters are text in MLflow; as metrics the axes can be axes of a chart
            if type(value := getattr(record.config, name)) in (int, float):
                yield f"axis/{name}", value, 0
        yield from ((name, value, 0) for name, value in rows.system(record).items())
        if measured := record.outcome.measurement:
            yield from (("steps/step_ms", ms, n) for n, ms in enumerate(rows.step_ms(measured)))
            yield from (("steps/loss", step.loss, step.step) for step in measured.ranks[0].steps)
            for epoch in measured.epochs:
                for name in EPOCH_SERIES:
                    if (value := getattr(epoch, name)) is not None:
                        yield f"epochs/{name}", value, epoch.epoch

    def describe(self, node: Mapping[str, Any]) -> None:
        """What a node is made of, at the sweep's own run, under its fingerprints."""
        from mlflow.entities import RunTag

        facts = {f"sweep.{side}.{node[side]['digest']}": node[side] for side in rows.SIDES}
        new = {name: json.dumps(of, sort_keys=True)[: description.LONGEST] for name, of in facts.items()}
        if tags := [RunTag(*tag) for tag in new.items() if tag[0] not in self._described]:
            self._client.log_batch(self._parent, tags=tags)
            self._described |= {*new}

    def attach(self, file: Path) -> None:
        self._client.log_artifact(self._parent, str(file))

    def conclude(self, found: Conclusion) -> None:
        """Say what was found at the sweep's own run, as its note and as JSON, and what it has spent."""
        tags = {NOTE: description.write(self._facts, found.markdown), FINDINGS: found.findings, **self._planned()}
        if found.gpu_hours is not None:
            tags[SPENT] = repr(found.gpu_hours)
        for name, text in tags.items():
            self._client.set_tag(self._parent, name, text)
        self._keep_file()

    def show(self) -> None:
        """Write the sweep's saved views. They are for the eye alone: no trial waits for them or is lost with them."""
        trials = max(len(self._facts.trials), len(self._runs) - 1)
        with contextlib.suppress(Exception):
            for view in saved_views.views(self._facts, trials):
                self._client.set_experiment_tag(self._experiment, *view.tag(self._facts.created_at, time.time()))

    def close(self, status: str) -> None:
        """End the sweep's own run, once what was asked for without an answer can hardly come any more; of a sweep that
        is discarded it goes."""
        if status != DISCARDED:
            self._client.set_terminated(self._parent, status)
        if self._unheard_at is not None:
            time.sleep(max(0.0, self._unheard_at + self._late_s - time.monotonic()))
        if self._unheard_at is not None or (self._late_s and not self.is_new):  # a driver may have been killed unheard
            self._existing_runs()
        if status == DISCARDED:
            for run in self._existing_runs().values():
                self._client.delete_run(run)
        else:
            self.show()

    def _planned(self) -> dict[str, str]:
        """What the sweep's trials were planned from, beside its file: the values set on the command line, and the
        nodes, if its ledger tells. What no tag can hold is left out."""
        nodes = arrangements.written(self._facts.nodes) if self._facts.nodes else ""
        told = {OVERRIDES: json.dumps([secrecy.masked(one) for one in self._facts.overrides]), NODES: nodes}
        return {name: text for name, text in told.items() if text and len(text) <= description.LONGEST}

    def _keep_file(self) -> None:
        """The sweep file, whole. Where artifacts can't be written, the report's end says so."""
        with contextlib.suppress(Exception):
            self._client.log_text(self._parent, secrecy.masked(self._facts.file), FILE)

    def _opened(self, uri: str) -> str:
        """Return the experiment."""
        try:
            prepare(uri)
            os.environ[RETRIES] = "0"
            self._client = client(uri)
            return once_more(self._experiment_id)
        except Exception as error:  # whatever MLflow's HTTP library or database driver raises
            raise UnopenedError(str(error) or type(error).__name__) from error

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
        tags = {**self._common, NOTE: description.write(facts), **self._planned()}
        self.is_new |= "" not in self._runs
        return self._runs.get("") or self._made("", facts.name, _ms(facts.created_at), tags)

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
                is_open = run.info.status == "RUNNING"
                self._ends[trial] = run.info.status, None if is_open else run.info.end_time
        return found

    def _all_runs(self) -> list[Any]:
        return _runs(self._client, [self._experiment], self._facts.id)

    def _opened_for_bulk(self, uri: str) -> Bulk | None:
        if not uri.startswith(SQLITE):
            return None
        parent = self._client.get_run(self._parent).info.artifact_uri
        return Bulk(uri, self._experiment, lambda run: parent.replace(self._parent, run))

    def _made(self, trial: str, name: str, started_ms: int, tags: dict[str, str]) -> str:
        """A new run."""
        try:
            run = self._client.create_run(self._experiment, start_time=started_ms, run_name=name, tags=tags)
        except Exception:  # whatever MLflow's HTTP library or database driver raises
            self._unheard_at = time.monotonic()
            raise
        self._runs[trial] = str(run.info.run_id)
        self._ends[trial] = "RUNNING", None
        return self._runs[trial]


def _runs(mlflow: Any, experiments: Sequence[str], sweep: str) -> list[Any]:
    """All of a sweep, by its id."""
    wanted = f"tags.`sweep.id` = '{sweep}'"
    return _all_pages(lambda token: mlflow.search_runs(experiments, wanted, page_token=token, max_results=1000))


def _all_pages(ask: Callable[[str | None], Any]) -> list[Any]:
    found: list[Any] = []
    token = None
    while True:
        page = ask(token)
        found += page
        token = page.token
        if not token:
            return found


def _ms(at: float) -> int:
    return int(at * 1000)


def _axes(spec: SweepSpec) -> list[str]:
    """Those that are logged as numbers."""
    return [name for name in AXES if name in ALWAYS or (name in spec.axes and is_varied(spec.axes[name]))]


def once_more(write: Callable[..., Result], *given: Any) -> Result:
    """Write, and where that fails write again: the connection may have broken."""
    try:
        return write(*given)
    except Exception:
        return write(*given)


def sync(record: SweepRecord, found: Conclusion | None = None, *, only_missing: bool = False) -> None:
    """Bring a whole ledger to the store, and what was found; what stands there is written again, not doubled. Or only
    what a driver that was killed has left to do: trials that are missing, runs that are open."""
    try:
        store = Store(record.facts)
        trials = [trial for trial in record.trials if not (only_missing and store.has(trial))]
        status = "FINISHED" if record.is_complete else "KILLED"
        if only_missing and not trials and store.status == status:
            return
        for node in record.nodes:
            once_more(store.describe, node)
        unwanted: dict[str, str] = {}
        for n in range(0, len(trials), store.at_once):
            unwanted |= once_more(store.log, trials[n : n + store.at_once])
        if found:
            once_more(store.conclude, found)
        once_more(store.close, status)
    except Exception as error:
        raise refused("be writable", error) from None
    if unwanted:
        some = f"{len(unwanted)} of {len({trial.config.trial for trial in record.trials})}"
        raise refused(f"take every trial; it has all others, but not {some}", next(iter(unwanted.values())))


def leave_one_each(facts: SweepFacts) -> None:
    """Delete the runs of a sweep that were made twice."""
    try:
        Store(facts)
    except Exception as error:
        raise refused("be writable", error) from None


def forget(run: OpenRun, name: str) -> None:
    """Delete all runs of a sweep that was discarded while the store did not answer: by its id, so that nobody else's
    go. One that was asked for at the very end may come yet: that is waited for."""
    uri = store_name()
    try:
        mlflow = client(uri)
        if uri.startswith("http"):
            time.sleep(max(0.0, run.at + float(os.environ[TIMEOUT]) - time.time()))
        experiments = _all_pages(lambda token: mlflow.search_experiments(page_token=token))
        for one in _runs(mlflow, [experiment.experiment_id for experiment in experiments], run.sweep):
            mlflow.delete_run(one.info.run_id)
    except Exception as error:
        raise RefusedError(
            f"the run of {name}, which was discarded, must go from the tracking store, but that says:"
            f" {first_line(error)}\n  {masked(uri)}\n  do this again once it answers"
        ) from None


def attach(facts: SweepFacts, file: Path, found: Conclusion) -> None:
    """Log a report to a sweep's own run, in place of what had its name there, and what it says first."""
    try:
        store = Store(facts)
        once_more(store.conclude, found)
        once_more(store.attach, file)
        if store.is_new:  # there is no tracker that would end its run, and no trial in it until `sync` brings them
            once_more(store.close, "KILLED")
    except Exception as error:
        raise refused("take the report", error) from None


def refused(must: str, error: Exception | str) -> RefusedError:
    another = caller.elsewhere("MLFLOW_TRACKING_URI", "choose another one with MLFLOW_TRACKING_URI")
    if any(said in str(error) for said in UNLIKE):
        return RefusedError(
            f"the tracking store must be of this MLflow's version, but it says: {first_line(error).split('. ')[0]}\n"
            f"  {store_name()}\n  an older store: back it up, then `mlflow db upgrade` and its address;"
            f" a newer one: install the MLflow that wrote it\n  {another}"
        )
    return RefusedError(
        f"the tracking store must {must}, but it says: {first_line(error)}\n  {store_name()}\n  {another}"
    )


def store_address() -> str:
    """The store's name as it means the same in every folder."""
    uri = store_name()
    if not uri.startswith(SQLITE):
        return uri
    from sweeps.store import database

    return f"{SQLITE}{database.file_of(uri)}"


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
    began = line.rsplit("Caused by", 1)[-1].strip("() ")  # of a chain of HTTP errors
    return masked(began)[:300]


def prepare(uri: str) -> None:
    """Have a database of our own ready for many readers and writers; any other store is left as it is."""
    _made_whole(uri)
    _never_locked(uri)


def _made_whole(uri: str) -> None:
    """An SQLite store that is new appears at once or not at all: MLflow takes no step with one that it had half made
    when it was killed."""
    from sweeps.store import database

    path = database.file_of(uri)
    if not uri.startswith(SQLITE) or path.exists():
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.touch()  # what can't be written says so at once; MLflow would try for two minutes
    try:
        client(f"{SQLITE}{quote(str(partial))}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):  # another sweep has just made it
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _never_locked(uri: str) -> None:
    """A write-ahead log lets readers and writers of an SQLite store work at once; it stays with the file.

    A file that can't be written says so here, at once; MLflow would try for two minutes.
    """
    from sweeps.store import database

    if uri.startswith(SQLITE):
        with contextlib.closing(sqlite3.connect(database.file_of(uri), timeout=20)) as store:
            store.execute("PRAGMA journal_mode=WAL")
            store.execute("BEGIN IMMEDIATE")
