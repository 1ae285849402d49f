"""Do a sweep's intervals hold in life? The same sweep twice, in the default mode, and what its cells say of each other.

Each cell's figure is the mean of its repeats with its 95% t-interval. Of one cell the two sweeps agree if their means
lie within their joint interval (the root of the sum of the half-widths' squares) of each other. Intervals so wide that
anything would agree show in the median half-width, relative to the mean, which is printed and bounded; so does how
often the sweeps would agree if each cell were held against the next one of the first sweep, which is another program.

    python benchmarks/agreement.py [REPEATS]
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from verdicts import conclude

BIN = Path(sys.executable).parent
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
Cells = dict[str, tuple[float, float]]  # mean and half-width, images/s


def swept(name: str, repeats: int, folder: Path) -> Cells:
    """Run the sweep by the command, and read its cells as a user would."""
    import sweeps

    file = folder / f"{name}.yaml"
    file.write_text(SWEEP.replace("NAME", name).replace("REPEATS", str(repeats)))
    ran = subprocess.run(
        [BIN / "sweep", "run", file, "--fresh"], cwd=folder, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"the sweep did not run:\n{ran.stderr[-2000:]}")
    cells = sweeps.cells(sweeps.trials(name))
    withheld = int(cells["withheld"].sum()) if "withheld" in cells else 0
    print(f"{name}: {len(cells)} cells, {withheld} of {int(cells['n'].sum())} trials' own intervals withheld")
    return {
        row["cell"]: (row["images_per_s"], row["images_per_s_ci"])
        for row in cells.sort_values(["gpus", "precision", "batch_size"]).to_dict("records")
    }


def is_agreed(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return bool(abs(one[0] - other[0]) <= (one[1] ** 2 + other[1] ** 2) ** 0.5)


def main(repeats: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{name}/mlflow.db"
        first, second = (swept(f"agreement-{n}", repeats, Path(name)) for n in (1, 2))
    print(f"{'cell':<12}{'first, images/s':>20}{'second':>20}{'ratio':>8}")
    for cell, (mean, half) in first.items():
        other, other_half = second[cell]
        word = "" if is_agreed(first[cell], second[cell]) else "  disagree"
        figures_of = f"{f'{mean:,.0f} ± {half:,.0f}':>20}{f'{other:,.0f} ± {other_half:,.0f}':>20}"
        print(f"{cell:<12}{figures_of}{other / mean:>8.3f}{word}")
    widths = [half / mean for mean, half in (*first.values(), *second.values())]
    neighbours = [is_agreed(one, other) for one, other in itertools.pairwise(first.values())]
    figures = {
        "cells": len(first),
        "repeats": repeats,
        "cells_agreeing": statistics.fmean(is_agreed(first[cell], second[cell]) for cell in first),
        "median_half_width": statistics.median(widths),
        "unlike_cells_agreeing": statistics.fmean(neighbours),
    }
    bounds = {"cells_agreeing": ">= 0.9", "median_half_width": "<= 0.1", "unlike_cells_agreeing": "<= 0.5"}
    return conclude("agreement", figures=figures, bounds=bounds)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
