"""Which axis of a study becomes the width of a chart, its colours, its panels: the same rule for every section."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sweeps.analysis.study import Study
from sweeps.report.chart import Mark, Panel, Scale, Series, Style, is_wide
from sweeps.spec import space

if TYPE_CHECKING:
    import pandas as pd

MOST_SERIES = 8  # values of an axis that can be told apart by colour
MOST_PANELS = 9


@dataclasses.dataclass(frozen=True)
class Layout:
    """How cells are laid out over series and panels."""

    study: Study
    across: str  # the axis along the width
    series: str  # the axis of the colours; empty: one series
    panels: tuple[str, ...]  # the axes whose combinations have panels of their own
    dense: tuple[str, ...]  # axes of too many values for either: marks without lines

    @property
    def legend(self) -> str:
        return self.study.word(self.series) if self.series else ""

    @property
    def is_ordered(self) -> bool:
        return bool(self.series) and self.study.is_number(self.series)

    def scale(self, cells: pd.DataFrame) -> Scale:
        """Return the scale of the axis along the width."""
        label = self.study.word(self.across)
        if self.across == "batch_size" and self.study.cells["gpus"].max() > 1:
            label += f" (per {self.study.rank})"
        values = list(dict.fromkeys(self.study.in_axis_order(self.across)[self.across]))
        values = [value for value in values if value in set(cells[self.across])]
        if not self.study.is_number(self.across):
            return Scale(label, ticks=tuple(map(float, range(len(values)))), names=tuple(map(space.shown, values)))
        few = tuple(float(value) for value in values) if len(values) <= 10 else ()
        return Scale(label, "log" if is_wide(values) or _doubles(values) else "linear", ticks=few)

    def place(self, scale: Scale, value: Any) -> float:
        return float(scale.names.index(space.shown(value))) if scale.names else float(value)

    def drawn(
        self, cells: pd.DataFrame, marks: Callable[[pd.DataFrame], list[Mark]], height: str
    ) -> tuple[tuple[Panel, ...], int]:
        """Return the panels, and how many more there would be: those with the largest `height` are kept."""
        found: list[tuple[float, Panel]] = []
        for key, inside in _combinations(cells, self.panels):
            series = []
            for at, alike in _combinations(inside, (self.series,) if self.series else ()):
                name = space.shown(at[0]) if at else self.study.word(self.across)
                if made := tuple(marks(alike)):
                    style: Style = "marks" if self.dense else "line"
                    series.append(Series(name, made, style))
            title = ", ".join(map(self.study.said, self.panels, key))
            if series:
                largest = inside[height].max()
                found.append((largest if largest == largest else -math.inf, Panel(title, tuple(series))))
        kept = sorted(sorted(range(len(found)), key=lambda n: -found[n][0])[:MOST_PANELS])
        return tuple(found[n][1] for n in kept), len(found) - len(kept)


def choose(study: Study, across: str, cells: pd.DataFrame, apart: tuple[str, ...] = ()) -> Layout:
    """Return the layout of these cells over an axis; `apart` are axes that the caller looks after."""
    counts = {axis: cells[axis].nunique(dropna=False) for axis in study.axes if axis not in (across, *apart)}
    few = [axis for axis, count in counts.items() if 1 < count <= MOST_SERIES]
    dense = tuple(axis for axis, count in counts.items() if count > MOST_SERIES)
    series = max(few, key=lambda axis: (counts[axis], study.is_number(axis)), default="")
    return Layout(study, across, series, tuple(axis for axis in few if axis != series), dense)


def left_out(count: int) -> str:
    """Return what a chart says of the panels that it has no room for."""
    return f"{count} more combinations have less: they are in the table of trials." if count else ""


def _combinations(cells: pd.DataFrame, axes: tuple[str, ...]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Return the cells of each combination of these axes' values that there is, in the axes' order."""
    if not axes:
        return [((), cells)]
    values = [sorted(found) if (found := cells[axis]).dtype.kind in "if" else [*dict.fromkeys(found)] for axis in axes]
    made = []
    for key in itertools.product(*(dict.fromkeys(one) for one in values)):
        alike = cells
        for axis, value in zip(axes, key, strict=True):
            alike = alike[alike[axis] == value]
        if not alike.empty:
            made.append((key, alike))
    return made


def _doubles(values: list[Any]) -> bool:
    """Powers of two, as batches and GPU counts are."""
    return len(values) > 2 and all(float(value) > 0 and math.log2(value) % 1 == 0 for value in values)


def with_interval(row: Any, figure: str, x: float, says: str = "") -> Mark:
    value, half = float(row[figure]), float(row.get(f"{figure}_ci", math.nan))
    return Mark(x, value, value - half, value + half, says)
