"""Drawings as a picture for a paper: the page's own, beneath its title and legend, in its colours by day.

Matplotlib is the pen and the ruler of letters alone: no axis, colour or mark is its own.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from sweeps.report import drawing, looks
from sweeps.report.chart import Bars, Chart
from sweeps.report.drawing import Drawing, SeriesShapes, Shape, Words
from sweeps.report.looks import Letters

DOTS_PER_INCH = 200
UNITS_PER_INCH = 96  # a drawing's unit is a pixel of style sheets
POINTS = 72 / UNITS_PER_INCH
MARGIN, GAP, LINE = 16, 20, 20
ALONE = (640, 360)  # a panel as wide as a paper's column; panels side by side are as large as in the page
TITLE, HEADING = Letters("", "--ink", 15, 650), Letters("", "--muted", 13, 600)
TEXT, ASIDE = Letters("", "--ink", 12), Letters("", "--muted", 12)
BAR = (420, 18)
ARC = 16  # lines of half a circle


@dataclasses.dataclass(frozen=True)
class Placed:
    x: float
    y: float
    drawing: Drawing


@dataclasses.dataclass(frozen=True)
class Sheet:
    width: float
    height: float
    placed: tuple[Placed, ...]


def write(block: Chart | Bars, path: Path, watermark: str = "") -> None:
    _draw(sheet(block, watermark), path)


def sheet(block: Chart | Bars, watermark: str = "") -> Sheet:
    """Return what the picture of a plot shows, and where."""
    return _chart(block, watermark) if isinstance(block, Chart) else _bars(block, watermark)


def _chart(chart: Chart, watermark: str) -> Sheet:
    across = drawing.columns(chart)
    wide, high = ALONE if across == 1 else drawing.page_size(chart)
    width = across * (wide + GAP) - GAP
    keys = [(drawing.key(chart, name), name) for name in chart.names] if len(chart.names) > 1 else []
    placed, y = _head(chart.title, chart.legend, keys, width, watermark)
    plots = drawing.panels(chart, (wide, high), watermark)
    headings = [_lines(panel.title, HEADING, wide - MARGIN) for panel in chart.panels]
    for first in range(0, len(plots), across):
        row = range(first, min(first + across, len(plots)))
        foot = y + LINE * max(len(headings[n]) for n in row)
        for n in row:
            x = MARGIN + (n - first) * (wide + GAP)
            placed += [_words(x + MARGIN, y + LINE * at, line, HEADING) for at, line in enumerate(headings[n], 1)]
            placed.append(Placed(x, foot, plots[n]))
        y = foot + high + GAP
    return Sheet(width + 2 * MARGIN, y - GAP + MARGIN, tuple(placed))


def _bars(bars: Bars, watermark: str) -> Sheet:
    """Return the page's table: what tells a row apart, its bar, its total."""
    heads = (*bars.axes, bars.total)
    rows = [(*axes, total) for axes, _, _, total in bars.rows]
    wides = [max(_width(text, HEADING) for text in column) for column in zip(heads, *rows, strict=True)]
    *begins, left = itertools.accumulate((wide + GAP for wide in wides[:-1]), initial=MARGIN)
    wide, high = BAR
    right = left + wide + GAP + wides[-1]
    keys = [(drawing.swatch(n), part) for n, part in enumerate(bars.parts)]
    placed, y = _head(bars.title, "", keys, right - MARGIN, watermark)

    def line(cells: Sequence[str], letters: Letters) -> list[Placed]:
        named = [_words(x, y, text, letters) for x, text in zip(begins, cells, strict=False)]
        return [*named, _words(right, y, cells[-1], letters, "end")]

    y += LINE
    placed += [*line(heads, HEADING), _words(left, y, "share of a step", HEADING)]
    for row, (_, shares, _, _) in zip(rows, bars.rows, strict=True):
        y += high + 4
        placed += [*line(row, TEXT), Placed(left, y - high + 4, drawing.bar(shares, wide, high))]
    return Sheet(right + MARGIN, y + MARGIN, tuple(placed))


def _head(
    title: str, legend: str, keys: Iterable[tuple[Drawing, str]], width: float, watermark: str
) -> tuple[list[Placed], float]:
    """Return the title and the legend, and where they end."""
    y = float(MARGIN)
    placed = []
    for line in _lines(f"{title} ({watermark.lower()})" if watermark else title, TITLE, width):
        y += LINE
        placed.append(_words(MARGIN, y - 4, line, TITLE))
    x = float(MARGIN)
    if legend:
        placed.append(_words(x, y + LINE, legend, ASIDE))
        x += _width(legend, ASIDE) + GAP
    for n, (sign, name) in enumerate(keys):
        needs = sign.width + 6 + _width(name, TEXT)
        if n == 0 or (x + needs > MARGIN + width and x > MARGIN):
            x = x if n == 0 else MARGIN
            y += LINE
        placed += [Placed(x, y - 4 - sign.height / 2, sign), _words(x + sign.width + 6, y, name, TEXT)]
        x += needs + GAP
    return placed, y + LINE / 2


