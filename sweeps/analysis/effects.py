"""Which axes matter: main effects and interactions of a figure, by least squares on its logarithm.

On logarithms an effect is a factor: an axis that doubles the rate whatever the others has no interaction. Axes count
as unordered values. A grid with holes, where cells did not fit, is fitted as it is; an axis whose effect can't be told
from that of others in what was measured gets what is its own alone.

A share is the squared cosine of an angle: that between the cells' logarithms, as one vector about its mean, and what
the axis can explain of them. Repeats say how far that vector may be from the true one: at 95% by no more than the root
of the squared halves of the cells' own t-intervals (`joint`; that one cell has all of the noise is the worst case of a
weighted sum of squares, Székely and Bakirov 2003). So the true one lies within an angle, and no angle to anything is
further off: the ends of all shares, of axes and of pairs, hold together.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from sweeps.analysis import joint
from sweeps.analysis.alike import apart
from sweeps.analysis.means import CONFIDENCE, cells, log_spread, varied

if TYPE_CHECKING:
    import pandas as pd


def effects(trials: pd.DataFrame, figure: str = "images_per_s") -> pd.DataFrame:
    """Return a row an axis and value: the `factor` by which the figure there differs from its geometric mean over the
    axis' values, all else equal, and the axis' `share`: of the variance of the logarithm, what it alone explains. The
    ends of its 95% interval, `share_low` and `share_high`, are NaN where a cell has a single repeat."""
    import numpy as np
    import pandas as pd

    table, axes = _measured(trials, figure)
    y = np.log(table[figure].to_numpy(float))
    columns = {axis: _indicators(table[axis]) for axis in axes}
    whole = _left_over(y, [*columns.values()])
    total = _left_over(y, [])
    error = _error(trials, table, figure)
    rows = []
    for axis in axes:
        others = [found for name, found in columns.items() if name != axis]
        share = (_left_over(y, others) - whole) / total if total else 0.0
        low, high = _ends(share, total, error)
        fitted = _fit(y, [columns[axis], *others])[1 : columns[axis].shape[1] + 1]
        logs = np.concatenate([[0.0], fitted])
        for value, log in zip(_values(table[axis]), logs - logs.mean(), strict=True):
            factor = float(np.exp(log))
            rows.append(
                {
                    "axis": axis,
                    "value": value,
                    "factor": factor,
                    "share": share,
                    "share_low": low,
                    "share_high": high,
                }
            )
    return pd.DataFrame(rows, columns=["axis", "value", "factor", "share", "share_low", "share_high"])


def interactions(trials: pd.DataFrame, figure: str = "images_per_s") -> pd.DataFrame:
    """Return a row for each pair of axes, the strongest first: the `share` of the variance that the two explain
    together beyond all axes alone, with the ends of its 95% interval as in `effects`. `rest` is what neither any pair
    nor any axis explains, of all pairs fitted at once."""
    import numpy as np
    import pandas as pd

    table, axes = _measured(trials, figure)
    y = np.log(table[figure].to_numpy(float))
    columns = {axis: _indicators(table[axis]) for axis in axes}
    pairs = {(a, b): _products(columns[a], columns[b]) for a, b in itertools.combinations(axes, 2)}
    alone = _left_over(y, [*columns.values()])
    total = _left_over(y, []) or 1.0
    rest = _left_over(y, [*columns.values(), *pairs.values()]) / total
    error = _error(trials, table, figure)
    rows = []
    for (a, b), both in pairs.items():
        share = (alone - _left_over(y, [*columns.values(), both])) / total
        low, high = _ends(share, total, error)
        rows.append({"axis": a, "other": b, "share": share, "share_low": low, "share_high": high, "rest": rest})
    found = pd.DataFrame(rows, columns=["axis", "other", "share", "share_low", "share_high", "rest"])
    return found.sort_values("share", ascending=False, kind="stable").reset_index(drop=True)


def _measured(trials: pd.DataFrame, figure: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells that have the figure, and the axes that vary among them."""
    table = cells(trials)
    table = table[table[figure] > 0]
    axes = [axis for axis in varied(trials) if table[axis].nunique(dropna=False) > 1]
    return table, axes + apart(table)


def _error(trials: pd.DataFrame, table: pd.DataFrame, figure: str) -> float:
    """How far the cells' logarithms, as one vector, may be from the true ones; NaN where a cell has a single repeat."""
    return float(joint.half_width(*log_spread(trials, table, figure), CONFIDENCE)) if len(table) else math.nan


def _ends(share: float, total: float, error: float) -> tuple[float, float]:
    """Return the ends of a share, of a vector whose length squared is `total` and that may be `error` off."""
    if math.isnan(error):
        return math.nan, math.nan
    if error >= math.sqrt(total):
        return 0.0, 1.0
    at, off = math.acos(math.sqrt(min(max(share, 0.0), 1.0))), math.asin(error / math.sqrt(total))
    return math.cos(min(at + off, math.pi / 2)) ** 2, math.cos(max(at - off, 0.0)) ** 2


def _values(column: pd.Series) -> list[Any]:
    values = list(column.unique())
    try:
        return sorted(values)
    except TypeError:
        return values


def _indicators(column: pd.Series) -> Any:
    """Return a column for each value but the first."""
    import numpy as np

    return np.column_stack([(column == value).to_numpy(float) for value in _values(column)[1:]])


def _products(a: Any, b: Any) -> Any:
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


def _fit(y: Any, blocks: list[Any]) -> Any:
    import numpy as np

    return np.linalg.lstsq(_design(y, blocks), y, rcond=None)[0]


def _left_over(y: Any, blocks: list[Any]) -> float:
    """Return the squares that a fit leaves."""
    return float(((y - _design(y, blocks) @ _fit(y, blocks)) ** 2).sum())


def _design(y: Any, blocks: list[Any]) -> Any:
    import numpy as np

    return np.column_stack([np.ones(len(y)), *blocks])
