"""One row a cell: the mean over its repeats with a 95% t-interval, given as its half-width; one repeat has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95
FINGERPRINTS = ("hardware", "software")  # trials on unlike machines, or of unlike programs, are never averaged
SHARES = ("input_share", "comm_share", "compute_share")
TO_TARGET = ("epochs_to_target", "hours_to_target", "train_hours_to_target")
COSTS = ("gpu_hours_per_epoch", "joules_per_image")
MEMORY = ("peak_memory_mib", "peak_device_memory_mib")
FIGURES = ("images_per_s", "step_ms_mean", *COSTS, "top1", *TO_TARGET, *SHARES, *MEMORY)


def half_width(spread: Any, n: Any) -> Any:
    """Half of the t-interval of a mean of `n` values with this standard deviation; of numbers or of columns."""
    import numpy as np
    from scipy.stats import t

    n = np.asarray(n, float)
    several = np.where(n > 1, n, 2)
    found = np.where(n > 1, t.ppf((1 + CONFIDENCE) / 2, several - 1) * np.asarray(spread) / several**0.5, np.nan)
    return found if found.ndim else float(found)


def parameters(trials: pd.DataFrame) -> list[str]:
    """The columns that tell cells apart."""
    from sweeps import rows

    return [name for name in trials if name != "repeat" and (name in rows.PARAMS or name.startswith(rows.VARIABLE))]


def plain(trials: pd.DataFrame) -> pd.DataFrame:
    """Categories as what they stand for: groups of columns are then those that there are."""
    kinds = {name: kind.categories.dtype for name, kind in trials.dtypes.items() if kind == "category"}
    return trials.astype(kinds) if kinds else trials


def varied(trials: pd.DataFrame) -> list[str]:
    """The parameters that have more than one value."""
    return [name for name in parameters(trials) if trials[name].nunique(dropna=False) > 1]


def cells(trials: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, and for each pair of fingerprints one of its own: its parameters, each figure's mean with its
    interval, how many repeats, the outcomes.

    `n` counts the repeats that completed, `reached` those among them that came to the target. What it took to get
    there is the mean over the latter: read it beside `reached`. `nodes` is empty where repeats were not all on as many.
    """
    trials = plain(trials)
    trials = trials.assign(**{side: _known(trials, side) for side in FINGERPRINTS})
    key = ["cell", *FINGERPRINTS]
    grouped = trials.groupby(key, sort=False)
    table = grouped[parameters(trials)].first()
    completed = trials[trials["outcome"] == "completed"].groupby(key)
    for count, figure in (("n", "images_per_s"), ("reached", "epochs_to_target")):
        table[count] = completed[figure].count().reindex(table.index, fill_value=0)
    if "nodes" in trials:
        nodes = completed["nodes"]
        table["nodes"] = nodes.first().where(nodes.nunique() == 1)
    for figure in FIGURES:
        spread, n = completed[figure].std(), completed[figure].count()
        table[figure] = completed[figure].mean()
        table[f"{figure}_ci"] = half_width(spread.reindex(table.index), n.reindex(table.index, fill_value=0))
    table["outcomes"] = grouped["outcome"].agg(_counted)
    table["message"] = grouped["message"].agg(lambda messages: next((m for m in messages if m), ""))
    return table.reset_index()


def _known(trials: pd.DataFrame, side: str) -> pd.Series:
    """Each trial's fingerprint; a trial that never ran anywhere counts with the others of its cell."""
    known = trials[side].where(trials[side] != "")
    return known.fillna(known.groupby(trials["cell"]).transform("first")).fillna("")


def _counted(outcomes: pd.Series) -> str:
    """`completed`, or `2 completed, 1 failed` where the repeats differ."""
    counts = outcomes.value_counts()
    return counts.index[0] if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())


def best(trials: pd.DataFrame, figure: str = "images_per_s") -> pd.Series:
    """The cell with the highest mean figure."""
    table = cells(trials).dropna(subset=[figure])
    if table.empty:
        raise ValueError(f"no trial measured {figure}")
    return table.loc[table[figure].idxmax()]
