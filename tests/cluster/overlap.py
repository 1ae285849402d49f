"""Two hosts with a slow link: what reducing beside the backward pass gains over reducing after it.

`python -m tests.cluster.overlap [MBIT] [REPEATS]` makes the hosts, runs a sweep over `reduction` on them, and exits
with 0 if overlapped beats grouped at 95%, more of its reduction hides than of a grouped one, and more than none, on a
link so slow that reducing takes about half a step.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence

from sweeps import analysis
from tests.cluster import hosts
from tests.cluster.launched import Laptop
from workers import student

SWEEP = """
name: overlap
model: vgg16  # the backward pass begins with the layers that have most of its weights
device: cpu
image_size: 32
classes: 10
space: {batch_size: 32, gpus: [2], placement: [spread], reduction: [overlapped, grouped]}
repeats: REPEATS
steps: {warmup: 2, measured: 32}
probe_every_min: 0
"""


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Of two means, with half of its 95% interval (Welch's)."""
    parts = [statistics.variance(values) / len(values) for values in (ours, theirs)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(ours) - 1) for part in parts)
    return statistics.mean(ours) - statistics.mean(theirs), student.quantile(freedom) * sum(parts) ** 0.5


def main(mbit: int, repeats: int) -> int:
    if why := hosts.lacking():
        sys.exit(why)
    with hosts.made(3) as (machines, folder):
        laptop = Laptop(machines, folder)
        with laptop.cluster():
            laptop.wait_for_nodes()
            file = laptop.home / "overlap.yaml"
            file.write_text(SWEEP.replace("REPEATS", str(repeats)))
            with laptop.workers[0].throttled(mbit):
                name = laptop.sweep("submit", file, "--fresh").strip()
                while json.loads(laptop.sweep("status", name, "--format", "json"))["state"] != "complete":
                    time.sleep(3)
            rows = json.loads(laptop.sweep("trials", name, "--format", "json"))
    is_met = True
    for figure in ("images_per_s", "overlap_share", "comm_share"):
        ours, theirs = ([row[figure] for row in rows if row["reduction"] == how] for how in ("overlapped", "grouped"))
        more, within = difference(ours, theirs)
        is_met &= more > within if figure != "comm_share" else 0.25 < statistics.mean(theirs) < 0.75
        if figure == "overlap_share":
            is_met &= statistics.mean(ours) > analysis.half_width(statistics.stdev(ours), len(ours))
        means = f"overlapped {statistics.mean(ours):.4g}, grouped {statistics.mean(theirs):.4g}"
        print(f"{figure}: {means}, difference {more:.4g} ± {within:.4g}", flush=True)
    return 0 if is_met else 1


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(given + [2500, 4][len(given) :])))
