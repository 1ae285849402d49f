"""Columns of a table of runs as typed arrays: texts, categories, and parameters as they were before MLflow. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sweeps.record import rows

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def present(table: pa.Table, prefix: str) -> list[str]:
    """Return the columns that begin so and hold something, as a frame calls them."""
    import pyarrow.compute as pc

    names = [name for name in table.column_names if name.startswith(prefix)]
    held = [name for name in names if not pc.all(pc.is_null(table[name], nan_is_null=True)).as_py()]
    return sorted(name.split(":", 1)[1] for name in held)


def _codes(table: pa.Table, column: str) -> tuple[Any, list[str]]:
    """Return a column of texts as places in a list; −1 where there is none."""
    import numpy as np
    import pyarrow as pa

    if column not in table.column_names:
        return np.full(len(table), -1), []
    texts = table[column].combine_chunks()
    coded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.unify_dictionaries().combine_chunks()
    return coded.indices.fill_null(-1).to_numpy(zero_copy_only=False), coded.dictionary.to_pylist()


def texts(table: pa.Table, column: str) -> Any:
    import numpy as np

    codes, known = _codes(table, column)
    return np.array([*known, ""], object)[codes]


def category(table: pa.Table, column: str, missing: str | None) -> pd.Categorical:
    """Return a column as pandas makes one of the same texts: only those that occur, in order."""
    import numpy as np
    import pandas as pd

    codes, known = _codes(table, column)
    if missing is not None and (codes < 0).any():
        codes, known = np.where(codes < 0, len(known), codes), [*known, missing]
    here = sorted({known[code] for code in np.unique(codes[codes >= 0])})
    place = {text: n for n, text in enumerate(here)}
    places = np.array([*(place.get(text, -1) for text in known), -1], int)
    return pd.Categorical.from_codes(places[codes], categories=here)


def typed(table: pa.Table, name: str) -> Any:
    """Return a parameter as it was before MLflow made it a text; where a run has none, what it was then, or NaN."""
    import numpy as np

    codes, known = _codes(table, f"param:{name}")
    values = [rows.typed(name, text) for text in known]
    if name in rows.BEFORE and (codes < 0).any():
        codes, values = np.where(codes < 0, len(values), codes), [*values, rows.BEFORE[name]]
    if (codes < 0).any() or not values:
        whole = np.array([*values, math.nan], object)[codes]
        return whole.astype(float) if values and all(type(value) in (int, float) for value in values) else whole
    kind = type(values[0])
    return np.array(values, kind if kind in (int, float, bool) else object)[codes]
