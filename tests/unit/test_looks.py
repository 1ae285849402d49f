"""Colours of the report that can be seen: marks against the page by day, by night and on paper."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from sweeps.report import looks

SHEET = looks.css() + (Path(looks.__file__).parent / "page.css").read_text(encoding="utf-8")


def colours_of(medium: str) -> dict[str, str]:
    """Each variable of the page, on that medium: the last rule that holds there counts."""
    found: dict[str, str] = {}
    for before, block in itertools.pairwise(SHEET.split(":root")):
        asked = re.search(r"@media ([^{]*){\s*$", before)
        if not asked or asked[1].strip().replace(": ", ":") == medium:
            colours = dict(re.findall(r"(--[\w-]+): ?(#[0-9a-f]{3,6})\b", block.split("}")[0]))
            found |= {
                name: one if len(one) == 7 else f"#{''.join(2 * d for d in one[1:])}" for name, one in colours.items()
            }
    return found


DAY, NIGHT, PAPER = map(colours_of, ("", "screen and (prefers-color-scheme:dark)", "print"))
BLOCKS = [DAY, NIGHT, PAPER]
MARKS = [f"--{kind}{n}" for kind in "cs" for n in range(looks.COLOURS)]
WORDS = [
    ("--ink", "--paper"),
    ("--muted", "--paper"),
    ("--muted", "--sheet"),
    ("--accent", "--paper"),
    ("--warn", "--warn-sheet"),
    ("--good-ink", "--good"),
    ("--bad-ink", "--bad"),
    ("--fail-ink", "--fail"),
]
LEAST_FOR_MARKS, LEAST_FOR_WORDS = 3.0, 4.5  # to 1, by WCAG 2.1


def light(colour: str) -> float:
    """Relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, bright = sorted([light(one), light(other)])
    return (bright + 0.05) / (dark + 0.05)


def test_the_measure_is_that_of_the_rule() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("colours", BLOCKS, ids=["day", "night", "paper"])
def test_marks_and_words_have_contrast_enough(colours: dict[str, str]) -> None:
    marks = {name: round(contrast(colours[name], colours["--paper"]), 2) for name in MARKS}
    assert {name: ratio for name, ratio in marks.items() if ratio < LEAST_FOR_MARKS} == {}
    words = {pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2) for pair in WORDS}
    assert {pair: ratio for pair, ratio in words.items() if ratio < LEAST_FOR_WORDS} == {}


@pytest.mark.parametrize("colours", BLOCKS, ids=["day", "night", "paper"])
def test_the_ramp_goes_from_dark_to_light(colours: dict[str, str]) -> None:
    ramp = [light(colours[f"--s{n}"]) for n in range(looks.COLOURS)]
    assert ramp == sorted(ramp)


def test_pictures_have_the_colours_of_the_page_by_day() -> None:
    assert looks.DAY.items() <= DAY.items()
    assert looks.NIGHT.items() <= NIGHT.items()
    assert DAY.keys() == NIGHT.keys() == PAPER.keys()
    assert DAY != NIGHT != PAPER != DAY
