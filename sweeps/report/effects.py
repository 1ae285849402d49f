"""Which axis matters, and which repeats don't agree with the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeps import analysis
from sweeps.analysis.best_cell import NOT_SHOWN
from sweeps.analysis.findings import axes
from sweeps.analysis.study import Study
from sweeps.report.chart import Block, Section, Table
from sweeps.spec import space
from sweeps.text import tables

STRAY_TRIALS = 20  # that are named


def section(study: Study) -> Section | None:
    lead = axes.explained(study)
    return Section("effects", "What matters", lead.says, (_effects(study),)) if lead else None


def _effects(study: Study) -> Table:
    rows = [
        (study.word(row["axis"]), space.shown(row["value"]), f"{row['factor']:.3g}×", _share(row))
        for row in study.effects.sort_values("share", ascending=False, kind="stable").to_dict("records")
    ]
    columns = ("axis", "value", "beside the axis' mean", "the axis explains")
    note = (
        f"All else equal; factors are {NOT_SHOWN}. Shares are of the variance of the logarithm, each axis beyond all"
        " the others; their 95% intervals hold together."
    )
    return Table("effects-axes", "Each axis, all else equal", columns, tuple(rows), frozenset(columns[2:]), note)


def _share(row: Mapping[str, Any]) -> str:
    ends = row["share_low"], row["share_high"]
    return f"{row['share']:.1%}" + (f" ({ends[0]:.0%} to {ends[1]:.0%})" if ends[0] == ends[0] else "")


def outliers(study: Study) -> list[Block]:
    """Repeats far from the others of their cell, and ranks that hold up theirs."""
    if study.measured.empty or study.is_convergence:
        return []
    names = dict(zip(study.trials["trial"], study.trials["name"], strict=True))
    far = [
        (
            row["trial"],
            names[row["trial"]],
            f"{row['ratio']:.3f}×",
            tables.cell(float(row["distance"])),
            "one of two that disagree" if row["of_two"] else "",
        )
        for row in analysis.outliers(study.trials).head(STRAY_TRIALS).to_dict("records")
    ]
    slow = [
        (row["trial"], names[row["trial"]], f"{row['straggler_ratio']:.2f}×", tables.cell(row["images_per_s"]))
        for row in analysis.stragglers(study.trials).head(STRAY_TRIALS).to_dict("records")
    ]
    of_far = ("trial", "name", "beside the median of the others", "times the usual distance", "note")
    of_slow = ("trial", "name", "slowest rank ÷ median", "images/s")
    blocks: list[Block] = []
    if far:
        title = "Repeats far from the others of their cell"
        blocks.append(Table("strays-trials", title, of_far, tuple(far), frozenset(of_far[2:4])))
    if slow:
        title = "Trials in which a rank held up the others"
        blocks.append(Table("strays-ranks", title, of_slow, tuple(slow), frozenset(of_slow[2:])))
    return blocks
