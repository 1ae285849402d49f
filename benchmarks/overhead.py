"""What a sweep costs beside its measuring: time between trials, time not spent on steps, the control plane alone.

Two parts, in one run.

**The demo**, by the real command in a temporary folder (`sweep run search_spaces/demo.yaml --fresh`). Its ledger has
all the times.

- *Turnaround*: from one trial's recorded end to the end of the next one's first step at its slowest rank. The first
  step counts as overhead, because it is where the graph is traced and compiled. Shown for a gang that follows on one of
  its own size, and for one that follows on another size.
- *Measuring*: from the end of a trial's first step at its slowest rank to the end of the window, and then the blocks of
  steps that tell what limits it: warm-up, window and blocks are the steps that its figures are made of. Building and
  tracing, of the blocks' own steps too, is not, nor are launch and teardown. Of the blocks only steps that count are
  known, so the few that let each settle are left out as well.
- *Measuring share*: the sum of that over the trials, over the time from the first trial's start to the end of the
  command, table included. What is before is set-up, once a sweep: Ray, the store and the fork server's TensorFlow.
- *Window share*: the same of the windows alone, from which throughput comes.
- *Trial steps*: those of warm-up and window, and those that count in blocks; the most of any trial. Longer trials would
  raise the measuring share for nothing, so this is bounded too: 64 as the demo asks, and in blocks as many as two ranks
  need that wait for images.

Trials that don't run on this machine, as bf16 where the processor does not compute it, measure nothing. What they take
is in the time that the shares are of.

**Instant trials** (see `instant`): the whole control plane on a simulated gang beside Tune on its own, one trial at a
time, a reused actor and the same placement group in both, in processes of their own that take turns. Ours does more: it
makes up a measurement of every trial, reads it, decides on it, and puts it on disk before it counts; progress, status,
metrics and the tracker hear of each, as in a driver on a cluster. What brings trials to MLflow, on SQLite, runs beside
it. Tune on its own has no store. A turn's ratio is that of its two paces, once each
has warmed up.

Then 10,000 of ours in one sweep: `stored` is the pace until the store has the last of them, and `waited` how long a
trial's end was from its run in the store at most. Memory is what stays resident of the process that drives (garbage
collected, free memory given back): after the last trial over after the first 1,000.

    python benchmarks/overhead.py [TURNS]
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeps.record import ledger
from sweeps.record.ledger import TrialRecord
from verdicts import conclude
from workers.contract.messages import RankReport

HERE = Path(__file__).parent
DEMO = HERE.parent / "search_spaces" / "demo.yaml"
DATA = ["data", "make", "data/demo", "--images", "512", "--shards", "4", "--size", "160x120", "--classes", "10"]
WARM, TRIALS = 100, 400  # of the pace
FROM, MANY = 1000, 10_000  # of the memory
BOUNDS = {
    "turnaround_s": "<= 1.5",
    "measuring_share": ">= 0.75",
    "trial_steps": "<= 172",
    "pace_over_tune": ">= 1",
    "stored_a_second": ">= 100",
    "waited_s": "<= 5",
    "memory_growth": "<= 1.03",  # as a test has it of hundreds
}


@dataclasses.dataclass(frozen=True)
class TrialSeconds:
    """Seconds of a trial, and of the gap before it."""

    record: TrialRecord
    turnaround_s: float | None  # None for the first
    follows_alike: bool
    window_s: float
    measuring_s: float
    steps: int


def demo() -> tuple[list[TrialSeconds], float]:
    """Return the demo's trials, and the seconds from the start of the first to the end of the command."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"SWEEP_RESULTS": f"{folder}/results", "PYTHONPATH": str(HERE.parent)}
        for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
            environment.pop(name, None)

        def sweep(*arguments: str) -> None:
            command = [sys.executable, "-m", "sweeps.cli", *arguments]
            ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if ran.returncode:
                sys.exit(f"sweep {arguments[0]} did not run:\n{ran.stdout[-1000:]}{ran.stderr[-2000:]}")

        sweep(*DATA)
        sweep("run", str(DEMO), "--fresh")
        ended_at = time.time()
        os.environ["SWEEP_RESULTS"] = f"{folder}/results"
        records = sorted(ledger.read("demo").trials, key=lambda record: record.started_at)
    return spent(records), ended_at - records[0].started_at


