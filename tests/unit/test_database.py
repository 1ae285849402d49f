"""MLflow's tables read by SQL: whatever a name holds it is a value, and no statement is put together of texts."""

from __future__ import annotations

import ast
import contextlib
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.store import database
from sweeps.store.database import Database, UnlikeError
from tests.unit import sources

ROOT = Path(__file__).parents[2]
HOSTILE = "it's' OR '1'='1 -- \\' :name %s"
SCHEMA = """
CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT);
CREATE TABLE runs (run_uuid TEXT PRIMARY KEY, experiment_id INTEGER, status TEXT, start_time INTEGER, end_time INTEGER,
                   lifecycle_stage TEXT);
CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
CREATE TABLE metrics (key TEXT, value DOUBLE, step INTEGER, timestamp INTEGER, is_nan BOOLEAN, run_uuid TEXT);
CREATE TABLE latest_metrics (key TEXT, value DOUBLE, is_nan BOOLEAN, run_uuid TEXT);
INSERT INTO experiments VALUES (1, 'here', 'active'), (2, 'gone', 'deleted');
"""


def add(store: sqlite3.Connection, run: str, experiment: int = 1, tag: str = "sweep.name") -> None:
    store.execute("INSERT INTO runs VALUES (?, ?, 'FINISHED', 1, 2, 'active')", (run, experiment))
    store.execute("INSERT INTO tags VALUES (?, 'small', ?)", (tag, run))
    store.execute("INSERT INTO params VALUES ('batch_size', '32', ?), ('env.A', ?, ?)", (run, HOSTILE, run))
    for key, value, is_nan in (("step/ms", 4.0, 0), (HOSTILE, 5.0, 0), (f"{HOSTILE}?", 0.0, 1)):
        store.execute("INSERT INTO metrics VALUES (?, ?, 7, 8, ?, ?)", (key, value, is_nan, run))
        store.execute("INSERT INTO latest_metrics VALUES (?, ?, ?, ?)", (key, value, is_nan, run))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(path)) as store:
        store.executescript(SCHEMA)
        add(store, "one")
        add(store, HOSTILE)
        add(store, "of another program", tag="other.name")
        add(store, "of a deleted experiment", experiment=2)
        store.commit()
    return path


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Database]:
    with database.connected(f"sqlite:///{file}") as store:
        yield store


def test_the_runs_of_sweeps_are_found_with_their_tags_and_parameters(file: Path) -> None:
    with opened(file) as store:
        runs = database.runs(store)
        assert {(run.run, run.experiment, run.status, run.ended_ms) for run in runs} == {
            ("one", "here", "FINISHED", 2),
            (HOSTILE, "here", "FINISHED", 2),
        }
        assert database.tags(store, runs)["tag:sweep.name"].to_pylist() == ["small", "small"]
        table = database.values(store, runs)
        assert table["param:batch_size"].to_pylist() == ["32", "32"]
        assert table["param:env.A"].to_pylist() == [HOSTILE, HOSTILE]


def test_of_a_few_runs_among_many_only_theirs_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MANY", 2.0)
    monkeypatch.setattr(database, "ASK", 1)
    with opened(file) as store:
        table = database.values(store, database.runs(store))
    assert {*table["run"].to_pylist()} == {"one", HOSTILE}
    assert table["param:env.A"].to_pylist() == [HOSTILE, HOSTILE]


def test_a_run_and_a_metric_are_values_whatever_they_hold(file: Path) -> None:
    with opened(file) as store:
        assert database.series(store, HOSTILE, HOSTILE) == [(7, 8, 5.0)]
        assert database.series(store, "one", "x' OR '1'='1") == []
        assert math.isnan(database.series(store, "one", f"{HOSTILE}?")[0][2])
        assert sorted(database.metric_names(store, HOSTILE)) == sorted(["step/ms", HOSTILE, f"{HOSTILE}?"])
        assert database.metric_names(store, "x' OR '1'='1") == []


def test_what_has_grown_since_is_told_and_nothing_where_runs_went(file: Path) -> None:
    with opened(file) as store:
        marks = store.marks()
        assert marks is not None
        assert store.grown(marks) == set()
    with contextlib.closing(sqlite3.connect(file)) as other:
        other.execute("INSERT INTO params VALUES ('gpus', '2', 'one')")
        other.commit()
    with opened(file) as store:
        assert store.grown(marks) == {"one"}
    with contextlib.closing(sqlite3.connect(file)) as other:
        other.execute("DELETE FROM runs WHERE run_uuid = 'one'")
        other.commit()
    with opened(file) as store:
        assert store.grown(marks) is None


def test_one_state_of_the_store_is_read_though_another_writes(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        with opened(file) as store:
            assert len(database.runs(store)) == 2
            add(other, "late")
            other.commit()
            assert len(database.runs(store)) == 2
        with opened(file) as store:
            assert len(database.runs(store)) == 3


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough to be taken for one" * 20])
def test_a_file_without_mlflow_s_tables_is_unlike(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)
    with pytest.raises(UnlikeError), opened(tmp_path / "mlflow.db") as store:
        database.runs(store)


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").rglob("*.py")), ids=lambda path: path.stem)
def test_no_statement_is_put_together_of_texts(path: Path) -> None:
    """What is run as SQL is a statement of SQLAlchemy's, or one text of the file's own without a place for a value."""
    for node in sources.nodes(path):
        if isinstance(node, (ast.JoinedStr, ast.BinOp)):
            texts = [
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            words = ("SELECT ", " FROM ", "INSERT ", "DELETE FROM", " WHERE ", "PRAGMA ")
            assert not [text for text in texts if any(word in text for word in words)], ast.unparse(node)
