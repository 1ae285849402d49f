"""MLflow's tables read by SQL: a tenth and less of what its own search takes. Reads only.

`runs`, `tags`, `params`, `metrics` and `latest_metrics` have kept these columns since 2019. A store that has others
raises `UnlikeError`, and is asked through MLflow instead.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sweeps.record import rows
from sweeps.store.tabular import METRICS, PARAMS, TAGS, Columns, Run

if TYPE_CHECKING:
    import pyarrow as pa

SQLITE = "sqlite:///"
SERVERS = ("postgresql", "mysql")
FETCH = 5000  # rows at a time
ASK = 500  # runs in one statement
TICK_S = 0.1  # that a file system may take two writes for one
MANY = 0.2  # of all runs: from there on whole tables are read faster than run by run
NUMBER = "CASE WHEN is_nan THEN NULL ELSE value END"
OURS = "SELECT run_uuid FROM tags WHERE {key} = 'sweep.name'"


class UnlikeError(Exception):
    """The store's tables are not those that are known here, or can't be read past MLflow."""


class Marks(NamedTuple):
    """How far an SQLite store had grown. From `params` and `metrics` no row goes but with its run."""

    schema: int  # moves when the file is rewritten or MLflow upgrades it
    runs: int
    last_run: tuple[int, str]
    params: int
    metrics: int


class Database(Protocol):
    key: str  # the column's name, which is a word of SQL in some

    def rows(self, statement: str) -> Iterator[Sequence[Any]]: ...
    def token(self) -> str:
        """The same as long as nothing was written; empty where that can't be told."""

    def marks(self) -> Marks | None: ...
    def grown(self, since: Marks) -> set[str] | None:
        """The runs that got parameters or metrics since; None where that can't be told."""


class Sqlite:
    key = "key"

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        connection.execute("BEGIN")  # one state of the store for all that is read

    def rows(self, statement: str) -> Iterator[Sequence[Any]]:
        return self._connection.execute(statement)

    def token(self) -> str:
        return state(self._path)

    def marks(self) -> Marks | None:
        last = self._one("SELECT rowid, run_uuid FROM runs ORDER BY rowid DESC LIMIT 1") or (0, "")
        return Marks(
            schema=self._one("PRAGMA schema_version")[0],
            runs=self._one("SELECT count(*) FROM runs")[0],
            last_run=(last[0], last[1]),
            params=self._one("SELECT max(rowid) FROM params")[0] or 0,
            metrics=self._one("SELECT max(rowid) FROM metrics")[0] or 0,
        )

    def grown(self, since: Marks) -> set[str] | None:
        at, run = since.last_run
        there = self._one(f"SELECT count(*), max(CASE rowid WHEN {at} THEN run_uuid END) FROM runs WHERE rowid <= {at}")
        if self._one("PRAGMA schema_version")[0] != since.schema or there != (since.runs, run):
            return None  # rows were taken away for good: their numbers are given again
        found: set[str] = set()
        for table, mark in (("params", since.params), ("metrics", since.metrics)):
            found |= {row[0] for row in self.rows(f"SELECT DISTINCT run_uuid FROM {table} WHERE rowid > {mark}")}
        return found

    def _one(self, statement: str) -> Any:
        return self._connection.execute(statement).fetchone()


def state(path: Path) -> str:
    """Of an SQLite file and its write-ahead log; empty where it was written so lately that a clock can't tell two
    writes apart.

    By their times and sizes alone. Never open these files beside SQLite: closing them takes the locks of the whole
    process away, and with them what keeps its writers from destroying the file.
    """
    said = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            stat = file.stat()
            if stat.st_mtime > time.time() - TICK_S:
                return ""
            if stat.st_size or file == path:
                said += [stat.st_ino, stat.st_mtime_ns, stat.st_size]
    return ",".join(map(str, said))


