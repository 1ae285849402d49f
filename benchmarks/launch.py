"""From Tune starting a trial to both its ranks in the loop, TensorFlow and Horovod ready: ours and two peers.

The clock starts at Tune's `on_trial_start` and stops when the slower of two ranks has run a TensorFlow op and
an allreduce. In each way Tune's own trial actor is up by then; what is compared is how ranks come to be.

A machine's speed changes within a run, and not for all ways alike. So the ways take turns, each turn in a process and
on a Ray of its own, and begin a round in turn. A turn's first trial finds nothing in memory; it is told, and does not
count. A ratio is that of one round: the peer's median over ours. Its spread over the rounds stands beside it.

    python benchmarks/launch.py [ROUNDS]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from verdicts import conclude

HERE = Path(__file__).parent
SWEEP = "{name: launch, model: tiny, device: cpu, repeats: 1, probe_every_min: 0, space: {batch_size: 1, gpus: 2}}"


ROUNDS, TRIALS = 5, 4  # of a turn, its first included
WAYS = {
    "sweep": "sweep (forked by the fork server)",
    "ray_executor": "horovod.ray.RayExecutor",
    "horovod_trainer": "Ray V1 HorovodTrainer",
}
OURS, *PEERS = WAYS
BOUNDS = {"median_s": "<= 0.3", "speedup_over_faster_peer_least": ">= 12"}
Round = Mapping[str, Sequence[float]]  # the seconds of each trial that counts, by its way


def ours(trials: int) -> list[float]:
    """Seconds from the start of each trial."""
    from ours import swept

    records = swept(SWEEP, "ready:run", [f"repeats={trials}"])
    entered = [max(rank.entered_at for rank in one.ranks) for record in records if (one := record.outcome.measurement)]
    return [at - record.started_at for at, record in zip(entered, records, strict=True)]


def turn(way: str) -> list[float]:
    """Seconds of each trial of a way, in a process of its own: each sets Ray up as it does."""
    call = f"import json, peers; print(json.dumps(peers.{way}({TRIALS})))"
    command = ["launch.py", OURS] if way == OURS else ["-c", call]
    ran = subprocess.run([sys.executable, *command], cwd=HERE, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{way} did not run:\n{ran.stderr[-2000:]}")
    return list(json.loads(ran.stdout.splitlines()[-1]))


def taken_in_turns(rounds: int) -> list[Round]:
    """Every way once a round; each round begins with the next one."""
    found: list[Round] = []
    print(f"{'seconds to two ranks in the loop':<42}{'first':>8}{'min':>8}{'median':>8}{'max':>8}")
    for nth in range(rounds):
        order = [*WAYS][nth % len(WAYS) :] + [*WAYS][: nth % len(WAYS)]
        counted: dict[str, list[float]] = {}
        for way in order:
            first, *counted[way] = turn(way)
            seconds = (first, min(counted[way]), statistics.median(counted[way]), max(counted[way]))
            print(f"round {nth + 1}: {WAYS[way]:<33}" + "".join(f"{s:>8.2f}" for s in seconds), flush=True)
        found.append(counted)
    return found


def figures(rounds: Sequence[Round]) -> dict[str, float]:
    def median(way: str) -> float:
        return statistics.median(seconds for one in rounds for seconds in one[way])

    ratios = {peer: [statistics.median(one[peer]) / statistics.median(one[OURS]) for one in rounds] for peer in PEERS}
    ratios["faster_peer"] = [min(of_round) for of_round in zip(*ratios.values(), strict=True)]
    found: dict[str, float] = {"rounds": len(rounds), "trials": sum(len(one[OURS]) for one in rounds)}
    found |= {"median_s": median(OURS)} | {f"{peer}_s": median(peer) for peer in PEERS}
    for peer, of_peer in ratios.items():
        found |= {
            f"speedup_over_{peer}": statistics.median(of_peer),
            f"speedup_over_{peer}_least": min(of_peer),
            f"speedup_over_{peer}_most": max(of_peer),
        }
    return found


def main(rounds: int) -> int:
    found = figures(taken_in_turns(rounds))
    for peer in PEERS:
        median, *ends = (found[f"speedup_over_{peer}{end}"] for end in ("", "_least", "_most"))
        print(f"over {WAYS[peer]}: {median:.1f}×, from {ends[0]:.1f} to {ends[1]:.1f} in {rounds} rounds")
    return conclude("launch", found, BOUNDS)


if __name__ == "__main__":
    if sys.argv[1:] == [OURS]:
        print(json.dumps(ours(TRIALS)))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
