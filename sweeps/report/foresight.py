"""Predicted from fewer ranks, then measured: how well the model of a step's time holds on cells not seen before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.analysis import predict
from sweeps.analysis.study import Study
from sweeps.report.chart import Section, Table
from sweeps.text import tables

if TYPE_CHECKING:
    import pandas as pd


def section(study: Study) -> Section | None:
    if study.is_convergence or study.is_strong or study.measured["gpus"].nunique() < 4:
        return None
    held = predict.held_out(study.trials).dropna(subset=["images_per_s"])
    found = held.dropna(subset=["predicted"])
    lacking = held[held["lacks"] != ""]
    limit = int(study.measured["gpus"].max()) // 2
    if found.empty and lacking.empty:
        return None
    left = _left_out(study, lacking, limit)
    if found.empty:
        return Section("foresight", "Prediction", left, ())
    shape = [axis for axis in study.axes if axis in found]
    rows = [
        (
            *(tables.cell(row[axis]) for axis in shape),
            tables.plus_minus(row["predicted"], row["predicted_ci"]),
            tables.plus_minus(row["images_per_s"], row["images_per_s_ci"]),
            f"{row['error']:+.1%}",
            "yes" if row["is_within"] else "no",
        )
        for row in found.to_dict("records")
    ]
    columns = (*map(study.word, shape), "predicted, images/s", "measured, images/s", "error", "within the interval")
    lead = (
        f"Step times of up to {limit} {study.rank}s, as computing, exposed input and communication, predicted the rest:"
        f" the median error is **{found['error'].abs().median():.1%}**, the largest {found['error'].abs().max():.1%};"
        f" {int(found['is_within'].sum())} of {len(found)} cells lie within their 95% interval."
    )
    lead = " ".join(filter(None, [lead, left]))
    numeric = study.numeric(columns[len(shape) :])
    table = Table("foresight-cells", "Cells held out", columns, tuple(rows), numeric, is_sortable=len(rows) > 12)
    return Section("foresight", "Prediction", lead, (table,))


def _left_out(study: Study, lacking: pd.DataFrame, limit: int) -> str:
    if lacking.empty:
        return ""
    what = " and ".join(sorted({one for text in lacking["lacks"] for one in text.split(", ")}))
    cells = f"{len(lacking)} cell{'' if len(lacking) == 1 else 's'}"
    return (
        f"Nothing is predicted of {cells} of more than {limit} {study.rank}s: they depend on {what}, which no trial of"
        f" up to {limit} {study.rank}s shows."
    )
