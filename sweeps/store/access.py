"""Which tracking store is in use, MLflow's client on it, and what is said where it refuses.

A store in SQLite is prepared here before the first writer opens it: made whole, and open to many at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sweeps.errors import RefusedError
from sweeps.store import database
from sweeps.text import caller
from workers.contract.redact import masked

TIMEOUT_S = 20
TIMEOUT, RETRIES = "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"  # MLflow's own, in the environment
UNLIKE = ("out-of-date database schema", "Can't locate revision")  # says MLflow of a store of another version


def client(store: str | None = None) -> Any:
    """MLflow's client; on the store of its own rules, MLFLOW_TRACKING_URI or its default here, unless one is named."""
    # MLflow's own patience is eight minutes.
    os.environ.setdefault(RETRIES, "1")
    os.environ.setdefault(TIMEOUT, str(TIMEOUT_S))
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient

    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return MlflowClient(store)


def refused(must: str, error: Exception | str, uri: str = "") -> RefusedError:
    """Return what is said of the store in use, or of the one that was named, where that refuses."""
    is_named = uri not in ("", store_name())
    where = masked(uri) if is_named else store_name()
    another = caller.elsewhere("MLFLOW_TRACKING_URI", "choose another one with MLFLOW_TRACKING_URI")
    another = "choose another one with --store" if is_named else another
    if any(said in str(error) for said in UNLIKE):
        return RefusedError(
            f"the tracking store must be of this MLflow's version, but it says: {first_line(error).split('. ')[0]}\n"
            f"  {where}\n  an older store: back it up, then `mlflow db upgrade` and its address;"
            f" a newer one: install the MLflow that wrote it\n  {another}"
        )
    return RefusedError(f"the tracking store must {must}, but it says: {first_line(error)}\n  {where}\n  {another}")


def store_address() -> str:
    """Return the store's name as it means the same in every folder."""
    uri = store_name()
    if not uri.startswith(database.SQLITE):
        return uri
    return f"{database.SQLITE}{database.file_of(uri)}"


def store_name() -> str:
    """Return the store by MLflow's own rules, without loading MLflow, which takes seconds, where they are plain."""
    if "mlflow" not in sys.modules:
        if uri := os.environ.get("MLFLOW_TRACKING_URI"):
            return uri
        default = Path("mlflow.db").absolute()
        if default.exists() and not any(Path("mlruns").glob("*/meta.yaml")):
            return f"{database.SQLITE}{quote(str(default))}"
    import mlflow

    return str(mlflow.get_tracking_uri())


def first_line(error: Exception | str) -> str:
    """Return what a store said first, without the chain of HTTP errors before it, and without a password."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    began = line.rsplit("Caused by", 1)[-1].strip("() ")  # of a chain of HTTP errors
    return masked(began)[:300]


def prepare(uri: str) -> None:
    """Have a database of our own ready for many readers and writers; any other store is left as it is."""
    _made_whole(uri)
    _never_locked(uri)


def _made_whole(uri: str) -> None:
    """Make a new SQLite store appear at once or not at all: MLflow takes no step with one that it had half made when it
    was killed."""
    path = database.file_of(uri)
    if not uri.startswith(database.SQLITE) or path.exists():
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.touch()  # what can't be written says so at once; MLflow would try for two minutes
    try:
        client(f"{database.SQLITE}{quote(str(partial))}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):  # another sweep has just made it
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _never_locked(uri: str) -> None:
    """Let readers and writers of an SQLite store work at once, by a write-ahead log; it stays with the file.

    A file that can't be written says so here, at once; MLflow would try for two minutes.
    """
    if uri.startswith(database.SQLITE):
        with contextlib.closing(sqlite3.connect(database.file_of(uri), timeout=20)) as store:
            store.execute("PRAGMA journal_mode=WAL")
            store.execute("BEGIN IMMEDIATE")
