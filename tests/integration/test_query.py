"""What MLflow holds, read past it: the same as MLflow says, after whatever was done there."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
import time

import pandas as pd
import pytest
from mlflow import MlflowClient

from sweeps import analysis
from sweeps.cli import main
from sweeps.errors import InputError
from sweeps.record import ledger, ownership, rows
from sweeps.record.ledger import SweepRecord
from sweeps.spec import plan, sweep_file
from sweeps.store import access, database, mirror, query, tracking
from tests.integration.stored_sweeps import FILE, as_mlflow_says, experiment, record, run_of
from tests.unit import records, test_own_results
from workers.contract.messages import TrialOutcome


def test_what_is_read_is_what_the_ledger_holds_and_what_mlflow_says(store: str) -> None:
    small = record(_1=TrialOutcome(status="infeasible", kind="device memory", message="it's too large"))
    tracking.sync(small)
    expected = analysis.frame([rows.row(trial) for trial in small.trials])
    for _ in ("without a copy", "with one"):
        pd.testing.assert_frame_equal(query.trials("small"), expected)
    pd.testing.assert_frame_equal(as_mlflow_says(), expected)
    assert query.trials("small")["outcome"].dtype == "category"


def test_what_a_script_has_reported_is_read_as_the_ledger_has_it(store: str) -> None:
    """Its rate by its unit, its figures by its names, its series; one that diverged has no number at its end."""
    study = test_own_results.learnt(run="python train.py {batch_size} {lr}", unit="tokens")
    steady, diverged, timed, *_ = study.records
    told = test_own_results.told({"loss": 1.0, "auc": 0.5}, {"loss": math.nan}, config=diverged.config)
    of_steps = test_own_results.told({"auc": 0.5}, {"auc": 0.75}, config=timed.config)
    kept = SweepRecord(study.facts, (steady, told, of_steps), is_complete=True)
    tracking.sync(kept)
    expected = analysis.frame([rows.row(trial) for trial in kept.trials])
    for _ in ("without a copy", "with one"):
        pd.testing.assert_frame_equal(query.trials("mine"), expected)
    pd.testing.assert_frame_equal(as_mlflow_says("mine"), expected)
    found = query.trials("mine", "reported.auc > 0.6 and tokens_per_s > 0", ["trial", "own.lr", "tokens_per_s"])
    assert list(found["trial"]) == [timed.config.trial]
    points = query.series(timed.config.trial, "reported.auc")
    assert list(zip(points["step"], points["reported.auc"], strict=True)) == [(1, 0.5), (2, 0.75)]


def test_what_the_store_holds_whole_is_told_by_sweep(store: str) -> None:
    assert query.stored_trials(["small"]) == {}
    small = record()
    tracking.sync(small)
    everything = {trial.config.trial for trial in small.trials}
    assert query.stored_trials(["small", "unknown"]) == {"id of small": everything}
    gone, half, *_ = sorted(everything)
    MlflowClient().delete_run(run_of(gone))
    MlflowClient().update_run(run_of(half), status="RUNNING")
    assert query.stored_trials(["small"]) == {"id of small": everything - {gone, half}}
    assert query.stored_trials([]) == {}


def test_no_copy_hides_what_was_done_in_mlflow(store: str) -> None:
    tracking.sync(record())
    client = MlflowClient()
    first = query.trials("small")
    gone, edited, grown, failed, *_ = first["trial"]
    deleted = run_of(gone)

    def check() -> pd.DataFrame:
        pd.testing.assert_frame_equal(query.trials("small"), as_mlflow_says())
        return query.trials("small").set_index("trial")

    client.delete_run(deleted)
    assert gone not in check().index
    client.set_tag(run_of(edited), "sweep.message", "seen by hand")
    assert check()["message"][edited] == "seen by hand"
    client.log_metric(run_of(grown), "images_per_s", 7.0)
    assert check()["images_per_s"][grown] == 7.0
    client.set_tag(run_of(failed), "sweep.outcome", "failed")
    assert check()["outcome"][failed] == "failed"
    client.delete_tag(run_of(edited), "sweep.message")
    assert check()["message"][edited] == ""
    client.restore_run(deleted)
    assert gone in check().index
    tracking.sync(record("small-2"))
    assert len(query.trials(["small", "small-2"])) == 16
    check()


def test_an_unchanged_store_is_not_opened(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking.sync(record())
    first = query.trials("small")
    time.sleep(2 * database.TICK_S)
    query.trials("small")  # what was written a moment ago is not trusted yet
    monkeypatch.setattr(database, "connected", None)
    pd.testing.assert_frame_equal(query.trials("small"), first)


def test_only_what_has_changed_is_read(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking.sync(record())
    trials = query.trials("small")
    read: list[int] = []
    values = database.values
    monkeypatch.setattr(database, "values", lambda of, runs: (read.append(len(runs)), values(of, runs))[1])
    MlflowClient().log_metric(run_of(trials["trial"][0]), "accuracy/top1", 0.5)
    assert query.trials("small")["top1"][0] == 0.5
    assert read == [1]


@pytest.mark.parametrize("damage", [b"", b"no Parquet", None])
def test_a_copy_that_is_damaged_or_gone_is_made_anew(store: str, damage: bytes | None) -> None:
    tracking.sync(record())
    expected = query.trials("small")
    copy = mirror.file_of(store)
    copy.unlink() if damage is None else copy.write_bytes(damage)
    pd.testing.assert_frame_equal(query.trials("small"), expected)
    assert copy.stat().st_size > 1000


def test_foreign_runs_are_passed_over_and_broken_ones_named(store: str) -> None:
    tracking.sync(record())
    client = MlflowClient()
    experiment = client.get_experiment_by_name("small").experiment_id
    client.create_run(experiment, run_name="somebody's")
    first = query.trials("small")["trial"][0]
    client.delete_tag(run_of(first), "sweep.cell")
    with pytest.warns(query.LeftOut, match=r"no tag sweep.cell: 1 runs"):
        assert len(query.trials("small")) == 7


def test_runs_that_are_half_like_ours_are_named_and_not_counted(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    tracking.sync(record())
    client = MlflowClient()
    experiment = client.get_experiment_by_name("small").experiment_id
    client.create_run(experiment, tags={"sweep.name": "small"})  # by hand
    torn = {"sweep.trial": "t", "sweep.cell": "c", "sweep.outcome": "completed", "sweep.id": "id of small"}
    client.create_run(experiment, tags={"sweep.name": "small", **torn})  # its values have not come yet
    with pytest.warns(query.LeftOut, match=r"no parameters: 1 runs"):
        assert len(query.trials("small")) == 8
    with pytest.warns(query.LeftOut, match=r"no parameters: 1 runs"):
        assert len(query.trials("small", columns=["trial", "images_per_s"])) == 8
    assert query.finished({"c"}) == [], "nor is it taken for a result to use again"
    with pytest.warns(query.LeftOut, match=r"no tag sweep.id: 1 runs"):
        assert query.list_sweeps()["sweep"].tolist() == ["small"]
    assert main.main(["list"]) == 0
    assert "left out, for they have no tag sweep.id: 1 runs" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["a/b", "it's", 'a "b"', "50%", "a_b", "a b", "é"])
def test_a_name_of_any_letters_is_found_or_said_to_be_absent(store: str, name: str) -> None:
    """No name that `sweep run` gives: somebody else's, or a typing error."""
    tracking.sync(record())
    with pytest.raises(InputError, match="must hold a sweep of that name"):
        query.trials(name)
    odd = record("odd")
    tracking.sync(dataclasses.replace(odd, facts=dataclasses.replace(odd.facts, name=name)))
    assert len(query.trials(name)) == 8
    pd.testing.assert_frame_equal(query.trials(name), as_read_by_mlflow(name))


