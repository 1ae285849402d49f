"""What the trials mean: pure functions from DataFrame to DataFrame.

A cell's figure is the mean over its repeats with a 95% t-interval, given as its half-width; one repeat has none.
Scaling efficiency is X(N) ÷ (N · X(1)) at the same cell in all but the GPU count and the placement, of which one GPU
has only one: weak scaling where the batch of a GPU stays the same, strong scaling where that of all GPUs does. Its
relative interval adds those of both sides in squares, which assumes independent repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95
FINGERPRINTS = ("hardware", "software")  # trials on unlike machines, or of unlike programs, are never averaged
SHARES = ("input_share", "comm_share", "compute_share")
TO_TARGET = ("epochs_to_target", "hours_to_target", "train_hours_to_target")
FRONTIER = ("batch_size", "images_per_s", "images_per_s_ci", "too_large")
FIGURES = ("images_per_s", "gpu_hours_per_epoch", "top1", *TO_TARGET, *SHARES)


def half_width(spread: float, n: int) -> float:
    """Half of the t-interval of a mean of `n` values with this standard deviation."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * spread / n**0.5) if n > 1 else float("nan")


def parameters(trials: pd.DataFrame) -> list[str]:
    """The columns that tell cells apart."""
    from sweeps import rows

    return [name for name in trials if name != "repeat" and (name in rows.PARAMS or name.startswith(rows.VARIABLE))]


def varied(trials: pd.DataFrame) -> list[str]:
    """The parameters that have more than one value."""
    return [name for name in parameters(trials) if trials[name].nunique(dropna=False) > 1]


def cells(trials: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, and for each pair of fingerprints one of its own: its parameters, each figure's mean with its
    interval, how many repeats, the outcomes.

    `n` counts the repeats that completed, `reached` those among them that came to the target. What it took to get
    there is the mean over the latter: read it beside `reached`.
    """
    trials = trials.assign(**{side: _known(trials, side) for side in FINGERPRINTS})
    key = ["cell", *FINGERPRINTS]
    grouped = trials.groupby(key, sort=False, observed=True)
    table = grouped[parameters(trials)].first()
    completed = trials[trials["outcome"] == "completed"].groupby(key, observed=True)
    for count, figure in (("n", "images_per_s"), ("reached", "epochs_to_target")):
        table[count] = completed[figure].count().reindex(table.index, fill_value=0)
    for figure in FIGURES:
        spread, n = completed[figure].std(), completed[figure].count()
        table[figure] = completed[figure].mean()
        table[f"{figure}_ci"] = [half_width(spread.get(cell, nan), n.get(cell, 0)) for cell in table.index]
    table["outcomes"] = grouped["outcome"].agg(_counted)
    table["message"] = grouped["message"].agg(lambda messages: next((m for m in messages if m), ""))
    return table.reset_index()


def _known(trials: pd.DataFrame, side: str) -> pd.Series:
    """Each trial's fingerprint; a trial that never ran anywhere counts with the others of its cell."""
    known = trials[side].where(trials[side] != "")
    return known.fillna(known.groupby(trials["cell"], observed=True).transform("first")).fillna("")


def _counted(outcomes: pd.Series) -> str:
    """`completed`, or `2 completed, 1 failed` where the repeats differ."""
    counts = outcomes.astype(str).value_counts()
    return counts.index[0] if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())


def scaling(trials: pd.DataFrame, is_strong: bool = False) -> pd.DataFrame:
    """The cells with their efficiency against one GPU at the same settings; NaN where that was not measured."""
    table = cells(trials)
    table["global_batch"] = table["batch_size"] * table["gpus"]
    varies = ("gpus", "placement", "batch_size" if is_strong else "global_batch")
    same = [name for name in (*parameters(trials), "global_batch", *FINGERPRINTS) if name not in varies]
    single = table[table["gpus"] == 1].drop_duplicates(same).set_index(same)[["images_per_s", "images_per_s_ci"]]
    joined = table.join(single, on=same, rsuffix="_1")
    table["efficiency"] = joined["images_per_s"] / (joined["gpus"] * joined["images_per_s_1"])
    relative = (
        (joined["images_per_s_ci"] / joined["images_per_s"]) ** 2
        + (joined["images_per_s_ci_1"] / joined["images_per_s_1"]) ** 2
    ) ** 0.5
    table["efficiency_ci"] = (table["efficiency"] * relative).where(table["gpus"] > 1, 0.0)
    return table


def best(trials: pd.DataFrame, figure: str = "images_per_s") -> pd.Series:
    """The cell with the highest mean figure."""
    table = cells(trials).dropna(subset=[figure])
    if table.empty:
        raise ValueError(f"no trial measured {figure}")
    return table.loc[table[figure].idxmax()]


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
    """The largest batch that fits, a row for each combination of the other parameters that vary.

    `too_large` is the smallest that was infeasible beyond it, `kind` why; NaN where the largest tried does fit, and
    `batch_size` NaN where none does.
    """
    import pandas as pd

    table = cells(trials)
    others = [name for name in varied(trials) if name != "batch_size"]
    is_infeasible = trials["outcome"] == "infeasible"
    kinds = trials[is_infeasible].groupby("cell", observed=True)["kind"].first()
    rows = []
    for _, combination in table.groupby(others or (lambda row: 0), sort=False, dropna=False, observed=True):
        ran = combination[combination["n"] > 0]
        row = combination.iloc[0][others].to_dict() | dict.fromkeys(FRONTIER, nan) | {"kind": ""}
        if not ran.empty:
            row |= ran.loc[ran["batch_size"].idxmax()][["batch_size", "images_per_s", "images_per_s_ci"]].to_dict()
        short = combination[combination["cell"].isin(kinds.index) & ~(combination["batch_size"] <= row["batch_size"])]
        if not short.empty:
            smallest = short.loc[short["batch_size"].idxmin()]
            row |= {"too_large": smallest["batch_size"], "kind": kinds[smallest["cell"]]}
        rows.append(row)
    return pd.DataFrame(rows, columns=[*others, *FRONTIER, "kind"])
