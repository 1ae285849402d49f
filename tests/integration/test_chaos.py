"""The driver is killed again and again, at any instant, and the sweep comes out whole."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.record import ledger
from tests.integration.clusters import Cluster, eventually, said

pytestmark = pytest.mark.alone

SWEEP = """
name: chaos
model: tiny
device: cpu
image_size: 32
classes: 10
space: {{batch_size: {{range: [1, {sizes}]}}, gpus: [1, 2], precision: fp32}}
repeats: 1
steps: {{warmup: 1, measured: 3}}
explain: false
probe_every_min: 0
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(cpus=2)
    yield made
    made.close()


def instants(kills: int, seed: int) -> list[tuple[int, float]]:
    """When to kill: so many trials after the start, and then so many seconds.

    A third while a driver starts, a third as a trial's end goes to the ledger and to MLflow, a third in mid-trial.
    """
    draw = random.Random(seed)
    kinds = [lambda: (0, draw.uniform(0, 8)), lambda: (1, draw.uniform(0, 0.1)), lambda: (1, draw.uniform(0.1, 1.5))]
    made = [kinds[n % len(kinds)]() for n in range(kills)]
    draw.shuffle(made)
    return made


@pytest.mark.timeout(1800)
@pytest.mark.long  # tests/integration/test_sweep.py kills a driver once
@pytest.mark.parametrize(("kills", "sizes"), [(3, 6), (16, 20)])
def test_a_driver_that_is_killed_again_and_again_loses_and_doubles_nothing(
    workplace: Path, cluster: Cluster, kills: int, sizes: int
) -> None:
    """Fifty times, but without Ray, ranks and MLflow: tests/unit/test_in_process.py."""
    (workplace / "mlflow.db").unlink()  # drivers are killed while MLflow makes it, too
    (workplace / "chaos.yaml").write_text(SWEEP.format(sizes=sizes))
    before = {process.pid for process in cluster.processes()}
    for trials, seconds in instants(kills, seed=5):
        driver = started(cluster)
        wait_for(trials, driver)
        time.sleep(seconds)
        driver.send_signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL, said()
    ended = started(cluster)
    assert ended.wait() == 0, said()

    lines = [line for line in Path("results/chaos/ledger.jsonl").read_text().splitlines() if '"kind":"trial"' in line]
    record = ledger.read("chaos")
    planned = [config.trial for config in record.facts.trials]
    assert len(lines) == len(planned) == 2 * sizes
    assert sorted(trial.config.trial for trial in record.trials) == sorted(planned)
    assert Counter(trial.outcome.status for trial in record.trials) == {"completed": len(planned)}

    with sqlite3.connect("mlflow.db") as store:
        tagged = "SELECT tags.value FROM runs JOIN tags USING (run_uuid) WHERE tags.key = 'sweep.trial'"
        assert sorted(trial for (trial,) in store.execute(tagged)) == sorted(planned)
        statuses = "SELECT status, count(*) FROM runs GROUP BY status"
        assert store.execute(statuses).fetchall() == [("FINISHED", len(planned) + 1)]

    assert eventually(lambda: {process.pid for process in cluster.processes()} <= before), cluster.processes()
    assert eventually(lambda: cluster.placement_groups() == 0)
    assert cluster.ask("ray.available_resources()")["CPU"] == 2


def started(cluster: Cluster) -> subprocess.Popen[bytes]:
    """A driver: one that goes on, or the first, and another first where that one was killed before it had begun."""
    try:
        is_begun = b"\n" in Path("results/chaos/ledger.jsonl").read_bytes()
    except OSError:
        is_begun = False
    return cluster.driver("resume", "chaos") if is_begun else cluster.driver("run", "chaos.yaml")


def wait_for(trials: int, driver: subprocess.Popen[bytes]) -> None:
    """Until so many more stand in the ledger."""
    wanted = ended() + trials
    while ended() < wanted and driver.poll() is None:
        time.sleep(0.005)


def ended() -> int:
    try:
        return Path("results/chaos/ledger.jsonl").read_bytes().count(b'{"kind":"trial"')
    except OSError:
        return 0
