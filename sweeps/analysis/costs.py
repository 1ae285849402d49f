"""What a figure costs, what nothing beats, and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from sweeps.analysis.alike import apart, conditions
from sweeps.analysis.means import ENERGY, cells, plain, varied
from workers.contract import imagenet

if TYPE_CHECKING:
    import pandas as pd

FRONTIER = ("batch_size", "images_per_s", "images_per_s_ci", "too_large")


def costs(trials: pd.DataFrame) -> pd.DataFrame:
    """The cells that measured something with what an epoch of ImageNet costs, GPU-hours and joules, cheapest first.

    `is_on_front`: by means, no cell that was measured alike is both faster and cheaper. Joules are those of processors
    and of GPUs, and of all; each is empty where that was not read of every node.
    """
    table = cells(trials).dropna(subset=["images_per_s"])
    for ci in ("", "_ci"):
        for name in ENERGY:
            table[f"{name.replace('image', 'epoch')}{ci}"] = table[f"{name}{ci}"] * imagenet.TRAIN_IMAGES
    unbeaten = [
        place
        for _, alike in table.groupby(conditions(table) or (lambda row: 0), sort=False)
        for place in pareto(alike, ["images_per_s"], ["gpu_hours_per_epoch"]).index
    ]
    table["is_on_front"] = table.index.isin(unbeaten)
    return table.sort_values("gpu_hours_per_epoch", kind="stable").reset_index(drop=True)


def pareto(table: pd.DataFrame, maximise: Sequence[str], minimise: Sequence[str]) -> pd.DataFrame:
    """The rows that no other beats: as good in every figure and better in one. Best in the first figure first.

    Means are compared as they are: a row within the intervals of one that beats it is left out all the same.
    """
    import numpy as np

    figures = [*maximise, *minimise]
    known = table.dropna(subset=figures)
    losses = known[figures].to_numpy(float) * [*[-1.0] * len(maximise), *[1.0] * len(minimise)]
    is_beaten = [bool(np.any((losses <= row).all(axis=1) & (losses < row).any(axis=1))) for row in losses]
    return known[~np.array(is_beaten, bool)].sort_values(figures[0], ascending=not maximise, kind="stable")


def frontier(trials: pd.DataFrame) -> pd.DataFrame:
    """The largest batch that fits, a row for each combination of the other parameters that vary, and of what else tells
    cells apart.

    `too_large` is the smallest that was infeasible beyond it, `kind` why, and `inferred_from` by which trial, where
    nobody tried; NaN where the largest tried does fit, and `batch_size` NaN where none does.
    """
    import pandas as pd

    trials = plain(trials)
    table = cells(trials)
    others = [name for name in varied(trials) if name != "batch_size"] + apart(table)
    is_infeasible = trials["outcome"] == "infeasible"
    ends = trials[is_infeasible].groupby("cell")[["kind", "inferred_from"]].first()
    rows = []
    for _, combination in table.groupby(others or (lambda row: 0), sort=False, dropna=False):
        ran = combination[combination["n"] > 0]
        row = combination.iloc[0][others].to_dict() | dict.fromkeys(FRONTIER, nan) | {"kind": "", "inferred_from": ""}
        if not ran.empty:
            row |= ran.loc[ran["batch_size"].idxmax()][["batch_size", "images_per_s", "images_per_s_ci"]].to_dict()
        short = combination[combination["cell"].isin(ends.index) & ~(combination["batch_size"] <= row["batch_size"])]
        if not short.empty:
            smallest = short.loc[short["batch_size"].idxmin()]
            row |= {"too_large": smallest["batch_size"], **ends.loc[smallest["cell"]]}
        rows.append(row)
    return pd.DataFrame(rows, columns=[*others, *FRONTIER, *ends.columns])


def feasible(trials: pd.DataFrame) -> pd.DataFrame:
    """A row a cell: the parameters that vary, whether it `fits`, if not why (`kind`), and the peak of its memory.

    `fits` is true where a repeat completed, false where one was infeasible and none completed, and missing where all
    failed otherwise; `is_inferred` where nobody tried, since a smaller one did not fit.
    """
    import pandas as pd

    trials = plain(trials)
    table = cells(trials)
    short = trials[trials["outcome"] == "infeasible"]
    ends = short.groupby("cell")[["kind", "inferred_from"]].first()
    made = table[["cell", *varied(trials)]].copy()
    made["fits"] = pd.array(
        [
            True if n else False if cell in ends.index else None
            for cell, n in zip(table["cell"], table["n"], strict=True)
        ],
        dtype="boolean",
    )
    end = ends.reindex(table["cell"].where(table["n"] == 0)).fillna("").set_axis(table.index)
    made["kind"] = end["kind"]
    made["is_inferred"] = end["inferred_from"] != ""
    made["peak_memory_mib"] = table["peak_memory_mib"]
    return made
