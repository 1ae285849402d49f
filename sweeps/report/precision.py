"""What a number format is worth, everything else the same."""

from __future__ import annotations

from typing import Any

from sweeps import analysis
from sweeps.analysis.findings import axes
from sweeps.analysis.study import Study
from sweeps.report.chart import Section, Table
from sweeps.text import tables


def section(study: Study) -> Section | None:
    there = axes.formats(study)
    if not there:
        return None
    base, *others = there
    same = [axis for axis in study.axes if axis != "precision"]
    rows = []
    for key, alike in study.cells.groupby(same, sort=False, dropna=False) if same else [((), study.cells)]:
        figures = {str(row["precision"]): row for _, row in alike.iterrows()}
        if not any(at in figures and figures[at]["n"] for at in there):
            continue
        row = [*map(tables.cell, key)]
        for at in (base, *others):
            cell = figures.get(at)
            row.append(_rate(cell))
            if at == base:
                continue
            one = figures.get(base)
            if cell is None or one is None or not cell["n"] or not one["n"]:
                row.append("–")
                continue
            ratio = cell["images_per_s"] / one["images_per_s"]
            within = analysis.ratio_ci(*_pair(cell), *_pair(one))
            row.append(f"{ratio:.2f}×" if within != within else f"{ratio:.2f}× ± {within:.2f}")
        rows.append(tuple(row))
    figures_of = [name for at in others for name in (f"{at}, images/s", f"{at} ÷ {base}")]
    columns = (*map(study.word, same), f"{base}, images/s", *figures_of)
    lead = f"Throughput by number format, and its ratio over {base} at the same settings."
    lead = " ".join([lead, *(found.says for found in axes.precisions(study))])
    numeric = study.numeric(columns[len(same) :])
    table = Table(
        "precision-ratios",
        "By number format",
        columns,
        tuple(rows),
        numeric,
        "± is half of the 95% interval of each figure and each ratio alone.",
        is_sortable=len(rows) > 12,
    )
    return Section("precision", "Precision", lead, (table,))


def _rate(cell: Any) -> str:
    if cell is None:
        return "–"
    if not cell["n"]:
        return str(cell["kind"]) or "–"
    return tables.plus_minus(cell["images_per_s"], cell["images_per_s_ci"])


def _pair(cell: Any) -> tuple[float, float]:
    return float(cell["images_per_s"]), float(cell["images_per_s_ci"])
