"""What a plot says, before anything draws it: series of marks on two scales, in one panel or several. Pure values.

`drawing` places what a chart shows; `svg` writes that for a page and `png` for a paper, which so show the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal

from sweeps.text import tables

Kind = Literal["linear", "log"]
Style = Literal["line", "ideal", "marks", "faint", "band"]  # faint: marks that are there to compare with
SMALLEST = 0.002  # share of a bar that is drawn
MOST_DECADES_LINEAR = 12.0  # the largest over the smallest value that a linear scale still shows both of


@dataclasses.dataclass(frozen=True)
class Mark:
    x: float
    y: float
    low: float = math.nan  # of its interval
    high: float = math.nan
    says: str = ""  # beside the figures, when it is pointed at
    is_missing: bool = False  # it could not be measured, which is a finding: drawn as a cross at the foot


@dataclasses.dataclass(frozen=True)
class Series:
    name: str  # in the legend; the same name in another panel is the same series
    marks: tuple[Mark, ...]
    style: Style = "line"


@dataclasses.dataclass(frozen=True)
class Scale:
    label: str
    kind: Kind = "linear"
    form: str = "number"  # of its figures: number, percent, time
    ticks: tuple[float, ...] = ()  # else chosen
    names: tuple[str, ...] = ()  # of the ticks, where they are no numbers
    starts_at_zero: bool = False
    begins_at: float = math.nan  # or below
    ends_at: float = math.nan  # or above


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    series: tuple[Series, ...]


@dataclasses.dataclass(frozen=True)
class Chart:
    name: str  # of its files and its place in the page
    title: str
    alt: str  # what it shows, for those who can't see it
    x: Scale
    y: Scale
    panels: tuple[Panel, ...]
    is_ordered: bool = False  # its series stand for an axis of numbers, and their colours for its order
    legend: str = ""  # what the series differ in
    note: str = ""
    is_small: bool = False  # half as wide, beside another

    @property
    def names(self) -> list[str]:
        """The names of the series, in the order of the legend."""
        return list(dict.fromkeys(series.name for panel in self.panels for series in panel.series))

    def marks(self) -> Iterable[Mark]:
        return itertools.chain.from_iterable(series.marks for panel in self.panels for series in panel.series)


@dataclasses.dataclass(frozen=True)
class Bars:
    """A row of parts of a whole for each of some cells."""

    name: str
    title: str
    alt: str
    axes: tuple[str, ...]  # headings of what tells the rows apart
    parts: tuple[str, ...]
    total: str  # heading of the last column
    rows: tuple[tuple[tuple[str, ...], tuple[float, ...], tuple[str, ...], str], ...]
    """(axes' values, shares, the same shares in words, the total in words)"""
    note: str = ""


def widths(shares: Sequence[float]) -> list[float]:
    """Return the widths of a bar's parts: one below zero is drawn as none, and together they fill the bar."""
    drawn = [max(share, 0.0) for share in shares]
    return [share / (sum(drawn) or 1.0) for share in drawn]


@dataclasses.dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    numeric: frozenset[str] = frozenset()
    note: str = ""
    is_sortable: bool = False
    is_tinted: bool = False  # cells are coloured by their first word: fits, too large, …


Block = Chart | Bars | Table


@dataclasses.dataclass(frozen=True)
class Text:
    """Words to copy: a command, a file."""

    title: str
    content: str


@dataclasses.dataclass(frozen=True)
class Section:
    name: str
    title: str
    lead: str  # **strong** and `code` are known
    blocks: tuple[Block | Text, ...]


def extent(scale: Scale, values: Sequence[float]) -> tuple[float, float]:
    """Return from where to where a scale reaches, so that every value is on it."""
    known = [value for value in (*values, *scale.ticks) if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if scale.kind == "log":
        positive = [value for value in known if value > 0] or [1.0]
        low, high = min(positive), max(positive)
        pad = (high / low) ** 0.04 if high > low else 2.0
        return low / pad, high * pad
    if scale.starts_at_zero:
        low = min(low, 0.0)
    if math.isfinite(scale.ends_at):
        high = max(high, scale.ends_at)
    if math.isfinite(scale.begins_at):
        low = min(low, scale.begins_at)
    pad = (high - low or abs(high) or 1.0) * 0.04
    return (low if scale.starts_at_zero and low == 0 else low - pad), high + pad


def ticks(scale: Scale, low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within a scale."""
    if scale.ticks:
        return _thinned([tick for tick in scale.ticks if low <= tick <= high], 12)
    if scale.kind == "log":
        return _log_ticks(low, high, most)
    step = _step((high - low) / most, 24 if scale.form == "time" else 10)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [digit * 10.0**decade for decade in decades for digit in digits]
        within = [tick for tick in found if low <= tick <= high]
        if len(within) <= most + 1:
            break
    if len(within) < 3:  # less than a decade
        return ticks(Scale("", "linear"), low, high, most)
    return _thinned(within, most + 1)


def _thinned(found: list[float], most: int) -> list[float]:
    return found[:: math.ceil(len(found) / most)] if found else found


def _step(rough: float, base: int) -> float:
    """Return the next 1, 2, 2.5 or 5 of its decade; of times, what a clock has."""
    if base == 24:
        clock = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
        return float(next((step for step in clock if step >= rough), math.ceil(rough / 86400) * 86400))
    decade = 10.0 ** math.floor(math.log10(rough))
    return next(digit * decade for digit in (1, 2, 2.5, 5, 10) if digit * decade >= rough * 0.999)


def is_wide(values: Iterable[float]) -> bool:
    """Do these values ask for a logarithmic scale?"""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) / min(known) > MOST_DECADES_LINEAR


def written(value: float, form: str = "number") -> str:
    """Return a figure on a scale: `20k`, `0.5`, `75%`, `1:30:00`."""
    if form == "percent":
        return f"{100 * value:.4g}%"
    if form == "time":
        return tables.clock_time(value)
    if abs(value) >= 10_000:
        return f"{value / 1000:.4g}k" if abs(value) < 1e6 else f"{value / 1e6:.4g}M"
    return tables.number(value, 3)
