"""Which axes matter: main effects and interactions of a figure, by least squares on its logarithm.

On logarithms an effect is a factor: an axis that doubles the rate whatever the others has no interaction. Axes count
as unordered values. A grid with holes, where cells did not fit, is fitted as it is; an axis whose effect can't be told
from that of others in what was measured gets what is its own alone.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from sweeps.analysis.alike import apart
from sweeps.analysis.means import cells, varied

if TYPE_CHECKING:
    import pandas as pd


def effects(trials: pd.DataFrame, figure: str = "images_per_s") -> pd.DataFrame:
    """A row an axis and value: the `factor` by which the figure there differs from its geometric mean over the axis'
    values, all else equal, and the axis' `share`: of the variance of the logarithm, what it alone explains."""
    import numpy as np
    import pandas as pd

    table, axes = _measured(trials, figure)
    y = np.log(table[figure].to_numpy(float))
    columns = {axis: _indicators(table[axis]) for axis in axes}
    whole = _left_over(y, [*columns.values()])
    total = _left_over(y, [])
    rows = []
    for axis in axes:
        others = [found for name, found in columns.items() if name != axis]
        share = (_left_over(y, others) - whole) / total if total else 0.0
        fitted = _fit(y, [columns[axis], *others])[1 : columns[axis].shape[1] + 1]
        logs = np.concatenate([[0.0], fitted])
        for value, log in zip(_values(table[axis]), logs - logs.mean(), strict=True):
            rows.append({"axis": axis, "value": value, "factor": float(np.exp(log)), "share": share})
    return pd.DataFrame(rows, columns=["axis", "value", "factor", "share"])


def interactions(trials: pd.DataFrame, figure: str = "images_per_s") -> pd.DataFrame:
    """A row a pair of axes, the strongest first: the `share` of the variance that the two explain together beyond all
    axes alone. `rest` is what neither any pair nor any axis explains, of all pairs fitted at once."""
    import numpy as np
    import pandas as pd

    table, axes = _measured(trials, figure)
    y = np.log(table[figure].to_numpy(float))
    columns = {axis: _indicators(table[axis]) for axis in axes}
    pairs = {(a, b): _products(columns[a], columns[b]) for a, b in itertools.combinations(axes, 2)}
    alone = _left_over(y, [*columns.values()])
    total = _left_over(y, []) or 1.0
    rest = _left_over(y, [*columns.values(), *pairs.values()]) / total
    rows = [
        {"axis": a, "other": b, "share": (alone - _left_over(y, [*columns.values(), both])) / total, "rest": rest}
        for (a, b), both in pairs.items()
    ]
    found = pd.DataFrame(rows, columns=["axis", "other", "share", "rest"])
    return found.sort_values("share", ascending=False, kind="stable").reset_index(drop=True)


def _measured(trials: pd.DataFrame, figure: str) -> tuple[pd.DataFrame, list[str]]:
    """The cells that have the figure, and the axes that vary among them."""
    table = cells(trials)
    table = table[table[figure] > 0]
    axes = [axis for axis in varied(trials) if table[axis].nunique(dropna=False) > 1]
    return table, axes + apart(table)


def _values(column: pd.Series) -> list[Any]:
    values = list(column.unique())
    try:
        return sorted(values)
    except TypeError:
        return values


def _indicators(column: pd.Series) -> Any:
    """A column for each value but the first."""
    import numpy as np

    return np.column_stack([(column == value).to_numpy(float) for value in _values(column)[1:]])


def _products(a: Any, b: Any) -> Any:
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


def _fit(y: Any, blocks: list[Any]) -> Any:
    import numpy as np

    return np.linalg.lstsq(_design(y, blocks), y, rcond=None)[0]


def _left_over(y: Any, blocks: list[Any]) -> float:
    """The squares that a fit leaves."""
    return float(((y - _design(y, blocks) @ _fit(y, blocks)) ** 2).sum())


def _design(y: Any, blocks: list[Any]) -> Any:
    import numpy as np

    return np.column_stack([np.ones(len(y)), *blocks])
