"""One figure over another, with an interval.

The relative interval of a ratio adds those of both sides in squares, which assumes independent repeats and intervals
that are small beside the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sweeps.analysis.alike import APART, along
from sweeps.analysis.means import cells, parameters

if TYPE_CHECKING:
    import pandas as pd


def ratio_ci(value: Any, ci: Any, base: Any, base_ci: Any) -> Any:
    """Return the half-width of value ÷ base; of numbers or of columns."""
    return abs(value / base) * ((ci / value) ** 2 + (base_ci / base) ** 2) ** 0.5


def ratios(trials: pd.DataFrame, axis: str, base: object, figure: str = "images_per_s") -> pd.DataFrame:
    """Return the cells off the base, each with its figure over that of the cell which differs in nothing but the axis.

    What goes along with the axis (`alike.along`) may differ too: there is a row for each cell of the base, which has it
    as `…_base`. `ratio` and its interval are empty where no such cell was measured.
    """
    table = cells(trials)
    told = [*parameters(trials), *APART]
    goes_along = along(axis, told)
    same = [name for name in told if name not in (axis, *goes_along)]
    is_base = table[axis] == base
    under = table[is_base].set_index(same)[[figure, f"{figure}_ci", *goes_along]]
    joined = table[~is_base].join(under, on=same, rsuffix="_base")
    found, of = joined[figure], joined[f"{figure}_base"]
    joined["ratio"] = found / of
    joined["ratio_ci"] = ratio_ci(found, joined[f"{figure}_ci"], of, joined[f"{figure}_ci_base"])
    return joined.reset_index(drop=True)


def precision_ratios(trials: pd.DataFrame, base: str = "fp32") -> pd.DataFrame:
    """How many times as fast as in `base` each cell of another precision is."""
    return ratios(trials, "precision", base)
