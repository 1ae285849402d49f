"""A tracking server that is killed in mid-sweep and comes back: what was measured meanwhile arrives, once, in order."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sweeps.record import ledger
from sweeps.store import query
from tests.integration.clusters import eventually, free_port

pytestmark = pytest.mark.timeout(600)

SWEEP = Path(sys.executable).with_name("sweep")
JOBS = (
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"  # for language models: eight processes beside a server that nobody needs here
)
TRIALS = 10
STEPS = 200
SMALL = f"""
name: small
model: tiny
device: cpu
image_size: 32
classes: 10
space: {{batch_size: [8, 16], gpus: 1}}
repeats: {TRIALS // 2}
steps: {{warmup: 2, measured: {STEPS}}}
explain: false
probe_every_min: 0
"""


class Server:
    """MLflow's own, on a database in the current folder or on another; its address stays the same."""

    def __init__(self, store: str = "sqlite:///server.db") -> None:
        self._store = store
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        store = ["--backend-store-uri", self._store, "--artifacts-destination", "artifacts"]
        command = [sys.executable, "-m", "mlflow", "server", *store, "--workers", "1", "--port", str(self._port)]
        with open("server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | {JOBS: "false"}, stdout=log, stderr=log, start_new_session=True
            )
        assert eventually(self._answers), Path("server.log").read_text()

    def kill(self) -> None:
        """It and its workers, that have no time for a word."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture
def server(workplace: Path) -> Iterator[Server]:
    (workplace / "mlflow.db").rename("server.db")
    made = Server()
    made.start()
    yield made
    made.kill()


def stored(question: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect("server.db", timeout=20)) as store:
        return store.execute(question).fetchall()


def test_a_server_that_is_killed_in_mid_sweep_misses_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch, left_behind: Callable[[], list[str]]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    Path("small.yaml").write_text(SMALL)
    with open("driver.log", "wb") as log:
        driver = subprocess.Popen([str(SWEEP), "run", "small.yaml"], stdout=log, stderr=log)
    try:
        whole = "SELECT count(*) FROM runs JOIN tags USING (run_uuid) WHERE key = 'sweep.trial' AND status = 'FINISHED'"
        assert eventually(lambda: stored(whole)[0][0] >= 2), Path("driver.log").read_text()  # type: ignore[operator]
        server.kill()
        known = len(ledger.read("small").trials)
        assert driver.poll() is None, "the sweep was over too soon to tell anything"
        assert eventually(lambda: len(ledger.read("small").trials) > known + 1), "trials go on without it"
        assert stored(whole)[0][0] < TRIALS  # type: ignore[operator]
        server.start()
        assert driver.wait(300) == 0, Path("driver.log").read_text()
    finally:
        driver.kill()
        driver.wait()
    said = Path("driver.log").read_text()
    assert "Traceback" not in said
    assert "ledger only" not in said

    record = ledger.read("small")
    assert [trial.outcome.status for trial in record.trials] == ["completed"] * TRIALS
    assert stored("SELECT status, count(*) FROM runs GROUP BY status") == [("FINISHED", TRIALS + 1)]
    told = "SELECT value FROM runs JOIN tags USING (run_uuid) WHERE key = 'sweep.trial' ORDER BY runs.rowid"
    in_order = [(trial.config.trial,) for trial in record.trials]
    assert stored(told) == in_order, "each once, in the order they ended"
    for key in ("sweep.outcome", "sweep.cell", "sweep.hardware", "mlflow.parentRunId"):
        assert stored(f"SELECT count(*) FROM tags WHERE key = '{key}'") == [(TRIALS,)], key
    steps = stored("SELECT count(*) FROM metrics WHERE key = 'steps/step_ms' GROUP BY run_uuid")
    assert steps == [(STEPS,)] * TRIALS
    assert len(query.trials("small")) == TRIALS
    server.kill()
    assert not left_behind()
