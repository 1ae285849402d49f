"""A drawing as SVG that a page styles: colours are variables of its style sheet, so one is read by day, by night and on
paper. The page's script adds what needs a pointer or a key; without it the drawing says the same.
"""

from __future__ import annotations

from html import escape

from sweeps.report.chart import Chart, Panel
from sweeps.report.drawing import Drawing, SeriesShapes, Shape, Words


def plot(chart: Chart, panel: Panel, drawing: Drawing) -> str:
    """Draw a panel, with words for those who can't see it."""
    title = f"{chart.title}, {panel.title}" if panel.title else chart.title
    return (
        f'<svg class="plot" viewBox="0 0 {drawing.width} {drawing.height}" role="img" tabindex="0"'
        f' data-x="{escape(chart.x.label)}" data-y="{escape(chart.y.label)}"'
        f' aria-label="{escape(f"{title}. {chart.alt}")}">{"".join(map(_item, drawing.items))}</svg>'
    )


def key(drawing: Drawing) -> str:
    """Draw a sign of the legend."""
    shapes = "".join(
        f'<g style="color:var({item.hue})">{"".join(map(_shape, item.shapes))}</g>'
        for item in drawing.items
        if isinstance(item, SeriesShapes)
    )
    return f'<svg viewBox="0 0 {drawing.width} {drawing.height}" aria-hidden="true">{shapes}</svg>'


def _item(item: Shape | Words | SeriesShapes) -> str:
    match item:
        case Shape():
            return _shape(item)
        case Words():
            return _words(item)
        case SeriesShapes():
            faint = " faint" * item.is_faint
            return (
                f'<g class="series{faint}" data-s="{item.at}" data-h="{escape(item.heading)}"'
                f' style="color:var({item.hue})">{"".join(map(_shape, item.shapes))}</g>'
            )


def _shape(shape: Shape) -> str:
    says = ""
    if shape.says is not None:
        told = "|".join(word.replace("|", "/") for word in shape.says).rstrip("|")
        says = f' data-t="{escape(told)}"'
    return f'<path class="{shape.look.name}" d="{shape.path}"{says}/>'


def _words(words: Words) -> str:
    kind = f' class="{words.letters.name}"' if words.letters.name else ""
    x, y = (f"{place:.1f}".removesuffix(".0") for place in (words.x, words.y))
    place = f'transform="translate({x} {y})rotate(-90)"' if words.is_upright else f'x="{x}" y="{y}"'
    return f'<text{kind} {place} text-anchor="{words.anchor}">{escape(words.text)}</text>'
