"""Two hosts with a slow link: what reducing beside the backward pass gains over reducing after it.

A sweep over `reduction` on hosts of network namespaces, over a link so slow that reducing takes about half a step.
Overlapped must beat grouped at 95%; of its reduction more must hide than of a grouped one, and more than nothing.

And it must hide what is gained: a step in which nothing hid would be as long as the step is and what hides of it, in
both ways of reducing. So what more of the reduction hides, over what the step gains, is 1 where the shares are true;
shares twice or half as large as the truth give 2 or 0.5. The ends of its 95% interval are bounded. Where the reduction
alone were timed too long, both ways would hide too much: grouped it hides nothing, to 5% of a step.

    python benchmarks/overlap.py [MBIT [REPEATS]]
"""

from __future__ import annotations

import math
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sweeps import analysis
from tests.cluster import hosts
from tests.cluster.launched import on_hosts
from verdicts import conclude, skip
from workers.measure import student_t

MBIT, REPEATS = 2500, 4
HOWS = ("overlapped", "grouped")
BOUNDS = {
    "gain_low": "> 0",
    "overlap_share_low": "> 0",
    "more_hidden_low": "> 0",
    "hidden_over_gain_low": ">= 0.5",
    "hidden_over_gain_high": "<= 1.5",
    "grouped_overlap_share": ">= -0.05 and <= 0.05",
    "grouped_comm_share": ">= 0.25 and <= 0.75",  # else the link is not what it is meant to be
}
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
    """How much larger a mean is than another, and half of its 95% interval (Welch's)."""
    parts = [statistics.variance(values) / len(values) for values in (ours, theirs)]
    more = statistics.mean(ours) - statistics.mean(theirs)
    if not any(parts):
        return more, 0.0
    freedom = sum(parts) ** 2 / sum(part**2 / (len(ours) - 1) for part in parts)
    return more, float(student_t.quantile(freedom) * math.sqrt(sum(parts)))


def low_of_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    more, half = difference(ours, theirs)
    return more - half


Rows = Sequence[Mapping[str, Any]]  # of trials


def values(rows: Rows, figure: str, how: str) -> list[float]:
    return [row[figure] for row in rows if row["reduction"] == how]


def hidden_over_gain(rows: Rows) -> tuple[float, float]:
    """Return what more of a reduction hides, over what the step gains, and half of its 95% interval."""
    seconds = {how: [1 / rate for rate in values(rows, "images_per_s", how)] for how in HOWS}  # an image, as a step
    gained = statistics.mean(seconds["grouped"]) - statistics.mean(seconds["overlapped"])
    unhidden = {
        how: [step * (1 + share) for step, share in zip(seconds[how], values(rows, "overlap_share", how), strict=True)]
        for how in HOWS
    }
    longer, half = difference(unhidden["overlapped"], unhidden["grouped"])
    return (1 + longer / gained, abs(half / gained)) if gained else (math.nan, math.nan)


def figures(rows: Rows) -> dict[str, float]:
    of = {how: values(rows, "images_per_s", how) for how in HOWS}
    hidden = {how: values(rows, "overlap_share", how) for how in HOWS}
    ours, theirs = (statistics.mean(of[how]) for how in HOWS)
    spread = statistics.stdev(hidden["overlapped"])
    overlap_share = statistics.mean(hidden["overlapped"])
    times, half = hidden_over_gain(rows)
    return {
        "repeats": len(of["overlapped"]),
        "images_per_s": ours,
        "grouped_images_per_s": theirs,
        "gain": ours / theirs - 1,
        "gain_low": low_of_difference(of["overlapped"], of["grouped"]) / theirs,
        "overlap_share": overlap_share,
        "overlap_share_low": overlap_share - analysis.half_width(spread, len(hidden["overlapped"])),
        "more_hidden_low": low_of_difference(hidden["overlapped"], hidden["grouped"]),
        "hidden_over_gain": times,
        "hidden_over_gain_low": times - half,
        "hidden_over_gain_high": times + half,
        "grouped_overlap_share": statistics.mean(hidden["grouped"]),
        "grouped_comm_share": statistics.mean(values(rows, "comm_share", "grouped")),
    }


def main(mbit: int, repeats: int) -> int:
    if why := hosts.lacking():
        return skip(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no host stays behind
    with on_hosts() as laptop, laptop.workers[0].throttled(mbit):
        rows = laptop.swept(SWEEP.replace("REPEATS", str(repeats)))
    for figure in ("images_per_s", "overlap_share", "comm_share"):
        for how in HOWS:
            print(f"{figure}, {how}: {', '.join(f'{value:.4g}' for value in values(rows, figure, how))}")
    return conclude("overlap", figures(rows) | {"mbit": mbit}, BOUNDS)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(given + [MBIT, REPEATS][len(given) :])))
