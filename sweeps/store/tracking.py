"""From the ledger to MLflow: one parent run a sweep, one nested run a trial. The only writer, with `bulk`.

A run is looked up by its tags before it is made, so that writing a ledger again (`sweep sync`, or `tracker` for a sweep
that is resumed) doubles nothing. Everything here may be written twice, but for the call that makes a run: MLflow's own
retries are off, because one of a request that the server has carried out would make a second run.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sweeps.errors import RefusedError
from sweeps.record import rows
from sweeps.record.discarded import OpenRun
from sweeps.record.ledger import SweepFacts, SweepRecord, TrialRecord
from sweeps.spec import arrangements, secrecy
from sweeps.spec.keys import AXES, SweepSpec
from sweeps.spec.plan import is_varied, namer
from sweeps.store import access, database, description, saved_views
from sweeps.store.bulk import Bulk, BulkError, Entry
from sweeps.store.description import Conclusion
from sweeps.store.late_runs import LateRuns
from workers.contract.messages import EpochRecord, TrialOutcome
from workers.contract.redact import masked

RUN_STATUS = {"failed": "FAILED", "lost": "FAILED", "cancelled": "KILLED"}
EPOCH_SERIES = ("loss", "rate", "train_s", "evaluate_s", "checkpoint_s", "top1", "top5")
GATEWAYS = (502, 503, 504)  # HTTP's codes of who stands between
NOTE = "mlflow.note.content"
FINDINGS = "sweep.findings"
NODES = "sweep.nodes"  # that the sweep was planned for: on them its cells are those that its trials have
SPENT = "sweep.gpu_hours"  # by the whole sweep
OVERRIDES = "sweep.overrides"  # of the file's values, as JSON: a version that did not write it kept no file either
FILE = "sweep.yaml"  # among the artifacts of the sweep's own run
# Tags that hold no longer after another attempt.
OF_AN_END = (
    *("sweep.kind", "sweep.message", "sweep.inferred_from", "sweep.limited_by", "sweep.why_withheld"),
    *("sweep.measured_by", "sweep.pinned", "sweep.why_not_pinned"),
    *("sweep.estimators", NOTE),
)
DISCARDED = "DISCARDED"  # in place of a run's status: no trial of the sweep has ended, and its ledger goes
AT_ONCE = 500  # trials in one transaction: a second's work at most, in which nobody else can write
KIND = {"mlflow.experimentKind": "custom_model_development"}  # the pages show runs then, not traces of a language model
ALWAYS = ("batch_size", "gpus")  # what charts are drawn over, across sweeps as well
Result = TypeVar("Result")
# MLflow's codes for what it will not have, however often it is asked
REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


class Store:
    """One sweep in a tracking store."""

    def __init__(self, facts: SweepFacts, has_trials: bool = True, opens: bool = True) -> None:
        """`has_trials`: it is asked about the sweep's trials too, not only about the sweep's own run. `opens`: as well;
        else `open` is called next, and once that was refused nothing but `close`."""
        self._facts, self._has_trials = facts, has_trials
        self._name = namer(facts.spec)
        uri = access.store_name()
        self._experiment = self._opened(uri)
        self._late_s = float(os.environ[access.TIMEOUT]) if uri.startswith("http") else 0.0
        self._late = LateRuns(self._late_s)
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
        self._runs: dict[str, str] = {}
        self._parent = ""
        self._bulk: Bulk | None = None
        self.is_new = False  # nobody has brought the sweep here before
        if opens:
            self.open()

    def open(self) -> None:
        """Look up the sweep's runs, or make its own."""
        self._parent = once_more(self._own_run)
        if self.is_new:
            self._keep_file()
        if self.status == "RUNNING" and not self.is_new:  # a driver was killed: it may just have asked for a run
            self._late.unheard()
        self._bulk = self._opened_for_bulk(access.store_name())

    def go_on(self) -> None:
        """Have the sweep's own run say that it runs, whatever it had ended with. A trial's run says how the trial ended
        last until it has ended again."""
        if self.status != "RUNNING":
            try:
                self._client.update_run(self._parent, status="RUNNING")
            except Exception:
                self._late.unheard()  # it may be carried out yet
                raise

    def log(self, records: Sequence[TrialRecord]) -> dict[str, str]:
        """Write trials with all that they measured, as finished runs. Doing it twice is doing it once.

        Return what the store says of each trial that it will not have, ever. Nothing of such a one stays there, and it
        holds up none of the others.
        """
        # The store may have made their runs, or others late; and another writer may have deleted one.
        if self._is_unsure or self._late.is_due:
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
        return self._ends.get(record.config.trial, ())[1:] == (in_ms(record.ended_at),)

    @property
    def status(self) -> str:
        """The status of the sweep's own run, when the store was opened, or its runs were looked up last."""
        return self._ends[""][0]

    @property
    def may_come(self) -> int:
        """Calls for a run that the server has not answered, and of which none has come."""
        return self._late.missing

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
                said = access.first_line(error)
            self._runs = self._existing_runs()
            if entry.trial in self._runs:
                self._delete(entry.trial)
        return said

    def _takes_any(self) -> bool:
        """Return whether it takes any trials of the sweep, for all that is known."""
        return bool(self._client.get_experiment(self._experiment).lifecycle_stage == "active")

    def _send(self, entry: Entry) -> None:
        """Send a trial in three calls of MLflow's client."""
        from mlflow.entities import Metric, Param, RunTag

        is_known = entry.trial in self._runs  # what was told of an earlier attempt holds no longer
        run = (
            self._runs[entry.trial] if is_known else self._begin(entry.trial, entry.name, entry.started_ms, entry.tags)
        )
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
            NOTE: _note(outcome),
            "sweep.limited_by": rows.limited_by(record),
            "sweep.why_withheld": rows.why_withheld(record),
            "sweep.measured_by": rows.measured_by(record),
            "sweep.pinned": rows.pinned(record),
            "sweep.why_not_pinned": rows.why_not_pinned(record),
        }
        tags |= {name: text[: description.LONGEST] for name, text in texts.items() if text}
        tags |= {f"sweep.{name}": where for name, where in rows.where(record).items() if where}
        if outcome.measurement or outcome.cached:
            tags["sweep.estimators"] = rows.ESTIMATORS
        if outcome.measurement:
            first = outcome.measurement.ranks[0]
            tags |= {f"{rows.VARIABLE}{name}": value for name, value in first.in_force.items()}
            tags |= {f"{rows.READ_BACK}{name}": value for name, value in first.runs.items()}
        return Entry(
            trial=config.trial,
            name=f"{self._name(config)} #{config.repeat}",
            status=run_status(outcome),
            started_ms=in_ms(record.started_at),
            ended_ms=in_ms(record.ended_at),
            tags=self._common | tags,
            params={name: str(value) for name, value in rows.params(config).items()},
            metrics=tuple(self._metrics(record)),
        )

    def _metrics(self, record: TrialRecord) -> Iterator[tuple[str, float, int]]:
        """Yield name, value and step of each figure, in the order of a page."""
        known = rows.metrics(record)
        yield from ((stored, known[name], 0) for name, stored in rows.METRICS.items() if name in known)
        yield from ((rows.stored_as(name), known[name], 0) for name in known if rows.is_unit_rate(name))
        for name in self._axes:  # parameters are text in MLflow; as metrics the axes can be axes of a chart
            if type(value := getattr(record.config, name)) in (int, float):
                yield f"axis/{name}", value, 0
        yield from ((name, value, 0) for name, value in rows.system(record).items())
        if measured := record.outcome.measurement:
            yield from (("steps/step_ms", ms, n) for n, ms in enumerate(rows.step_ms(measured)))
            if record.config.script:
                yield from _reported(measured.epochs)
                return
            yield from (("steps/loss", step.loss, step.step) for step in measured.ranks[0].steps)
            for epoch in measured.epochs:
                for name in EPOCH_SERIES:
                    if (value := getattr(epoch, name)) is not None:
                        yield f"epochs/{name}", value, epoch.epoch

    def describe(self, node: Mapping[str, Any]) -> None:
        """Tell what a node is made of, at the sweep's own run, under its fingerprints."""
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

    @property
    def may_be_open(self) -> bool:
        """Whether it has, or has asked for, a run that says RUNNING."""
        return bool(self._parent) or self._late.wait_s is not None

    def close(self, status: str) -> None:
        """End the sweep's own run, and see that it stays so, once what was asked for without an answer can hardly come
        any more; of a sweep that is discarded it goes. Of a store that did not open, what has come all the same."""
        if self._parent and status != DISCARDED:
            self._client.set_terminated(self._parent, status)
        if (wait_s := self._late.wait_s) is not None:
            time.sleep(wait_s)
        # A driver may have been killed unheard.
        if wait_s is not None or not self._parent or (self._late_s and not self.is_new):
            own = self._existing_runs().get("")
            if own and status not in (DISCARDED, self.status):
                self._client.set_terminated(own, status)
        if status == DISCARDED:
            for run in self._existing_runs().values():
                self._client.delete_run(run)
        else:
            self.show()

    def _planned(self) -> dict[str, str]:
        """Return what the sweep's trials were planned from, beside its file: the values set on the command line, and
        the nodes, if its ledger tells. What no tag can hold is left out."""
        nodes = arrangements.written(self._facts.nodes) if self._facts.nodes else ""
        told = {OVERRIDES: json.dumps([secrecy.masked(one) for one in self._facts.overrides]), NODES: nodes}
        return {name: text for name, text in told.items() if text and len(text) <= description.LONGEST}

    def _keep_file(self) -> None:
        """Keep the sweep file, whole. Where artifacts can't be written, the report's end says so."""
        with contextlib.suppress(Exception):
            self._client.log_text(self._parent, secrecy.masked(self._facts.file), FILE)

    def _opened(self, uri: str) -> str:
        """Return the experiment."""
        access.prepare(uri)
        os.environ[access.RETRIES] = "0"
        self._client = access.client(uri)
        return once_more(self._experiment_id)

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
        return self._runs.get("") or self._begin("", facts.name, in_ms(facts.created_at), tags)

    def _existing_runs(self) -> dict[str, str]:
        """Trial ('' for the sweep itself) to run, of this sweep. Runs that were made twice are deleted, all but one."""
        runs = self._all_runs()
        self._late.seen(run.info.run_id for run in runs)
        parents = {run.data.tags.get("mlflow.parentRunId") for run in runs}

        def rank(run: Any) -> tuple[bool, bool, bool, str]:
            """Rank a trial's runs: the first is the one to keep."""
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
        if not self._has_trials:  # of hundreds the own one is looked up by a tag that it alone has
            own = _runs(self._client, [self._experiment], self._facts.id, f" and tags.`{OVERRIDES}` LIKE '%'")
            if len(own) == 1:
                return own
        return _runs(self._client, [self._experiment], self._facts.id)

    def _opened_for_bulk(self, uri: str) -> Bulk | None:
        if not uri.startswith(database.SQLITE):
            return None
        parent = self._client.get_run(self._parent).info.artifact_uri
        return Bulk(uri, self._experiment, lambda run: parent.replace(self._parent, run))

    def _begin(self, trial: str, name: str, started_ms: int, tags: dict[str, str]) -> str:
        """Make a new run; return its id."""
        try:
            run = self._client.create_run(self._experiment, start_time=started_ms, run_name=name, tags=tags)
        except Exception as error:  # whatever MLflow's HTTP library or database driver raises
            self._late.unheard(error, is_answered=_is_answered(error))
            raise
        self._late.heard(str(run.info.run_id))
        self._runs[trial] = str(run.info.run_id)
        self._ends[trial] = "RUNNING", None
        return self._runs[trial]


