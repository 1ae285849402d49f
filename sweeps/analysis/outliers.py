"""Trials that don't agree with the other repeats of their cell, and gangs that one rank holds up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.analysis.alike import APART
from sweeps.analysis.means import plain, varied

if TYPE_CHECKING:
    import pandas as pd

FAR = 5.0  # times the usual distance from the other repeats, robustly estimated over all cells
LEAST = 0.01  # a distance that is worth a word however quiet the machine
SLOW_RANK = 1.1  # the slowest rank's mean step time over the median rank's
NORMAL_MAD = 1.4826  # a standard deviation over the median absolute deviation, for the normal distribution


def outliers(trials: pd.DataFrame, figure: str = "images_per_s") -> pd.DataFrame:
    """Return the trials far from the other repeats of their cell, farthest first: `ratio` to their median, `distance`
    in usual ones. Of two repeats that disagree nobody knows which is wrong: both are there, as `of_two`."""
    import numpy as np

    trials = plain(trials)
    known = trials[(trials["outcome"] == "completed") & (trials[figure] > 0)].reset_index(drop=True)
    log = np.log(known[figure])
    of_cell = log.groupby([known[name] for name in ("cell", *APART)], dropna=False)
    n = of_cell.transform("size")
    others = of_cell.transform(_median_of_others)
    apart = (log - others).where(n > 1)
    usual = max(NORMAL_MAD * float(apart.abs().median()), LEAST / FAR) if apart.notna().any() else np.nan
    table = known[["trial", "cell", *varied(known), "repeat", figure]].copy()
    table["ratio"], table["distance"], table["of_two"] = np.exp(apart), apart.abs() / usual, n == 2
    farthest = table["distance"].groupby([known[name] for name in ("cell", *APART)], dropna=False)
    is_far = (table["distance"] > FAR) & ((table["distance"] == farthest.transform("max")) | table["of_two"])
    return table[is_far].sort_values("distance", ascending=False, kind="stable").reset_index(drop=True)


def _median_of_others(logs: pd.Series) -> list[float]:
    import numpy as np

    values = logs.to_numpy()
    return [float(np.median(np.delete(values, n))) if len(values) > 1 else np.nan for n in range(len(values))]


def stragglers(trials: pd.DataFrame, slow: float = SLOW_RANK) -> pd.DataFrame:
    """Return the trials whose slowest rank took so much longer than the median rank, worst first."""
    trials = plain(trials)
    found = trials[(trials["outcome"] == "completed") & (trials["straggler_ratio"] >= slow)]
    table = found[["trial", "cell", *varied(trials), "repeat", "straggler_ratio", "images_per_s"]]
    return table.sort_values("straggler_ratio", ascending=False, kind="stable").reset_index(drop=True)
