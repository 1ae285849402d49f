"""What a figure costs, what nothing beats, and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from sweeps.analysis.alike import APART, apart, conditions
from sweeps.analysis.means import ENERGY, cells, plain, told_apart, varied
from workers.contract import imagenet

if TYPE_CHECKING:
    import pandas as pd

FRONTIER = ("images_per_s", "images_per_s_ci", "too_large")  # behind the largest value


def costs(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that measured something with what an epoch of ImageNet costs, GPU-hours and joules, cheapest
    first.

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
    """Return the rows that no other beats: as good in every figure and better in one. Best in the first figure first.

    Means are compared as they are: a row within the intervals of one that beats it is left out all the same.
    """
    import numpy as np

    figures = [*maximise, *minimise]
    known = table.dropna(subset=figures)
    losses = known[figures].to_numpy(float) * [*[-1.0] * len(maximise), *[1.0] * len(minimise)]
    is_beaten = [bool(np.any((losses <= row).all(axis=1) & (losses < row).any(axis=1))) for row in losses]
    return known[~np.array(is_beaten, bool)].sort_values(figures[0], ascending=not maximise, kind="stable")


def frontier(trials: pd.DataFrame, axis: str = "batch_size") -> pd.DataFrame:
    """Return the largest batch that fits, or the largest value of another axis (`own.NAME`), a row for each combination
    of the other parameters that vary, and of what else tells cells apart.

    `too_large` is the smallest that was infeasible beyond it, `kind` why, and `inferred_from` by which trial, where
    nobody tried; NaN where the largest tried does fit, and the axis is NaN where none does.
    """
    import pandas as pd

    key = ["cell", *APART]
    table = cells(trials)
    table.index = pd.MultiIndex.from_frame(table[key], names=[None] * len(key))
    trials = told_apart(trials)
    others = [name for name in varied(trials) if name != axis] + apart(table)
    is_infeasible = trials["outcome"] == "infeasible"
    ends = trials[is_infeasible].groupby(key)[["kind", "inferred_from"]].first()
    rows = []
    for _, combination in table.groupby(others or (lambda row: 0), sort=False, dropna=False):
        ran = combination[combination["n"] > 0]
        row = (
            combination.iloc[0][others].to_dict()
            | dict.fromkeys((axis, *FRONTIER), nan)
            | {"kind": "", "inferred_from": ""}
        )
        if not ran.empty:
            row |= ran.loc[ran[axis].idxmax()][[axis, "images_per_s", "images_per_s_ci"]].to_dict()
        short = combination[combination.index.isin(ends.index) & ~(combination[axis] <= row[axis])]
        if not short.empty:
            smallest = short[axis].idxmin()
            row |= {"too_large": short[axis].min(), **ends.loc[smallest]}
        rows.append(row)
    return pd.DataFrame(rows, columns=[*others, axis, *FRONTIER, *ends.columns])


def feasible(trials: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each cell: the parameters that vary, whether it `fits`, if not why (`kind`), and the peak of its
    memory.

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
