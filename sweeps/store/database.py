"""MLflow's tables read by SQL: a tenth and less of what its own search takes. Reads only.

SQLAlchemy writes the statements, each value a bound parameter; loaded where a store is opened, for it takes a while.

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
from collections.abc import Iterator, Sequence
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
OF_A_RUN = ("rowid", "run_uuid", "key", "value")  # columns of every table but the experiments'
COLUMNS = {
    "experiments": ("experiment_id", "name", "lifecycle_stage"),
    "runs": ("rowid", "run_uuid", "experiment_id", "status", "start_time", "end_time", "lifecycle_stage"),
    "tags": OF_A_RUN,
    "params": OF_A_RUN,
    "metrics": (*OF_A_RUN, "step", "timestamp"),
    "latest_metrics": OF_A_RUN,
}


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
    def rows(self, statement: Any) -> Iterator[Sequence[Any]]:
        """Yield what a statement of SQLAlchemy's selects."""

    def token(self) -> str:
        """Return what stays the same as long as nothing was written; empty where that can't be told."""

    def marks(self) -> Marks | None: ...
    def grown(self, since: Marks) -> set[str] | None:
        """Return the runs that got parameters or metrics since; None where that can't be told."""


class Sqlite:
    def __init__(self, path: Path, connection: Any) -> None:
        self._path = path
        self._connection = connection
        connection.exec_driver_sql("BEGIN")  # one state of the store for all that is read

    def rows(self, statement: Any) -> Iterator[Sequence[Any]]:
        """Past SQLAlchemy's own rows, which would double the time that a large store takes."""
        result = self._connection.execute(statement)
        yield from result.cursor

    def token(self) -> str:
        return state(self._path)

    def marks(self) -> Marks | None:
        from sqlalchemy import func, select

        runs, params, metrics = table("runs"), table("params"), table("metrics")
        last = self._first_row(select(runs.c.rowid, runs.c.run_uuid).order_by(runs.c.rowid.desc()).limit(1)) or (0, "")
        return Marks(
            schema=self._schema(),
            runs=self._first_row(select(func.count()).select_from(runs))[0],
            last_run=(last[0], last[1]),
            params=self._first_row(select(func.max(params.c.rowid)))[0] or 0,
            metrics=self._first_row(select(func.max(metrics.c.rowid)))[0] or 0,
        )

    def grown(self, since: Marks) -> set[str] | None:
        from sqlalchemy import case, func, select

        at, run = since.last_run
        runs = table("runs")
        last = func.max(case((runs.c.rowid == at, runs.c.run_uuid)))
        there = self._first_row(select(func.count(), last).where(runs.c.rowid <= at))
        if self._schema() != since.schema or tuple(there) != (since.runs, run):
            return None  # rows were taken away for good: their numbers are given again
        found: set[str] = set()
        for of, mark in ((table("params"), since.params), (table("metrics"), since.metrics)):
            found |= {row[0] for row in self.rows(select(of.c.run_uuid).distinct().where(of.c.rowid > mark))}
        return found

    def _schema(self) -> int:
        return int(self._connection.exec_driver_sql("PRAGMA schema_version").scalar())

    def _first_row(self, statement: Any) -> Any:
        return self._connection.execute(statement).first()


