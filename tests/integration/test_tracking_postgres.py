"""A tracking store in PostgreSQL whose sessions are cut several times a second, and which crashes once: one run a
trial, and none left open. MLflow's server is before it, or nobody."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

from sweeps.record.ledger import SweepFacts
from sweeps.run.tracker import StoreWriter
from sweeps.store import access, tracking
from tests.beside import beside
from tests.cluster import database
from tests.cluster.database import Postgres
from tests.integration.clusters import free_port
from tests.integration.test_tracking_faults import FOUND, TRIALS, Ended, facts, held
from tests.integration.test_tracking_server import Server

psycopg = pytest.importorskip("psycopg")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("workplace"),  # the servers' log and artifacts
    pytest.mark.skipif(database.programs() is None, reason="PostgreSQL is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a PostgreSQL of the test's own is started by root as another user"),
]

AT_A_TIME = 4
CUT_EVERY_S = 0.4
DOWN_S = 2.0
PATIENCE_S = 120.0
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid != pg_backend_pid()"


class Here:
    """This machine, as a host."""

    def run(self, command: str, timeout_s: float = 60) -> str:
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=timeout_s, check=False)
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    programs = database.programs()
    assert programs
    with tempfile.TemporaryDirectory(prefix="sweep-postgres-") as folder:  # its user may pass through this one
        made = Postgres(Here(), Path(folder), programs, free_port())
        yield made
        made.crash()


@contextlib.contextmanager
def cut(postgres: Postgres) -> Iterator[list[int]]:
    """Within the block MLflow's sessions end again and again, whatever they do; how many at a time."""
    counts: list[int] = []

    def work(is_over: threading.Event) -> None:
        while not is_over.is_set():
            with (
                contextlib.suppress(psycopg.OperationalError),  # it has crashed itself
                psycopg.connect(postgres.store, autocommit=True, connect_timeout=5) as session,
            ):
                while not is_over.wait(CUT_EVERY_S):
                    counts.append(len(session.execute(CUT, [database.NAME]).fetchall()))
            is_over.wait(CUT_EVERY_S)

    with beside(work):
        yield counts


def logged(of: SweepFacts) -> list[str]:
    """As the process beside a sweep does it; what the store said when it would not."""
    give_up = time.monotonic() + PATIENCE_S
    refusals = []

    def until_it_works(write: Any, *given: Any) -> Any:
        while True:
            try:
                return write(*given)
            except Exception as error:
                refusals.append(str(error))
                assert time.monotonic() < give_up
                time.sleep(0.1)

    theirs, ours = os.pipe()
    os.write(ours, b"FINISHED\n")
    scribe = StoreWriter(until_it_works(tracking.Store, of), Ended(), theirs, retry_s=0.1, patience_s=PATIENCE_S)  # type: ignore[arg-type]
    scribe.work()
    os.close(theirs)
    os.close(ours)
    assert (scribe.left, scribe.is_closed) == (0, True), scribe.refusal
    store = until_it_works(tracking.Store, of)  # as a report is attached
    until_it_works(store.conclude, FOUND)
    return [*refusals, *filter(None, [scribe.refusal])]


@pytest.mark.parametrize("before", ["MLflow's server", "nobody"])
def test_sessions_that_are_cut_and_a_database_that_crashes_double_nothing_and_leave_nothing_open(
    postgres: Postgres, before: Literal["MLflow's server", "nobody"], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored(question: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres.store) as session:
            return session.execute(question).fetchall()

    server = Server(postgres.store) if before == "MLflow's server" else None
    if server:
        server.start()
    uri = server.uri if server else postgres.store
    monkeypatch.setattr(access, "store_name", lambda: uri)
    try:
        undisturbed = facts(f"undisturbed before {before}")
        logged(undisturbed)
        whole = held(undisturbed, stored)
        assert whole["runs"] == [("FINISHED", 1 + len(TRIALS))]
        assert len(whole["metrics"]) > 20
        is_back = threading.Event()

        def write(number: int) -> list[tuple[SweepFacts, list[str]]]:
            """One sweep after the other, until the database has crashed and is back."""
            written: list[tuple[SweepFacts, list[str]]] = []
            while not written or not is_back.is_set():
                of = facts(f"cut {number}.{len(written)} before {before}")
                written.append((of, logged(of)))
            return written

        with cut(postgres) as counts, ThreadPoolExecutor(AT_A_TIME) as pool:
            writers = [pool.submit(write, number) for number in range(AT_A_TIME)]
            time.sleep(DOWN_S)
            postgres.crash()
            time.sleep(DOWN_S)
            postgres.start()
            is_back.set()
            done = [writer.result() for writer in writers]
        assert os.environ[access.RETRIES] == "0", "of MLflow's HTTP client"
        assert sum(counts) > AT_A_TIME
        assert all(any(refusals for _, refusals in written) for written in done), "a writer was not disturbed"
        for of, _ in itertools.chain.from_iterable(done):
            assert held(of, stored) == whole, of.name
        runs = "SELECT count(*) FROM runs WHERE status != 'FINISHED' AND lifecycle_stage = 'active'"
        assert stored(runs) == [(0,)]
    finally:
        if server:
            server.kill()
