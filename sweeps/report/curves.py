"""Throughput over one axis at a time: the batch, the decode threads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sweeps import analysis
from sweeps.analysis.findings import best as leading
from sweeps.analysis.study import Study
from sweeps.report import layout
from sweeps.report.chart import Chart, Mark, Scale, Section
from sweeps.text import tables

if TYPE_CHECKING:
    import pandas as pd


def batch(study: Study) -> Section | None:
    axis = "global_batch" if study.is_strong else "batch_size"
    lead = (
        "How throughput grows with the batch: a larger one keeps a device busier, up to a point. "
        "A cross at the bottom is a batch that did not fit."
    )
    return _section(study, axis, "batch", "Batch size", lead)


def threads(study: Study) -> Section | None:
    lead = (
        "How many threads of a node have to decode images before the devices stop waiting for them: those at the knee."
    )
    return _section(study, "decode_threads", "threads", "Decode threads", lead)


def _section(study: Study, axis: str, name: str, title: str, lead: str) -> Section | None:
    if axis not in study.axes or study.is_convergence or study.measured[axis].nunique() < 2:
        return None
    is_each = axis == "batch_size" and study.measured["gpus"].nunique() > 1 and not study.facts.spec.run
    figure = "each" if is_each else "images_per_s"
    cells = study.cells[(study.cells["n"] > 0) | (study.cells["kind"] != "")]
    per = cells["gpus"] if is_each else 1
    cells = cells.assign(each=cells["images_per_s"] / per, each_ci=cells["images_per_s_ci"] / per)
    found = layout.choose(study, axis, cells)
    scale = found.scale(cells)

    def marks(alike: pd.DataFrame) -> list[Mark]:
        made = []
        for _, row in alike.sort_values(axis).iterrows() if study.is_number(axis) else alike.iterrows():
            x = found.place(scale, row[axis])
            if row["n"]:
                made.append(layout.with_interval(row, figure, x, f"{row['n']} repeats"))
            else:
                made.append(Mark(x, math.nan, says=f"{row['kind']}: {row['message']}", is_missing=True))
        return made

    panels, more = found.drawn(cells, marks, figure)
    known = cells.dropna(subset=[figure])
    if not panels or known.empty:
        return None
    top = leading.by(study, "gpu_hours_per_epoch" if is_each else "images_per_s")  # what a GPU does is what it costs
    assert top
    best = known.loc[top.top.name]
    alt = f"Best{top.caption} at {study.said(axis, best[axis])}: {tables.cell(float(best[figure]))} {study.rate}."
    lead += _knee(study, axis, best)
    up = Scale(f"{study.rate} per {study.rank}" if is_each else study.rate, starts_at_zero=True)
    heading = f"Throughput{f' of each {study.rank}' if is_each else ''} over {study.word(axis)}"
    chart = Chart(
        f"{name}-curve",
        heading,
        alt,
        scale,
        up,
        panels,
        found.is_ordered,
        found.legend,
        layout.left_out(more),
    )
    return Section(name, title, lead, (chart,))


def _knee(study: Study, axis: str, best: Any) -> str:
    """Return the least that is enough, at the settings that do best."""
    if axis == "global_batch":
        return ""
    curve, found = (analysis.batch_curve if axis == "batch_size" else analysis.decode_curve)(study.trials)
    for other in study.axes:
        if other != axis and other in found:
            found = found[found[other] == best[other]]
    if curve.empty or len(found) != 1:
        return ""
    knee = found.iloc[0]
    others = [other for other in study.axes if other != axis]
    at = f" ({study.described(best, others)})" if others else ""
    most = study.said(axis, tables.cell(knee["knee"]))
    times = best["images_per_s"] / knee["best_images_per_s"]
    beside = f"; auto does {times:.2f} times as much as the best number" if str(best[axis]) == "auto" else ""
    if not knee["is_reached"]:
        return f" By means, at the best settings{at}, it still rises at {most}, the most that was tried{beside}."
    sure = "" if knee["is_sure"] else "; not shown at 95%"
    what = "what the best number does" if beside else "the most"
    return (
        f" By means, at the best settings{at}, **{most}** is enough for"
        f" {analysis.curves.ENOUGH:.0%} of {what}{sure}{beside}."
    )
