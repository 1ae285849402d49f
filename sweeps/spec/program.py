"""A user's own code in a sweep file: the command of `run`, what it is told of a cell, and what its items come to; the
functions that a network and data of the user's own are, and their axes. Pure."""

from __future__ import annotations

import os
import re
import shlex
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sweeps.errors import Mistake
from sweeps.spec import conditions, expression
from sweeps.spec.expression import ExpressionError
from sweeps.spec.keys import OWN, Space, SweepSpec, as_written
from workers.contract import functions
from workers.contract.messages import Script, is_own
from workers.contract.spelling import did_you_mean

TOLD = ("batch_size", "global_batch", "gpus", "seed", "epochs", "steps")  # a program may be told beside its own axes
OF_TRIALS = ("gpus", "placement", "env", "framework")  # axes that need no place in the command
FIGURE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,60}")  # as `sweeps.report` takes it
OF_RUN = ("ranks", "items", "unit", "fork", "measure")
OF_TRAINING: tuple[str, ...] = (
    *("preset", "data", "checkpoint_every", "image_size", "classes", "labels_from", "emulate"),
)  # keys that say something of the built-in training alone


def mistakes(spec: SweepSpec) -> Iterator[Mistake]:
    """Yield what is wrong between `run` and the rest of a file."""
    own = spec.space.model_extra or {}
    if not spec.run:
        if "model" not in spec.model_fields_set:
            yield Mistake("model", "must be given, or `run` with the command of a program of your own", None)
        yield from _names(own, functions.NOT_AXES) if functions_of(spec) else _unknown(own)
        for key in OF_RUN:
            if key in spec.model_fields_set:
                yield Mistake(key, "belongs to `run`, which this sweep has not", getattr(spec, key))
        for name in spec.targets:
            rule = "must be top1 or top5: other figures are those that a program of `run` reports"
            yield Mistake(f"target.{name}", rule, name)
        for goal in spec.search.goal or ():
            if " " in goal:
                yield Mistake("search.goal", "is a figure that a program of `run` reports", goal)
        return
    for key in ("model", *OF_TRAINING):
        if key in spec.model_fields_set:
            yield Mistake(key, "belongs to the built-in training, and this sweep has `run`", getattr(spec, key))
    yield from _command(spec, own)
    yield from _names(own, TOLD)
    yield from _items(spec)
    if spec.measure.lines:
        try:
            re.compile(spec.measure.lines)
        except re.error as error:
            yield Mistake("measure.lines", f"must be a regular expression, but {error}", spec.measure.lines)
    if spec.protocol == "convergence" and spec.search.method in ("tpe", "asha") and not spec.search.goal:
        rule = "must be given with `run` and protocol: convergence: `min loss`, or another figure that it reports"
        yield Mistake("search.goal", rule, None)
    for name in spec.targets:
        if not FIGURE.fullmatch(name):
            yield Mistake(f"target.{name}", "must be the name of a figure: letters, digits and '_'", name)
    yield from _lengths(spec)


def functions_of(spec: SweepSpec) -> list[str]:
    """Return the functions of the user's own that a sweep names."""
    points = [*spec.data.points(), *(spec.model.points() if "model" in spec.model_fields_set else ())]
    return [word for word in points if is_own(word)]


def _unknown(own: Iterable[str]) -> Iterator[Mistake]:
    for name in own:
        yield Mistake(f"space.{name}", f"must be a known key{did_you_mean(name, list(Space.model_fields))}", name)


def _names(own: Iterable[str], told: Collection[str]) -> Iterator[Mistake]:
    for name in own:
        if not name.isidentifier() or not name.isascii():
            yield Mistake(f"space.{name}", "the name of an axis must be letters, digits and '_'", name)
        elif name in told:
            yield Mistake(f"space.{name}", "is told to your code as it is, and can't be an axis of its own", name)


