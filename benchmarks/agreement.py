"""Do a sweep's intervals hold in life? The same sweep twice, in the default mode, and what its cells say of each other.

Each cell's figure is the mean of its repeats with its 95% t-interval. Of one cell the two sweeps agree if their means
lie within their joint interval (the root of the sum of the half-widths' squares) of each other. Intervals so wide that
anything would agree show in the median half-width, relative to the mean, which is printed and bounded; so does how
often the sweeps would agree if each cell were held against the next one of the first sweep, which is another program.

All of it twice: with every repeat, and with the first ones alone, as many as a sweep has that names no number. Repeats
run in rounds, so these are what such a sweep would have measured. An interval from 3 repeats is 3 times as wide as one
from 8 that scatter alike, and its bound is as much wider; how often unlike cells agree is bounded alike for both.

A trial's own interval is of its window alone: what differs between trials is not in it. How much that leaves out is
told: of the trials that show an interval, how many agree with the mean of their cell's other repeats, within the joint
interval of both; and how many would if each trial were taken to be exact. Neither has a bound, since how much trials
differ is the machine's.

All cells together say whether the intervals are as wide as they should be, both ways: by how many of the standard
errors that they tell two means are apart, as a root mean square, is about 1 where they hold, half of that where they
are twice too wide. Of 16 cells no more can be told than `ERRORS_APART`: right intervals miss it in 3 of 100 runs,
intervals twice too wide or half as wide as they should be pass it in 1 of 6.

    python benchmarks/agreement.py [REPEATS]
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

import sweeps
from sweeps import analysis
from sweeps.spec.keys import SweepSpec
from verdicts import conclude
from workers.measure import student_t

BIN = Path(sys.executable).parent
ERRORS_APART = ">= 0.65 and <= 1.65"
SWEEP = """
name: NAME
model: tiny
device: cpu
image_size: 32
classes: 10
space: {batch_size: [8, 16, 32, 64], gpus: [1, 2], precision: [fp32, bf16]}
emulate: true
repeats: REPEATS
"""
DEFAULT_REPEATS: int = SweepSpec.model_fields["repeats"].default
BOUNDS = {
    "cells_agreeing": ">= 0.9",
    "median_half_width": "<= 0.1",
    "unlike_cells_agreeing": "<= 0.5",
    "default_cells_agreeing": ">= 0.9",
    "default_median_half_width": "<= 0.3",
    "default_unlike_cells_agreeing": "<= 0.5",
    "errors_apart": ERRORS_APART,
}
Mean = tuple[float, float]  # with half of its interval; images/s
Cells = dict[str, Mean]


def swept(name: str, repeats: int, folder: Path) -> pd.DataFrame:
    """Run the sweep by the command, and return its trials as a user reads them."""
    file = folder / f"{name}.yaml"
    file.write_text(SWEEP.replace("NAME", name).replace("REPEATS", str(repeats)))
    ran = subprocess.run(
        [BIN / "sweep", "run", file, "--fresh"], cwd=folder, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"the sweep did not run:\n{ran.stderr[-2000:]}")
    return sweeps.trials(name)


def means(trials: pd.DataFrame, repeats: int) -> Cells:
    """Each cell's figure, of so many of its first repeats; each cell beside the ones that are most like it."""
    table = sweeps.cells(trials[trials["repeat"] < repeats])
    return {
        row["cell"]: (row["images_per_s"], row["images_per_s_ci"])
        for row in table.sort_values(["gpus", "precision", "batch_size"]).to_dict("records")
    }


def is_agreed(one: Mean, other: Mean) -> bool:
    return bool(abs(one[0] - other[0]) <= (one[1] ** 2 + other[1] ** 2) ** 0.5)


def of_cells(first: Cells, second: Cells) -> dict[str, float]:
    widths = [half / mean for mean, half in (*first.values(), *second.values())]
    neighbours = [is_agreed(one, other) for one, other in itertools.pairwise(first.values())]
    return {
        "cells_agreeing": statistics.fmean(is_agreed(first[cell], second[cell]) for cell in first),
        "median_half_width": statistics.median(widths),
        "unlike_cells_agreeing": statistics.fmean(neighbours),
    }


def beside_others(trials: pd.DataFrame) -> Iterator[tuple[Mean, Mean]]:
    """Each trial that shows an interval, and the mean of its cell's other repeats."""
    for _, cell in trials.groupby("cell", observed=True):
        is_shown = (cell["is_steady"] == 1) & cell["images_per_s_within"].notna()
        for at, trial in cell[is_shown].iterrows():
            others = cell.drop(index=at)["images_per_s"]
            half = analysis.half_width(others.std(), len(others))
            yield (trial["images_per_s"], trial["images_per_s_within"]), (others.mean(), half)


def of_trials(pairs: Sequence[tuple[Mean, Mean]]) -> dict[str, float]:
    def share(agreed: Iterable[bool]) -> float:
        found = [*agreed]
        return statistics.fmean(found) if found else math.nan

    return {
        "trials_shown": len(pairs),
        "trials_agreeing": share(is_agreed(trial, others) for trial, others in pairs),
        "exact_trials_agreeing": share(is_agreed((trial[0], 0.0), others) for trial, others in pairs),
        "trials_median_half_width": statistics.median([half / rate for (rate, half), _ in pairs] or [math.nan]),
    }


def figures(both: Sequence[pd.DataFrame], repeats: int) -> dict[str, float]:
    """Of the trials of both sweeps."""
    first, second = (means(trials, repeats) for trials in both)
    by_default = of_cells(*(means(trials, DEFAULT_REPEATS) for trials in both))
    return {
        "cells": len(first),
        "repeats": repeats,
        "default_repeats": DEFAULT_REPEATS,
        **of_cells(first, second),
        "errors_apart": errors_apart(first, second, repeats),
        **{f"default_{figure}": value for figure, value in by_default.items()},
        **of_trials([pair for trials in both for pair in beside_others(trials)]),
    }


def errors_apart(first: Cells, second: Cells, repeats: int) -> float:
    """Of two means of a cell, root mean square over the cells."""
    width = float(student_t.quantile(repeats - 1))
    squares = [
        (one[0] - other[0]) ** 2 / (one[1] ** 2 + other[1] ** 2) * width**2
        for one, other in ((first[cell], second[cell]) for cell in first)
    ]
    return math.sqrt(statistics.fmean(squares))


def main(repeats: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{name}/mlflow.db"
        both = [swept(f"agreement-{n}", repeats, Path(name)) for n in (1, 2)]
    found = figures(both, repeats)
    first, second = (means(trials, repeats) for trials in both)
    print(f"{'cell':<12}{'first, images/s':>20}{'second':>20}{'ratio':>8}")
    for cell, (mean, half) in first.items():
        other, other_half = second[cell]
        word = "" if is_agreed(first[cell], second[cell]) else "  disagree"
        figures_of = f"{f'{mean:,.0f} ± {half:,.0f}':>20}{f'{other:,.0f} ± {other_half:,.0f}':>20}"
        print(f"{cell:<12}{figures_of}{other / mean:>8.3f}{word}")
    print(f"{found['trials_shown']:.0f} of {sum(map(len, both))} trials show an interval of their own")
    return conclude("agreement", figures=found, bounds=BOUNDS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
