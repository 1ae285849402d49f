"""What goes wrong around a sweep, and what it comes to: its ranks, Ray's head, the ledger, a second driver, no room."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sweeps.record import ledger
from tests.integration import bad_ranks
from tests.integration.clusters import Cluster, eventually, said
from tests.integration.test_sweep import planted
from workers.contract.ranks import Beat

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]

SWEEP = """
name: small
model: tiny
device: cpu
image_size: 32
classes: 10
explain: false
probe_every_min: 0
"""
LONG = SWEEP + "steps: {warmup: 1, measured: 600}\n"
SHORT = SWEEP + "steps: {warmup: 1, measured: 3}\n"


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    made = Cluster(cpus=2)
    yield made
    made.close()


@pytest.fixture
def cluster(node: Cluster, workplace: Path) -> Iterator[Cluster]:
    before = {process.pid for process in node.processes()}
    yield node
    assert eventually(lambda: {process.pid for process in node.processes()} <= before), node.processes()
    assert eventually(lambda: node.placement_groups() == 0)


def entries(kind: str, sweep: str = "small") -> list[dict[str, object]]:
    """Return the entries of a sweep's ledger."""
    lines = Path(f"results/{sweep}/ledger.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def stored(question: str) -> list[tuple[object, ...]]:
    with sqlite3.connect("mlflow.db") as store:
        return store.execute(question).fetchall()


def is_stepping(rank: psutil.Process) -> bool:
    try:
        (beat,) = [fd for fd in Path(f"/proc/{rank.pid}/fd").iterdir() if "memfd:beat" in os.readlink(fd)]
        with beat.open("r+b") as memory:
            return Beat(memory.fileno()).read()[0] == "step"
    except (OSError, ValueError):  # not yet, or not any more
        return False


def test_a_rank_that_is_killed_and_one_that_hangs_are_tried_once_more_and_meanwhile_others_are_refused(
    cluster: Cluster,
) -> None:
    Path("small.yaml").write_text(
        LONG + "space: {batch_size: [8, 16], gpus: [2, 8]}\nrepeats: 1\ndeadlines: {step_s: 3}\n"
    )
    refused = cluster.driver("run", "small.yaml")
    assert refused.wait(300) == 2
    assert "space.gpus: this cluster (2 CPUs + 0 GPUs) holds at most 2 ranks on device cpu" in said()
    assert not Path("results").exists()

    driver = cluster.driver("run", "small.yaml", "--skip-impossible")
    assert eventually(lambda: sum(map(is_stepping, cluster.ranks("head"))) == 2), said()
    cluster.ranks("head")[0].send_signal(signal.SIGKILL)
    assert eventually(lambda: ": killed" in said()), said()
    assert "2 trials are skipped" in said()
    assert eventually(lambda: sum(map(is_stepping, cluster.ranks("head"))) == 2), said()
    hangs = cluster.ranks("head")[0]
    hangs.send_signal(signal.SIGSTOP)
    assert cluster.driver("resume", "small").wait(300) == 3
    assert f"one driver at a time, but process {driver.pid} on" in said()
    assert eventually(lambda: ": stalled" in said()), said()
    assert driver.wait(300) == 0, said()
    trials = ledger.read("small").trials
    assert [(trial.outcome.status, trial.config.gpus) for trial in trials] == [("completed", 2)] * 2
    assert sum(trial.attempts for trial in trials) == 4
    assert "Traceback" not in said()


def test_a_head_that_is_killed_ends_the_driver_in_words_and_the_sweep_goes_on_with_the_next(
    node: Cluster, workplace: Path
) -> None:
    Path("small.yaml").write_text(LONG + "space: {batch_size: [8, 16], gpus: 2}\nrepeats: 1\n")
    driver = node.driver("run", "small.yaml")
    assert eventually(lambda: Path("results/small").exists() and entries("trial")), said()
    node.kill("head")
    node.start()
    assert driver.wait(300) == 3, said()
    assert f":{node.address.split(':')[1]} has gone" in said()
    assert "sweep resume small" in said()
    assert node.driver("resume", "small").wait(300) == 0, said()
    assert "Traceback" not in said()
    assert [trial.outcome.status for trial in ledger.read("small").trials] == ["completed"] * 2
    assert len(entries("trial")) == 2
    assert stored("SELECT status, count(*) FROM runs GROUP BY status") == [("FINISHED", 3)]


@pytest.mark.long  # tests/unit/test_in_process.py has it without ranks
def test_a_retry_runs_what_failed_and_nothing_else_into_the_same_runs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("small.yaml").write_text(SHORT + f"space: {{batch_size: [8, {bad_ranks.RAISES}], gpus: 2}}\nrepeats: 1\n")
    command = planted("run", "tests.integration.bad_ranks:run", cluster.address)
    ran = subprocess.run(command, env=os.environ | cluster.environment, check=False)
    assert ran.returncode == 1
    tagged = (
        "SELECT run_uuid, (SELECT value FROM tags WHERE tags.run_uuid = runs.run_uuid AND key = '{}') "
        "FROM runs JOIN params USING (run_uuid) WHERE params.key = 'batch_size' AND params.value = '901'"
    )
    ((run, outcome),) = stored(tagged.format("sweep.outcome"))
    assert outcome == "failed"

    with monkeypatch.context() as refusing:
        refusing.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/nowhere/mlflow.db")
        assert cluster.driver("retry", "small", "--status", "failed").wait(300) == 3
    assert len(ledger.read("small").trials) == 2  # what there was stays

    with Path("results/small/ledger.jsonl").open("ab") as torn:
        torn.write(b'{"kind":"trial","trial":"8')
    assert cluster.driver("retry", "small", "--status", "failed").wait(300) == 0, said()
    assert "1 trials once more" in said()
    assert Counter(line["config"]["batch_size"] for line in entries("trial")) == {8: 1, bad_ranks.RAISES: 2}
    assert {trial.outcome.status for trial in ledger.read("small").trials} == {"completed"}
    assert stored(tagged.format("sweep.outcome")) == [(run, "completed")]
    for told in ("sweep.kind", "sweep.message", "mlflow.note.content"):
        assert stored(tagged.format(told)) == [(run, "")]
    assert stored("SELECT status, count(*) FROM runs GROUP BY status") == [("FINISHED", 3)]

    assert "Traceback" not in said()


@pytest.mark.long  # tests/unit/test_gpu_hours.py has the budget, tests/cluster/test_hosts.py what is used again
def test_an_edited_file_measures_what_is_new_until_the_budget_is_spent(cluster: Cluster) -> None:
    Path("small.yaml").write_text(SHORT + "space: {batch_size: 8, gpus: 1}\nrepeats: 1\n")
    assert cluster.driver("run", "small.yaml").wait(300) == 0, said()
    (took,) = ledger.read("small").trials
    budget = f"budget: {{gpu_hours: {2.5 * took.gpu_hours}}}\n"
    Path("small.yaml").write_text(SHORT + "space: {batch_size: [8, 16], gpus: 1}\nrepeats: 30\n" + budget)
    assert cluster.driver("run", "small.yaml").wait(300) == 130, said()
    assert "nothing else fits in the budget" in said()
    trials = ledger.read("small-2").trials
    (cached,) = [trial for trial in trials if trial.outcome.kind == "cached"]
    assert (cached.config.batch_size, cached.config.repeat) == (8, 0)
    assert cached.outcome.message.startswith("cached (measured 2")
    assert cached.outcome.message.endswith(", small)")
    measured = [trial.outcome for trial in trials if trial is not cached]
    assert 0 < len(measured) < 59
    assert {(outcome.status, outcome.kind) for outcome in measured} == {("completed", "")}