def as_read_by_mlflow(name: str) -> pd.DataFrame:
    uri = access.store_name()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "is_database", lambda uri: False)
        return query.trials(name, store=uri)


def test_a_condition_holds_over_columns_and_sweeps(store: str) -> None:
    tracking.sync(record())
    tracking.sync(record("small-2"))
    found = query.trials(["small", "small-2"], "gpus == 2 and global_batch >= 32", ["sweep", "trial", "images_per_s"])
    assert [*found] == ["sweep", "trial", "images_per_s"]
    assert sorted(found["sweep"]) == ["small", "small", "small-2", "small-2"]
    assert len(query.trials("small", "sweep == 'small-2'")) == 0
    assert len(query.trials("small", "top1 > 0")) == 0  # measured in none
    with pytest.raises(InputError) as raised:
        query.trials("small", "gpu >= 2")
    (line, pointer, caret) = str(raised.value).splitlines()
    assert "did you mean gpus?" in line
    assert caret.index("^") == pointer.index("gpu")


def test_a_sweep_that_is_not_there(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking.sync(record())
    names = ["smal", "it's", 'say "small"', "a/b", "a'b\"c/d", "", "x" * 300]
    for is_known, name in itertools.product([True, False], names):
        if not is_known:  # what can't be read by SQL is asked through MLflow
            monkeypatch.setattr(database, "is_database", lambda uri: False)
        with pytest.raises(InputError, match="must hold a sweep of that name"):
            query.trials([name])


def test_lists_series_and_cells(store: str) -> None:
    tracking.sync(record(_0=TrialOutcome(status="failed", kind="raised", message="no")))
    listed = query.list_sweeps()
    assert listed[["sweep", "trials", "completed", "failed"]].to_numpy().tolist() == [["small", 8, 7, 1]]
    assert listed["status"][0] == "complete"
    trial = query.trials("small")["trial"][1]
    steps = query.series(trial, "steps/step_ms")
    assert steps["steps/step_ms"].tolist() == [100.0] * 10
    assert steps["step"].tolist() == list(range(10))
    assert len(query.series(trial, "images_per_s", sweep="small")) == 1
    with pytest.raises(InputError, match="did you mean steps/step_ms"):
        query.series(trial, "steps/step_m")
    with pytest.raises(InputError, match="must hold a trial of that id"):
        query.series("none", "steps/step_ms")
    assert query.cells("small")["n"].tolist() == query.cells(query.trials("small"))["n"].tolist()


def test_of_a_sweep_whose_driver_was_killed_list_says_what_status_says(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run in MLflow is as the driver left it; where the ledger lies here, that knows whether anybody drives it."""

    def said() -> list[str]:
        """What both say."""
        assert main.main(["status", "small", "--format", "json"]) == 0
        return [json.loads(capsys.readouterr().out)["state"], query.list_sweeps()["status"][0]]

    book = ownership.create(plan.plan(sweep_file.parse(FILE, "small")), FILE)
    book.write(records.record(book.facts.trials[0]))
    tracking.sync(dataclasses.replace(ledger.read("small"), is_complete=False))
    runs = MlflowClient().search_runs([experiment("small")])
    (own,) = (run.info.run_id for run in runs if "sweep.trial" not in run.data.tags)
    MlflowClient().update_run(own, status="RUNNING")
    assert query.list_sweeps()["status"][0] == "running", "it has a driver"
    book.close()  # as a kill does
    assert said() == ["stopped", "stopped"]
    another = dataclasses.replace(book.facts, id="of before")
    MlflowClient().set_tag(own, "sweep.id", another.id)
    assert query.list_sweeps()["status"][0] == "running", "of another sweep of that name nothing is known here"
    MlflowClient().set_tag(own, "sweep.id", book.facts.id)
    shutil.rmtree(ledger.paths("small").folder)
    assert query.list_sweeps()["status"][0] == "running"


def test_earlier_measurements_are_found_by_cell(store: str) -> None:
    small = record(_0=TrialOutcome(status="failed", kind="raised", message="no"))
    tracking.sync(small)
    cells = {trial.config.cell for trial in small.trials[:3]}
    found = query.finished(cells)
    expected = [trial for trial in small.trials if trial.config.cell in cells and trial.outcome.status == "completed"]
    assert [row["trial"] for row in found] == [trial.config.trial for trial in expected]
    assert found[0]["figures"] == pytest.approx(rows.metrics(expected[0]))
    assert {row["estimators"] for row in found} == {rows.ESTIMATORS}
    assert query.finished({"none"}) == []
    simulated = dataclasses.replace(small.facts, name="like it", id="another", simulated="nodes=1,gpus=2,gpu=v100")
    tracking.sync(dataclasses.replace(small, facts=simulated))
    assert len(query.finished(cells)) == len(expected), "nothing of it was measured"