def _is_answered(error: Exception) -> bool:
    """Say whether it is the tracking server's own answer, and no gateway's before it, which may have given up on a call
    that the server carries out. MLflow keeps no HTTP status, but its server names one of its codes."""
    from mlflow.exceptions import RestException
    from mlflow.protos.databricks_pb2 import ErrorCode

    if not isinstance(error, RestException) or error.json.get("error_code") not in {*ErrorCode.keys()}:
        return False
    return error.get_http_status_code() not in GATEWAYS


def _runs(mlflow: Any, experiments: Sequence[str], sweep: str, which: str = "") -> list[Any]:
    """All of a sweep, by its id, or those of them that a condition holds for."""
    wanted = f"tags.`sweep.id` = '{sweep}'{which}"
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


def _reported(epochs: Sequence[EpochRecord]) -> Iterator[tuple[str, float, int]]:
    """Yield what a script has reported: by the names of the built-in training's series, and by its own."""
    for epoch in epochs:
        for column, value in {**epoch.figures, "train_s": epoch.train_s}.items():
            stored = rows.stored_as(column) if column.startswith(rows.REPORTED) else f"epochs/{column}"
            yield stored, value if math.isfinite(value) else math.nan, epoch.epoch


def _note(outcome: TrialOutcome) -> str:
    """Return the note of a trial that did not complete: why, and what a user's program said last."""
    if not outcome.message:
        return ""
    lines = "".join(f"\n    {line}" for line in outcome.last_lines)
    return f"**{outcome.status}**: {outcome.why}" + (f"\n\n{lines}" if lines else "")


