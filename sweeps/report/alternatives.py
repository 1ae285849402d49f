"""What a number format or a framework is worth, everything else the same but for what a framework alone has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
    same, cells = axes.same(study, axis), study.cells
    found: list[tuple[Sequence[Any], list[Any], list[str]]] = []  # a row's key, its cells, what goes along with each
    for key, group in cells.groupby(same, sort=False, dropna=False) if same else [((), cells)]:
        at = [[row for _, row in group[group[axis] == name].iterrows()] or [None] for name in there]
        for figures in itertools.product(*at):
            if any(one is not None and one["n"] for one in figures):
                own = [" and ".join(axes.own(study, axis, one)) if one is not None else "" for one in figures]
                found.append((key, list(figures), own))
    with_own = [n for n in range(len(there)) if any(own[n] for _, _, own in found)]
    rows = [
        (*map(tables.cell, key), *(own[n] or "–" for n in with_own), _rate(first), *_beside(first, rest))
        for key, (first, *rest), own in found
    ]
    figures_of = [name for at in others for name in (f"{at}, images/s", f"{at} ÷ {base}")]
    words = [*map(study.word, same), *(f"{there[n]} with" for n in with_own)]
    columns = (*words, f"{base}, images/s", *figures_of)
    but_for = ", but for those that one of them alone has" if with_own else ""
    lead = f"Throughput by {word}, and its ratio over {base} at the same settings{but_for}."
    said = [found.says for found in axes.rated(study, axis)]
    lead = " ".join([lead, *(said or ["No two cells that were measured differ in it alone."])])
    numeric = study.numeric(columns[len(words) :])
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


def _beside(first: Any, rest: Sequence[Any]) -> list[str]:
    """Return the rate of each other cell of a row, and its ratio over the first."""
    return [said for one in rest for said in (_rate(one), _ratio(one, first))]


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