class Server:
    """A database server, by the driver that its URI names."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        dialect = connection.engine.dialect
        self.key = dialect.identifier_preparer.quote_identifier("key")
        self._is_postgresql = dialect.name == "postgresql"

    def rows(self, statement: str) -> Iterator[Sequence[Any]]:
        result = self._connection.execution_options(stream_results=True).exec_driver_sql(statement)
        return itertools.chain.from_iterable(result.partitions(FETCH))

    def token(self) -> str:
        """What a PostgreSQL transaction sees follows from its snapshot; the others have no such thing."""
        if not self._is_postgresql:
            return ""
        asked = "SELECT oid, txid_current_snapshot() FROM pg_database WHERE datname = current_database()"
        return " ".join(map(str, next(self.rows(asked))))

    def marks(self) -> Marks | None:
        return None

    def grown(self, since: Marks) -> set[str] | None:
        return None


def is_database(uri: str) -> bool:
    return uri.startswith((SQLITE, *SERVERS))


@contextlib.contextmanager
def connected(uri: str) -> Iterator[Database]:
    """Raises `UnlikeError` for whatever the database or its driver says, `ConnectionError` where no server is there."""
    try:
        if uri.startswith(SQLITE):
            with contextlib.closing(sqlite3.connect(file_of(uri), timeout=20, isolation_level=None)) as connection:
                yield Sqlite(file_of(uri), connection)
            return
        with _reached(uri) as server:
            yield Server(server)
    except ConnectionError:
        raise
    except (sqlite3.Error, OSError, ImportError) as error:
        raise UnlikeError(error) from error
    except Exception as error:
        if type(error).__module__.startswith("sqlalchemy"):
            raise UnlikeError(error) from error
        raise


def _reached(uri: str) -> Any:
    """A server that does not answer says so at once; MLflow would try for two minutes."""
    from sqlalchemy.exc import OperationalError

    engine = _engine(uri)
    try:
        return engine.connect()
    except OperationalError as error:
        raise ConnectionError(str(error.orig)) from None


@functools.cache
def _engine(uri: str) -> Any:
    import sqlalchemy

    return sqlalchemy.create_engine(uri, isolation_level="REPEATABLE READ", pool_pre_ping=True)


def file_of(uri: str) -> Path:
    from urllib.parse import unquote

    return Path(unquote(uri.removeprefix(SQLITE).split("?")[0])).absolute()


def runs(database: Database) -> list[Run]:
    """Those of sweeps, that are not deleted."""
    ours = OURS.format(key=database.key)
    found = database.rows(
        "SELECT r.run_uuid, e.name, r.status, r.start_time, r.end_time"
        " FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id"
        " WHERE r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active'"
        f" AND r.run_uuid IN ({ours})"
    )
    return [Run(*row) for row in found]


def tags(database: Database, of: Sequence[Run]) -> pa.Table:
    """The runs with their tags, as they are now: nothing in the store says when a tag changed."""
    columns = Columns(of)
    columns.texts(
        "tag", database.rows(f"SELECT run_uuid, {database.key}, value FROM tags WHERE {_among(database, TAGS)}")
    )
    return columns.table()


def values(database: Database, of: Sequence[Run]) -> pa.Table:
    """The runs with their parameters and figures."""
    columns = Columns(of)
    total = next(database.rows("SELECT count(*) FROM runs"))[0]
    if len(of) > MANY * total:
        parts = [""]
    else:
        chunks = [of[n : n + ASK] for n in range(0, len(of), ASK)]
        parts = [f" AND run_uuid IN ({_listed([run.run for run in chunk])})" for chunk in chunks]
    own = f"({_among(database, PARAMS)} OR {_begins(database, rows.VARIABLE)})"
    figure = f"({_among(database, METRICS)} OR {_begins(database, rows.SYSTEM)})"
    for part in parts:
        columns.texts("param", database.rows(f"SELECT run_uuid, {database.key}, value FROM params WHERE {own}{part}"))
        columns.figures(
            database.rows(f"SELECT run_uuid, {database.key}, {NUMBER} FROM latest_metrics WHERE {figure}{part}")
        )
    return columns.table()


def series(database: Database, run: str, key: str) -> list[tuple[int, int, float]]:
    """Step, time in ms and value of one metric of a run."""
    found = database.rows(
        f"SELECT step, timestamp, {NUMBER} FROM metrics WHERE run_uuid = {_text(run)} AND {database.key} = {_text(key)}"
    )
    return sorted((step, at, math.nan if value is None else value) for step, at, value in found)


def metric_names(database: Database, run: str) -> list[str]:
    return [row[0] for row in database.rows(f"SELECT {database.key} FROM latest_metrics WHERE run_uuid = {_text(run)}")]


def _among(database: Database, names: Collection[str]) -> str:
    return f"{database.key} IN ({_listed(names)})"


def _begins(database: Database, prefix: str) -> str:
    return f"substr({database.key}, 1, {len(prefix)}) = {_text(prefix)}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(_text, names))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
