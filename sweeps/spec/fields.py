"""Pydantic's side of a sweep file: what each kind of value may be, in our words and in the JSON schema."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, PlainValidator, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from sweeps.spec import expression, space
from workers.contract import messages, schedules
from workers.contract.rule import RuleError

MOST_GPUS = messages.MOST_RANKS
MOST_THREADS = 1024
MOST_STEPS = 1_000_000
REPORTED_GOAL = re.compile(r"(min|max) [A-Za-z][A-Za-z0-9_]*")  # a figure that a script reports
BOUND = re.compile(r"([<>]=)\s*([-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?)")  # of a figure that a script is to come to
NETWORKS: tuple[str, ...] = get_args(messages.Model)

Goal = Literal["images_per_s", "gpu_hours_per_epoch", "top1", "hours_to_target"]


class AxisOf:
    """Pydantic's side of an axis: each of its points is checked as the type it stands for."""

    def __init__(self, point: Any) -> None:
        self._point = point

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        kind = _kind(TypeAdapter(self._point).json_schema())

        def validate(raw: Any, check: Any) -> space.Axis:
            try:
                made = space.axis(raw, kind)
            except space.AxisError as error:
                raise _mistake(error.rule, error.got) from None
            points = check(made.points())
            if isinstance(made, space.Uniform):
                return dataclasses.replace(made, low=points[0], high=points[1])
            return space.Choice(tuple(points), made.when if isinstance(made, space.Choice) else "")

        return core_schema.no_info_wrap_validator_function(
            validate, core_schema.list_schema(handler.generate_schema(self._point))
        )

    def __get_pydantic_json_schema__(self, _: core_schema.CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        point = TypeAdapter(self._point).json_schema()
        points: list[dict[str, Any]] = [point, {"type": "array", "items": point, "minItems": 1}]
        forms = {"values": {"anyOf": points}} | _intervals(_kind(point))
        section = {"type": "object", "properties": {**forms, "when": {"type": "string"}}, "additionalProperties": False}
        return {"anyOf": [*points, {**section, "oneOf": [{"required": [name]} for name in forms]}]}


def _kind(point: dict[str, Any]) -> space.Kind:
    """Return what numbers a point may be, by its JSON schema."""
    types = [form.get("type") for form in (point, *point.get("anyOf", ()))]
    return "whole" if "integer" in types else "real" if "number" in types else "other"


def _intervals(kind: space.Kind) -> dict[str, Any]:
    """Return the forms of an axis that name two ends, by what its points are."""
    names = {"whole": tuple(space.FORMS), "real": space.DRAWN, "other": ()}[kind]
    number = {"type": "integer" if kind == "whole" else "number"}
    return {
        name: {"type": "array", "items": number, "minItems": fewest, "maxItems": most}
        for name, (fewest, most) in space.FORMS.items()
        if name in names
    }


def _own_axis(raw: Any) -> space.Axis:
    """Return an axis of a user's own code: whatever a command line can hold."""
    forms = raw.values() if isinstance(raw, dict) else ()
    has_reals = any(isinstance(bound, float) for form in forms if isinstance(form, list) for bound in form)
    try:
        made = space.axis(raw, "real" if has_reals else "whole")
    except space.AxisError as error:
        raise _mistake(error.rule, error.got) from None
    for point in made.points():
        if not isinstance(point, (str, int, float)) or "\0" in str(point):
            raise _mistake("must hold text, numbers, on or off", point)
        if isinstance(point, float) and not math.isfinite(point):
            raise _mistake("must be a finite number", point)
    return space.Choice(tuple(made.points())) if isinstance(made, (space.Log2, space.Range)) else made


class Short:
    """Pydantic's side of a section that may be written as the value of one of its keys."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def whole(raw: Any) -> Any:
            return {self._key: raw} if isinstance(raw, str) else raw

        return core_schema.no_info_before_validator_function(whole, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        section = handler(schema)
        short = handler.resolve_ref_schema(section)["properties"][self._key]
        return {"anyOf": [{"enum": short["enum"]}, section]}


def _mistake(rule: str, got: object) -> PydanticCustomError:
    return PydanticCustomError("said", "{rule}", {"rule": rule, "got": got})


def _auto_or(low: int, high: int) -> Any:
    """Return the type of a whole number that may be left to us."""

    def check(raw: Any) -> int | str:
        if raw == "auto" or (type(raw) is int and low <= raw <= high):
            return raw  # type: ignore[no-any-return]
        raise _mistake(f"must be auto or a whole number from {low} to {high}", raw)

    number = {"type": "integer", "minimum": low, "maximum": high}
    return PlainValidator(check), WithJsonSchema({"anyOf": [{"const": "auto"}, number]})


def _schedule(raw: Any) -> str:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise _mistake('must be a schedule such as "0.4;10;0.04" or "cosine: 0.4 warmup=5"', raw)
    try:
        return str(schedules.parse(str(raw)))
    except RuleError as error:
        raise _mistake(error.rule, error.got) from None


def _variable(raw: Any) -> str:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)) or "\0" in str(raw):
        raise _mistake('must be text or a number; on and off are written "on" and "off", or 1 and 0', raw)
    return str(raw)


def _variables(raw: Any) -> tuple[str, ...]:
    """One name, or a list of them."""
    names = [raw] if isinstance(raw, str) else [*raw] if isinstance(raw, tuple) else raw
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
        raise _mistake("must be names of variables, each once, such as [HF_TOKEN]", raw)
    return tuple(names)


def _percent(raw: Any) -> float:
    """`1%` or 0.01."""
    is_percent = isinstance(raw, str) and raw.strip().endswith("%")
    try:
        share = float(raw.strip()[:-1]) / 100 if is_percent else float(raw)
    except (TypeError, ValueError):
        share = math.nan
    if isinstance(raw, bool) or not 0 < share < 1:
        raise _mistake("must be more than 0% and less than 100%, such as 1%", raw)
    return share


def _folder(raw: Any) -> str:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise _mistake("must be synthetic, digits, a folder, or MODULE:FUNCTION of your own", raw)
    return raw


def _network(raw: Any) -> str:
    if not isinstance(raw, str) or not (raw in NETWORKS or messages.is_own(raw)):
        raise _mistake(f"must be one of {', '.join(NETWORKS)}, or MODULE:FUNCTION of your own", raw)
    return raw


def _placement(raw: Any) -> str:
    if raw in ("pack", "spread"):
        return str(raw)
    text = str(raw).lower().replace("×", "x")
    if isinstance(raw, bool) or not messages.nodes_by_ranks(text):
        raise _mistake(f"must be pack, spread or nodes × ranks on each, such as 2x4, at most {MOST_GPUS} in all", raw)
    return text


def _conditions(raw: Any) -> tuple[str, ...]:
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, (list, tuple)) or any(not isinstance(text, str) or not text.strip() for text in texts):
        raise _mistake(f"must be a condition such as {expression.EXAMPLE}, or a list of them", raw)
    return tuple(texts)


def _goals(raw: Any) -> tuple[str, ...]:
    known = get_args(Goal)
    goals = raw if isinstance(raw, (list, tuple)) else [raw]
    is_sound = all(isinstance(goal, str) and (goal in known or REPORTED_GOAL.fullmatch(goal)) for goal in goals)
    if not 1 <= len(goals) <= 2 or not is_sound or len(set(goals)) < len(goals):
        raise _mistake(f"must be one or two of {', '.join(known)}, or of `run` `min NAME` or `max NAME`", raw)
    return tuple(goals)


def _lengths(raw: Any) -> tuple[int, ...]:
    is_pair = isinstance(raw, (list, tuple)) and len(raw) == 2 and all(type(steps) is int for steps in raw)
    if not is_pair or not 1 <= raw[0] < raw[1] <= MOST_STEPS:
        raise _mistake(f"must be two whole numbers from 1 to {MOST_STEPS:,}, the smaller one first", raw)
    return tuple(raw)


def _bound(raw: Any) -> str:
    if not isinstance(raw, str) or not (found := BOUND.fullmatch(raw.strip())):
        raise _mistake("must be `<=` or `>=` and a number, such as <= 0.5", raw)
    return f"{found[1]} {float(found[2]):g}"


Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Threads = Annotated[messages.DecodeThreads, *_auto_or(1, MOST_THREADS)]
ImageSize = Annotated[int | Literal["auto"], *_auto_or(32, 4096)]
Classes = Annotated[int | Literal["auto"], *_auto_or(2, 100_000)]
Schedule = Annotated[str, PlainValidator(_schedule), WithJsonSchema({"type": ["string", "number"]})]
Variable = Annotated[str, PlainValidator(_variable), WithJsonSchema({"type": ["string", "number"]})]
Ci = Annotated[float, PlainValidator(_percent), WithJsonSchema({"type": ["string", "number"]})]
PlacementPoint = Annotated[
    messages.Placement,
    PlainValidator(_placement),
    WithJsonSchema(
        {"anyOf": [{"enum": ["pack", "spread"]}, {"type": "string", "pattern": "^[1-9][0-9]?x[1-9][0-9]?$"}]}
    ),
]
ONE_OR_MORE: list[dict[str, Any]] = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
Variables = Annotated[tuple[str, ...], PlainValidator(_variables), WithJsonSchema({"anyOf": ONE_OR_MORE})]
OwnAxis = Annotated[space.Axis, PlainValidator(_own_axis), WithJsonSchema({})]
Bound = Annotated[str, PlainValidator(_bound), WithJsonSchema({"type": "string", "pattern": "^ *[<>]="})]
Conditions = Annotated[tuple[str, ...], PlainValidator(_conditions), WithJsonSchema({"anyOf": ONE_OR_MORE})]
GOAL: dict[str, Any] = {"anyOf": [{"enum": [*get_args(Goal)]}, {"type": "string", "pattern": "^(min|max) [A-Za-z]"}]}
Lengths = Annotated[
    tuple[int, ...],
    PlainValidator(_lengths),
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2}),
]
Goals = Annotated[
    tuple[str, ...],
    PlainValidator(_goals),
    WithJsonSchema({"anyOf": [GOAL, {"type": "array", "items": GOAL, "minItems": 1, "maxItems": 2}]}),
]
Network = Annotated[
    str,
    PlainValidator(_network),
    WithJsonSchema({"anyOf": [{"enum": [*NETWORKS]}, {"type": "string", "pattern": f"^{messages.OWN_FUNCTION}$"}]}),
]
Data = Annotated[str, PlainValidator(_folder), WithJsonSchema({"type": "string", "minLength": 1})]