def run_status(outcome: TrialOutcome) -> str:
    """Return the status that MLflow has of a trial that ended so."""
    return RUN_STATUS.get(outcome.status, "FINISHED")


def in_ms(at: float) -> int:
    """Return a time as MLflow has it."""
    return int(at * 1000)


def _axes(spec: SweepSpec) -> list[str]:
    """Return the axes that are logged as numbers."""
    return [name for name in AXES if name in ALWAYS or (name in spec.axes and is_varied(spec.axes[name]))]


def once_more(write: Callable[..., Result], *given: Any) -> Result:
    """Write, and where that fails write again: the connection may have broken. What the second try raises says nothing
    of the first."""
    with contextlib.suppress(Exception):
        return write(*given)
    return write(*given)


def sync(record: SweepRecord, found: Conclusion | None = None, *, only_missing: bool = False) -> int:
    """Bring a whole ledger to the store, and what was found; what stands there is written again, not doubled. Or only
    what a driver that was killed has left to do: trials that are missing, runs that are open. Return how many runs may
    come late."""
    try:
        store = Store(record.facts)
        trials = [trial for trial in record.trials if not (only_missing and store.has(trial))]
        status = "FINISHED" if record.is_complete else "KILLED"
        if only_missing and not trials and store.status == status:
            return store.may_come
        for node in record.nodes:
            once_more(store.describe, node)
        unwanted: dict[str, str] = {}
        for n in range(0, len(trials), store.at_once):
            unwanted |= once_more(store.log, trials[n : n + store.at_once])
        if found:
            once_more(store.conclude, found)
        once_more(store.close, status)
    except Exception as error:
        raise access.refused("be writable", error) from None
    if unwanted:
        some = f"{len(unwanted)} of {len({trial.config.trial for trial in record.trials})}"
        raise access.refused(f"take every trial; it has all others, but not {some}", next(iter(unwanted.values())))
    return store.may_come


