"""What MLflow holds, read past it: the same as MLflow says, after whatever was done there."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import multiprocessing
import shutil
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from sweeps import analysis
from sweeps.analysis import findings
from sweeps.cli import diff, main
from sweeps.errors import InputError, RefusedError
from sweeps.record import rows
from sweeps.record.ledger import SweepFacts, SweepRecord, TrialRecord
from sweeps.report import stored
from sweeps.spec import arrangements, plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.store import bulk, database, description, mirror, query, remote, saved_views, tracking
from tests.unit import records
from workers.contract.messages import Measurement, StepRecord, TrialOutcome

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


@pytest.fixture
def store(blank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    shutil.copy(blank, tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


def as_mlflow_says(name: str = "small") -> pd.DataFrame:
    """By MLflow's client, not by its tables."""
    uri = tracking.store_name()
    return query._frame(query._of([name], remote.read(uri, [f"tags.`sweep.name` = '{name}'"])))


def run_of(trial: str) -> str:
    experiments = [experiment.experiment_id for experiment in MlflowClient().search_experiments()]
    (run,) = MlflowClient().search_runs(experiments, f"tags.`sweep.trial` = '{trial}'")
    return str(run.info.run_id)


def test_what_is_read_is_what_the_ledger_holds_and_what_mlflow_says(store: str) -> None:
    small = record(_1=TrialOutcome(status="infeasible", kind="device memory", message="it's too large"))
    tracking.sync(small)
    expected = analysis.frame([rows.row(trial) for trial in small.trials])
    for _ in ("without a copy", "with one"):
        pd.testing.assert_frame_equal(query.trials("small"), expected)
    pd.testing.assert_frame_equal(as_mlflow_says(), expected)
    assert query.trials("small")["outcome"].dtype == "category"


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


