"""Rows for people and for programs: a table, CSV or JSON of the same columns.

And how numbers and durations are written wherever people read them.
"""

from __future__ import annotations

import io
import json
import math
import sys
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from sweeps.errors import InputError, Mistake
from sweeps.text import screen

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["table", "csv", "json", "parquet"]


def show(frame: pd.DataFrame, form: Format, title: str = "") -> None:
    """Print a frame to stdout; Parquet is for a file or a pipe."""
    if form == "parquet":
        if sys.stdout.isatty():
            raise InputError("--format", [Mistake("", "parquet must go to a file: … > trials.parquet", "a terminal")])
        made = io.BytesIO()  # a pipe can't be sought in
        frame.to_parquet(made, index=False)
        sys.stdout.buffer.write(made.getvalue())
    elif form == "csv":
        frame.to_csv(sys.stdout, index=False)
    elif form == "json":
        print(frame.to_json(orient="records", date_format="iso", indent=2))
    else:
        screen.answers().print(_table(frame, title))


def show_rows(rows: list[dict[str, Any]], form: Format, title: str = "") -> None:
    """Print rows that are no frame in the same way; loads no pandas for a table or JSON."""
    if form == "json":
        print(json.dumps(rows, indent=2))
        return
    if form == "csv":
        import csv

        writer = csv.DictWriter(sys.stdout, rows[0] if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    table = _empty(list(rows[0]) if rows else [], title)
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    screen.answers().print(table)


def _empty(columns: list[str], title: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    return table


def _table(frame: pd.DataFrame, title: str) -> Table:
    table = _empty(list(frame.columns), title)
    for column, kind in zip(table.columns, frame.dtypes, strict=True):
        column.justify = "right" if kind.kind in "if" else "left"
    for values in frame.itertuples(index=False):
        table.add_row(*(cell(value) for value in values))
    return table


def cell(value: Any) -> str:
    """Four significant digits for a measured figure, nothing where there is none."""
    if value is None or str(value) in ("nan", "NaT", "<NA>"):
        return "–"
    if isinstance(value, float):
        return number(value)
    if hasattr(value, "strftime"):
        return str(value.strftime("%Y-%m-%d %H:%M:%S"))
    return str(value)


def number(value: float, digits: int = 4) -> str:
    """`1,235`, `12.35`: so many significant digits, and never fewer than stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def within(value: float, half_width: float) -> str:
    """Half of a figure's interval, as it stands behind the figure."""
    return f"± {half_width:,.0f}" if value >= 100 else f"± {half_width:.2g}"


def plus_minus(value: float, half_width: float) -> str:
    """Return a figure with its interval: `1,234 ± 56`."""
    if math.isnan(value):
        return "–"
    if math.isnan(half_width):
        return cell(float(value))
    return f"{cell(float(value))} {within(value, half_width)}"


def percent(value: float, half_width: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.0%}" if math.isnan(half_width) or half_width == 0 else f"{value:.0%} ± {half_width:.0%}"


def accuracy(value: float, half_width: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.2%}" if math.isnan(half_width) else f"{value:.2%} ± {half_width:.2%}"


def duration(seconds: float, half_width: float = math.nan) -> str:
    """`3.2 s`, `4.1 ± 0.2 min`, `7.25 h`: how long something takes, in the unit that one would say it in."""
    if math.isnan(seconds):
        return "–"
    unit, name = next((u, n) for u, n in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= u or u == 1)
    interval = "" if math.isnan(half_width) else f" ± {half_width / unit:.2g}"
    return f"{number(seconds / unit, 3)}{interval} {name}"


def clock_time(seconds: float) -> str:
    """`0:05`, `1:02:05`: where on a clock something is, as it goes on or along an axis."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
