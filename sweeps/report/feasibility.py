"""What fits and what does not, as a map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.analysis import overview
from sweeps.analysis.study import Study
from sweeps.report import layout
from sweeps.report.chart import Block, Section, Table
from sweeps.spec import space

if TYPE_CHECKING:
    import pandas as pd


def section(study: Study) -> Section | None:
    table = study.cells
    infeasible = table[table["outcomes"].str.contains("infeasible")]
    if infeasible.empty:
        return None
    across = "batch_size" if "batch_size" in study.axes else ("global_batch" if study.is_strong else "")
    down = [axis for axis in study.axes if axis != across]
    blocks: list[Block] = []
    if across and study.values(across)[layout.MOST_SERIES * 2 :] == []:
        values = study.values(across)
        rows = []
        for key, alike in table.groupby(down, sort=False, dropna=False) if down else [((), table)]:
            by = {row[across]: row for _, row in alike.iterrows()}
            cells = [_cell_text(by[value]) if value in by else "" for value in values]
            if any(word.startswith(("too", "infeasible", "failed")) for word in cells):
                rows.append((*map(space.shown, key), *cells))
        columns = (*map(study.word, down), *(study.said(across, value) for value in values))
        note = "A row for each combination in which something did not fit. An empty field is no cell of the sweep."
        blocks.append(Table("feasibility-map", "What fits", columns, tuple(rows), note=note, is_tinted=True))
    if study.facts.spec.search.method == "frontier":
        found = overview.frontier(study.trials, study.plan)
        rows = [tuple(map(str, row)) for row in found.itertuples(index=False)]
        title = f"The largest {study.facts.spec.frontier_word} that fits"
        blocks.append(Table("frontier", title, tuple(map(str, found.columns)), tuple(rows)))
    kinds = infeasible["kind"].value_counts()
    reasons = ", ".join(f"{n} for {kind}" for kind, n in kinds.items())
    lead = f"{len(infeasible)} of {len(table)} cells can't run here, which is a finding, not a failure: {reasons}."
    return Section("feasibility", "What fits", lead, tuple(blocks))


def _cell_text(row: pd.Series) -> str:
    if row["n"]:
        return "fits"
    if "infeasible" in row["outcomes"]:
        return "too large" if "memory" in row["kind"] else f"infeasible: {row['kind']}"
    return str(row["outcomes"].split(" ")[-1])
