"""Conditions of a sweep file: what `when` and `where` may say. Pure."""

from __future__ import annotations

import graphlib
import itertools
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from sweeps.errors import Mistake
from sweeps.spec import expression
from sweeps.spec.expression import Expression, ExpressionError
from sweeps.spec.keys import OWN, SweepSpec, as_written
from sweeps.spec.space import Uniform

NO_DEFAULT = ("model", "batch_size", "global_batch", "gpus")  # always given: none may have a condition
MOST_TRIED = 2000  # points at which a condition is tried before anything starts


def referable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a condition may refer to, as far as it is decided: a batch is that of a rank and of all ranks."""
    found = {as_written(name): value for name, value in values.items()}
    if "gpus" in values and "batch_size" in values:
        found["global_batch"] = values["batch_size"] * values["gpus"]
    elif "gpus" in values and "global_batch" in values:
        found["batch_size"] = values["global_batch"] / values["gpus"]
    return found


def key(axis: str) -> str:
    """Return where the file says it."""
    return axis if axis in ("model", "data") else f"space.{as_written(axis)}"


def unreadable(spec: SweepSpec) -> Iterator[Mistake]:
    """Conditions that are none, on what is not there, on themselves, or that come back to themselves."""
    found = []
    for name, axis in spec.axes.items():
        if axis.when and (name in NO_DEFAULT or name.startswith(OWN)):
            rule = "has no default and can't have a condition; `where` leaves cells out"
            found.append(Mistake(f"{key(name)}.when", rule, axis.when))
        elif axis.when:
            found += _misread(f"{key(name)}.when", axis.when, spec, name)
    for at, text in _constraints(spec):
        found += _misread(at, text, spec)
    yield from found
    if not found:
        try:
            spec.order  # noqa: B018
        except graphlib.CycleError as error:
            circle = [name for name in reversed(error.args[1]) if name in spec.axes]
            yield Mistake(f"{key(circle[0])}.when", "must not come back to itself", " → ".join(circle))


def _constraints(spec: SweepSpec) -> list[tuple[str, str]]:
    """Return where the file says each of `where`, and what it says."""
    return [(f"where[{n}]" if len(spec.where) > 1 else "where", text) for n, text in enumerate(spec.where)]


def _misread(at: str, text: str, spec: SweepSpec, axis: str = "") -> list[Mistake]:
    try:
        names = expression.condition(text, spec.names).names
    except ExpressionError as error:
        return [Mistake(at, error.rule, error.got, error.pointer)]
    return [Mistake(at, "must be a condition on other axes, not on its own", text)] if axis in names else []


def untenable(spec: SweepSpec) -> Iterator[Mistake]:
    """Conditions that can be read, but not told for some of the axes' points, or that hold at none."""
    try:
        spec.order, spec.constraints  # noqa: B018
    except (ExpressionError, graphlib.CycleError):
        return
    for name, made in spec.conditions.items():
        if name not in NO_DEFAULT and not name.startswith(OWN):
            yield from _tried(f"{key(name)}.when", made, spec)
    for (at, _), made in zip(_constraints(spec), spec.constraints, strict=True):
        yield from _tried(at, made, spec)


def _tried(at: str, made: Expression, spec: SweepSpec) -> Iterator[Mistake]:
    points = _points_of(spec, made)
    is_all = math.prod(map(len, points.values())) <= MOST_TRIED
    drawn = random.Random(0)
    some = (tuple(map(drawn.choice, points.values())) for _ in range(MOST_TRIED))
    try:
        combinations = itertools.product(*points.values()) if is_all else some
        held = [made.holds(referable(dict(zip(points, values, strict=True)))) for values in combinations]
    except ExpressionError as error:
        yield Mistake(at, error.rule, error.got, error.pointer)
        return
    if is_all and not any(held) and not any(isinstance(spec.axes[name], Uniform) for name in points):
        yield Mistake(at, "must hold for some of the axes' points", made)


def _points_of(spec: SweepSpec, made: Expression) -> dict[str, list[Any]]:
    """Return the axes that a condition refers to, with their points; of continuous ones some."""
    names = [name for name in spec.axes if as_written(name) in made.names]
    if made.names & {"batch_size", "global_batch"}:
        names = [*dict.fromkeys([*names, "batch_size" if spec.space.batch_size else "global_batch", "gpus"])]
    return {name: _points(spec, name) for name in names}


def _points(spec: SweepSpec, name: str) -> list[Any]:
    axis = spec.axes[name]
    points = axis.points()
    if isinstance(axis, Uniform):
        points.append(axis.settled((axis.low + axis.high) / 2))
    return [*points, spec.default(name)] if axis.when else points
