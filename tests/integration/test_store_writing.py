"""What is written to a store: no run twice, none left open, by SQL as MLflow itself writes it, by many at once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import multiprocessing
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from sweeps.errors import RefusedError
from sweeps.record import rows
from sweeps.record.ledger import SweepRecord, TrialRecord
from sweeps.store import bulk, description, query, saved_views, tracking
from tests.integration.stored_sweeps import record
from tests.unit import records
from workers.contract.messages import Measurement, StepRecord, TrialOutcome


def test_a_report_that_comes_to_a_store_before_its_sweep_leaves_no_run_open(store: str) -> None:
    def stati() -> list[str]:
        client = MlflowClient(store)
        return [run.info.status for run in client.search_runs([client.get_experiment_by_name("small").experiment_id])]

    Path("report.html").write_text("found")
    whole = record()
    tracking.attach(whole.facts, Path("report.html"), description.Conclusion("## Found", "[]"))
    assert stati() == ["KILLED"]
    tracking.sync(whole)
    tracking.attach(whole.facts, Path("report.html"), description.Conclusion("## Found", "[]"))
    assert stati() == ["FINISHED"] * (1 + len(whole.trials))


def test_a_report_is_logged_without_a_look_at_each_trial_s_run(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("report.html").write_text("found")
    whole = record()
    tracking.sync(whole)
    runs, found = tracking._runs, []

    def counted(*of: Any) -> list[Any]:
        found.append(runs(*of))
        return found[-1]

    monkeypatch.setattr(tracking, "_runs", counted)
    tracking.attach(whole.facts, Path("report.html"), description.Conclusion("## Found", "[]"))
    assert [len(some) for some in found] == [1]
    assert "sweep.trial" not in found[0][0].data.tags
    assert "report.html" in {one.path for one in MlflowClient(store).list_artifacts(found[0][0].info.run_id)}


def test_a_run_that_a_killed_driver_had_asked_for_and_that_came_late_goes_with_the_next_ones_end(store: str) -> None:
    whole = record()
    tracking.sync(whole)
    again = tracking.Store(whole.facts)
    again._late_s = 20.0  # as over HTTP
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("small").experiment_id
    tags = {"sweep.id": whole.facts.id, "sweep.trial": whole.trials[0].config.trial}
    late = client.create_run(experiment, tags=tags).info.run_id
    again.close("FINISHED")
    runs = client.search_runs([experiment])
    assert late not in {run.info.run_id for run in runs}
    assert [run.info.status for run in runs] == ["FINISHED"] * (1 + len(whole.trials))


def test_a_sweep_that_is_discarded_leaves_no_run_in_the_store_and_takes_no_others(store: str) -> None:
    kept = record("small-2")
    tracking.sync(kept)
    begun = tracking.Store(record().facts)
    begun.close(tracking.DISCARDED)
    begun.close(tracking.DISCARDED)  # an answer was lost
    client = MlflowClient(store)
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert {run.data.tags["sweep.name"] for run in runs} == {"small-2"}
    assert len(runs) == 1 + len(kept.trials)


def test_an_answer_that_is_lost_doubles_no_run(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = record()
    book = tracking.Store(small.facts)
    book._bulk = None  # as over HTTP
    made = book._client.create_run

    def lost(*arguments: Any, **named: Any) -> None:
        made(*arguments, **named)
        monkeypatch.undo()
        raise TimeoutError

    monkeypatch.setattr(book._client, "create_run", lost)
    with pytest.raises(TimeoutError):
        book.log(small.trials[:1])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    book.log(small.trials[:1])
    experiment = MlflowClient(store).get_experiment_by_name("small").experiment_id
    assert len(MlflowClient(store).search_runs([experiment])) == 2  # the sweep's own, and the trial's


@pytest.mark.parametrize("by_sql", [True, False])
def test_a_trial_that_mlflow_will_never_take_holds_up_no_other(store: str, by_sql: bool) -> None:
    first, odd, *others = record().trials
    odd = dataclasses.replace(odd, config=dataclasses.replace(odd.config, env={"A@B": "1"}))  # no name for MLflow
    trials = (first, odd, *others)
    book = tracking.Store(record().facts)
    if not by_sql:
        book._bulk = None
    unwanted = book.log(trials)
    assert unwanted.keys() == {odd.config.trial}
    assert "A@B" in unwanted[odd.config.trial]
    assert (book._bulk is not None) == by_sql
    assert sorted(query.trials("small")["trial"]) == sorted(trial.config.trial for trial in (first, *others))
    runs = MlflowClient().search_runs([book._experiment])
    assert [run.info.status for run in runs].count("RUNNING") == 1  # the sweep's own
    with pytest.raises(RefusedError, match=r"must take every trial; it has all others, but not 1 of 8.*A@B"):
        tracking.sync(SweepRecord(record().facts, trials, is_complete=True))
    book = tracking.Store(record().facts)
    assert [book.has(trial) for trial in trials] == [True, False, *([True] * len(others))]


@pytest.mark.parametrize("by_sql", [True, False])
def test_of_an_earlier_attempt_at_a_trial_nothing_stays(store: str, by_sql: bool) -> None:
    (completed, *_) = record().trials
    failed = TrialOutcome(status="failed", kind="raised", message="it broke")
    again = records.record(completed.config, outcome=failed)
    for attempts in ([completed, again], [again, completed], [completed, completed]):
        for attempt in attempts:
            book = tracking.Store(record().facts)
            if not by_sql:
                book._bulk = None
            book.log([attempt])
        (row,) = query.trials("small").to_dict("records")
        last = rows.row(attempts[-1])
        for name in ("outcome", "message", "images_per_s", "trial_s"):
            assert row.get(name) == last.get(name) or (pd.isna(row[name]) and name not in last), name
        assert tracking.Store(record().facts).has(attempts[-1])
    experiment = MlflowClient(store).get_experiment_by_name("small").experiment_id
    assert len(MlflowClient(store).search_runs([experiment])) == 2


def test_a_transaction_whose_end_is_not_heard_of_doubles_no_run(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = record()
    book = tracking.Store(small.facts)
    assert book._bulk
    write = book._bulk.write

    def lost(*arguments: Any) -> None:
        write(*arguments)
        raise bulk.BulkError

    monkeypatch.setattr(book._bulk, "write", lost)
    book.log(small.trials[:3])
    book.log(small.trials)
    assert len(query.trials("small")) == len(small.trials)
    experiment = MlflowClient(store).get_experiment_by_name("small").experiment_id
    assert len(MlflowClient(store).search_runs([experiment])) == 1 + len(small.trials)


def odd(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Trials with losses that are no numbers, with a series in the wrong order, with epochs, and that failed."""
    one, other, failed, infeasible, *rest = trials
    assert one.outcome.measurement
    rank = one.outcome.measurement.ranks[0]
    steps = [StepRecord(step=n, step_ms=100.0, loss=loss) for n, loss in enumerate((math.inf, math.nan, -math.inf, 1))]
    steps = [*steps[::-1], *steps]
    rank = dataclasses.replace(
        rank, steps=tuple(steps), in_force={"OMP_NUM_THREADS": "1", "EMPTY": ""}, runs={"xla": "on"}
    )
    measured = dataclasses.replace(one.outcome, measurement=Measurement(ranks=(rank,)), usage={"cpu_0": 0.5})
    learnt = records.converged([0.5, 0.9], reached_target=True).outcome
    message = TrialOutcome(status="failed", kind="raised", message='it\'s `no` "good"\n' * 500)
    never = TrialOutcome(status="infeasible", kind="device memory", message="too large")
    outcomes = ((one, measured), (other, learnt), (failed, message), (infeasible, never))
    return [*(dataclasses.replace(trial, outcome=outcome) for trial, outcome in outcomes), *rest]