def state(path: Path) -> str:
    """Return the state of an SQLite file and its write-ahead log; empty where it was written so lately that a clock
    can't tell two writes apart.

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

    def rows(self, statement: Any) -> Iterator[Sequence[Any]]:
        result = self._connection.execution_options(stream_results=True).execute(statement)
        return itertools.chain.from_iterable(result.partitions(FETCH))

    def token(self) -> str:
        """Return what follows from the snapshot that a PostgreSQL transaction sees; the others have no such thing."""
        if self._connection.engine.dialect.name != "postgresql":
            return ""
        asked = "SELECT oid, txid_current_snapshot() FROM pg_database WHERE datname = current_database()"
        return " ".join(map(str, self._connection.exec_driver_sql(asked).first()))

    def marks(self) -> Marks | None:
        return None

    def grown(self, since: Marks) -> set[str] | None:
        return None


def is_database(uri: str) -> bool:
    return uri.startswith((SQLITE, *SERVERS))


@contextlib.contextmanager
def connected(uri: str) -> Iterator[Database]:
    """Connect to it; raises `UnlikeError` for whatever the database or its driver says, `ConnectionError` where no
    server is there."""
    try:
        if uri.startswith(SQLITE):
            with _engine(uri).connect() as connection:
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
    """Connect to a server, which says at once if it does not answer; MLflow would try for two minutes."""
    from sqlalchemy.exc import OperationalError

    engine = _engine(uri)
    try:
        return engine.connect()
    except OperationalError as error:
        raise ConnectionError(str(error.orig)) from None


@functools.cache
def _engine(uri: str) -> Any:
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    if uri.startswith(SQLITE):  # a file is opened for a moment, and never kept
        opened = functools.partial(sqlite3.connect, file_of(uri), timeout=20, isolation_level=None)
        return sqlalchemy.create_engine("sqlite://", creator=opened, poolclass=NullPool)
    return sqlalchemy.create_engine(uri, isolation_level="REPEATABLE READ", pool_pre_ping=True)


def file_of(uri: str) -> Path:
    from urllib.parse import unquote

    return Path(unquote(uri.removeprefix(SQLITE).split("?")[0])).absolute()


@functools.cache
def table(name: str) -> Any:
    """Return a table of MLflow's, with those of its columns that are read."""
    import sqlalchemy

    flags = [sqlalchemy.column("is_nan", sqlalchemy.Boolean)] if name in ("metrics", "latest_metrics") else []
    return sqlalchemy.table(name, *map(sqlalchemy.column, COLUMNS[name]), *flags)


def runs(database: Database) -> list[Run]:
    """Return the runs of sweeps that are not deleted."""
    from sqlalchemy import select

    run, experiment, tag = table("runs").c, table("experiments").c, table("tags").c
    ours = select(tag.run_uuid).where(tag["key"] == "sweep.name")
    found = database.rows(
        select(run.run_uuid, experiment.name, run.status, run.start_time, run.end_time)
        .where(run.experiment_id == experiment.experiment_id)
        .where(run.lifecycle_stage == "active", experiment.lifecycle_stage == "active")
        .where(run.run_uuid.in_(ours))
    )
    return [Run(*row) for row in found]


def tags(database: Database, of: Sequence[Run]) -> pa.Table:
    """Return the runs with their tags, as they are now: nothing in the store says when a tag changed."""
    from sqlalchemy import select

    tag = table("tags").c
    columns = Columns(of)
    columns.texts("tag", database.rows(select(tag.run_uuid, tag["key"], tag.value).where(tag["key"].in_(TAGS))))
    return columns.table()


def values(database: Database, of: Sequence[Run]) -> pa.Table:
    """Return the runs with their parameters and figures."""
    from sqlalchemy import func, or_, select

    columns = Columns(of)
    (total,) = next(database.rows(select(func.count()).select_from(table("runs"))))
    param, metric = table("params").c, table("latest_metrics").c
    texts = select(param.run_uuid, param["key"], param.value).where(
        param["key"].in_(PARAMS) | _begins(param["key"], rows.VARIABLE) | _begins(param["key"], rows.OWN)
    )
    figures = select(metric.run_uuid, metric["key"], _number(metric)).where(
        or_(metric["key"].in_(METRICS), *(_begins(metric["key"], one) for one in (rows.SYSTEM, *rows.OF_SCRIPTS)))
    )
    if len(of) > MANY * total:
        columns.texts("param", database.rows(texts))
        columns.figures(database.rows(figures))
    else:
        for n in range(0, len(of), ASK):
            some = [run.run for run in of[n : n + ASK]]
            columns.texts("param", database.rows(texts.where(param.run_uuid.in_(some))))
            columns.figures(database.rows(figures.where(metric.run_uuid.in_(some))))
    return columns.table()


def series(database: Database, run: str, key: str) -> list[tuple[int, int, float]]:
    """Step, time in ms and value of one metric of a run."""
    from sqlalchemy import select

    metric = table("metrics").c
    asked = select(metric.step, metric.timestamp, _number(metric))
    found = database.rows(asked.where(metric.run_uuid == run, metric["key"] == key))
    return sorted((step, at, math.nan if value is None else value) for step, at, value in found)


def metric_names(database: Database, run: str) -> list[str]:
    from sqlalchemy import select

    metric = table("latest_metrics").c
    return [row[0] for row in database.rows(select(metric["key"]).where(metric.run_uuid == run))]


def _number(metric: Any) -> Any:
    """Return its value; none where it is not a number."""
    from sqlalchemy import case, null

    return case((metric.is_nan, null()), else_=metric.value)


def _begins(column: Any, prefix: str) -> Any:
    from sqlalchemy import func

    return func.substr(column, 1, len(prefix)) == prefix
