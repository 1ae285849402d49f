"""Secrets planted wherever a user has some reach the ranks that need them, and nothing that a sweep leaves or shows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sweeps.record import ledger as book
from tests.integration.clusters import Cluster, eventually, said
from tests.integration.test_tracking_server import Server
from workers.contract import redact

pytestmark = pytest.mark.timeout(300)

SWEEP = """
name: secretive
model: [tiny, dying:net]
device: cpu
image_size: 32
classes: 10
repeats: 1
space: {batch_size: 8, gpus: 2, env: {NCCL_DEBUG: WARN}}
env_from: [HF_TOKEN, SITE, TF_SITE]
steps: {warmup: 2, measured: 100}
explain: false
probe_every_min: 0
"""
DYING = """
import os, sys

def net(image_size, classes):
    print("printed by itself:", dict(os.environ), file=sys.stderr, flush=True)
    raise OSError("no entry for", dict(os.environ))
"""
IN_THE_ADDRESS = "pl4nted-address"
PLANTED = {
    name: f"pl4nted-{name.lower()}"
    for name in (
        *("HF_TOKEN", "SITE", "TF_SITE", "AWS_SECRET_ACCESS_KEY", "HOROVOD_SECRET_KEY", "TF_PASSWORD", "DB_PASSWORD"),
        *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    )
}


class Listing:
    """Looks at what `ps` shows, until it is told to stop: the secrets that were among it."""

    def __init__(self, secrets: list[str]) -> None:
        self.shown: set[str] = set()
        self._secrets, self._is_over = secrets, threading.Event()
        self._thread = threading.Thread(target=self._look)

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(0.2):
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    line = " ".join(process.cmdline())
                    self.shown |= {f"{secret}: {line}" for secret in self._secrets if secret in line}


def holding(folder: Path, secrets: list[str]) -> list[str]:
    """The files below a folder that one of these stands in."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    found = ((path, path.read_bytes()) for path in files)
    return [f"{secret}: {path}" for path, content in found for secret in secrets if secret.encode() in content]


def without_what_was_printed(log: Path) -> str:
    """What a rank's log held of the program's own, as it was; it is taken out of there."""
    lines = log.read_text().splitlines(keepends=True)
    printed = [line for line in lines if line.startswith("printed by itself:")]
    log.write_text("".join(line for line in lines if line not in printed))
    return "".join(printed)


@pytest.fixture
def server(workplace: Path) -> Iterator[Server]:
    (workplace / "mlflow.db").rename("server.db")
    made = Server()
    made.start()
    yield made
    made.kill()


def test_what_is_secret_reaches_the_rank_and_nothing_that_is_written_logged_or_listed(
    server: Server, workplace: Path, monkeypatch: pytest.MonkeyPatch, left_behind: Callable[[], list[str]]
) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri.replace("://", f"://me:{IN_THE_ADDRESS}@"))
    Path("secretive.yaml").write_text(SWEEP)
    Path("dying.py").write_text(DYING)
    with contextlib.closing(Cluster(cpus=2)) as cluster:
        token = Path(cluster.environment["RAY_AUTH_TOKEN_PATH"])
        secrets = [*PLANTED.values(), IN_THE_ADDRESS, token.read_text()]
        listing = Listing(secrets)
        with listing.looking():
            driver = cluster.driver("run", "secretive.yaml")
            try:
                assert eventually(lambda: len(cluster.ranks("head")) == 2 or driver.poll() is not None), said()
                (one, other) = [rank.environ() for rank in cluster.ranks("head")]
                Path("lacking.yaml").write_text(SWEEP.replace("HF_TOKEN", "NOWHERE"))
                refused = cluster.driver("run", "lacking.yaml")
                assert driver.wait(240) == 1, said()
                assert refused.wait(240) == 2, said()
            finally:
                driver.kill()
                driver.wait()
        for name in ("HF_TOKEN", "SITE", "TF_SITE"):
            assert one[name] == other[name] == PLANTED[name]
        kept = token.read_text()
        token.unlink()
        assert not holding(token.parent, secrets), "Ray's logs"
        token.write_text(kept)
    server.kill()
    assert "env_from: must be set on every node where Ray is started, but not on " in said()
    assert "but got NOWHERE" in said()
    printed = [without_what_was_printed(log) for log in Path("results/secretive/logs").glob("*/rank-*.log")]
    assert all(value in "".join(printed) for value in PLANTED.values()), "the rank had them all"
    assert not holding(workplace, secrets)
    assert not listing.shown
    ledger = Path("results/secretive/ledger.jsonl").read_text()
    assert f'"HF_TOKEN":"{redact.HIDDEN}"' in ledger
    assert f'"SITE":"{redact.HIDDEN}"' in ledger
    assert ledger.count(f'"TF_SITE":"{redact.HIDDEN}"') >= 2, "the node's and the ranks'"
    assert f'"HOROVOD_SECRET_KEY":"{redact.HIDDEN}"' in ledger
    assert '"NCCL_DEBUG":"WARN"' in ledger
    (failed,) = [trial.outcome for trial in book.read("secretive").trials if trial.outcome.status == "failed"]
    assert f"'HF_TOKEN': '{redact.HIDDEN}'" in failed.message
    assert not left_behind()
