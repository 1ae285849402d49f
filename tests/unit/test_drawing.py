"""One description of a plot, drawn twice: what a page shows, a picture shows, at the same place in the same colour."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from sweeps import report
from sweeps.report import drawing, looks, page, png, svg
from sweeps.report.answer import Answer
from sweeps.report.chart import Bars, Chart, Kind, Mark, Panel, Scale, Section, Series, Style
from tests.unit import studies
from tests.unit.test_report import BATCHES, rate

NAN = float("nan")
SCALE = png.DOTS_PER_INCH / png.UNITS_PER_INCH


def line(name: str, slope: float, style: Style = "line") -> Series:
    return Series(name, tuple(Mark(x, slope * x, slope * x * 0.9, slope * x * 1.1) for x in range(1, 9)), style)


def chart(*series: Series, kind: Kind = "linear", panels: int = 2) -> Chart:
    made = tuple(Panel(f"panel {n}", series) for n in range(panels))
    return Chart("c", "A < B & C", "Grows", Scale("$x$", kind), Scale("y", kind), made, legend="slope")


LONG = Series("long", tuple(Mark(x, 5 + x % 3) for x in range(1, 61)))
MISSING = Series("missing", (Mark(2, NAN, says="too large | of memory", is_missing=True), Mark(4, 3.0)))
CHARTS = {
    **{
        f"{style}-{kind}": chart(line("s", 2.0, style), kind=kind)
        for style in get_args(Style)
        for kind in get_args(Kind)
    },
    "long": chart(LONG),
    "missing": chart(MISSING, line("s", 1.0)),
    "ordered": dataclasses.replace(chart(line("8", 1.0), line("16", 2.0), line("32", 3.0)), is_ordered=True),
    "nine": chart(*(line(f"s{n}", n) for n in range(1, 10))),
    "names": dataclasses.replace(chart(line("s", 1.0)), x=Scale("x", ticks=(1.0, 2.0), names=("one", "<two>"))),
}


def html(block: Chart | Bars) -> str:
    """The body of a page of one plot."""
    section = Section("s", "S", "", (block,))
    return page.html("t", Answer("", "", (), (), ()), [section], "", "").split("</style>")[1]


def pixels(block: Chart | Bars, folder: Path) -> np.ndarray[Any, Any]:
    png.write(block, folder / "plot.png")
    with Image.open(folder / "plot.png") as picture:
        return np.asarray(picture.convert("RGB"))


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(looks.DAY[colour].removeprefix("#")))


def count(picture: np.ndarray[Any, Any], colour: str) -> int:
    return int((picture == rgb(colour)).all(axis=2).sum())


def in_page(block: Chart) -> list[tuple[str, ...]]:
    """Each shape and word of the plots: its colour where it is a series', its look, its place."""
    found = []
    for plot in re.findall(r'<svg class="plot".*?</svg>', html(block)):
        hue = ""
        for group, look, path, text in re.findall(
            r'<g [^>]*var\((.*?)\)|<path class="(.*?)" d="(.*?)"|<text.*?>(.*?)</text>|</g>', plot
        ):
            hue = group if not (look or text) else hue
            if look or text:
                found.append((hue, look, path or unescape(text)))
    return found


def in_picture(block: Chart) -> list[tuple[str, ...]]:
    found = []
    for item in [item for plot in plots(block) for item in plot.drawing.items]:
        match item:
            case drawing.Shape():
                found.append(("", item.look.name, item.path))
            case drawing.Words():
                found.append(("", "", item.text))
            case drawing.SeriesShapes():
                found += [(item.hue, shape.look.name, shape.path) for shape in item.shapes]
    return found


def plots(block: Chart) -> list[png.Placed]:
    """Those of its panels, without title and legend."""
    return [one for one in png.sheet(block).placed if one.drawing.height > 100]


@pytest.mark.parametrize("name", CHARTS)
def test_page_and_picture_have_the_same_shapes_and_words(name: str) -> None:
    block = CHARTS[name]
    assert in_page(block) == in_picture(block)
    assert len(in_page(block)) > 10


def test_the_plots_of_a_report_are_the_same_in_page_and_picture() -> None:
    """A lone panel is narrower in a picture: its shapes stand elsewhere, and are the same."""
    charts = [
        block
        for section in report.sections(studies.planted(BATCHES, rate))
        for block in section.blocks
        if isinstance(block, Chart)
    ]
    assert {len(block.panels) > 1 for block in charts} == {True, False}
    for block in charts:
        shown, drawn = in_page(block), in_picture(block)
        if len(block.panels) == 1:
            shown, drawn = ([one[:2] for one in side if one[1]] for side in (shown, drawn))
        assert shown == drawn


@pytest.mark.parametrize("style", get_args(Style))
def test_a_series_added_is_in_page_and_picture(style: Style, tmp_path: Path) -> None:
    before = chart(line("first", 1.0), line("second", 2.0))
    panels = (before.panels[0], Panel("panel 1", (*before.panels[1].series, line("added", 3.0, style))))
    after = dataclasses.replace(before, panels=panels)
    hue = "--muted" if style in ("ideal", "faint") else "--c2"
    shown = Counter(one[0] for one in in_page(after)) - Counter(one[0] for one in in_page(before))
    assert shown[hue] > 0
    assert html(after).count(">added</button>") == 1
    was, now = (count(pixels(one, tmp_path), hue) for one in (before, after))
    assert now > was + 50 or style == "faint"
    (group,) = [one for one in plots(after)[1].drawing.items if isinstance(one, drawing.SeriesShapes) and one.at == 2]
    picture = pixels(after, tmp_path)
    places = marks(plots(after)[1], group) if style != "ideal" else []
    assert len(places) == (0 if style == "ideal" else 8)
    for x, y in places:
        assert mixed(hue, 0.75 if style == "faint" else 1.0) == pytest.approx(picture[y, x].tolist(), abs=25)


