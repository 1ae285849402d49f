"""The charts and tables of a report as files for a paper: PNG or CSV, one each."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sweeps.report import page, png
from sweeps.report.chart import Bars, Chart, Section, Table


def write(sections: Sequence[Section], folder: Path, form: Literal["png", "csv"], is_simulated: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for block in section.blocks:
            if form == "csv" and isinstance(block, (Chart, Bars, Table)):
                _csv(block, folder / f"{block.name}.csv")
            elif form == "png" and isinstance(block, (Chart, Bars)):
                png.write(block, folder / f"{block.name}.png", page.WATERMARK if is_simulated else "")


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
