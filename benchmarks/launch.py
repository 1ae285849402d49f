"""From Tune starting a trial to both its ranks in the loop, TensorFlow and Horovod ready: ours and two peers.

The clock starts at Tune's `on_trial_start` and stops when the slower of two ranks has run a TensorFlow op and
an allreduce. In each way Tune's own trial actor is up by then; what is compared is how ranks come to be.

    python benchmarks/launch.py [TRIALS]
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
from pathlib import Path

from ours import swept
from verdicts import conclude

HERE = Path(__file__).parent
SWEEP = "{name: launch, model: tiny, device: cpu, repeats: 1, probe_every_min: 0, space: {batch_size: 1, gpus: 2}}"


def ours(trials: int) -> tuple[list[float], list[float]]:
    """Seconds from the start of each trial, and from the end of the one before."""
    records = swept(SWEEP, "ready:run", [f"repeats={trials}"])
    entered = [max(rank.entered_at for rank in one.ranks) for record in records if (one := record.outcome.measurement)]
    starts = [at - record.started_at for at, record in zip(entered, records, strict=True)]
    turns = [at - before.ended_at for at, before in zip(entered[1:], records, strict=False)]
    return starts, turns


def peer(name: str, trials: int) -> list[float]:
    """A peer in a process of its own: it sets Ray up in its own way."""
    call = f"import json, peers; print(json.dumps(peers.{name}({trials})))"
    ran = subprocess.run([sys.executable, "-c", call], cwd=HERE, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{name} did not run:\n{ran.stderr[-2000:]}")
    return list(json.loads(ran.stdout.splitlines()[-1]))


@dataclasses.dataclass(frozen=True)
class Way:
    name: str
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def main(trials: int) -> int:
    starts, turns = ours(trials)
    mine = Way("sweep (forked by the fork server)", starts)
    executor = Way("horovod.ray.RayExecutor", peer("ray_executor", trials))
    trainer = Way("Ray V1 HorovodTrainer", peer("horovod_trainer", trials))
    ways = [mine, executor, trainer]
    print(f"{'seconds to two ranks in the loop':<32}{'first':>8}{'min':>8}{'median':>8}{'max':>8}{'ours is':>12}")
    for way in ways:
        faster = "" if way is mine else f"{way.median / mine.median:.1f}× faster"
        seconds = (way.seconds[0], min(way.seconds), way.median, max(way.seconds))
        print(f"{way.name:<32}" + "".join(f"{s:>8.2f}" for s in seconds) + f"{faster:>14}")
    print(f"from the end of the trial before, ours: median {statistics.median(turns):.2f}")
    ratio = min(way.median for way in ways[1:]) / mine.median
    figures = {
        "trials": len(starts),
        "median_s": mine.median,
        "ray_executor_s": executor.median,
        "horovod_trainer_s": trainer.median,
        "speedup_over_ray_executor": executor.median / mine.median,
        "speedup_over_horovod_trainer": trainer.median / mine.median,
        "speedup_over_faster_peer": ratio,
        "turnaround_s": statistics.median(turns),
    }
    return conclude("launch", figures, bounds={"median_s": "<= 0.3", "speedup_over_faster_peer": ">= 12"})


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
