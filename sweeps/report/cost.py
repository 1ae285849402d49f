"""Throughput against what it costs: the cells that no other beats in both."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sweeps import analysis
from sweeps.analysis.best_cell import NOT_SHOWN
from sweeps.analysis.findings import best
from sweeps.analysis.study import Study
from sweeps.report.chart import Chart, Mark, Panel, Scale, Section, Series, Table, is_wide
from sweeps.text import tables
from workers.contract import imagenet

if TYPE_CHECKING:
    import pandas as pd

COST: best.Figure = "gpu_hours_per_epoch"
ENERGIES = {  # by what the nodes' meters read: the words of a column, and of the chart that has nothing more
    "joules_per_image": ("MJ an epoch", ""),
    "gpu_joules_per_image": ("MJ of GPUs", " of GPUs alone"),
    "cpu_joules_per_image": ("MJ of processors", " of processors alone"),
}


def _mj(figure: str) -> str:
    """Return the name of the column with an epoch's energy."""
    return figure.replace("joules_per_image", "megajoules_per_epoch")


def section(study: Study) -> Section | None:
    known = study.measured.dropna(subset=["images_per_s", COST])
    for figure in ENERGIES:
        for ci in ("", "_ci"):
            known = known.assign(**{f"{_mj(figure)}{ci}": known[f"{figure}{ci}"] * imagenet.TRAIN_IMAGES / 1e6})
    read = [figure for figure in ENERGIES if known[_mj(figure)].notna().any()]
    if len(known) < 3 or study.is_convergence or known["gpus"].nunique() == 1:
        return None
    sides = analysis.conditions(known)
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
                *(tables.plus_minus(row[_mj(figure)], row[f"{_mj(figure)}_ci"]) for figure in read),
            )
            for _, row in front[::-1].iterrows()
        ]
    hours = f"{study.rank}-hours for an epoch of ImageNet"
    wide = is_wide(known["images_per_s"])
    found = best.by(study, COST)
    assert found
    least = f"{tables.number(found.top[COST], 3)} {study.rank}-hours"
    alt = f"Cheapest{found.caption}: {study.described(found.top)} at {least} an epoch."
    chart = Chart(
        "cost-front",
        "Speed against cost",
        alt,
        Scale("images/s", "log" if wide else "linear"),
        Scale(hours, "log" if is_wide(known[COST]) else "linear"),
        tuple(panels),
        note=f"Right is faster, down is cheaper. The front is {NOT_SHOWN}.",
    )
    columns = (*map(study.word, study.axes), "images/s", f"{study.rank}-hours an epoch", "time an epoch")
    columns = (*columns, *(ENERGIES[figure][0] for figure in read))
    numeric = study.numeric(columns[len(study.axes) :])
    table = Table("cost-table", "The front, fastest first", columns, tuple(rows), numeric)
    lead = (
        f"What an epoch of ImageNet ({imagenet.TRAIN_IMAGES:,} images) costs in {study.rank}-hours, and how fast it"
        f" goes. Cells on the front are beaten by no other in both ({NOT_SHOWN})."
    )
    power = _joules(study, known, sides)
    return Section("cost", "Cost", lead, (chart, *([power] if power else []), table))


def _joules(study: Study, known: pd.DataFrame, sides: list[str]) -> Chart | None:
    """Return what an epoch takes of energy: all of it where that was read of two cells, else of GPUs or of processors.
    Cells without a reading are left out, and counted."""
    of = next((figure for figure in ENERGIES if known[_mj(figure)].notna().sum() >= 2), None)
    if of is None:
        return None
    figure, alone = _mj(of), ENERGIES[of][1]
    found = known.dropna(subset=[figure])
    groups = [alike for _, alike in found.groupby(sides, sort=False)] if sides else [found]
    least = found.loc[found[figure].idxmin()]
    left = len(known) - len(found)
    return Chart(
        "cost-joules",
        f"Speed against energy{alone}",
        f"Least ({NOT_SHOWN}): {study.described(least)} at {least[figure]:.3g} MJ an epoch{alone}.",
        Scale("images/s", "log" if is_wide(found["images_per_s"]) else "linear"),
        Scale(f"MJ for an epoch of ImageNet{alone}", "log" if is_wide(found[figure]) else "linear"),
        tuple(
            Panel(
                study.described(alike.iloc[0], sides),
                (Series("cells", tuple(_mark(study, row, figure) for _, row in alike.iterrows()), "marks"),),
            )
            for alike in groups
        ),
        note=f"Right is faster, down takes less. What the nodes' meters read in the window{alone}, all ranks together."
        + (f" {left} of {len(known)} cells have no such reading of every node." if left else ""),
    )


def _mark(study: Study, row: object, figure: str = COST) -> Mark:
    cost, within = float(row[figure]), float(row[f"{figure}_ci"])  # type: ignore[index]
    ends = (cost - within, cost + within) if math.isfinite(within) else (math.nan, math.nan)
    return Mark(float(row["images_per_s"]), cost, *ends, says=study.described(row))  # type: ignore[index]
