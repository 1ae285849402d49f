"""How throughput grows with the ranks: against the ideal line, and what is lost inside a node and between nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sweeps.analysis.best_cell import NOT_SHOWN
from sweeps.analysis.findings import best as fastest
from sweeps.analysis.findings.best import Best
from sweeps.analysis.study import Study
from sweeps.report import layout
from sweeps.report.chart import Block, Chart, Mark, Panel, Scale, Section, Series, Table
from sweeps.spec import plan
from sweeps.text import tables

if TYPE_CHECKING:
    import pandas as pd

IDEAL = "ideal"


def section(study: Study) -> Section | None:
    counts = sorted({int(gpus) for gpus in study.measured["gpus"]})
    if len(counts) < 2:
        return None
    if not (found := fastest.by(study, "images_per_s")):  # of scripts that tell no steps
        return None
    kind = "strong" if study.is_strong else "weak"
    fixed = f"all {study.rank}s together" if study.is_strong else f"each {study.rank}"
    blocks: list[Block] = [*_best(study, found, _same_settings(study, found.top))]
    blocks += _all(study, counts)
    blocks += _parts(study)
    lead = (
        f"{kind.capitalize()} scaling: the batch of {fixed} stays the same. Efficiency is the throughput of N"
        f" {study.rank}s over N times that of one at the same settings. Intervals are 95%."
    )
    return Section("scaling", "Scaling", lead, tuple(blocks))


def _same_settings(study: Study, top: Any) -> pd.DataFrame:
    """Return the cells that differ from the best in the ranks and their place; of each count that with the most
    images/s."""
    size = "batch_size" if study.is_strong else "global_batch"
    same = [axis for axis in study.axes if axis not in ("gpus", "placement", size)]
    alike = study.measured
    for axis in same:
        alike = alike[alike[axis] == top[axis]]
    return alike.loc[alike.groupby("gpus")["images_per_s"].idxmax().dropna()].sort_values("gpus")


def _best(study: Study, found: Best, best: pd.DataFrame) -> list[Block]:
    if len(best) < 2 or best["gpus"].iloc[0] != 1:
        return []
    one = float(best["images_per_s"].iloc[0])
    counts = tuple(float(gpus) for gpus in best["gpus"])
    across = Scale(f"{study.rank}s", "log" if counts[-1] > 8 else "linear", ticks=counts)
    marks = [
        layout.with_interval(row, "images_per_s", float(row["gpus"]), f"{row['efficiency']:.1%} of linear")
        for _, row in best.iterrows()
    ]
    ideal = Series(IDEAL, tuple(Mark(gpus, one * gpus) for gpus in counts), "ideal")
    others = [axis for axis in study.axes if axis not in ("gpus", "placement")]
    named = study.described(best.iloc[-1], others) or "measured"
    up = Scale(study.rate, across.kind, starts_at_zero=across.kind == "linear")
    last = best.iloc[-1]
    most = tables.cell(float(last["images_per_s"]))
    alt = (
        f"Throughput from {tables.cell(one)} {study.rate} on one {study.rank} to {most} on {last['gpus']}, where the"
        f" ideal would be {tables.cell(one * float(last['gpus']))}."
    )
    panel = Panel("", (ideal, Series(named, tuple(marks))))
    lost = " Both scales are logarithmic." if across.kind == "log" else ""
    note = f"At each count, the placement with the higher mean.{lost}" if "placement" in study.axes else lost
    title = f"The fastest settings{found.caption}, from one on"
    return [Chart("scaling-best", title, alt, across, up, (panel,), note=note.strip())]


def _with_one(study: Study, cells: pd.DataFrame) -> pd.DataFrame:
    """One rank has only one place: its cells stand at the begin of every placement's line. So do those of more ranks
    in the lines of all placements that come to the same on the sweep's nodes."""
    import pandas as pd

    if "placement" not in study.axes:
        return cells
    alike = [plan.places_alike(study.plan, *row) for row in cells[["gpus", "placement"]].itertuples(index=False)]
    several = cells[cells["gpus"] > 1]
    copies = [
        cells[[place in places or gpus == 1 for places, gpus in zip(alike, cells["gpus"], strict=True)]].assign(
            placement=place
        )
        for place in dict.fromkeys(several["placement"])
    ]
    return pd.concat(copies, ignore_index=True) if copies else several


def _all(study: Study, counts: list[int]) -> list[Block]:
    size = ("batch_size",) if study.is_strong else ("global_batch",)
    known = _with_one(study, study.measured.dropna(subset=["efficiency"]))
    if known.empty or known["gpus"].nunique() < 2:
        return []
    found = layout.choose(study, "gpus", known, size)
    scale = found.scale(known)

    def marks(cells: pd.DataFrame) -> list[Mark]:
        if cells["gpus"].nunique() < 2:
            return []
        return [
            layout.with_interval(
                row, "efficiency", float(row["gpus"]), f"{tables.cell(float(row['images_per_s']))} {study.rate}"
            )
            for _, row in cells.sort_values("gpus").iterrows()
        ]

    panels, more = found.drawn(known, marks, "efficiency")
    if not panels:
        return []
    lowest = known.loc[known["efficiency"].idxmin()]
    alt = f"Efficiency at {counts}: lowest ({NOT_SHOWN}) {lowest['efficiency']:.0%} with {study.described(lowest)}."
    line = Series("linear", tuple(Mark(float(gpus), 1.0) for gpus in (scale.ticks[0], scale.ticks[-1])), "ideal")
    panels = tuple(Panel(panel.title, (line, *panel.series)) for panel in panels)
    least = max(0.0, math.floor(10 * float(known["efficiency"].min()) - 1) / 10)
    up = Scale("efficiency", form="percent", begins_at=least, ends_at=1.02)
    chart = Chart(
        "efficiency",
        f"Efficiency of every setting, over {study.rank}s",
        alt,
        scale,
        up,
        panels,
        found.is_ordered,
        found.legend,
        layout.left_out(more),
    )
    return [chart]


def _parts(study: Study) -> list[Block]:
    """Efficiency as what is kept inside a node times what is kept between nodes."""
    table = study.measured
    if not (table["nodes"] > 1).any():
        return []
    rows = [
        (
            *(tables.cell(row[axis]) for axis in study.axes),
            f"{row['nodes']:g} × {row['gpus'] / row['nodes']:g}",
            *(tables.percent(row[part], row[f"{part}_ci"]) for part in ("intra", "inter", "efficiency")),
        )
        for _, row in table[(table["nodes"] > 1) & table["inter"].notna()].iterrows()
    ]
    if not rows:
        return []
    figures = ("inside a node", "between nodes", "together")
    columns = (*map(study.word, study.axes), f"nodes × {study.rank}s", *figures)
    note = (
        f"Inside: k {study.rank}s of one node against k times one. Between: n nodes against n times one node. "
        "Together is their product."
    )
    return [
        Table(
            "intra-inter",
            "Where efficiency is lost",
            columns,
            tuple(rows),
            study.numeric(figures),
            note,
            is_sortable=True,
        )
    ]
