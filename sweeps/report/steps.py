"""Where a step's time goes, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps import limits, tables
from sweeps.analysis.picking import NOT_SHOWN
from sweeps.report.chart import Bars, Section, Table
from sweeps.report.study import Study

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("computing", "waiting for input", "waiting for communication", "overlapped")
FIGURES = ("compute_share", "input_share", "comm_share")
MOST = 40


def section(study: Study) -> Section | None:
    known = study.measured.dropna(subset=[*FIGURES])
    waits = known[["input_share", "comm_share"]].to_numpy()
    if study.is_convergence or not waits.any():
        return None
    shown = known.loc[known["images_per_s"].nlargest(MOST).index].sort_index()
    rows = []
    for _, row in shown.iterrows():
        shares = [float(row[figure]) for figure in FIGURES]
        shares.append(max(0.0, 1 - sum(shares)))
        words = [tables.percent(float(row[figure]), float(row[f"{figure}_ci"])) for figure in FIGURES]
        whole = sum(max(share, 0) for share in shares)
        rows.append(
            (
                tuple(tables.cell(row[axis]) for axis in study.axes),
                tuple(max(share, 0) / whole for share in shares),
                (*words, f"{shares[-1]:.0%}"),
                f"{row['step_ms']:.4g}",
            )
        )
    lead = (
        "A part's share is what a step loses when the part is taken away, so only what is exposed counts. "
        "What parts hide behind each other is overlapped."
    )
    most = known.loc[(known["comm_share"] + known["input_share"]).idxmax()]
    waits = f"{most['comm_share']:.0%} communication, {most['input_share']:.0%} input"
    alt = f"Most waiting ({NOT_SHOWN}): {study.described(most)}, {waits}."
    left = f" The {MOST} of {len(known)} cells with the most images/s ({NOT_SHOWN})." if len(known) > MOST else ""
    bars = Bars(
        "steps-cells",
        "Step time by cell",
        alt,
        tuple(map(study.word, study.axes)),
        PARTS,
        "step, ms",
        tuple(rows),
        f"A share below zero is noise and drawn as none; the words of a bar have it as it was.{left}",
    )
    return Section("steps", "Step time", lead, (bars, _verdicts(study, shown)))


def _verdicts(study: Study, cells: pd.DataFrame) -> Table:
    """What limits each cell, in the words of the console and of a trial's tag."""
    verdicts = [(cell, limits.of_cell(cell)) for _, cell in cells.iterrows()]
    rows = tuple(
        (*(tables.cell(cell[axis]) for axis in study.axes), limits.in_short(verdict))
        for cell, verdict in verdicts
        if verdict
    )
    note = (
        "A wait is named if it is a tenth of a step or more, its interval leaves zero, and the other wait behind; "
        "computing, where both waits are less than a tenth for sure. The rest is open."
    )
    columns = (*map(study.word, study.axes), "limited by")
    return Table(
        "steps-limits", "What limits each cell", columns, rows, study.numeric(()), note, is_sortable=len(rows) > 12
    )
