"""Where a step's time goes, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.analysis.best_cell import NOT_SHOWN
from sweeps.analysis.study import Study
from sweeps.record import bottleneck
from sweeps.report.chart import Bars, Section, Table
from sweeps.text import tables

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("computing alone", "overlapped", "waiting for input", "waiting for communication", "waiting for both")
FIGURES = ("compute_share", "overlap_share", "input_share", "comm_share")
MOST = 40


def section(study: Study) -> Section | None:
    known = study.measured.dropna(subset=[*FIGURES])
    waits = known[["input_share", "comm_share"]].to_numpy()
    if study.is_convergence or not waits.any():
        return None
    shown = known.loc[known["images_per_s"].nlargest(MOST).index].sort_index()
    lead = (
        "A part's share is what a step loses when the part is taken away, so only what is exposed counts. "
        "**Waiting for both** is what a step loses only when input and reduction are both taken away. "
        "**Overlapped** (`overlap_share`) is computing with the reduction beside it, the rest of which is "
        f"**computing alone**. {_overlaps(study, known)}"
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
        tuple(_bar(study, row) for _, row in shown.iterrows()),
        f"A share below zero is noise: it is drawn as nothing, and the bar's words have its value.{left}",
    )
    return Section("steps", "Step time", lead, (bars, _verdicts(study, shown)))


def _bar(study: Study, row: pd.Series) -> tuple[tuple[str, ...], tuple[float, ...], tuple[str, ...], str]:
    compute, *others = (float(row[figure]) for figure in FIGURES)
    in_all, *words = (tables.percent(float(row[figure]), float(row[f"{figure}_ci"])) for figure in FIGURES)
    overlap, *waits = others
    alone, both = compute - overlap, 1 - compute - sum(waits)
    return (
        tuple(tables.cell(row[axis]) for axis in study.axes),
        (alone, *others, both),
        (f"{alone:.0%} (of {in_all} computing)", *words, f"{both:.0%}"),
        f"{row['step_ms']:.4g}",
    )


def _overlaps(study: Study, cells: pd.DataFrame) -> str:
    """Say in how many cells it is shown; nothing where nobody reduces."""
    reducing = cells[cells["gpus"] > 1]
    if reducing.empty:
        return ""
    shown = reducing["overlap_share"] - reducing["overlap_share_ci"] > 0
    return f"Its interval lies above zero in {shown.sum()} of {len(shown)} cells on several {study.rank}s."


def _verdicts(study: Study, cells: pd.DataFrame) -> Table:
    """Return what limits each cell, in the words of the console and of a trial's tag."""
    verdicts = [(cell, bottleneck.of_cell(cell)) for _, cell in cells.iterrows()]
    rows = tuple(
        (
            *(tables.cell(cell[axis]) for axis in study.axes),
            bottleneck.overlapped(bottleneck.share_of(cell, "overlap")),
            bottleneck.in_short(verdict),
        )
        for cell, verdict in verdicts
        if verdict
    )
    note = (
        "A wait is named if it is a tenth of a step or more, its interval lies above a twentieth, and it is larger "
        "than the other wait for sure; computing, if both waits are less than a tenth for sure; an overlap, if its "
        "interval holds no zero. The rest is open."
    )
    columns = (*map(study.word, study.axes), "overlapped", "limited by")
    return Table(
        "steps-limits", "What limits each cell", columns, rows, study.numeric(()), note, is_sortable=len(rows) > 12
    )
