"""The examples, swept as docs/sweep-your-network.md and docs/sweep-your-script.md say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workers.contract import messages

ROOT = Path(__file__).parents[2]
BY = {"horovod_loop": "sweeps.steps", "keras_fit": "Keras' fit", "numpy_prints": "lines that it prints"}
BUILT_IN = ""  # the training that times itself

FIRST_CELLS = {  # a start takes longer than the steps do
    "horovod_loop": ["steps.measured=20", "batch_size=64", "width=256"],
    "keras_fit": ["steps.measured=20", "batch_size=32", "depth=2"],
    "numpy_prints": ["steps.measured=20", "size=128"],
    "own_network": ["steps.measured=20", "batch_size=16", "width=1"],
    "own_data": ["epochs=2", "target={}", "width=8"],
}


@pytest.mark.parametrize("example", sorted(path.stem for path in (ROOT / "examples").glob("*.yaml")))
def test_an_example_runs_as_its_page_says(example: str, workplace: Path) -> None:
    shutil.copytree(ROOT / "examples", workplace / "examples")
    small = ["--set", "repeats=1", *FIRST_CELLS[example]]
    command = [sys.executable, "-m", "sweeps.cli", "run", f"examples/{example}.yaml", *small]
    ran = subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    text = (workplace / "results" / example.replace("_", "-") / "ledger.jsonl").read_text()
    trials = [entry for line in text.splitlines() if (entry := json.loads(line))["kind"] == "trial"]
    assert trials
    for trial in trials:
        assert trial["outcome"]["status"] == "completed", trial["outcome"]
        measured = messages.measurement(trial["outcome"]["measurement"])
        assert {rank.measured_by for rank in measured.ranks} == {BY.get(example, BUILT_IN)}


def test_every_example_is_short_and_stands_in_a_page() -> None:
    pages = "".join((ROOT / f"docs/sweep-your-{what}.md").read_text() for what in ("network", "script"))
    for path in (ROOT / "examples").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 60
        assert path.name in pages


OWN = """
import sys, time
import sweeps

lr, epochs = float(sys.argv[1]), int(sys.argv[2])
kept = sweeps.checkpoint_dir() / "epoch"
done = int(kept.read_text()) if kept.exists() else 0
for epoch in range(done + 1, epochs + 1):
    for _ in sweeps.steps(range(20), items=8):
        time.sleep(0.02)
    sweeps.report(loss=lr / epoch, auc=1 - lr, epoch=epoch)
    kept.write_text(str(epoch))
    if lr == 0.1 and epoch == 2 and not done:
        sys.exit("no such device")
"""
FILE = """
name: own
run: python train.py {lr} {epochs}
protocol: convergence
epochs: 6
ranks: none
items: 8
unit: tokens
device: cpu
space: {gpus: [1], lr: [0.1, 0.2, 0.3, 0.4]}
search: {method: asha, goal: min loss, reduction: 2}
repeats: 1
seed: 1
"""


def test_a_search_goes_by_what_a_script_reports_and_a_retry_by_what_it_has_kept(workplace: Path) -> None:
    (workplace / "train.py").write_text(OWN)
    (workplace / "own.yaml").write_text(FILE)

    def sweep(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sweeps.cli", *words]
        return subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=300, check=False)

    ran = sweep("run", "own.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    columns = "trial,outcome,message,own.lr,loss,reported.auc,tokens_per_s,measured_by"
    found = {
        row["own.lr"]: row
        for row in json.loads(sweep("trials", "own", "--columns", columns, "--format", "json").stdout)
    }
    assert {row["outcome"] for row in found.values()} == {"completed", "pruned"}
    assert (found[0.1]["outcome"], found[0.1]["measured_by"]) == ("completed", "sweeps.steps")
    assert found[0.1]["loss"] == pytest.approx(0.1 / 6)
    assert found[0.1]["reported.auc"] == pytest.approx(0.9)
    assert found[0.1]["tokens_per_s"] > 0
    assert all("but its loss of" in row["message"] for row in found.values() if row["outcome"] == "pruned")
    listed = sweep("trials", "own", "--where", "own.lr < 0.15 and reported.auc > 0.5 and tokens_per_s > 0")
    assert len(listed.stdout.strip().splitlines()) == 2, listed.stdout
    text = (workplace / "results/own/ledger.jsonl").read_text()
    (attempt,) = [entry for line in text.splitlines() if (entry := json.loads(line))["kind"] == "attempt"]
    assert attempt["outcome"]["exit_code"] == 1
    assert attempt["outcome"]["last_lines"]
    (best,) = [
        e
        for line in text.splitlines()
        if (e := json.loads(line))["kind"] == "trial" and e["config"]["own"]["lr"] == 0.1
    ]
    assert [one["epoch"] for one in best["outcome"]["measurement"]["ranks"][0]["epochs"]] == [3, 4, 5, 6]
    assert "loss" in (workplace / "results/own/report.html").read_text()


HUNGRY = """
import sys, time
import sweeps

length = int(sys.argv[1])
if length > 64:
    raise MemoryError
for _ in sweeps.steps(range(1000), items=length):
    time.sleep(0.002)
"""
LONGEST = """
name: longest
run: python hungry.py {length}
ranks: none
items: length
unit: tokens
device: cpu
space: {gpus: [1], length: {log2: [8, 512]}}
search: {method: frontier, axis: length}
steps: {warmup: 2, measured: 10}
"""


def test_a_frontier_finds_the_largest_value_that_a_script_has_memory_for(workplace: Path) -> None:
    (workplace / "hungry.py").write_text(HUNGRY)
    (workplace / "longest.yaml").write_text(LONGEST)
    command = [sys.executable, "-m", "sweeps.cli", "run", "longest.yaml"]
    ran = subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the largest length that fits" in ran.stdout
    text = (workplace / "results/longest/ledger.jsonl").read_text()
    trials = [entry for line in text.splitlines() if (entry := json.loads(line))["kind"] == "trial"]
    ended = {trial["config"]["own"]["length"]: trial["outcome"]["status"] for trial in trials}
    assert len({trial["outcome"]["granted"][0]["software"] for trial in trials}) == 1, "also of what did not fit"
    assert len(ended) <= 3, "of 7 lengths, by bisection"
    assert (ended[64], ended[128]) == ("completed", "infeasible")
