"""What a number format or a framework is worth, everything else the same."""

from __future__ import annotations

from typing import Any

from sweeps import analysis
from sweeps.analysis.findings import axes
from sweeps.analysis.study import Study
from sweeps.report.chart import Section, Table
from sweeps.text import tables


def precision(study: Study) -> Section | None:
    return _section(study, "precision", "Precision", "number format")


def framework(study: Study) -> Section | None:
    return _section(study, "framework", "Frameworks", "framework")


def _section(study: Study, axis: axes.Rated, title: str, word: str) -> Section | None:
    there = axes.points(study, axis)
    if not there:
        return None
    base, *others = there
    same = [one for one in study.axes if one != axis]
    rows = []
    for key, alike in study.cells.groupby(same, sort=False, dropna=False) if same else [((), study.cells)]:
        figures = {str(row[axis]): row for _, row in alike.iterrows()}
        if any(at in figures and figures[at]["n"] for at in there):
            ratios = [
                said for at in others for said in (_rate(figures.get(at)), _ratio(figures.get(at), figures.get(base)))
            ]
            rows.append((*map(tables.cell, key), _rate(figures.get(base)), *ratios))
    figures_of = [name for at in others for name in (f"{at}, images/s", f"{at} ÷ {base}")]
    columns = (*map(study.word, same), f"{base}, images/s", *figures_of)
    lead = f"Throughput by {word}, and its ratio over {base} at the same settings."
    lead = " ".join([lead, *(found.says for found in axes.rated(study, axis))])
    numeric = study.numeric(columns[len(same) :])
    table = Table(
        f"{axis}-ratios",
        f"By {word}",
        columns,
        tuple(rows),
        numeric,
        "± is half of the 95% interval of each figure and each ratio alone.",
        is_sortable=len(rows) > 12,
    )
    return Section(axis, title, lead, (table,))


def _ratio(cell: Any, one: Any) -> str:
    """Return what a cell is over the first one, in words."""
    if cell is None or one is None or not cell["n"] or not one["n"]:
        return "–"
    ratio = cell["images_per_s"] / one["images_per_s"]
    within = analysis.ratio_ci(*_pair(cell), *_pair(one))
    return f"{ratio:.2f}×" if within != within else f"{ratio:.2f}× ± {within:.2f}"


def _rate(cell: Any) -> str:
    if cell is None:
        return "–"
    if not cell["n"]:
        return str(cell["kind"]) or "–"
    return tables.plus_minus(cell["images_per_s"], cell["images_per_s_ci"])


def _pair(cell: Any) -> tuple[float, float]:
    return float(cell["images_per_s"]), float(cell["images_per_s_ci"])
