"""What an earlier sweep measured, as a table of figures that may be measured again. Reads the ledger."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from sweeps.analysis import publication, recipe
from sweeps.analysis.publication import PublishedTable
from sweeps.errors import InputError, Mistake
from sweeps.record import ledger, rows
from sweeps.record.ledger import SweepRecord
from sweeps.spec import plan
from sweeps.spec.keys import SweepSpec

DIGITS = 6  # of a figure
NARROWEST = publication.LEAST  # an interval of equal repeats is not zero in a table


def table(name: str) -> PublishedTable:
    made = publication.parse(text(name), f"{name}, as --export writes it", name)
    named = ledger.facts(name).spec.env_from  # no column says it
    return dataclasses.replace(made, settings={**made.settings, "env_from": named}) if named else made


def text(name: str) -> str:
    """Return a sweep's cells as a CSV file that `publication.load` reads: a row a cell and pair of fingerprints."""
    record = ledger.read(name)
    spec = record.facts.spec
    if spec.protocol != "throughput":
        raise InputError("reproduce", [Mistake(name, "must be a sweep with protocol: throughput", spec.protocol)])
    axes = list(dict.fromkeys([*recipe.ALWAYS, *(axis for axis in spec.axes if axis != "global_batch")]))
    found = _rows(record, axes)
    if not found:
        raise InputError("reproduce", [Mistake(name, "must have a cell with images/s", "none")])
    unusual = {axis for axis in axes if any(row[axis] != publication.usual(axis) for row in found)}
    left_out = {*axes} - {*recipe.ALWAYS} - unusual
    columns = [key for key in dict.fromkeys(key for row in found for key in row) if key not in left_out]
    made = io.StringIO()
    writer = csv.DictWriter(made, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in found)
    return made.getvalue()


def _rows(record: SweepRecord, axes: Sequence[str]) -> list[dict[str, Any]]:
    from sweeps import analysis

    cells = analysis.cells(analysis.frame([rows.row(trial) for trial in record.trials]))
    cells = cells[cells["images_per_s"] > 0]
    configs = {trial.config.cell: trial.config for trial in record.trials}
    if empty := [f"env.{axis}" for config in configs.values() for axis, at in config.env.items() if not at]:
        rule = f"must set {empty[0]} to something or not at all: an empty cell of a table is a variable that is not set"
        raise InputError("reproduce", [Mistake(record.facts.name, rule, "an empty text")])
    settings = _settings(record.facts.spec)
    are_several = len(cells[[*analysis.FINGERPRINTS]].drop_duplicates()) > 1
    others = [side for side in analysis.APART[2:] if cells.groupby("cell")[side].nunique().max() > 1]  # files, seats
    made = []
    for cell in cells.to_dict("records"):
        prints = {side: cell[side] for side in analysis.FINGERPRINTS}
        system = "/".join(filter(None, prints.values())) if are_several else prints["hardware"]
        system = "/".join([system, *(cell[side] or "not known" for side in others)])
        at = {axis: plan.value(configs[cell["cell"]], axis) for axis in axes}
        nodes = "" if cell["nodes"] != cell["nodes"] else int(cell["nodes"])
        own = {"source": record.facts.name, "system": system, **{side: cell[side] for side in analysis.APART}}
        made.append({**own, **at, "nodes": nodes, **settings, **_figures(cell)})
    return made


def _figures(cell: dict[str, Any]) -> dict[str, Any]:
    made = {"images_per_s": f"{cell['images_per_s']:.{DIGITS}g}", "repeats": int(cell["n"])}
    if cell["n"] > 1:
        made["images_per_s_ci"] = f"{max(cell['images_per_s_ci'], NARROWEST):.{DIGITS}g}"
    return made


def _settings(spec: SweepSpec) -> dict[str, Any]:
    """Return what a sweep holds for all of its trials, by column."""
    made: dict[str, Any] = {}
    steps = "stop" if spec.steps is None else "steps"
    for column, key in publication.SETTINGS.items():
        section, _, name = key.partition(".")
        if name and section == steps:
            made[column] = getattr(getattr(spec, section), name)
        elif not name and (column == "device" or getattr(spec, key) != SweepSpec.model_fields[key].default):
            made[column] = getattr(spec, key)
    return made


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
