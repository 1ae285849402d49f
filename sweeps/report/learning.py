"""How it learns: accuracy and loss by epoch and by time, and the learning rate that each schedule asks for."""

from __future__ import annotations

import collections
import itertools
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from sweeps import analysis
from sweeps.analysis import overview
from sweeps.analysis.best_cell import NOT_SHOWN
from sweeps.analysis.study import Study
from sweeps.analysis.target import GROWS_WITH
from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.report.chart import Block, Chart, Mark, Panel, Scale, Section, Series, Table, is_wide
from sweeps.spec import space
from sweeps.text import tables
from workers.contract import schedules

FACTORS = {"speed-up": "speedup", "throughput": "throughput", "statistical efficiency": "statistical"}
MOST = 8  # series that can be told apart
RATE_POINTS = 120


def section(study: Study) -> Section | None:
    if not study.is_convergence:
        return None
    records = [r for r in study.records if r.outcome.measurement and r.outcome.measurement.epochs]
    if not records and study.stored is None:
        return None
    charts = [
        _curve(study, records, "top1", "Accuracy by epoch", "top-1", by_hours=False),
        _curve(study, records, "top1", "Accuracy by time", "top-1", by_hours=True),
        _curve(study, records, "loss", "Loss by epoch", "training loss", by_hours=False),
        None if study.facts.spec.run else _rates(study, records),
    ]
    lead = (
        "Each line is the mean over a cell's repeats, its band from the lowest to the highest. By epoch a schedule is "
        "judged by what it learns; by time by what it costs as well."
    )
    blocks: list[Block] = [chart for chart in [*charts, _factors(study)] if chart]
    return Section("learning", "Schedules", lead if records else "What each cell came to.", (*blocks, *_table(study)))


def _factors(study: Study) -> Chart | None:
    """Return what more images a second gain, and what the greater batch loses of it again."""
    found = analysis.convergence(study.trials)
    found = overview.in_order(found[found["unexplained"].notna()], study.plan)
    if found["global_batch"].nunique() < 2:
        return None
    axes = [axis for axis in study.axes if axis in found and axis not in GROWS_WITH]
    panels = []
    for _, line in found.groupby(axes or (lambda row: 0), sort=False, dropna=False):
        if line["global_batch"].nunique() < 2:
            continue
        line = line.sort_values("global_batch", kind="stable")
        series = [
            Series(name, tuple(_factor(study, row, column) for row in line.to_dict("records")))
            for name, column in FACTORS.items()
        ]
        panels.append(Panel(study.described(line.iloc[0], axes), tuple(series)))
    if not panels:
        return None
    last = found.loc[found["global_batch"].idxmax()]
    alt = (
        f"At a global batch of {last['global_batch']:,}: {last['throughput']:.3g}× the images/s,"
        f" {last['statistical']:.3g}× the statistical efficiency, together {last['speedup']:.3g}× as fast to it."
    )
    return Chart(
        "learning-factors",
        "Time to the target, told apart",
        alt,
        Scale("global batch", "log" if is_wide(found["global_batch"]) else "linear"),
        Scale("times that of the smallest batch", starts_at_zero=True),
        tuple(panels[:6]),
        note="Speed-up = throughput × statistical efficiency (epochs of the smallest global batch ÷ epochs)."
        " Training alone, validations left out.",
    )


def _factor(study: Study, row: Mapping[Hashable, Any], column: str) -> Mark:
    value, within = float(row[column]), float(row[f"{column}_ci"])
    ends = (value - within, value + within) if math.isfinite(within) else (math.nan, math.nan)
    return Mark(float(row["global_batch"]), value, *ends, says=study.described(row))


def _groups(study: Study, records: Sequence[TrialRecord]) -> tuple[str, dict[str, dict[str, list[TrialRecord]]]]:
    """Return trials by panel and series: the axis of most values, up to what colours can tell, is that of the
    series."""
    axes = [axis for axis in study.axes if axis in study.trials]
    counts = {axis: len({space.shown(_value(record, axis)) for record in records}) for axis in axes}
    series = max((axis for axis in axes if 1 < counts[axis] <= MOST), key=lambda a: counts[a], default="")
    if "lr_schedule" in axes and 1 < counts["lr_schedule"] <= MOST:
        series = "lr_schedule"
    cells = list(dict.fromkeys(study.cells["cell"]))
    made: dict[str, dict[str, list[TrialRecord]]] = {}
    for record in sorted(records, key=lambda r: cells.index(r.config.cell)):
        others = (axis for axis in axes if axis != series)
        panel = ", ".join(study.said(axis, _value(record, axis)) for axis in others)
        name = space.shown(_value(record, series)) if series else "all"
        made.setdefault(panel, {}).setdefault(name, []).append(record)
    return series, made


def _value(record: TrialRecord, axis: str) -> object:
    if axis in analysis.APART:
        return rows.where(record)[axis]
    if axis.startswith(rows.OWN):
        return record.config.own.get(axis.removeprefix(rows.OWN), "")
    if axis.startswith("env."):
        return record.config.env.get(axis.removeprefix("env."), "")
    return getattr(record.config, axis, "")