def spent(records: Sequence[TrialRecord]) -> list[TrialSeconds]:
    """Return the seconds of the trials that measured. Those that a gang found infeasible come before the next one all
    the same."""
    found = []
    ran = [record for record in records if record.outcome.granted]
    for before, record in zip([None, *ran], ran, strict=False):
        assert record.outcome.status in ("completed", "infeasible"), record.outcome
        if not record.outcome.measurement:
            continue
        ranks = record.outcome.measurement.ranks
        built_at = max(rank.entered_at + rank.build_s for rank in ranks)
        ends_at = max(rank.window_at[1] for rank in ranks)
        found.append(
            TrialSeconds(
                record=record,
                turnaround_s=built_at - before.ended_at if before else None,
                follows_alike=before is not None and before.config.gpus == record.config.gpus,
                window_s=ends_at - min(rank.window_at[0] for rank in ranks),
                measuring_s=ends_at - built_at + max(map(explaining_s, ranks)),
                steps=record.config.warmup_steps + record.config.measured_steps + max(map(explaining_steps, ranks)),
            )
        )
    return found


def explaining_s(rank: RankReport) -> float:
    return sum(sum(times) for rounds in rank.without_ms.values() for times in rounds) / 1e3


def explaining_steps(rank: RankReport) -> int:
    return sum(len(times) for rounds in rank.without_ms.values() for times in rounds)


def instant(which: str, trials: int, every: int = 0) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "instant.py"), which, str(trials), str(every)]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{which} did not run:\n{ran.stderr[-2000:]}")
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def pace(run: dict[str, Any], until: float) -> float:
    """Trials a second, without the first ones."""
    return float((len(run["ends"]) - WARM) / (until - run["ends"][WARM - 1]))


def median_of(turns: Sequence[TrialSeconds], follows_alike: bool) -> float:
    found = [one.turnaround_s for one in turns if one.turnaround_s and one.follows_alike == follows_alike]
    return statistics.median(found)


def main(turns: int) -> int:
    trials, wall_s = demo()
    after = [one.turnaround_s for one in trials if one.turnaround_s]
    measuring, window = (sum(getattr(one, part) for one in trials) / wall_s for part in ("measuring_s", "window_s"))
    steps = max(one.steps for one in trials)
    alike, switched = median_of(trials, True), median_of(trials, False)
    print(f"demo: {len(trials)} trials in {wall_s:.0f} s, {measuring:.0%} measuring, {window:.0%} in the windows")
    print(f"none takes more than {steps} steps")
    print(
        f"from a trial's end to the next one's first step done: median {statistics.median(after):.2f} s, "
        f"{alike:.2f} after a gang of the same size, {switched:.2f} after one of another, at worst {max(after):.2f}"
    )

    ratios, paces = [], []
    print(f"\n{'instant trials a second':<28}{'ours':>8}{'Tune':>8}{'ratio':>8}")
    for turn in range(turns):
        order = ("ours", "plain") if turn % 2 == 0 else ("plain", "ours")
        runs = {which: instant(which, TRIALS) for which in order}
        ours, tunes = (pace(runs[which], runs[which]["ends"][-1]) for which in ("ours", "plain"))
        ratios.append(ours / tunes)
        paces.append((ours, tunes))
        print(f"  turn {turn + 1:<22}{ours:>8.1f}{tunes:>8.1f}{ratios[-1]:>8.2f}", flush=True)
    print(f"ratio: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")

    many = instant("ours", MANY, FROM)
    stored, held_mib = pace(many, many["done"]), [kb / 1024 for kb in many["held_kb"]]
    growth = held_mib[-1] / held_mib[0]
    print(f"\n{MANY:,} trials: {stored:.1f} a second until all are stored, none waited over {many['waited_s']:.1f} s")
    print(f"memory after {FROM:,} of them {held_mib[0]:.1f} MiB, after the last {held_mib[-1]:.1f}: {growth:.3f} times")
    figures = {
        "turnaround_s": statistics.median(after),
        "turnaround_alike_s": alike,
        "turnaround_switched_s": switched,
        "measuring_share": measuring,
        "window_share": window,
        "demo_s": wall_s,
        "trial_steps": steps,
        "turns": turns,
        "ours_a_second": statistics.median(ours for ours, _ in paces),
        "tune_a_second": statistics.median(tunes for _, tunes in paces),
        "pace_over_tune": statistics.median(ratios),
        "pace_over_tune_least": min(ratios),
        "pace_over_tune_most": max(ratios),
        "stored_a_second": stored,
        "waited_s": many["waited_s"],
        "memory_growth": growth,
    }
    return conclude("overhead", figures=figures, bounds=BOUNDS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9))