def _command(spec: SweepSpec, own: Mapping[str, Any]) -> Iterator[Mistake]:
    assert spec.run
    try:
        words = shlex.split(spec.run)
        told = {name for word in words for _, name, _, _ in string.Formatter().parse(word) if name is not None}
    except ValueError as error:
        yield Mistake("run", f"must be a command line, with braces around names alone, but: {error}", spec.run)
        return
    if not words:
        yield Mistake("run", "must be a command", spec.run)
    axes = [name for name in Space.model_fields if name != "env" and getattr(spec.space, name) is not None]
    known = [*own, *axes, *TOLD]
    for name in sorted(told):
        if name not in known:
            yield Mistake("run", f"must name axes in its braces{did_you_mean(name, known)}", f"{{{name}}}")
    for name, rule in (("epochs", "epochs must be given"), ("steps", "measure.lengths must be given")):
        if name in told and not (spec.epochs if name == "epochs" else spec.measure.lengths):
            yield Mistake("run", f"{rule}, for `run` names {{{name}}}", spec.run)
    if spec.measure.lengths and "steps" not in told:
        yield Mistake("run", "must have {steps} somewhere with measure.lengths", spec.run)
    told |= {"batch_size", "global_batch"} if told & {"batch_size", "global_batch"} else set()
    for name in (*own, *(name for name in spec.space.model_fields_set if name not in OF_TRIALS)):
        if name not in told:
            yield Mistake(f"space.{name}", f"has no effect: `run` must have {{{name}}} somewhere", spec.run)


def _items(spec: SweepSpec) -> Iterator[Mistake]:
    if isinstance(spec.items, str):
        try:
            expression.parse(spec.items, spec.names)
        except ExpressionError as error:
            yield Mistake("items", error.rule, error.got, error.pointer)
    elif spec.items is None and spec.measure.lines:
        yield Mistake("items", "must be given with measure.lines: a line doesn't say how many a step has", None)
    elif spec.items is None and spec.measure.lengths:
        yield Mistake("items", "must be given with measure.lengths: nothing else says how many a step has", None)


def _lengths(spec: SweepSpec) -> Iterator[Mistake]:
    """Yield what a program that is run for two numbers of steps can't have beside it."""
    if not spec.measure.lengths:
        return
    given = f"lengths: [{', '.join(map(str, spec.measure.lengths))}]"
    if spec.measure.lines:
        yield Mistake("measure", "must have lines or lengths, not both", given)
    if spec.protocol == "convergence":
        yield Mistake("measure.lengths", "belongs to protocol: throughput, this sweep's is convergence", given)
    for key in ("steps", "stop"):
        if key in spec.model_fields_set:
            yield Mistake(key, "has no effect with measure.lengths, which says how many steps there are", given)


def script_of(run: str) -> str:
    """Return the file that Python is to run; empty where the command is of another kind, or the file depends on the
    cell."""
    words = shlex.split(run)
    rest = [word for word in words[1:] if not word.startswith("-")]
    is_python = os.path.basename(words[0]).startswith("python") and "-m" not in words[1:2]
    return rest[0] if is_python and rest and rest[0].endswith(".py") and "{" not in rest[0] else ""


def name_of(run: str) -> str:
    """Return what a program is called in tables: the script, not the interpreter before it."""
    words = [word for word in shlex.split(run) if not word.startswith("-")]
    rest = words[1:] if len(words) > 1 and os.path.basename(words[0]).startswith("python") else words
    return os.path.basename(rest[0])


def script(spec: SweepSpec, values: Mapping[str, Any]) -> Script | str:
    """Return the program at a point; or why its cell is none."""
    assert spec.run
    items = spec.items or 0
    known = conditions.referable(values)
    if isinstance(items, str):
        try:
            items = expression.parse(items, spec.names).value(known)
        except ExpressionError as error:
            return f"items {spec.items}: {error}"
        is_number = isinstance(items, (int, float)) and not isinstance(items, bool)
        if not is_number or items < 1 or items % 1 != 0:
            return f"items {spec.items} is {items}, and no whole number of at least 1"
    if items % values["gpus"]:
        return f"items {spec.items} is {items:g}, of which {values['gpus']} ranks can't have the same number each"
    try:
        for word in shlex.split(spec.run):
            word.format_map({**dict.fromkeys(TOLD, 1), **known})
    except (ValueError, TypeError) as error:
        return f"run {spec.run}: {error}"
    lines = spec.measure.lines or ""
    return Script(
        run=spec.run,
        ranks=spec.ranks,
        items=int(items),
        unit=spec.unit,
        fork=spec.fork,
        lines=lines,
        lengths=spec.measure.lengths or (),
    )


def own(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the axes of a user's own code, by the names that the file has for them; those that have no
    effect at the point are left out."""
    return {as_written(name): at for name, at in values.items() if name.startswith(OWN) and at is not None}