def tables(path: str, ids: dict[str, str]) -> dict[str, list[str]]:
    """All that a store holds of runs, with names in place of ids."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        lines = {name: sorted(map(repr, connection.execute(f"SELECT * FROM {name}"))) for name in names}
    for run, name in ids.items():
        lines = {table: sorted(line.replace(run, name) for line in of) for table, of in lines.items()}
    return {table: of for table, of in lines.items() if table not in ("experiments", "experiment_tags")}


def test_what_is_written_by_sql_is_what_mlflow_writes(
    store: str, blank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = odd(record().trials)
    found = []
    for name in ("mlflow.db", "other.db"):
        if name == "other.db":
            shutil.copy(blank, tmp_path / name)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / name}")
        book = tracking.Store(record().facts)
        with monkeypatch.context() as patched:
            if name == "mlflow.db":
                patched.setattr(book, "_send", None)
            else:
                book._bulk = None
            book.log(trials)
        found.append(tables(name, {run: trial or "sweep" for trial, run in book._runs.items()}))
    ours, theirs = found
    assert {table: len(of) for table, of in ours.items()} == {table: len(of) for table, of in theirs.items()}
    for table, lines in theirs.items():
        assert ours[table] == lines, table


@pytest.mark.parametrize("fields", [{"name": "a" * 251}, {"params": {"a:b": ""}}, {"params": {"a": "a" * 4001}}])
def test_what_mlflow_may_cut_or_refuse_is_left_to_it(fields: dict[str, Any]) -> None:
    plain = bulk.Entry(trial="t", name="n", status="FINISHED", started_ms=0, ended_ms=1, tags={"a.b/c": ""},
                       params={"a b": "c"}, metrics=(("a/b_c", 1.0, 0),))  # fmt: skip
    assert plain.is_plain
    assert not dataclasses.replace(plain, **fields).is_plain


def test_a_deleted_experiment_is_said_by_mlflow(store: str) -> None:
    small = record()
    book = tracking.Store(small.facts)
    MlflowClient().delete_experiment(book._experiment)
    with pytest.raises(MlflowException, match="active"):
        book.log(small.trials)


def test_long_series_and_many_variables_fit_the_limits_of_a_call(store: str) -> None:
    small = record()
    variables = {f"A_{n}": "1" for n in range(150)}
    config = dataclasses.replace(small.trials[0].config, env=variables)
    long = records.report(0, 100, [100.0] * 1500)
    outcome = small.trials[0].outcome
    measured = dataclasses.replace(outcome, measurement=dataclasses.replace(outcome.measurement, ranks=(long,)))
    trial = dataclasses.replace(small.trials[0], config=config, outcome=measured)
    book = tracking.Store(small.facts)
    book.log([trial])
    book.log([trial])
    table = query.trials("small")
    assert table.filter(like="env.").shape == (1, 150)
    assert len(query.series(config.trial, "steps/loss")) == 1500


def written(name: str, uri: str) -> None:
    import os

    os.environ["MLFLOW_TRACKING_URI"] = uri
    tracking.sync(record(name))


def test_many_writers_and_a_reader_on_one_file(store: str) -> None:
    tracking.sync(record())
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=written, args=(f"small-{n}", store)) for n in range(2, 6)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert len(query.trials("small")) == 8
        writers[0].join(0.2)
    assert [writer.exitcode for writer in writers] == [0] * 4
    with sqlite3.connect("mlflow.db") as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    names = ["small", *(f"small-{n}" for n in range(2, 6))]
    assert query.trials(names)["sweep"].value_counts().to_dict() == dict.fromkeys(names, 8)


def test_a_sweep_has_one_view_and_one_note_however_often_it_is_written(store: str) -> None:
    for _ in range(2):
        tracking.sync(record(), description.Conclusion("## Found", "[]"))
    tracking.sync(record("small-2"))
    client = MlflowClient()
    tags = client.get_experiment_by_name("small").tags
    assert sorted(name for name in tags if name.startswith(saved_views.TAG)) == [
        f"{saved_views.TAG}id of small",
        f"{saved_views.TAG}id of small-2",
    ]
    place = query.place("small")
    assert place.sweep == "id of small"
    own = client.get_run(place.run)
    assert own.data.tags["mlflow.note.content"].startswith("## Found\n```yaml")
    state = json.loads(json.loads(tags[f"{saved_views.TAG}id of small"])["state"])
    shown = client.search_runs([place.experiment], state["searchFilter"], order_by=[f"{state['orderByKey']} DESC"])
    assert len(shown) == 8
    assert place.run not in {run.info.run_id for run in shown}
    assert {column.split("`")[1] for column in state["columnOrder"] if column.startswith("metrics.`axis/")} == {
        name for name in shown[0].data.metrics if name.startswith("axis/")
    }


def test_a_view_that_cannot_be_written_costs_no_trial(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(MlflowClient, "set_experiment_tag", refuse)
    tracking.sync(record())
    assert len(query.trials("small")) == 8
    assert list(saved_views.addresses("http://host", *query.place("small"))) == ["trials", "verdict"]
