"""A chart as SVG that a page styles: colours are variables of its style sheet, so one drawing is read by day, by night
and on paper. Its script adds what needs a pointer or a key; without it the drawing says the same.
"""

from __future__ import annotations

import math
from html import escape

from sweeps.report.chart import Chart, Mark, Panel, Scale, Series, extent, ticks, written

COLOURS = 8  # of the style sheet, --c0 to --c7 told apart by any eye, --s0 to --s7 a ramp from dark to light
SIGNS = 6
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 18, 44
SIZES = {1: (920, 380), 2: (460, 330), 3: (350, 290)}  # by the panels in a row


def columns(chart: Chart) -> int:
    return min(len(chart.panels), 3) if len(chart.panels) != 4 else 2


def panels(chart: Chart, watermark: str = "") -> list[str]:
    """An SVG for each panel, all on the same scales."""
    marks = list(chart.marks())
    xs = [mark.x for mark in marks]
    ys = [y for mark in marks if not mark.is_missing for y in (mark.y, mark.low, mark.high)]
    if chart.y.kind == "log":
        ys = [y for y in ys if y > 0]
    return [_Drawing(chart, panel, extent(chart.x, xs), extent(chart.y, ys), watermark).svg() for panel in chart.panels]


def colour(chart: Chart, name: str) -> str:
    """The variable that a series is coloured by; what is ideal or a bound has the colour of text."""
    solid = solid_names(chart)
    if name not in solid:
        return "--muted"
    at, n = solid.index(name), len(solid)
    if chart.is_ordered and n <= COLOURS:
        return f"--s{round(at * (COLOURS - 1) / max(n - 1, 1))}" if n > 1 else "--c0"
    return f"--c{at % COLOURS}"


