"""Finished trials written into an SQLite store by SQL, many in one transaction, in a tenth of MLflow's client's time.

The rows are the ones that MLflow's client would write; a test compares them. Their tables are as the MLflow that is
installed defines them, and it has checked that the store is of its version. What it would cut short or refuse is left
to it.
"""

from __future__ import annotations

import functools
import math
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

PLAIN = re.compile(r"\w[\w. -]*(/\w[\w. -]*)*")  # names that MLflow takes
LONGEST_NAME, LONGEST_TEXT = 250, 4000  # characters; MLflow takes texts of 5,000 and more
PATIENCE_S = 20  # with other writers
NAME, USER = "mlflow.runName", "mlflow.user"


class BulkError(Exception):
    """Nothing was written this way, for all that is known."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A trial as a run of MLflow's."""

    trial: str
    name: str
    status: str
    started_ms: int
    ended_ms: int
    tags: dict[str, str]
    params: dict[str, str]
    metrics: tuple[tuple[str, float, int], ...]  # name, value, step

    @property
    def is_plain(self) -> bool:
        """Return whether MLflow would take it as it is."""
        names = {*self.tags, *self.params, *(name for name, _, _ in self.metrics)}
        texts = [*self.tags.values(), *self.params.values()]
        return (
            len(self.name) <= LONGEST_NAME
            and all(map(_is_plain, names))
            and all(len(text) <= LONGEST_TEXT for text in texts)
        )


@functools.cache
def _is_plain(name: str) -> bool:
    return len(name) <= LONGEST_NAME and PLAIN.fullmatch(name) is not None


class Bulk:
    """An SQLite store that MLflow has opened."""

    def __init__(self, uri: str, experiment: str, artifacts: Callable[[str], str]) -> None:
        """`artifacts` gives the address of a run's."""
        import sqlalchemy
        from sqlalchemy.pool import NullPool

        self._engine = sqlalchemy.create_engine(uri, poolclass=NullPool, connect_args={"timeout": PATIENCE_S})
        self._experiment = int(experiment)
        self._artifacts = artifacts

    def write(self, entries: Sequence[Entry]) -> dict[str, str]:
        """Write all of them or none; return the new run of each trial. Raise `BulkError` where that fails, whyever:
        MLflow's client may then do it, or says better what is wrong."""
        import sqlalchemy
        from mlflow.store.tracking.dbmodels import models
        from sqlalchemy.exc import SQLAlchemyError

        runs = [(uuid.uuid4().hex, entry) for entry in entries]
        metrics = [list(_metrics(*run)) for run in runs]
        rows = {
            models.SqlRun: [self._run(*run) for run in runs],
            models.SqlTag: [row for run, entry in runs for row in _texts(run, {**entry.tags, NAME: entry.name})],
            models.SqlParam: [row for run, entry in runs for row in _texts(run, entry.params)],
            models.SqlMetric: [row for of in metrics for row in of],
            models.SqlLatestMetric: [row for of in metrics for row in _latest(of)],
        }
        is_there = sqlalchemy.select(models.SqlExperiment.lifecycle_stage).filter_by(experiment_id=self._experiment)
        try:
            with self._engine.begin() as connection:
                if connection.execute(is_there).scalar() != "active":
                    raise BulkError("the experiment was deleted")
                for model, of in rows.items():
                    if of:
                        connection.execute(sqlalchemy.insert(model), of)
        except SQLAlchemyError as error:
            raise BulkError(str(error)) from None
        return {entry.trial: run for run, entry in runs}

    def _run(self, run: str, entry: Entry) -> dict[str, Any]:
        return {
            "run_uuid": run,
            "name": entry.name,
            "artifact_uri": self._artifacts(run),
            "experiment_id": self._experiment,
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "user_id": entry.tags[USER],
            "status": entry.status,
            "start_time": entry.started_ms,
            "end_time": entry.ended_ms,
            "source_version": "",
            "lifecycle_stage": "active",
        }


def _texts(run: str, texts: dict[str, str]) -> Iterator[dict[str, Any]]:
    for key, value in texts.items():
        yield {"run_uuid": run, "key": key, "value": value}


def _metrics(run: str, entry: Entry) -> Iterator[dict[str, Any]]:
    """Yield each value once."""
    for key, step, (is_nan, value) in dict.fromkeys((key, step, _stored(value)) for key, value, step in entry.metrics):
        yield {"run_uuid": run, "key": key, "value": value, "is_nan": is_nan, "timestamp": entry.ended_ms, "step": step}


def _stored(value: float) -> tuple[bool, float]:
    """Return whether it is no number, and what stands for it in SQL, which has neither that nor infinities."""
    if math.isnan(value):
        return True, 0.0
    return False, max(-sys.float_info.max, min(float(value), sys.float_info.max))


def _latest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the row of each metric's last step."""
    last: dict[str, dict[str, Any]] = {}
    for row in rows:
        before = last.setdefault(row["key"], row)
        if (row["step"], row["value"]) > (before["step"], before["value"]):
            last[row["key"]] = row
    return list(last.values())