def _curve(
    study: Study, records: Sequence[TrialRecord], figure: str, title: str, label: str, by_hours: bool
) -> Chart | None:
    axis, groups = _groups(study, records)
    panels = []
    for panel, named in itertools.islice(groups.items(), 6):
        series = []
        for name, alike in named.items():
            marks = _mean(alike, figure, by_hours)
            if marks:
                series.append(Series(name, tuple(marks), "band"))
        if series:
            panels.append(Panel(panel, tuple(series)))
    if not panels:
        return None
    ends = [(series.marks[-1].y, series.name) for panel in panels for series in panel.series]
    best = max(ends) if figure == "top1" else min(ends)
    which = "Highest" if figure == "top1" else "Lowest"
    alt = f"{which} at the end ({NOT_SHOWN}): {best[1]}, {f'{best[0]:.1%}' if figure == 'top1' else f'{best[0]:.3g}'}."
    across = Scale("training and validation", form="time") if by_hours else Scale("epoch", starts_at_zero=True)
    up = Scale(label, form="percent" if figure == "top1" else "number", starts_at_zero=figure == "top1")
    name = f"learning-{figure}{'-time' * by_hours}"
    left = f"{len(groups) - 6} more combinations are in the table." if len(groups) > 6 else ""
    legend = study.word(axis) if axis else ""
    return Chart(
        name, title, alt, across, up, tuple(panels), legend=legend, note=left, is_ordered=_ordered(study, axis)
    )


def _ordered(study: Study, axis: str) -> bool:
    return bool(axis) and study.is_number(axis)


def _mean(alike: Sequence[TrialRecord], figure: str, by_hours: bool) -> list[Mark]:
    """Over the repeats, epoch by epoch, as far as all of them went."""
    at: dict[int, list[tuple[float, float]]] = collections.defaultdict(list)
    for record in alike:
        spent = 0.0
        assert record.outcome.measurement
        for epoch in record.outcome.measurement.epochs:
            spent += epoch.taken_s
            if (value := epoch.figures.get(figure)) is not None and math.isfinite(value):
                at[epoch.epoch].append((spent if by_hours else float(epoch.epoch), float(value)))
    made = []
    for _, points in sorted(at.items()):
        if len(points) == len(alike):
            xs, ys = zip(*points, strict=True)
            made.append(Mark(statistics.fmean(xs), statistics.fmean(ys), min(ys), max(ys), f"{len(ys)} repeats"))
    return made


def _rates(study: Study, records: Sequence[TrialRecord]) -> Chart | None:
    """Return what the schedules ask for, at each global batch that changes them."""
    epochs = study.facts.spec.epochs or 1
    drawn: dict[tuple[str, tuple[float, ...]], int] = {}
    cells = list(dict.fromkeys(study.cells["cell"]))
    for record in sorted(records, key=lambda r: cells.index(r.config.cell)):
        config = record.config
        rates = schedules.curve(schedules.parse(config.lr_schedule), epochs, config.global_batch, RATE_POINTS)
        drawn.setdefault((config.lr_schedule, tuple(rates)), config.global_batch)
    several = len(drawn) > len({text for text, _ in drawn})
    batches = sorted(set(drawn.values()))
    panels = []
    for batch in batches if several else batches[:1]:
        series = tuple(
            Series(text, tuple(Mark(epochs * n / (RATE_POINTS - 1), rate) for n, rate in enumerate(rates)))
            for (text, rates), at in drawn.items()
            if at == batch or not several
        )
        panels.append(Panel(f"global batch {batch}" if several else "", series[:MOST]))
    if not any(panel.series for panel in panels):
        return None
    alt = f"{len({text for text, _ in drawn})} schedules over {epochs} epochs."
    across, up = Scale("epoch", starts_at_zero=True), Scale("learning rate", starts_at_zero=True)
    return Chart(
        "learning-rate", "Learning rate by epoch", alt, across, up, tuple(panels[:6]), legend=study.word("lr_schedule")
    )


def _table(study: Study) -> list[Block]:
    found, title = study.measured, "What each came to"
    if study.facts.spec.run:
        made = overview.table(study.trials, study.plan)
        told = tuple(tuple(map(str, row)) for row in made.itertuples(index=False))
        return [Table("learning-table", title, tuple(map(study.word, made)), told, study.numeric([]))]
    columns = [*map(study.word, study.axes), "top-1", "reached", "epochs to target", "time to target", "images/s"]
    rows = [
        (
            *(tables.cell(row[axis]) for axis in study.axes),
            tables.accuracy(row["top1"], row["top1_ci"]),
            f"{row['reached']} of {row['n']}",
            tables.plus_minus(row["epochs_to_target"], row["epochs_to_target_ci"]),
            tables.duration(3600 * row["hours_to_target"], 3600 * row["hours_to_target_ci"]),
            tables.plus_minus(row["images_per_s"], row["images_per_s_ci"]),
        )
        for _, row in found.iterrows()
    ]
    numeric = study.numeric(columns[len(study.axes) :])
    return [Table("learning-table", title, tuple(columns), tuple(rows), numeric)]
