"""Which axis matters, and which repeats don't agree with the others."""

from __future__ import annotations

from sweeps import analysis
from sweeps.analysis.study import Study
from sweeps.report.chart import Block, Section, Table
from sweeps.spec import space
from sweeps.text import tables

STRAY_TRIALS = 20  # that are named
CLEARLY = 0.01  # of the variance


def section(study: Study) -> Section | None:
    figure = "top1" if study.is_convergence else "images_per_s"
    axes = [axis for axis in study.axes if axis in study.trials]
    if len(study.measured) < 4 or len(axes) < 2 or not (study.measured[figure] > 0).any():
        return None
    found = analysis.effects(study.trials, figure)
    if found.empty:
        return None
    blocks: list[Block] = [_effects(study, found)]
    pairs = analysis.interactions(study.trials, figure)
    strong = pairs[pairs["share"] > CLEARLY].head(3)
    shares = found.drop_duplicates("axis").sort_values("share", ascending=False)
    first = shares.iloc[0]
    said = "top-1" if study.is_convergence else "throughput"
    most = f"**{study.word(first['axis'])}** alone explains {first['share']:.0%}"
    lead = f"Of the differences in {said} between the cells, {most}"
    rest = [f"{study.word(row['axis'])} {row['share']:.0%}" for _, row in shares.iloc[1:].iterrows()]
    lead += f"; {', '.join(rest)}." if rest else "."
    if len(strong):
        words = ", ".join(
            f"{study.word(row['axis'])} with {study.word(row['other'])} {row['share']:.0%}"
            for _, row in strong.iterrows()
        )
        lead += f" Together, beyond each alone: {words}."
    return Section("effects", "What matters", lead, tuple(blocks))


def _effects(study: Study, found: object) -> Table:
    import pandas as pd

    assert isinstance(found, pd.DataFrame)
    rows = [
        (study.word(row["axis"]), space.shown(row["value"]), f"{row['factor']:.3g}×", f"{row['share']:.1%}")
        for _, row in found.sort_values("share", ascending=False, kind="stable").iterrows()
    ]
    columns = ("axis", "value", "beside the axis' mean", "the axis explains")
    note = "All else equal; shares are of the variance of the logarithm, each axis beyond all the others."
    return Table("effects-axes", "Each axis, all else equal", columns, tuple(rows), frozenset(columns[2:]), note)


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
