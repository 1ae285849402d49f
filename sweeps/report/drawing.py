"""A chart as shapes and words at their places, before a pen writes them: `svg` for a page, `png` for a picture.

Shapes are said in SVG's language of paths, of which M, L, H, V, h, v, l, m, a (half a circle) and Z are spoken.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from sweeps.report import looks
from sweeps.report.chart import SMALLEST, Chart, Mark, Panel, Scale, Series, extent, ticks, widths, written
from sweeps.report.looks import Letters, Look
from sweeps.text import tables

LEFT, RIGHT, TOP, BOTTOM = 66, 14, 18, 44
SIZES = {1: (920, 380), 2: (460, 330), 3: (350, 290)}  # by the panels in a row
SIGNS = 6


@dataclasses.dataclass(frozen=True)
class Shape:
    look: Look
    path: str
    says: tuple[str, ...] | None = None  # of a mark that can be pointed at: where it stands, its figure, its words


@dataclasses.dataclass(frozen=True)
class Words:
    letters: Letters
    text: str
    x: float
    y: float
    anchor: Literal["start", "middle", "end"] = "start"
    is_upright: bool = False  # read from below to above


@dataclasses.dataclass(frozen=True)
class SeriesShapes:
    """The shapes of one series, or of one part of a bar."""

    hue: str
    shapes: tuple[Shape, ...]
    at: int = 0  # in the legend
    heading: str = ""
    is_faint: bool = False


@dataclasses.dataclass(frozen=True)
class Drawing:
    width: float
    height: float
    items: tuple[Shape | Words | SeriesShapes, ...]


def columns(chart: Chart) -> int:
    return min(len(chart.panels), 3) if len(chart.panels) != 4 else 2


def page_size(chart: Chart) -> tuple[int, int]:
    """Return the width and height of a panel."""
    return SIZES[2 if chart.is_small else columns(chart)]


def panels(chart: Chart, size: tuple[int, int], watermark: str = "") -> list[Drawing]:
    """Return a drawing of each panel, all on the same scales."""
    marks = list(chart.marks())
    xs = [mark.x for mark in marks]
    ys = [y for mark in marks if not mark.is_missing for y in (mark.y, mark.low, mark.high)]
    if chart.y.kind == "log":
        ys = [y for y in ys if y > 0]
    x, y = extent(chart.x, xs), extent(chart.y, ys)
    return [_Plot(chart, panel, size, x, y, watermark).drawing() for panel in chart.panels]


def colour(chart: Chart, name: str) -> str:
    """Return the variable that a series is coloured by; what is ideal or a bound has the colour of text."""
    solid = solid_names(chart)
    if name not in solid:
        return "--muted"
    at, n = solid.index(name), len(solid)
    if chart.is_ordered and n <= looks.COLOURS:
        return f"--s{round(at * (looks.COLOURS - 1) / max(n - 1, 1))}" if n > 1 else "--c0"
    return f"--c{at % looks.COLOURS}"


def sign(chart: Chart, name: str) -> int:
    solid = solid_names(chart)
    return (solid.index(name) + solid.index(name) // looks.COLOURS) % SIGNS if name in solid else 0


def solid_names(chart: Chart) -> list[str]:
    ideal = {series.name for panel in chart.panels for series in panel.series if series.style in ("ideal", "faint")}
    return [name for name in chart.names if name not in ideal]


class _Plot:
    def __init__(
        self,
        chart: Chart,
        panel: Panel,
        size: tuple[int, int],
        x: tuple[float, float],
        y: tuple[float, float],
        watermark: str,
    ) -> None:
        self._chart, self._panel, self._watermark = chart, panel, watermark
        self._width, self._height = size
        self._x, self._y = x, y

    def drawing(self) -> Drawing:
        items = (*self._grid(), *map(self._series, self._panel.series), *self._stamp())
        return Drawing(self._width, self._height, items)

    def _position(self, x: float, y: float) -> tuple[float, float]:
        right, foot = self._width - RIGHT, self._height - BOTTOM
        return (
            LEFT + (right - LEFT) * _share(self._chart.x, *self._x, x),
            foot - (foot - TOP) * _share(self._chart.y, *self._y, y),
        )

    def _grid(self) -> list[Shape | Words]:
        right, foot = self._width - RIGHT, self._height - BOTTOM
        lines, words = [], []
        for tick in ticks(self._chart.y, *self._y):
            _, y = self._position(self._x[0], tick)
            lines.append(f"M{LEFT} {y:.1f}H{right}")
            words.append(Words(looks.TICK, _named(self._chart.y, tick), LEFT - 8, y + 4, "end"))
        for tick in ticks(self._chart.x, *self._x, most=4 if self._width < 400 else 8):
            x, _ = self._position(tick, self._y[0])
            words.append(Words(looks.TICK, _named(self._chart.x, tick), x, foot + 18, "middle"))
            lines.append(f"M{x:.1f} {foot}v4")
        across, up = (LEFT + right) / 2, (TOP + foot) / 2
        words.append(Words(looks.LABEL, self._chart.x.label, across, self._height - 6, "middle"))
        words.append(Words(looks.LABEL, self._chart.y.label, 14, up, "middle", is_upright=True))
        return [Shape(looks.GRID, "".join(lines)), Shape(looks.AXIS, f"M{LEFT} {foot}H{right}"), *words]

    def _series(self, series: Series) -> SeriesShapes:
        marks = [mark for mark in series.marks if mark.is_missing or math.isfinite(mark.y)]
        measured = [mark for mark in marks if not mark.is_missing]
        shapes = []
        if series.style == "band" and measured:
            upper = [self._position(mark.x, mark.high) for mark in measured]
            lower = [self._position(mark.x, mark.low) for mark in reversed(measured)]
            shapes.append(Shape(looks.BAND, f"{_path([*upper, *lower])}Z"))
        if series.style not in ("marks", "faint") and len(measured) > 1:
            line = _path([self._position(mark.x, mark.y) for mark in measured])
            shapes.append(Shape(looks.IDEAL if series.style == "ideal" else looks.LINE, line))
        if series.style not in ("ideal", "band") and (whiskers := "".join(map(self._whisker, measured))):
            shapes.append(Shape(looks.WHISKER, whiskers))
        if series.style != "ideal":
            is_small = series.style in ("line", "band") and len(measured) > 40
            shapes += [self._mark(series, mark, is_small) for mark in marks]
        return SeriesShapes(
            colour(self._chart, series.name),
            tuple(shapes),
            self._chart.names.index(series.name),
            " · ".join(filter(None, [self._panel.title, series.name])),
            series.style == "faint",
        )

    def _whisker(self, mark: Mark) -> str:
        if not (math.isfinite(mark.low) and math.isfinite(mark.high)) or mark.high <= mark.low:
            return ""
        x, top = self._position(mark.x, mark.high)
        low = mark.low if self._chart.y.kind == "linear" else max(mark.low, self._y[0])
        _, foot = self._position(mark.x, low)
        return f"M{x:.1f} {top:.1f}V{foot:.1f}M{x - 4:.1f} {top:.1f}h8M{x - 4:.1f} {foot:.1f}h8"

    def _mark(self, series: Series, mark: Mark, is_small: bool) -> Shape:
        says = (*self._coordinates(mark), mark.says)
        if mark.is_missing:
            x, y = self._position(mark.x, self._y[0])
            return Shape(looks.CROSS, f"M{x - 4:.1f} {y - 13:.1f}l8 8m0 -8l-8 8", says)
        x, y = self._position(mark.x, mark.y)
        if is_small:
            return Shape(looks.DOT, f"M{x:.1f} {y:.1f}h0", says)
        return Shape(looks.MARK, _sign(sign(self._chart, series.name), x, y), says)

    def _coordinates(self, mark: Mark) -> tuple[str, str]:
        """Say where it stands, along and up; the page's script puts the words around it."""
        across = _named(self._chart.x, mark.x, is_whole=True)
        if mark.is_missing:
            return across, ""
        interval = ""
        if mark.high > mark.low:
            ends = [_named(self._chart.y, end, is_whole=True) for end in (mark.low, mark.high)]
            interval = f" ({ends[0]} to {ends[1]})"
        return across, f"{_named(self._chart.y, mark.y, is_whole=True)}{interval}"

    def _stamp(self) -> list[Words]:
        place = (self._width - RIGHT, TOP - 6)
        return [Words(looks.STAMP, self._watermark, *place, "end")] if self._watermark else []


