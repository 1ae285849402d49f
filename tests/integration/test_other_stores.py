"""Stores that began anew, were restored, are of another version, lie elsewhere, or are read together."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from sweeps.cli import diff, main
from sweeps.errors import InputError, RefusedError
from sweeps.store import description, query, tracking
from tests.integration.stored_sweeps import as_mlflow_says, experiment, record
from tests.unit import records


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


def test_a_store_lies_in_a_folder_of_any_name(
    blank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (folder := tmp_path / "my stüdy (1) #2").mkdir()
    monkeypatch.chdir(folder)
    tracking.sync(record())
    assert (folder / "mlflow.db").is_file()
    assert len(query.trials("small")) == 8
    assert main.main(["list", "--format", "csv"]) == 0
    assert "small" in capfd.readouterr().out