def leave_one_each(facts: SweepFacts) -> int:
    """Delete the runs of a sweep that were made twice; return how many runs may come late."""
    try:
        store = Store(facts)
        _close_new(store)
        return store.may_come
    except Exception as error:
        raise access.refused("be writable", error) from None


def forget(run: OpenRun, name: str) -> None:
    """Delete all runs of a sweep that was discarded while the store did not answer: by its id, so that nobody else's
    go. One that was asked for at the very end may come yet: that is waited for."""
    uri = access.store_name()
    try:
        mlflow = access.client(uri)
        if uri.startswith("http"):
            time.sleep(max(0.0, run.at + float(os.environ[access.TIMEOUT]) - time.time()))
        experiments = _all_pages(lambda token: mlflow.search_experiments(page_token=token))
        for one in _runs(mlflow, [experiment.experiment_id for experiment in experiments], run.sweep):
            mlflow.delete_run(one.info.run_id)
    except Exception as error:
        raise RefusedError(
            f"the run of {name}, which was discarded, must go from the tracking store, but that says:"
            f" {access.first_line(error)}\n  {masked(uri)}\n  do this again once it answers"
        ) from None


def attach(facts: SweepFacts, file: Path, found: Conclusion) -> int:
    """Log a report to a sweep's own run, in place of what had its name there, and what it says first; return how many
    runs may come late."""
    try:
        store = Store(facts, has_trials=False)
        once_more(store.conclude, found)
        once_more(store.attach, file)
        _close_new(store)
        return store.may_come
    except Exception as error:
        raise access.refused("take the report", error) from None


def _close_new(store: Store) -> None:
    """End a sweep's own run that has just been made: there is no tracker that would, and no trial in it until `sync`
    brings them."""
    if store.is_new:
        once_more(store.close, "KILLED")