def _share(scale: Scale, low: float, high: float, value: float) -> float:
    """How far along a scale a value stands, 0 to 1."""
    if scale.kind == "log":
        low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
    return min(max((value - low) / ((high - low) or 1.0), -0.05), 1.05)


def _named(scale: Scale, value: float, is_whole: bool = False) -> str:
    if scale.names and value in scale.ticks:
        return scale.names[scale.ticks.index(value)]
    if is_whole and scale.form == "number":
        return tables.number(value)
    if is_whole and scale.form == "percent":
        return f"{value:.1%}"
    return written(value, scale.form)


def _path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _sign(which: int, x: float, y: float) -> str:
    """Circle, square, triangle, diamond, the triangle on its head, a plus: so that colour is not all that tells."""
    return (
        f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
        f"M{x - 3.6:.1f} {y - 3.6:.1f}h7.2v7.2h-7.2Z",
        f"M{x:.1f} {y - 4.8:.1f}l4.6 8h-9.2Z",
        f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5Z",
        f"M{x:.1f} {y + 4.8:.1f}l4.6 -8h-9.2Z",
        f"M{x - 1.4:.1f} {y - 4.6:.1f}h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2Z",
    )[which]


def key(chart: Chart, name: str) -> Drawing:
    """Return a series' sign, for the legend."""
    is_solid = name in solid_names(chart)
    line = Shape(looks.LINE if is_solid else looks.IDEAL, "M1 6H23")
    mark = Shape(looks.MARK, _sign(sign(chart, name), 12, 6))
    styles = {series.style for panel in chart.panels for series in panel.series if series.name == name}
    shapes = (mark,) if styles <= {"marks", "faint"} else (line, mark) if is_solid else (line,)
    return Drawing(24, 12, (SeriesShapes(colour(chart, name), shapes),))