def _words(
    x: float, y: float, text: str, letters: Letters, anchor: Literal["start", "middle", "end"] = "start"
) -> Placed:
    return Placed(x, y, Drawing(0, 0, (Words(letters, text, 0, 0, anchor),)))


def _lines(text: str, letters: Letters, width: float) -> list[str]:
    """No line wider, save one of a single word."""
    lines: list[str] = []
    for word in text.split():
        if lines and _width(f"{lines[-1]} {word}", letters) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _font(letters: Letters) -> dict[str, Any]:
    return {"size": letters.size * POINTS, "weight": "bold" if letters.weight >= 600 else "normal"}


def _width(text: str, letters: Letters) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    wide, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(**_font(letters)), ismath=False)
    return float(wide) / POINTS


def _draw(sheet: Sheet, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Affine2D

    inches = (sheet.width / UNITS_PER_INCH, sheet.height / UNITS_PER_INCH)
    figure = Figure(figsize=inches, dpi=DOTS_PER_INCH, facecolor=looks.DAY["--paper"])
    scale = DOTS_PER_INCH / UNITS_PER_INCH
    for one in sheet.placed:
        at = Affine2D().translate(one.x, one.y).scale(scale, -scale).translate(0, sheet.height * scale)
        for item in one.drawing.items:
            for artist in _artists(item, at):
                figure.add_artist(artist)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def _artists(item: Shape | Words | SeriesShapes, at: Any) -> list[Any]:
    from matplotlib.text import Text

    match item:
        case Shape():
            return [_patch(item, at)]
        case SeriesShapes():
            return [
                _patch(shape, at, item.hue, shape.look.faint if item.is_faint else 1.0)
                for shape in item.shapes
                if shape.look.opacity
            ]
        case Words():
            side = {"start": "left", "middle": "center", "end": "right"}[item.anchor]
            text = Text(
                item.x,
                item.y,
                item.text,
                color=_colour(item.letters.colour),
                ha=side,
                va="baseline",
                rotation=90 if item.is_upright else 0,
                rotation_mode="anchor",
                parse_math=False,
                transform=at,
                **_font(item.letters),
            )
            return [text]


def _patch(shape: Shape, at: Any, hue: str = "", faint: float = 1.0) -> Any:
    from matplotlib.patches import PathPatch

    look = shape.look
    end, join = ("round", "round") if look.is_round else ("butt", "miter")
    return PathPatch(
        outline(shape.path),
        facecolor=_colour(look.fill, hue),
        edgecolor=_colour(look.stroke, hue),
        linewidth=look.width * POINTS,
        linestyle=(0, [dash / look.width for dash in look.dashes]) if look.dashes else "-",
        alpha=look.opacity * faint,
        capstyle=end,
        joinstyle=join,
        transform=at,
    )


def _colour(name: str, hue: str = "") -> str:
    name = hue if name == looks.HUE else name
    return looks.DAY.get(name, name)


def outline(path: str) -> Any:
    """Return what `drawing` says in SVG's language of paths."""
    from matplotlib.path import Path as Outline

    points: list[tuple[float, float]] = []
    codes: list[Any] = []
    x = y = 0.0
    for command, rest in re.findall("([a-zA-Z])([^a-zA-Z]*)", path):
        numbers = [float(number) for number in rest.split()]
        from_x, from_y = (x, y) if command.islower() else (0.0, 0.0)
        match command:
            case "M" | "m" | "L" | "l":
                x, y = from_x + numbers[0], from_y + numbers[1]
            case "H" | "h":
                x = from_x + numbers[0]
            case "V" | "v":
                y = from_y + numbers[0]
            case "a":  # half a circle, in steps too short to be seen
                half = numbers[5] / 2
                turns = [math.pi * n / ARC for n in range(1, ARC)]
                points += [(x + half - half * math.cos(turn), y + half * math.sin(turn)) for turn in turns]
                codes += [Outline.LINETO] * len(turns)
                x += 2 * half
            case "Z":
                pass
            case _:
                raise ValueError(f"drawings speak no path command {command}")
        points.append((x, y))
        codes.append({"M": Outline.MOVETO, "Z": Outline.CLOSEPOLY}.get(command.upper(), Outline.LINETO))
    return Outline(points, codes)