def test_a_store_that_began_anew_is_not_taken_for_the_old_one(
    store: str, blank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking.sync(record())
    query.trials("small")
    shutil.copy(blank, tmp_path / "other.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    tracking.sync(record("other"))
    for name in ("mlflow.db", "mlflow.db-wal", "mlflow.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    with sqlite3.connect("other.db") as source, sqlite3.connect("mlflow.db") as target:
        source.backup(target)
    assert len(query.trials("other", store=store)) == 8
    with pytest.raises(InputError, match="small"):
        query.trials("small", store=store)


def test_a_store_of_another_version_is_asked_through_mlflow(store: str) -> None:
    tracking.sync(record())
    expected = query.trials("small")
    with sqlite3.connect("mlflow.db") as tables:  # as one that keeps parameters elsewhere
        tables.execute("ALTER TABLE latest_metrics RENAME TO newest_metrics")
    with pytest.raises(RefusedError, match=r"must answer.*latest_metrics"):
        query.trials("small", rebuild=True)
    with sqlite3.connect("mlflow.db") as tables:
        tables.execute("ALTER TABLE newest_metrics RENAME TO latest_metrics")
    pd.testing.assert_frame_equal(query.trials("small"), expected)


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


def test_where_no_trial_fulfils_a_condition_a_line_says_so(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    tracking.sync(record())
    assert main.main(["trials", "small", "--where", "gpus > 1000"]) == 0
    told = capfd.readouterr()
    assert "no trial of small fulfils --where gpus > 1000" in told.err
    assert main.main(["trials", "smal"]) == 2
    assert "did you mean small?" in capfd.readouterr().err


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
    uri = tracking.store_name()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "is_database", lambda uri: False)
        return query.trials(name, store=uri)


def test_a_store_of_a_version_that_is_not_known_here_is_read_and_not_written(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking.sync(record())
    with sqlite3.connect("mlflow.db") as source, sqlite3.connect("newer.db") as tables:  # MLflow knows the other one
        source.backup(tables)
        tables.execute("UPDATE alembic_version SET version_num = 'feedfacecafe'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'newer.db'}")
    assert len(query.trials("small", rebuild=True)) == 8
    assert query.list_sweeps()["sweep"].tolist() == ["small"]
    with pytest.raises(RefusedError) as raised:
        tracking.sync(record("small-2"))
    said = str(raised.value)
    assert "must be of this MLflow's version" in said
    assert "feedfacecafe" in said


def test_a_sweep_without_its_ledger_is_reported_from_the_store(
    store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tracking.sync(record(_1=TrialOutcome(status="failed", kind="killed", message="killed by signal 9")))
    assert main.main(["report", "small"]) == 0
    assert capfd.readouterr().out.strip() == "small-report.html"
    page = (tmp_path / "small-report.html").read_text()
    for said in ("ade from the tracking store alone", "Left out", "killed by signal 9", "8 trials of 4 cells"):
        assert said in page, said
    assert 'id="scaling"' in page
    assert "ledger.jsonl" not in page
    assert not (tmp_path / "results").exists(), "no folder that a sweep of this name would stumble over"
    assert main.main(["report", "small", "--format", "csv", "--out", "figures"]) == 0
    table = pd.read_csv("figures/every-trial.csv")
    assert table["trial"].tolist() == query.trials("small")["trial"].tolist()
    assert main.main(["report", "small", "--format", "png"]) == 0
    assert list(Path("small-report-png").glob("*.png"))

    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MLFLOW_TRACKING_URI", "sqlite:///none.db")
        assert main.main(["report", "small"]) == 2
        assert "must hold the sweep named" in capfd.readouterr().err
        assert not Path("none.db").exists()
    assert main.main(["report", "smal"]) == 2
    assert "did you mean small?" in capfd.readouterr().err
    assert main.main(["report", "../small"]) == 2
    (parent,) = (run for run in MlflowClient().search_runs([experiment("small")]) if run.info.run_name == "small")
    cut = f"```yaml\n{FILE[:20]}{description.CUT}\n```"
    MlflowClient().set_tag(parent.info.run_id, "mlflow.note.content", "edited by hand")
    assert main.main(["report", "small"]) == 0, "its file is an artifact"
    shutil.rmtree(MlflowClient().get_run(parent.info.run_id).info.artifact_uri.removeprefix("file://"))
    for text, got in (("edited by hand", "another note"), (cut, "a part of it")):
        MlflowClient().set_tag(parent.info.run_id, "mlflow.note.content", text)
        assert main.main(["report", "small"]) == 2
        said = capfd.readouterr().err
        assert (
            "must have the sweep's file, as an artifact of its run or in its note, to be reported without its ledger,"
            f" but got {got}" in said
        )


def test_a_sweep_that_only_the_store_knows_has_the_cells_that_it_was_planned_with(store: str) -> None:
    file = FILE.replace("gpus: [1, 2]", "gpus: [1, 2, 4], placement: [pack, spread]")
    nodes = [Node("a", 4, 0), Node("b", 4, 0), Node("big", 8, 2, "V100")]
    planned = plan.plan(sweep_file.parse(file, "small"), "small", nodes)
    facts = dataclasses.replace(record().facts, file=file, trials=planned.trials, nodes=tuple(nodes))
    ended = tuple(records.record(config, 100.0) for config in planned.trials)
    tracking.sync(SweepRecord(facts, ended, is_complete=True))
    found = stored.read("small")
    assert found.facts.trials == planned.trials
    assert {trial.trial for trial in found.facts.trials} == {*query.trials("small")["trial"]}
    assert plan.places_alike(found.plan, 4, "pack") == plan.places_alike(planned, 4, "pack") == ["pack"]
    assert arrangements.described(found.facts.nodes) == arrangements.described(nodes)
    assert "Planned for no nodes" not in " ".join(findings.find(found).lines())


@pytest.mark.parametrize("has_artifacts", [True, False])
def test_what_was_set_on_the_command_line_is_told_as_it_was_given(store: str, has_artifacts: bool) -> None:
    overrides = ("batch_size=[8, 16]", "repeats=1")  # with a blank
    planned = plan.plan(sweep_file.parse(FILE, "small", overrides), "small")
    facts = dataclasses.replace(record().facts, overrides=overrides, trials=planned.trials)
    ended = tuple(records.record(config, 100.0) for config in planned.trials)
    tracking.sync(SweepRecord(facts, ended, is_complete=True))
    if not has_artifacts:
        shutil.rmtree(MlflowClient().get_run(query.sweep("small")["run"]).info.artifact_uri.removeprefix("file://"))
    found = stored.read("small")
    assert (found.facts.overrides, found.facts.trials) == (overrides, planned.trials)
    assert found.facts.file == (FILE if has_artifacts else FILE.strip("\n"))


def test_another_store_is_compared_and_reported_where_it_is_named(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tracking.sync(record())
    theirs = f"sqlite:///{tmp_path / 'theirs.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", theirs)
    twice = record("theirs")
    ended = [records.record(one.config, 200.0 + 2 * n) for n, one in enumerate(twice.trials)]
    tracking.sync(dataclasses.replace(twice, trials=tuple(ended)))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///none.db")

    found = diff.diff("small", "theirs", store=[store, theirs])
    assert found.cells["ratio"].tolist() == pytest.approx([2.0] * 4)
    assert diff.diff("theirs", "theirs", store=[theirs]).cells["ratio"].tolist() == pytest.approx([1.0] * 4)
    assert main.main(["diff", "small", "theirs", "--store", store]) == 2
    assert "theirs" in capfd.readouterr().err
    assert main.main(["diff", "a", "b", *["--store", store] * 3]) == 2
    assert "--store: must be one for both sides, or A's and B's" in capfd.readouterr().err

    assert main.main(["report", "theirs", "--store", theirs]) == 0
    assert "tracking store alone" in Path("theirs-report.html").read_text()
    assert main.main(["report", "theirs", "--store", store]) == 2
    assert not Path("none.db").exists()


def test_a_store_that_was_lost_and_restored_tells_the_same_has_its_report_and_takes_more(
    store: str, tmp_path: Path
) -> None:
    whole = record()
    tracking.sync(whole)
    Path("report.html").write_text("found")
    tracking.attach(whole.facts, Path("report.html"), description.Conclusion("## Found", "[]"))
    told = query.trials("small")
    assert main.main(["backup", "it.tgz"]) == 0
    tracking.sync(record("later"))
    for path in tmp_path.iterdir():
        if path.name != "it.tgz":
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    assert main.main(["restore", "it.tgz"]) == 0
    pd.testing.assert_frame_equal(query.trials("small"), told)
    pd.testing.assert_frame_equal(as_mlflow_says(), told)
    (own,) = (run for run in MlflowClient().search_runs([experiment("small")]) if run.info.run_name == "small")
    (page,) = (file.path for file in MlflowClient().list_artifacts(own.info.run_id) if file.path.endswith(".html"))
    assert Path(MlflowClient().download_artifacts(own.info.run_id, page, str(tmp_path))).read_text() == "found"
    with pytest.raises(InputError, match="later"):
        query.trials("later")
    tracking.sync(record("later"))
    assert len(query.trials("later")) == 8


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


def test_of_a_store_that_does_not_tell_the_nodes_that_is_said_and_a_sync_tells_them(store: str) -> None:
    older = record()
    tracking.sync(older)
    found = stored.read("small")
    assert found.facts.nodes == ()
    assert "Planned for no nodes: an earlier version stored it" in " ".join(findings.find(found).lines())
    facts = dataclasses.replace(older.facts, nodes=(Node("a", 4, 0),))
    tracking.sync(dataclasses.replace(older, facts=facts), description.Conclusion("## Found", "[]"))
    assert query.sweep("small")["nodes"] == (Node("node-0", 4, 0),)


def experiment(name: str) -> str:
    return str(MlflowClient().get_experiment_by_name(name).experiment_id)


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


def test_sweeps_of_several_stores(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking.sync(record())
    other = f"sqlite:///{tmp_path / 'other.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
    tracking.sync(record("elsewhere"))
    found = query.trials(["small", "elsewhere"], store=[store, other])
    assert found.groupby(["store", "sweep"], observed=True).size().to_dict() == {
        (store, "small"): 8,
        (other, "elsewhere"): 8,
    }
    assert [*query.list_sweeps(store=[store, other])["sweep"]] == ["small", "elsewhere"]


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


def test_a_store_lies_in_a_folder_of_any_name(
    blank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (folder := tmp_path / "my stüdy (1) #2").mkdir()
    monkeypatch.chdir(folder)
    tracking.sync(record())
    assert (folder / "mlflow.db").is_file()
    assert len(query.trials("small")) == 8
    assert main.main(["list"]) == 0
    assert "small" in capfd.readouterr().out


def test_earlier_measurements_are_found_by_cell(store: str) -> None:
    small = record(_0=TrialOutcome(status="failed", kind="raised", message="no"))
    tracking.sync(small)
    cells = {trial.config.cell for trial in small.trials[:3]}
    found = query.finished(cells)
    expected = [trial for trial in small.trials if trial.config.cell in cells and trial.outcome.status == "completed"]
    assert [row["trial"] for row in found] == [trial.config.trial for trial in expected]
    assert found[0]["figures"] == pytest.approx(rows.metrics(expected[0]))
    assert query.finished({"none"}) == []
    simulated = dataclasses.replace(small.facts, name="like it", id="another", simulated="nodes=1,gpus=2,gpu=v100")
    tracking.sync(dataclasses.replace(small, facts=simulated))
    assert len(query.finished(cells)) == len(expected), "nothing of it was measured"


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


def test_the_page_of_an_unknown_sweep_is_refused_with_the_near_names(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tracking.sync(record())
    assert main.main(["ui", "smal"]) == 2
    assert "must hold a sweep of that name (did you mean small?), but got smal" in capsys.readouterr().err
