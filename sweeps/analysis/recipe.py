"""The sweep file that measures what a table says was measured. Pure: the same table gives the same file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from sweeps.analysis.publication import PublishedTable, content_of, usual
from sweeps.spec.keys import AXES
from workers.contract.messages import nodes_by_ranks

ALWAYS = ("model", "data", "batch_size", "gpus", "placement", "precision")  # written even where they are usual
PREFIX = "reproduce-"
LONGEST_NAME = 80
Point = Mapping[str, Any]


def text(table: PublishedTable, repeats: int) -> str:
    """Return a file that `sweep run` accepts: every row's cell, and no other; of speed-ups that of one GPU too."""
    points = [_whole(row.settings) for row in table.rows]
    points += [_whole(row.alone) for row in table.rows if row.figure == "speedup"]
    stated = {axis for point in points for axis in point}
    axes = {axis: _values(axis, points) for axis in [*AXES, *sorted(stated - {*AXES})] if axis in stated}
    kept = {axis: values for axis, values in axes.items() if axis in ALWAYS or values != [usual(axis)]}
    some = [axis for axis in kept if usual(axis) is None and any(axis not in point for point in points)]
    content: dict[str, Any] = {"name": name(table)}
    scalars = {axis: values[0] if len(values) == 1 else values for axis, values in kept.items()}
    scalars |= {axis: {"values": kept[axis], "when": _where_set(axis, kept, some, points)} for axis in some}
    content |= content_of(table.settings, scalars)
    if conditions := list(_conditions([*kept], kept, points)):
        content["where"] = conditions
    content["repeats"] = repeats
    return "\n".join([*_head(table), _yaml(content)])


def name(table: PublishedTable) -> str:
    return f"{PREFIX}{table.name}"[:LONGEST_NAME]


def _head(table: PublishedTable) -> Iterator[str]:
    sources = ", ".join(dict.fromkeys(row.source or table.place for row in table.rows))
    systems = ", ".join(name for name in table.systems if name)
    yield f"# {len(table.rows)} rows of {sources}{f': {systems}' if systems else ''}"
    for what, taken in table.unstated.items():
        if taken:
            yield f"# {what} is not stated there: {taken} is taken"


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)


def _whole(settings: Point) -> dict[str, Any]:
    return {"data": usual("data"), "precision": usual("precision"), "placement": "pack", **settings}


def _values(axis: str, points: Sequence[Point]) -> list[Any]:
    """Numbers in order, words as they come; without those of a variable where it is not set."""
    found = list(dict.fromkeys(point.get(axis, usual(axis)) for point in points))
    found = [value for value in found if value is not None]
    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in found)
    return sorted(found) if is_number else found


def _where_set(name: str, axes: Mapping[str, Sequence[Any]], some: Collection[str], points: Sequence[Point]) -> str:
    """Return the condition under which a variable is set that other points leave alone: by one other axis if that will
    do."""
    others = [axis for axis, values in axes.items() if axis not in some and len(values) > 1]
    for_one = {
        is_set: [
            {axis: point.get(axis, usual(axis)) for axis in others} for point in points if (name in point) is is_set
        ]
        for is_set in (True, False)
    }
    for axis in others:
        with_it, without = ({point[axis]: None for point in for_one[is_set]} for is_set in (True, False))
        if not with_it.keys() & without.keys():
            return _is_among(axis, [*with_it])
    alike = {" and ".join(f"{axis} == {_literal(at)}" for axis, at in point.items()): None for point in for_one[True]}
    return " or ".join(f"({words})" for words in alike)


def _conditions(names: Sequence[str], axes: Mapping[str, Sequence[Any]], points: Sequence[Point]) -> Iterator[str]:
    """Yield what leaves the table's own points of the grid of its axes: behind each beginning of a point, which values
    of the next axis go on."""
    several = [name for name in names if len(axes[name]) > 1]
    fixed = {name: axes[name][0] for name in names if len(axes[name]) == 1}
    at = [tuple(point.get(name, usual(name)) for name in several) for point in points]
    for depth in range(1, len(several)):
        begun: dict[tuple[Any, ...], list[Any]] = {}
        for point in at:
            allowed = begun.setdefault(point[:depth], [])
            if point[depth] not in (None, *allowed):
                allowed.append(point[depth])
        axis = several[depth]
        for beginning, allowed in begun.items():
            if not allowed:  # a variable that its own condition leaves alone there
                continue
            before = fixed | dict(zip(several, beginning, strict=False))
            if len(allowed) < len([value for value in axes[axis] if _is_possible(axis, value, before)]):
                stood = zip(several, beginning, strict=False)
                unlike = [f"{name} != {_literal(value)}" for name, value in stood if value is not None]
                yield " or ".join([*unlike, _is_among(axis, allowed)])


def _is_among(axis: str, values: Sequence[Any]) -> str:
    first, *more = map(_literal, values)
    return f"{axis} in [{', '.join([first, *more])}]" if more else f"{axis} == {first}"


def _is_possible(axis: str, value: Any, before: Point) -> bool:
    """Say whether a placement of so many nodes is for this number of GPUs, which needs no condition."""
    form = nodes_by_ranks(str(value)) if axis == "placement" else None
    return not form or form[0] * form[1] == before["gpus"]


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
