"""A columnar copy of what a tracking store holds of sweeps: Parquet beside it, to be thrown away at any time.

MLflow stays the truth. The copy is taken as it is only where the store says that nothing was written since; else runs
and tags are read again, because nothing says when a tag changed, and parameters and figures of those runs that are
new or have grown. A store that can't tell is read whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.store import database
from sweeps.store.database import Database, Marks
from sweeps.store.tabular import METRICS, PARAMS, TAGS
from workers.contract.paths import results_root, written_whole

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 2
KNOWS = hashlib.sha256(repr((VERSION, TAGS, PARAMS, METRICS)).encode()).hexdigest()[:16]  # what a copy holds


def read(uri: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the runs of sweeps in a database, as they are now; of these columns, if they are given.

    Raises `database.UnlikeError` where it can't be read past MLflow.
    """
    path = file_of(uri)
    if uri.startswith(database.SQLITE):  # without so much as opening it
        token = database.state(database.file_of(uri))
        if token and (known := _load(path, token, columns)) is not None:
            return known
    with database.connected(uri) as store:
        token = store.token()
        if token and not uri.startswith(database.SQLITE) and (known := _load(path, token, columns)) is not None:
            return known
        marks = store.marks()
        table = _updated(store, path)
    with contextlib.suppress(OSError):  # a copy is a convenience
        _save(table, path, token, marks)
    there = set(table.column_names)
    return table if columns is None else table.select([name for name in columns if name in there])


def forget(uri: str) -> None:
    """Forget the copy: the next reading starts from nothing."""
    with contextlib.suppress(OSError):
        file_of(uri).unlink(missing_ok=True)


def file_of(uri: str) -> Path:
    if uri.startswith(database.SQLITE):
        store = database.file_of(uri)
        return store.with_name(f"{store.name}-trials.parquet")
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    return results_root() / ".stores" / f"{digest}.parquet"


def _updated(store: Database, path: Path) -> pa.Table:
    """Return the store's runs, with what still holds of the copy."""
    import pyarrow as pa

    runs = database.runs(store)
    marks = _marks(path)
    grown = store.grown(marks) if marks else None
    old = _load(path) if grown is not None else None
    if old is None or grown is None:
        return _joined(database.tags(store, runs), database.values(store, runs))
    known = {run: n for n, run in enumerate(old["run"].to_pylist()) if run not in grown}
    kept = [run for run in runs if run.run in known]
    fresh = [run for run in runs if run.run not in known]
    columns = [name for name in old.column_names if name.startswith(("param:", "metric:"))]
    still = old.select(["run", *columns]).take(pa.array([known[run.run] for run in kept], pa.int64()))
    both = pa.concat_tables([still, database.values(store, fresh)], promote_options="default")
    return _joined(database.tags(store, [*kept, *fresh]), both)


def _joined(tags: pa.Table, values: pa.Table) -> pa.Table:
    """Tables of the same runs in the same order."""
    for name in values.column_names:
        if ":" in name:
            tags = tags.append_column(name, values[name])
    return tags


def _load(path: Path, token: str = "", columns: Sequence[str] | None = None) -> pa.Table | None:
    """Return the copy; None where there is none, or not of this token."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            said = _header(file)
            if said.get("knows") != KNOWS or (token and said["token"] != token):
                return None
            there = set(file.schema_arrow.names)
            return file.read(columns if columns is None else [name for name in columns if name in there])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def _marks(path: Path) -> Marks | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            said = _header(file)
            marks = said["marks"] if said["knows"] == KNOWS else None
            return Marks(**marks | {"last_run": tuple(marks["last_run"])}) if marks else None
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        return None


def _header(file: Any) -> dict[str, Any]:
    return dict(json.loads(file.schema_arrow.metadata[b"sweeps"]))


def _save(table: pa.Table, path: Path, token: str, marks: Marks | None) -> None:
    import pyarrow.parquet as pq

    said = {"knows": KNOWS, "token": token, "marks": marks._asdict() if marks else None}
    table = table.replace_schema_metadata({"sweeps": json.dumps(said)})
    with written_whole(path) as partial:
        pq.write_table(table, partial, compression="zstd", use_dictionary=[], write_statistics=False)