def bar(shares: tuple[float, ...], wide: float, high: float) -> Drawing:
    """Draw a whole of parts, one beside the other."""
    groups, left = [], 0.0
    for part, share in zip(looks.PARTS, widths(shares), strict=False):
        if share > SMALLEST:
            right = left + share * wide
            area = Shape(Look("", fill=looks.HUE), f"M{left:.1f} 0H{right:.1f}V{high:.1f}H{left:.1f}Z")
            stripes = [Shape(part.stripe, _stripes(part, left, right, high))] if part.stripe else []
            groups.append(SeriesShapes(part.colour, (area, *stripes)))
            left = right
    return Drawing(wide, high, tuple(groups))


def swatch(part: int) -> Drawing:
    """Return the colour of a part, for the legend."""
    return bar((*[0.0] * part, 1.0), 14, 14)


def _stripes(part: looks.BarPart, left: float, right: float, high: float) -> str:
    """Lines at 45 degrees, as far as they are within."""
    apart = part.every * math.sqrt(2)
    lines = []
    for n in range(math.ceil((right - left + high) / apart)):
        begin = left - high + n * apart  # of the whole line, which is as wide as the bar is high
        near, far = max(begin, left), min(begin + high, right)
        if far > near:
            downs = [x - begin if part.lean > 0 else high - (x - begin) for x in (near, far)]
            lines.append(f"M{near:.1f} {downs[0]:.1f}L{far:.1f} {downs[1]:.1f}")
    return "".join(lines)
