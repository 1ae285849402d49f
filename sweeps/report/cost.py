"""Throughput against what it costs: the cells that no other beats in both."""

from __future__ import annotations

import math

from sweeps import analysis, tables
from sweeps.report.chart import Chart, Mark, Panel, Scale, Section, Series, Table, is_wide
from sweeps.report.study import Study

COST = "gpu_hours_per_epoch"


def section(study: Study) -> Section | None:
    known = study.measured.dropna(subset=["images_per_s", COST])
    if len(known) < 3 or study.is_convergence or known["gpus"].nunique() == 1:
        return None
    sides = [side for side in analysis.FINGERPRINTS if side in study.axes]
    groups = [group for _, group in known.groupby(sides, sort=False)] if sides else [known]
    panels, rows = [], []
    for alike in groups:
        front = analysis.pareto(alike, ["images_per_s"], [COST]).sort_values("images_per_s")
        rest = alike[~alike.index.isin(front.index)]
        title = study.described(alike.iloc[0], sides)
        panels.append(
            Panel(
                title,
                tuple(
                    series
                    for series in (
                        Series("others", tuple(_mark(study, row) for _, row in rest.iterrows()), "faint"),
                        Series("the front", tuple(_mark(study, row) for _, row in front.iterrows())),
                    )
                    if series.marks
                ),
            )
        )
        rows += [
            (
                *(tables.cell(row[axis]) for axis in study.axes),
                tables.plus_minus(row["images_per_s"], row["images_per_s_ci"]),
                tables.plus_minus(row[COST], row[f"{COST}_ci"]),
                tables.duration(3600 * row[COST] / row["gpus"]),
            )
            for _, row in front[::-1].iterrows()
        ]
    hours = f"{study.rank}-hours for an epoch of ImageNet"
    wide = is_wide(known["images_per_s"])
    cheapest = known.loc[known[COST].idxmin()]
    alt = f"Cheapest: {study.described(cheapest)} at {cheapest[COST]:.3g} {study.rank}-hours an epoch."
    chart = Chart(
        "cost-front",
        "Speed against cost",
        alt,
        Scale("images/s", "log" if wide else "linear"),
        Scale(hours, "log" if is_wide(known[COST]) else "linear"),
        tuple(panels),
        note="Right is faster, down is cheaper. The front compares means as they are.",
    )
    columns = (*map(study.word, study.axes), "images/s", f"{study.rank}-hours an epoch", "time an epoch")
    numeric = study.numeric(columns[len(study.axes) :])
    table = Table("cost-table", "The front, fastest first", columns, tuple(rows), numeric)
    lead = (
        f"What an epoch of ImageNet (1,281,167 images) costs in {study.rank}-hours, and how fast it goes. "
        "Cells on the front are beaten by no other in both."
    )
    return Section("cost", "Cost", lead, (chart, table))


def _mark(study: Study, row: object) -> Mark:
    cost, within = float(row[COST]), float(row[f"{COST}_ci"])  # type: ignore[index]
    ends = (cost - within, cost + within) if math.isfinite(within) else (math.nan, math.nan)
    return Mark(float(row["images_per_s"]), cost, *ends, says=study.described(row))  # type: ignore[index]