def sign(chart: Chart, name: str) -> int:
    solid = solid_names(chart)
    return (solid.index(name) + solid.index(name) // COLOURS) % SIGNS if name in solid else 0


def solid_names(chart: Chart) -> list[str]:
    ideal = {series.name for panel in chart.panels for series in panel.series if series.style in ("ideal", "faint")}
    return [name for name in chart.names if name not in ideal]


class _Drawing:
    def __init__(
        self, chart: Chart, panel: Panel, x: tuple[float, float], y: tuple[float, float], watermark: str
    ) -> None:
        self._chart, self._panel, self._watermark = chart, panel, watermark
        self._width, self._height = SIZES[2 if chart.is_small else columns(chart)]
        self._x, self._y = x, y

    def svg(self) -> str:
        title = f"{self._chart.title}, {self._panel.title}" if self._panel.title else self._chart.title
        inside = "".join([self._grid(), *map(self._series, self._panel.series), self._stamp()])
        return (
            f'<svg class="plot" viewBox="0 0 {self._width} {self._height}" role="img" tabindex="0"'
            f' data-x="{escape(self._chart.x.label)}" data-y="{escape(self._chart.y.label)}"'
            f' aria-label="{escape(f"{title}. {self._chart.alt}")}">{inside}</svg>'
        )

    def _at(self, x: float, y: float) -> tuple[float, float]:
        right, foot = self._width - RIGHT, self._height - BOTTOM
        return (
            LEFT + (right - LEFT) * _share(self._chart.x, *self._x, x),
            foot - (foot - TOP) * _share(self._chart.y, *self._y, y),
        )

    def _grid(self) -> str:
        right, foot = self._width - RIGHT, self._height - BOTTOM
        lines, words = [], []
        for tick in ticks(self._chart.y, *self._y):
            _, y = self._at(self._x[0], tick)
            lines.append(f"M{LEFT} {y:.1f}H{right}")
            words.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_named(self._chart.y, tick)}</text>')
        for tick in ticks(self._chart.x, *self._x, most=4 if self._width < 400 else 8):
            x, _ = self._at(tick, self._y[0])
            words.append(f'<text x="{x:.1f}" y="{foot + 18}" text-anchor="middle">{_named(self._chart.x, tick)}</text>')
            lines.append(f"M{x:.1f} {foot}v4")
        middle = (LEFT + right) / 2
        words.append(
            f'<text class="label" x="{middle:.0f}" y="{self._height - 6}" text-anchor="middle">'
            f"{escape(self._chart.x.label)}</text>"
        )
        half = (TOP + foot) / 2
        words.append(
            f'<text class="label" transform="translate(14 {half:.0f})rotate(-90)" text-anchor="middle">'
            f"{escape(self._chart.y.label)}</text>"
        )
        return (
            f'<path class="grid" d="{"".join(lines)}"/><path class="axis" d="M{LEFT} {foot}H{right}"/>{"".join(words)}'
        )

    def _series(self, series: Series) -> str:
        at = self._chart.names.index(series.name)
        marks = [mark for mark in series.marks if mark.is_missing or math.isfinite(mark.y)]
        measured = [mark for mark in marks if not mark.is_missing]
        shapes = []
        if series.style == "band" and measured:
            upper = [self._at(mark.x, mark.high) for mark in measured]
            lower = [self._at(mark.x, mark.low) for mark in reversed(measured)]
            shapes.append(f'<path class="band" d="{_path([*upper, *lower])}Z"/>')
        if series.style not in ("marks", "faint") and len(measured) > 1:
            line = _path([self._at(mark.x, mark.y) for mark in measured])
            shapes.append(f'<path class="{"ideal" if series.style == "ideal" else "line"}" d="{line}"/>')
        if series.style not in ("ideal", "band"):
            whiskers = "".join(map(self._whisker, measured))
            shapes += [f'<path class="whisker" d="{whiskers}"/>'] if whiskers else []
        if series.style != "ideal":
            is_small = series.style in ("line", "band") and len(measured) > 40
            shapes += [self._mark(series, mark, is_small) for mark in marks]
        hue = colour(self._chart, series.name)
        faint = " faint" * (series.style == "faint")
        heading = escape(" · ".join(filter(None, [self._panel.title, series.name])))
        return (
            f'<g class="series{faint}" data-s="{at}" data-h="{heading}" style="color:var({hue})">{"".join(shapes)}</g>'
        )

    def _whisker(self, mark: Mark) -> str:
        if not (math.isfinite(mark.low) and math.isfinite(mark.high)) or mark.high <= mark.low:
            return ""
        x, top = self._at(mark.x, mark.high)
        low = mark.low if self._chart.y.kind == "linear" else max(mark.low, self._y[0])
        _, foot = self._at(mark.x, low)
        return f"M{x:.1f} {top:.1f}V{foot:.1f}M{x - 4:.1f} {top:.1f}h8M{x - 4:.1f} {foot:.1f}h8"

    def _mark(self, series: Series, mark: Mark, is_small: bool) -> str:
        says = escape("|".join([*self._coordinates(mark), mark.says.replace("|", "/")]).rstrip("|"))
        if mark.is_missing:
            x, y = self._at(mark.x, self._y[0])
            y -= 9
            cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
            return f'<path class="mark cross" d="{cross}" data-t="{says}"/>'
        x, y = self._at(mark.x, mark.y)
        if is_small:
            return f'<path class="mark dot" d="M{x:.1f} {y:.1f}h0" data-t="{says}"/>'
        return f'<path class="mark" d="{_sign(sign(self._chart, series.name), x, y)}" data-t="{says}"/>'

    def _coordinates(self, mark: Mark) -> tuple[str, str]:
        """Where it stands, along and up; the page's script puts the words around it."""
        across = _named(self._chart.x, mark.x, is_whole=True)
        if mark.is_missing:
            return across, ""
        interval = ""
        if mark.high > mark.low:
            ends = [_named(self._chart.y, end, is_whole=True) for end in (mark.low, mark.high)]
            interval = f" ({ends[0]} to {ends[1]})"
        return across, f"{_named(self._chart.y, mark.y, is_whole=True)}{interval}"

    def _stamp(self) -> str:
        if not self._watermark:
            return ""
        x = self._width - RIGHT
        return f'<text class="stamp" x="{x}" y="{TOP - 6}" text-anchor="end">{escape(self._watermark)}</text>'


def _share(scale: Scale, low: float, high: float, value: float) -> float:
    """How far along a scale a value stands, 0 to 1."""
    if scale.kind == "log":
        low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
    return min(max((value - low) / ((high - low) or 1.0), -0.05), 1.05)


def _named(scale: Scale, value: float, is_whole: bool = False) -> str:
    if scale.names and value in scale.ticks:
        return escape(scale.names[scale.ticks.index(value)])
    if is_whole and scale.form == "number":
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
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


def key(chart: Chart, name: str) -> str:
    """A series' sign, for the legend."""
    if name not in solid_names(chart):
        shape = f'<path class="mark" d="{_sign(0, 12, 6)}"/>' if _only_marks(chart, name) else ""
        shape = shape or '<path class="ideal" d="M1 6H23"/>'
        return f'<svg viewBox="0 0 24 12" aria-hidden="true" style="color:var(--muted)">{shape}</svg>'
    line = "" if _only_marks(chart, name) else '<path class="line" d="M1 6H23"/>'
    return (
        f'<svg viewBox="0 0 24 12" aria-hidden="true" style="color:var({colour(chart, name)})">{line}'
        f'<path class="mark" d="{_sign(sign(chart, name), 12, 6)}"/></svg>'
    )


def _only_marks(chart: Chart, name: str) -> bool:
    styles = {series.style for panel in chart.panels for series in panel.series if series.name == name}
    return styles <= {"marks", "faint"}