def marks(plot: png.Placed, group: drawing.SeriesShapes) -> list[tuple[int, int]]:
    """The middles of a series' marks, in dots of the picture."""
    found = []
    for shape in group.shapes:
        if shape.look is looks.MARK:
            outline = png.outline(shape.path).vertices
            low, high = outline.min(axis=0), outline.max(axis=0)
            found.append(
                (round((plot.x + (low[0] + high[0]) / 2) * SCALE), round((plot.y + (low[1] + high[1]) / 2) * SCALE))
            )
    return found


def mixed(colour: str, opacity: float) -> list[float]:
    return [255 + (one - 255) * opacity for one in rgb(colour)]


def test_every_sign_of_a_picture_has_its_place_and_its_colour(tmp_path: Path) -> None:
    """Nine series: all colours, all signs."""
    alone = [Series(f"s{n}", (Mark(n, n),), "marks") for n in range(9)]
    block = chart(*alone, panels=1)
    picture = pixels(block, tmp_path)
    (plot,) = plots(block)
    groups = [item for item in plot.drawing.items if isinstance(item, drawing.SeriesShapes)]
    for group in groups:
        ((x, y),) = marks(plot, group)
        assert tuple(picture[y, x]) == rgb(group.hue)
    assert {group.hue for group in groups} == {f"--c{n}" for n in range(looks.COLOURS)}
    assert len({re.sub(r"^M[\d. ]+", "", group.shapes[0].path) for group in groups}) == drawing.SIGNS


def bars(parts: int) -> Bars:
    named = tuple(f"part {n}" for n in range(parts))
    rows = tuple(
        ((str(row),), tuple(1 / parts for _ in named), tuple("word" for _ in named), f"{row} ms") for row in range(3)
    )
    return Bars("b", "Bars", "Alike", ("GPUs",), named, "step", rows)


@pytest.mark.parametrize("n", range(1, len(looks.PARTS)))
def test_a_part_added_to_bars_is_in_page_and_picture(n: int, tmp_path: Path) -> None:
    before, after = bars(n), bars(n + 1)
    assert html(before).count(f'class="p{n}"') == 0
    assert html(after).count(f'class="p{n}"') == len(after.rows)
    assert re.search(rf"\.p{n}{{background-color:var\({looks.PARTS[n].colour}\)", looks.css())
    was, now = (count(pixels(block, tmp_path), looks.PARTS[n].colour) for block in (before, after))
    each = png.BAR[0] / (n + 1) * png.BAR[1] * SCALE**2 * len(after.rows)
    striped = looks.PARTS[n].stripe is not None
    low, high = (0.4, 0.8) if striped else (0.9, 1.1)
    assert low * each < now - was < high * each


def test_stripes_stay_within_their_part() -> None:
    shares = (0.3, 0.05, 0.4, 0.25)
    left = 0.0
    for group, share in zip(drawing.bar(shares, 400, 18).items, shares, strict=True):
        assert isinstance(group, drawing.SeriesShapes)
        for shape in group.shapes:
            xs, ys = png.outline(shape.path).vertices.T
            assert left - 0.1 <= xs.min() <= xs.max() <= left + 400 * share + 0.1
            assert -0.1 <= ys.min() <= ys.max() <= 18.1
        left += 400 * share


def test_what_a_user_wrote_is_words_in_a_picture(tmp_path: Path) -> None:
    """Neither a formula nor a mistake in one."""
    pixels(
        dataclasses.replace(chart(line("$\\frac$", 1.0), line("b", 2.0)), title="$\\nothing{$", legend="$$"), tmp_path
    )


def test_colours_of_series_are_said_in_one_place() -> None:
    colours = {colour for look in (looks.DAY, looks.NIGHT) for name, colour in look.items() if name[2] in "cs"}
    folder = Path(looks.__file__).parent
    for file in [*folder.glob("*.py"), *folder.glob("*.css"), *folder.glob("*.js")]:
        found = colours & {*re.findall("#[0-9a-f]{6}", file.read_text())}
        assert bool(found) == (file.name == "looks.py"), file.name


def test_a_drawing_holds_each_mark_within_its_panel() -> None:
    series = Series("s", tuple(Mark(x, x * x, x * x - 1, x * x + 1) for x in range(1, 9)))
    drawn = Chart("c", "Squares", "Grows", Scale("x"), Scale("y"), (Panel("", (series,)),))
    (plot,) = drawing.panels(drawn, drawing.page_size(drawn))
    text = svg.plot(drawn, drawn.panels[0], plot)
    places = [tuple(map(float, at)) for at in re.findall(r'class="mark" d="M([\d.]+) ([\d.]+)', text)]
    assert len(places) == 8
    assert all(0 <= x <= 920 and 0 <= y <= 380 for x, y in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    assert 'aria-label="Squares. Grows"' in text
