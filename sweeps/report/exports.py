"""The charts and tables of a report as files for a paper: PNG or CSV, one each."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from sweeps.report import drawing, page
from sweeps.report.chart import Bars, Chart, Section, Table, widths, written

INK, MUTED, RULE = "#16191d", "#59636e", "#dfe3e8"
DISTINCT = ("#0072b2", "#d55e00", "#00805c", "#b3528a", "#b07d00", "#3d9bd1", "#4a4a4a", "#8f3b1b")
RAMP = ("#35115c", "#46327e", "#365c8d", "#277f8e", "#1c9480", "#379f53", "#7a9a12", "#a89100")
COLOURS = {  # those of the page by day
    **{f"--c{n}": colour for n, colour in enumerate(DISTINCT)},
    **{f"--s{n}": colour for n, colour in enumerate(RAMP)},
    "--muted": MUTED,
}
SIGNS = "osD^vP"
PARTS = ("#0072b2", "#3d9bd1", "#b07d00", "#d55e00", "#dfe3e8")
DOTS_PER_INCH = 200


def write(sections: Sequence[Section], folder: Path, form: Literal["png", "csv"], is_simulated: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for block in section.blocks:
            if form == "csv" and isinstance(block, (Chart, Bars, Table)):
                _csv(block, folder / f"{block.name}.csv")
            elif form == "png" and isinstance(block, (Chart, Bars)):
                _png(block, folder / f"{block.name}.png", is_simulated)


def _csv(block: Chart | Bars | Table, path: Path) -> None:
    match block:
        case Chart():
            columns, rows = page.data(block)
        case Bars():
            columns = [*block.axes, *block.parts, block.total]
            rows = [[*axes, *(f"{share:.4f}" for share in shares), total] for axes, shares, _, total in block.rows]
        case Table():
            columns = list(block.columns)
            rows = [[str(value) for value in row] for row in block.rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def _png(block: Chart | Bars, path: Path, is_simulated: bool) -> None:
    from matplotlib.figure import Figure

    count = len(block.panels) if isinstance(block, Chart) else 1
    across = drawing.columns(block) if isinstance(block, Chart) else 1
    down = math.ceil(count / across)
    high = 3.6 * down if isinstance(block, Chart) else 1.2 + 0.22 * len(block.rows)
    figure = Figure(figsize=(max(6.4, 3.8 * across), high), dpi=DOTS_PER_INCH, layout="constrained")
    places = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel()
    if isinstance(block, Chart):
        for place, panel in zip(places, block.panels, strict=False):
            _panel(place, block, panel)
        for place in places[count:]:
            place.set_visible(False)
        handles = {h.get_label(): h for p in places for h in p.get_legend_handles_labels()[0]}
        if len(handles) > 1:
            title = block.legend.strip() or None
            figure.legend(
                handles.values(), handles.keys(), loc="outside lower center", ncols=4, title=title, fontsize=8
            )
    else:
        _bars(places[0], block)
    figure.suptitle(f"{block.title}{' (simulated)' if is_simulated else ''}", fontsize=11, color=INK)
    figure.savefig(path)


def _panel(place: Any, chart: Chart, panel: Any) -> None:
    for series in panel.series:
        hue = COLOURS[drawing.colour(chart, series.name)]
        known = [mark for mark in series.marks if not mark.is_missing and math.isfinite(mark.y)]
        xs, ys = [mark.x for mark in known], [mark.y for mark in known]
        if series.style == "ideal":
            place.plot(xs, ys, "--", color=MUTED, linewidth=1, label=series.name)
            continue
        if series.style == "band":
            place.fill_between(xs, [m.low for m in known], [m.high for m in known], color=hue, alpha=0.16, linewidth=0)
        ends = [
            (m.y - m.low, m.high - m.y) if math.isfinite(m.low) and math.isfinite(m.high) else (0, 0) for m in known
        ]
        sign = SIGNS[drawing.sign(chart, series.name)] if len(known) <= 60 else ""
        line = "" if series.style in ("marks", "faint") else "-"
        errors = None if series.style == "band" else [[max(a, 0) for a, _ in ends], [max(b, 0) for _, b in ends]]
        place.errorbar(
            xs, ys, errors, fmt=f"{sign}{line}" or ",", color=hue, markersize=4, capsize=2, lw=1.3, label=series.name
        )
        missing = [mark.x for mark in series.marks if mark.is_missing]
        place.plot(missing, [0.03] * len(missing), "x", color=hue, transform=place.get_xaxis_transform())
    for axis, scale in ((place.xaxis, chart.x), (place.yaxis, chart.y)):
        if scale.kind == "log":
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        if scale.ticks:
            axis.set_ticks(scale.ticks, scale.names or [written(tick) for tick in scale.ticks], minor=False)
            axis.set_ticks([], minor=True)
        else:
            axis.set_major_formatter(lambda value, _, form=scale.form: written(value, form))
    if math.isfinite(chart.y.begins_at):
        place.set_ylim(bottom=chart.y.begins_at)
    if chart.y.starts_at_zero:
        place.set_ylim(bottom=0)
    place.set_xlabel(chart.x.label, fontsize=9, color=INK)
    place.set_ylabel(chart.y.label, fontsize=9, color=INK)
    place.set_title(panel.title, fontsize=9, color=MUTED)
    place.tick_params(labelsize=8, colors=MUTED)
    place.grid(axis="y", color=RULE, linewidth=0.8)
    place.spines[["top", "right"]].set_visible(False)


def _bars(place: Any, bars: Bars) -> None:
    names = [", ".join(axes) for axes, *_ in bars.rows]
    begin = [0.0] * len(names)
    for n, part in enumerate(bars.parts):
        wide = [widths(row[1])[n] for row in bars.rows]
        place.barh(names, wide, left=begin, color=PARTS[n], label=part)
        begin = [a + b for a, b in zip(begin, wide, strict=True)]
    place.invert_yaxis()
    place.set_xlim(0, 1)
    place.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    place.tick_params(labelsize=7)
    place.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8, frameon=False)
