"""What a simulation of the same file predicted, beside what was measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sweeps.analysis.study import Study
from sweeps.report.chart import Section, Table
from sweeps.text import tables

if TYPE_CHECKING:
    import pandas as pd


def section(study: Study) -> Section | None:
    if study.twin is None:
        return None
    simulated, real = (study, study.twin) if study.facts.simulated else (study.twin, study)
    found = both(real.measured, simulated.measured)
    if found.empty:
        return None
    rows = [
        (
            *(tables.cell(row[axis]) for axis in real.axes),
            tables.plus_minus(row["predicted"], row["predicted_ci"]),
            tables.plus_minus(row["images_per_s"], row["images_per_s_ci"]),
            f"{row['error']:+.1%}",
            "" if row["is_within"] is None else "yes" if row["is_within"] else "no",
        )
        for row in found.to_dict("records")
    ]
    columns = (*map(real.word, real.axes), "predicted, images/s", "measured, images/s", "error", "within the interval")
    known = [within for within in found["is_within"] if within is not None]
    off = found["error"].abs()
    lead = (
        f"{simulated.name} answered the same file on {simulated.facts.simulated}, a cluster that is not there;"
        f" {real.name} measured it. Of {len(found)} cells that both have, the median error is **{off.median():.1%}**,"
        f" the largest {off.max():.1%}"
    )
    lead += f"; {sum(known)} of {len(known)} predictions lie within the measured 95% interval." if known else "."
    numeric = real.numeric(columns[len(real.axes) :])
    table = Table("twin-cells", "Predicted and measured", columns, tuple(rows), numeric, is_sortable=len(rows) > 12)
    return Section("twin", "Predicted and measured", lead, (table,))


def both(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return the measured cells that were predicted too. `error` is predicted over measured, less one; `is_within` says
    whether the prediction lies in the measured interval, or None where one repeat has none."""
    said = predicted.dropna(subset=["images_per_s"]).drop_duplicates("cell").set_index("cell")
    found = measured[measured["cell"].isin(said.index)].dropna(subset=["images_per_s"]).copy()
    found["predicted"] = found["cell"].map(said["images_per_s"])
    found["predicted_ci"] = found["cell"].map(said["images_per_s_ci"])
    found["error"] = found["predicted"] / found["images_per_s"] - 1
    found["is_within"] = [
        None if math.isnan(row["images_per_s_ci"])
        else abs(row["predicted"] - row["images_per_s"]) <= row["images_per_s_ci"]
        for row in found.to_dict("records")
    ]  # fmt: skip
    return found
