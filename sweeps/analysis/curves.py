"""How a figure saturates along an axis that has an order, and its knee: the least of it that is about enough."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from sweeps.analysis.alike import apart
from sweeps.analysis.means import cells, varied
from sweeps.analysis.ratios import ratio_ci

if TYPE_CHECKING:
    import pandas as pd

ENOUGH = 0.95  # of the best rate, at the knee


def knees(curve: pd.DataFrame, axis: str, by: list[str], enough: float = ENOUGH) -> pd.DataFrame:
    """One row a line of the curve: its knee, the smallest value with `enough` of its best rate.

    All by means. `is_reached` is false where the largest value tried is the knee: the rate was still rising. `is_sure`
    is false where the interval of its rate over the best reaches below `enough`, or there is none.
    """
    import pandas as pd

    rows = []
    for _, line in curve.groupby(by or (lambda row: 0), sort=False, dropna=False):
        line = line.dropna(subset=[axis, "images_per_s"]).sort_values(axis)
        if line.empty:
            continue
        best = line.loc[line["images_per_s"].idxmax()]
        top, top_ci = best["images_per_s"], best["images_per_s_ci"]
        knee = line[line["images_per_s"] >= enough * top].iloc[0]
        rows.append(
            {name: line.iloc[0][name] for name in by}
            | {
                "knee": knee[axis],
                "images_per_s": knee["images_per_s"],
                "images_per_s_ci": knee["images_per_s_ci"],
                "best": best[axis],
                "best_images_per_s": top,
                "is_reached": bool(len(line) > 1 and knee[axis] < line[axis].max()),
                "is_sure": bool(knee["images_per_s"] / top - ratio_ci(*_pair(knee), top, top_ci) >= enough),
            }
        )
    columns = [*by, "knee", "images_per_s", "images_per_s_ci", "best", "best_images_per_s", "is_reached", "is_sure"]
    return pd.DataFrame(rows, columns=columns)


def _pair(cell: pd.Series) -> tuple[float, float]:
    return float(cell["images_per_s"]), float(cell["images_per_s_ci"])


def batch_curve(trials: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells over batch_size with `of_best`, their rate beside the best of their line; and a row a line with
    its knee, and what a step costs: `fixed_ms` plus `image_ms` for each image of the batch.

    The latter come from a straight line through the step times: a rate that grows as b / (b + b0) has
    b0 = fixed_ms / image_ms, the batch at which half of the device is used.
    """
    table, by = _lines(trials, "batch_size")
    found = knees(table, "batch_size", by)
    costs = [_step_cost(line) for _, line in table.groupby(by or (lambda row: 0), sort=False, dropna=False)]
    found["fixed_ms"], found["image_ms"] = [cost[0] for cost in costs], [cost[1] for cost in costs]
    return table, found


def _step_cost(line: pd.DataFrame) -> tuple[float, float]:
    import numpy as np

    if line["batch_size"].nunique() < 2:
        return nan, nan
    step_ms = 1e3 * line["batch_size"] * line["gpus"] / line["images_per_s"]
    image_ms, fixed_ms = np.polyfit(line["batch_size"], step_ms, 1, w=1 / step_ms)
    return float(fixed_ms), float(image_ms)


def decode_curve(trials: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells over decode_threads with `of_best`; and a row a line with its knee: the threads beyond which the
    images no longer wait for them. `auto_of_best` says how the choice `auto` does beside the best number."""
    import pandas as pd

    table, by = _lines(trials, "decode_threads")
    chosen = table[table["decode_threads"] == "auto"]
    numbered = table.assign(decode_threads=pd.to_numeric(table["decode_threads"], errors="coerce"))
    numbered = numbered.dropna(subset=["decode_threads"]).sort_values([*by, "decode_threads"], kind="stable")
    found = knees(numbered, "decode_threads", by)
    rates = [_rate_at(chosen, row, by) for _, row in found.iterrows()]
    found["auto_of_best"] = [rate / top for rate, top in zip(rates, found["best_images_per_s"], strict=True)]
    return numbered, found


def _rate_at(table: pd.DataFrame, at: pd.Series, by: list[str]) -> float:
    for name in by:
        table = table[table[name] == at[name]]
    return float(table["images_per_s"].iloc[0]) if len(table) else nan


def _lines(trials: pd.DataFrame, axis: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells that measured something, and the columns that tell one line over the axis from another."""
    table = cells(trials)
    table = table[table["images_per_s"].notna()]
    by = [name for name in varied(trials) if name != axis]
    by += apart(table)
    tops = table.groupby(by, sort=False, dropna=False)["images_per_s"] if by else table["images_per_s"]
    top = tops.transform("max") if by else tops.max()
    made = table.assign(of_best=table["images_per_s"] / top)
    return made.sort_values([*by, axis] if axis != "decode_threads" else by or ["cell"], kind="stable"), by
