"""Trials' rows as a DataFrame: which columns there are, in which order, and of which type. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sweeps.record import rows

if TYPE_CHECKING:
    import pandas as pd

WORDS = (
    *("trial", "cell", "outcome", "kind", "message", "inferred_from", "limited_by"),
    *("why_withheld", "measured_by", "pinned", "why_not_pinned"),
)
CATEGORIES = (
    *("outcome", "kind", "protocol", "model", "device", "placement", "precision", "cache", "isolation"),
    *("framework", "optimizer", "compression"),
)


def frame(trial_rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a DataFrame whose columns stand in one order, present even where nothing was measured."""
    import pandas as pd

    variables = sorted({name for row in trial_rows for name in row if name.startswith(rows.VARIABLE)})
    own = sorted({name for row in trial_rows for name in row if name.startswith(rows.OWN)})
    system = sorted({name for row in trial_rows for name in row if name.startswith(rows.SYSTEM)})
    of_scripts = sorted({name for row in trial_rows for name in row if rows.is_of_script(name)})
    figures = [*rows.METRICS, *of_scripts, *system]
    columns = [*WORDS, *rows.PARAMS, *own, *variables, *rows.WHERE, *figures, "started_at"]
    table = pd.DataFrame(trial_rows, columns=columns)
    table[variables] = table[variables].fillna("").astype(str)
    table["decode_threads"] = table["decode_threads"].astype(str)
    table[[*rows.WHERE]] = table[[*rows.WHERE]].fillna("").astype(str)
    table[figures] = table[figures].astype(float)
    started_ms = [int(row["started_at"] * 1000) for row in trial_rows]  # as MLflow keeps it
    table["started_at"] = pd.to_datetime(started_ms, unit="ms", utc=True)
    return categorised(table)


def kinds(trials: pd.DataFrame) -> pd.Series:
    """Return how trials ended, in words: of those that nobody ran, too."""
    import numpy as np

    return trials["kind"].astype(str) + np.where(trials["inferred_from"] != "", " (inferred)", "")


def categorised(table: pd.DataFrame) -> pd.DataFrame:
    """Words of a closed set as categories."""
    return table.astype({name: "category" for name in CATEGORIES if name in table})
