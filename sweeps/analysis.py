"""What the trials mean: pure functions from DataFrame to DataFrame.

A cell's figure is the mean over its repeats with a 95% t-interval, given as its half-width; one repeat has none.
Scaling efficiency is X(N) ÷ (N · X(1)) at the same cell in all but the GPU count, a weak scaling since the batch
is per GPU. Its relative interval adds those of both sides in squares, which assumes independent repeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95
NOT_AXES = ("trial", "cell", "outcome", "kind", "message", "repeat", "started_at")


def half_width(spread: float, n: int) -> float:
    """Half of the t-interval of a mean of `n` values with this standard deviation."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * spread / n**0.5) if n > 1 else float("nan")


def cells(trials: pd.DataFrame) -> pd.DataFrame:
    """One row a cell: its parameters, images_per_s with interval, how many repeats, the outcomes."""
    from sweeps import rows

    parameters = [name for name in rows.PARAMS if name != "repeat"]
    grouped = trials.groupby("cell", sort=False)
    table = grouped[parameters].first()
    measured = trials[trials["outcome"] == "completed"].groupby("cell")["images_per_s"]
    table["n"] = measured.size().reindex(table.index, fill_value=0)
    table["images_per_s"] = measured.mean()
    spread = measured.std()
    table["images_per_s_ci"] = [half_width(spread.get(cell, float("nan")), n) for cell, n in table["n"].items()]
    table["outcomes"] = grouped["outcome"].agg(_counted)
    table["message"] = grouped["message"].agg(lambda messages: next((m for m in messages if m), ""))
    return table.reset_index()


def _counted(outcomes: pd.Series) -> str:
    """`completed`, or `2 completed, 1 failed` where the repeats differ."""
    counts = outcomes.value_counts()
    return counts.index[0] if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())


def scaling(trials: pd.DataFrame) -> pd.DataFrame:
    """The cells with their efficiency against one GPU at the same settings; NaN where that was not measured."""
    from sweeps import rows

    table = cells(trials)
    same = [name for name in rows.PARAMS if name not in ("repeat", "gpus")]
    single = table[table["gpus"] == 1].set_index(same)[["images_per_s", "images_per_s_ci"]]
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
