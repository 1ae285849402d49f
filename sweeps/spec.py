"""The sweep file as typed values: every mistake in it is found here, all at once, before anything starts."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, core_schema

from sweeps import expression, reading, rules, space
from sweeps.errors import InputError, Mistake
from sweeps.expression import Expression
from sweeps.space import Axis
from workers import contract, schedules

MOST_GPUS = contract.MOST_RANKS
MOST_THREADS = 1024
MOST_BATCH = 65536
MOST_TRIALS = 100_000

Method = Literal["grid", "random", "tpe", "asha", "frontier"]
Goal = Literal["images_per_s", "gpu_hours_per_epoch", "top1", "hours_to_target"]
LOWER_IS_BETTER: tuple[Goal, ...] = ("gpu_hours_per_epoch", "hours_to_target")


class _AxisOf:
    """Pydantic's side of an axis: each of its points is checked as the type it stands for."""

    def __init__(self, point: Any) -> None:
        self._point = point

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        kind = _kind(TypeAdapter(self._point).json_schema())

        def validate(raw: Any, check: Any) -> space.Axis:
            try:
                made = space.axis(raw, kind)
            except space.AxisError as error:
                raise _said(error.rule, error.got) from None
            points = check(made.points())
            if isinstance(made, space.Uniform):
                return made
            return space.Choice(tuple(points), made.when if isinstance(made, space.Choice) else "")

        return core_schema.no_info_wrap_validator_function(
            validate, core_schema.list_schema(handler.generate_schema(self._point))
        )

    def __get_pydantic_json_schema__(self, _: core_schema.CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        point = TypeAdapter(self._point).json_schema()
        points: list[dict[str, Any]] = [point, {"type": "array", "items": point, "minItems": 1}]
        kind = _kind(point)
        named = {} if kind == "other" else {name: most for name, (_, most) in space.FORMS.items()}
        if kind == "real":
            named = {name: most for name, most in named.items() if name in space.DRAWN}
        number = {"type": "integer" if kind == "whole" else "number"}
        forms: dict[str, dict[str, Any]] = {"values": {"anyOf": points}}
        for name, most in named.items():
            forms[name] = {"type": "array", "items": number, "minItems": 2, "maxItems": most}
        when = {"type": "string", "description": "where it does not hold, the axis keeps its default"}
        return {
            "anyOf": [
                *points,
                *(
                    {
                        "type": "object",
                        "properties": {name: form, "when": when},
                        "required": [name],
                        "additionalProperties": False,
                    }
                    for name, form in forms.items()
                ),
            ]
        }


def _kind(point: dict[str, Any]) -> space.Kind:
    """What numbers a point may be, by its JSON schema."""
    types = [form.get("type") for form in (point, *point.get("anyOf", ()))]
    return "whole" if "integer" in types else "real" if "number" in types else "other"


class _Short:
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


def _said(rule: str, got: object) -> PydanticCustomError:
    return PydanticCustomError("said", "{rule}", {"rule": rule, "got": got})


def _auto_or(low: int, high: int) -> Any:
    """The type of a whole number that may be left to us."""

    def check(raw: Any) -> int | str:
        if raw == "auto" or (type(raw) is int and low <= raw <= high):
            return raw  # type: ignore[no-any-return]
        raise _said(f"must be auto or a whole number from {low} to {high}", raw)

    number = {"type": "integer", "minimum": low, "maximum": high}
    return PlainValidator(check), WithJsonSchema({"anyOf": [{"const": "auto"}, number]})


def _schedule(raw: Any) -> str:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise _said('must be a schedule such as "0.4;10;0.04" or "cosine: 0.4 warmup=5"', raw)
    try:
        return str(schedules.parse(str(raw)))
    except schedules.ScheduleError as error:
        raise _said(error.rule, error.got) from None


def _variable(raw: Any) -> str:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)) or "\0" in str(raw):
        raise _said('must be text or a number; on and off are written "on" and "off", or 1 and 0', raw)
    return str(raw)


def _percent(raw: Any) -> float:
    """`1%` or 0.01."""
    is_percent = isinstance(raw, str) and raw.strip().endswith("%")
    try:
        share = float(raw.strip()[:-1]) / 100 if is_percent else float(raw)
    except (TypeError, ValueError):
        share = math.nan
    if isinstance(raw, bool) or not 0 < share < 1:
        raise _said("must be more than 0% and less than 100%, such as 1%", raw)
    return share


def _folder(raw: Any) -> str:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise _said("must be synthetic, digits or a folder", raw)
    return raw


def _placement(raw: Any) -> str:
    if raw in ("pack", "spread"):
        return str(raw)
    text = str(raw).lower().replace("×", "x")
    if isinstance(raw, bool) or not contract.nodes_by_ranks(text):
        raise _said(f"must be pack, spread or nodes × ranks on each, such as 2x4, at most {MOST_GPUS} in all", raw)
    return text


def _conditions(raw: Any) -> tuple[str, ...]:
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, (list, tuple)) or any(not isinstance(text, str) or not text.strip() for text in texts):
        raise _said(f"must be a condition such as {expression.EXAMPLE}, or a list of them", raw)
    return tuple(texts)


def _goals(raw: Any) -> tuple[Goal, ...]:
    known = get_args(Goal)
    goals = raw if isinstance(raw, (list, tuple)) else [raw]
    if not 1 <= len(goals) <= 2 or any(goal not in known for goal in goals) or len(set(goals)) < len(goals):
        raise _said(f"must be one or two of {', '.join(known)}", raw)
    return tuple(goals)


class _Section(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Threads = Annotated[contract.DecodeThreads, *_auto_or(1, MOST_THREADS)]
ImageSize = Annotated[int | Literal["auto"], *_auto_or(32, 4096)]
Classes = Annotated[int | Literal["auto"], *_auto_or(2, 100_000)]
Schedule = Annotated[str, PlainValidator(_schedule), WithJsonSchema({"type": ["string", "number"]})]
Variable = Annotated[str, PlainValidator(_variable), WithJsonSchema({"type": ["string", "number"]})]
Ci = Annotated[float, PlainValidator(_percent), WithJsonSchema({"type": ["string", "number"]})]
PlacementPoint = Annotated[
    contract.Placement,
    PlainValidator(_placement),
    WithJsonSchema(
        {"anyOf": [{"enum": ["pack", "spread"]}, {"type": "string", "pattern": "^[1-9][0-9]?x[1-9][0-9]?$"}]}
    ),
]
ONE_OR_MORE: list[dict[str, Any]] = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
Conditions = Annotated[tuple[str, ...], PlainValidator(_conditions), WithJsonSchema({"anyOf": ONE_OR_MORE})]
GOAL: dict[str, Any] = {"enum": [*get_args(Goal)]}
Goals = Annotated[
    tuple[Goal, ...],
    PlainValidator(_goals),
    WithJsonSchema({"anyOf": [GOAL, {"type": "array", "items": GOAL, "minItems": 1, "maxItems": 2}]}),
]
Data = Annotated[str, PlainValidator(_folder), WithJsonSchema({"type": "string", "minLength": 1})]


def _axis(default: Any, description: str) -> Any:
    """An axis that holds one point where the file says nothing."""
    return Field(space.Choice((default,)), description=description)


class Space(_Section):
    """What is varied. Every combination of the axes' points is a cell."""

    batch_size: Annotated[space.Axis, _AxisOf(Annotated[int, Field(ge=1, le=MOST_BATCH)])] | None = Field(
        None, description="images per rank and step"
    )
    global_batch: Annotated[space.Axis, _AxisOf(Annotated[int, Field(ge=1, le=MOST_BATCH)])] | None = Field(
        None, description="images of all ranks per step, instead of batch_size; a rank has its equal part"
    )
    gpus: Annotated[space.Axis, _AxisOf(Annotated[int, Field(ge=1, le=MOST_GPUS)])] = Field(
        description="ranks, one a GPU; on `device: cpu` each rank is a CPU slot"
    )
    placement: Annotated[space.Axis, _AxisOf(PlacementPoint)] = _axis(
        "pack", "ranks on as few nodes as possible, on as many, or on so many nodes with so many on each: 2x4"
    )
    precision: Annotated[space.Axis, _AxisOf(contract.Precision)] = _axis(
        "fp32", "number format of the arithmetic; weights stay fp32"
    )
    xla: Annotated[space.Axis, _AxisOf(bool)] = _axis(False, "compile each step with XLA")
    decode_threads: Annotated[space.Axis, _AxisOf(Threads)] = _axis(
        "auto", "JPEG decoding threads per node, shared by its ranks"
    )
    cache: Annotated[space.Axis, _AxisOf(contract.Cache)] = _axis(
        "any", "the data's pages on every node before a trial: dropped, read in, or left as they are"
    )
    lr_schedule: Annotated[space.Axis, _AxisOf(Schedule)] = _axis("0.01", "the learning rate over the epochs")
    optimizer: Annotated[space.Axis, _AxisOf(contract.Optimizer)] = _axis(
        "sgd", "sgd has momentum; adamw takes `momentum` as its beta1"
    )
    momentum: Annotated[space.Axis, _AxisOf(Annotated[float, Field(ge=0, lt=1)])] = _axis(
        0.9, "of SGD and LARS; AdamW's beta1"
    )
    beta2: Annotated[space.Axis, _AxisOf(Annotated[float, Field(ge=0, lt=1)])] = _axis(0.999, "of AdamW")
    trust: Annotated[space.Axis, _AxisOf(Annotated[float, Field(gt=0, le=1)])] = _axis(
        0.001, "trust coefficient of LARS"
    )
    weight_decay: Annotated[space.Axis, _AxisOf(Annotated[float, Field(ge=0, le=1)])] = _axis(
        1e-4, "of kernels; not of biases or batch norm"
    )
    label_smoothing: Annotated[space.Axis, _AxisOf(Annotated[float, Field(ge=0, lt=1)])] = _axis(
        0.0, "share of a label spread over all classes"
    )
    fusion_mib: Annotated[space.Axis, _AxisOf(Annotated[float, Field(ge=0, le=4096)])] = _axis(
        128.0, "Horovod fuses tensors up to this size"
    )
    cycle_ms: Annotated[space.Axis, _AxisOf(Annotated[float, Field(gt=0, le=10_000)])] = _axis(
        1.0, "how often Horovod looks for tensors to reduce"
    )
    response_cache: Annotated[space.Axis, _AxisOf(Annotated[int, Field(ge=0, le=1 << 20)])] = _axis(
        1024, "responses Horovod remembers; 0: none"
    )
    compression: Annotated[space.Axis, _AxisOf(contract.Compression)] = _axis(
        "none", "number format of gradients while they are reduced"
    )
    hierarchical: Annotated[space.Axis, _AxisOf(bool)] = _axis(
        False, "reduce inside nodes first, then between them (NCCL)"
    )
    env: dict[str, Annotated[space.Axis, _AxisOf(Variable)]] = Field(
        {}, description="environment variables, each an axis: set before a rank starts"
    )


class Search(_Section):
    """How the cells are found that are measured."""

    method: Method = Field("grid", description="every cell, or those that a method chooses")
    trials: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None = Field(
        None, description="cells to draw: of random and tpe, and of asha where it is not to take them all"
    )
    goal: Goals | None = Field(None, description="of tpe: the figure to make best, or two")
    grace: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="of asha: epochs that every trial may have")
    reduction: Annotated[int, Field(ge=2, le=100)] = Field(
        3, description="of asha: one in so many trials goes on to so many times the epochs"
    )


class Budget(_Section):
    """What a sweep may spend: nothing more is started once it is spent."""

    gpu_hours: Annotated[float, Field(gt=0)] | None = Field(
        None, description="ranks × hours of all trials; on `device: cpu` hours of CPU slots"
    )


class Steps(_Section):
    warmup: Annotated[int, Field(ge=1, le=100_000)] = Field(10, description="steps before the window opens")
    measured: Annotated[int, Field(ge=2, le=1_000_000)] = Field(100, description="steps in the window")


class Stop(_Section):
    """A trial measures until its interval is narrow enough, or for so many steps."""

    ci: Ci = 0.01
    max_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(500, description="warm-up included")
    min_window: Annotated[int, Field(ge=20, le=1_000_000)] = Field(
        40, description="steps before the interval may stop a trial; 228 see a stall of 1 in 50 in 99 of 100 trials"
    )


class Target(_Section):
    """A trial stops once its validation has reached all of these."""

    top1: Share | None = None
    top5: Share | None = None


class Deadlines(_Section):
    """How long a trial's ranks may stand still before the trial is given up."""

    nursery_s: Seconds = contract.Deadlines.nursery_s
    ring_s: Seconds = contract.Deadlines.ring_s
    build_s: Seconds = contract.Deadlines.build_s
    step_s: Seconds = contract.Deadlines.step_s


class SweepSpec(_Section):
    """One sweep: what is trained, on what, and which axes are varied."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
    preset: Literal["short-test", "long-test"] | None = Field(
        None, description="short-test: 10 + 100 steps; long-test: 90 epochs as published"
    )
    protocol: contract.Protocol = Field("throughput", description="images/s in a window, or epochs to an accuracy")
    model: Annotated[space.Axis, _AxisOf(contract.Model)] = Field(description="the network; an axis too")
    data: Annotated[space.Axis, _AxisOf(Data)] = _axis(
        "synthetic", "`synthetic`, `digits`, or a folder of ImageNet-convention TFRecords; an axis too"
    )
    device: contract.Device
    space: Space
    where: Conditions = Field((), description="cells where this does not hold are left out")
    search: Annotated[Search, _Short("method")] = Field(Search(), description="a method, or a section")
    repeats: Annotated[int, Field(ge=1, le=100)] = Field(3, description="of each cell; with tpe and frontier 1")
    budget: Budget = Field(Budget(), description="what the sweep may spend")
    wait_for_nodes_min: Annotated[float, Field(ge=0)] = Field(
        0.0, description="how long to wait for nodes that a trial needs, on a cluster that grows"
    )
    steps: Steps | None = Field(None, description="exactly so many steps, instead of `stop`")
    stop: Stop = Field(Stop(), description="when a throughput trial has measured enough")
    explain: bool = Field(True, description="after the window, take parts of a step away to see what they cost")
    epochs: Annotated[int, Field(ge=1, le=10_000)] | None = Field(None, description="of the convergence protocol")
    evaluate_every: Annotated[int, Field(ge=1)] = Field(1, description="epochs between two validations")
    checkpoint_every: Annotated[int, Field(ge=0)] = Field(0, description="epochs between two checkpoints; 0: none")
    target: Target = Field(Target(), description="validation accuracy at which a trial stops")
    image_size: ImageSize = Field("auto", description="side in pixels; auto: as the network was published")
    classes: Classes = Field("auto", description="auto: 10 for digits, else 1000")
    emulate: bool = Field(False, description="run a precision that the device does not compute natively")
    isolation: contract.Isolation = Field(
        "exclusive", description="a trial has its nodes to itself, or shares them with others"
    )
    sample_every_s: Annotated[float, Field(ge=0, le=3600)] = Field(
        1.0, description="how often each node's counters are read beside the trials; 0: never"
    )
    probe_every_min: Annotated[float, Field(ge=0)] = Field(
        60.0, description="how often a node is tested for 5 s before a trial, the first time at its first; 0: never"
    )
    cores_per_worker: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="on `device: cpu`, the cores that a rank computes with"
    )
    worker_memory_gib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="host memory of a rank, enforced; else an equal part of nearly all of the node's"
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    deadlines: Deadlines = Deadlines()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _default_repeats(cls, raw: Any) -> Any:
        """A search that goes by what it has seen looks at more cells rather than at one of them again."""
        if not isinstance(raw, dict) or raw.get("repeats") is not None:
            return raw
        search = raw.get("search")
        method = search.get("method") if isinstance(search, dict) else search
        return {**raw, "repeats": 1 if method in ("tpe", "frontier") else 3}

    @functools.cached_property
    def axes(self) -> dict[str, Axis]:
        """Every axis, named as a trial's fields are; a variable of `env` is `env.NAME`."""
        plain = {name: axis for name in AXES[2:] if (axis := getattr(self.space, name)) is not None}
        variables = {f"env.{name}": axis for name, axis in self.space.env.items()}
        return {"model": self.model, "data": self.data, **plain, **variables}

    @property
    def names(self) -> tuple[str, ...]:
        """What a condition may refer to."""
        return tuple(dict.fromkeys([*self.axes, "batch_size", "global_batch"]))

    @functools.cached_property
    def conditions(self) -> dict[str, Expression]:
        """By the axes that have one."""
        return {name: expression.condition(axis.when, self.names) for name, axis in self.axes.items() if axis.when}

    @functools.cached_property
    def constraints(self) -> tuple[Expression, ...]:
        """Of `where`: all of them hold for a cell."""
        return tuple(expression.condition(text, self.names) for text in self.where)

    @functools.cached_property
    def order(self) -> tuple[str, ...]:
        """The axes, each behind those that its condition refers to."""
        return rules.in_order(self)

    def default(self, axis: str) -> Any:
        """Where its condition does not hold, an axis is as if nobody had asked for it; a variable is not set."""
        if axis.startswith("env."):
            return None
        return (SweepSpec if axis in ("model", "data") else Space).model_fields[axis].default.points()[0]

    @property
    def goals(self) -> tuple[Goal, ...]:
        return self.search.goal or (("top1",) if self.protocol == "convergence" else ("images_per_s",))


AXES = ("model", "data", *(name for name in Space.model_fields if name != "env"))


def load(path: Path, overrides: Sequence[str] = ()) -> SweepSpec:
    """The spec in a file, with `key=value` overrides; raises `InputError` with every mistake."""
    return parse(reading.read(path), str(path), overrides)


def parse(text: str, place: str, overrides: Sequence[str] = ()) -> SweepSpec:
    content = reading.mapping(text, place)
    for override in overrides:
        reading.override(content, override, list(Space.model_fields))
    mistakes = rules.fill_in_preset(content)
    try:
        spec = SweepSpec.model_validate(content)
    except pydantic.ValidationError as error:
        wrong = reading.mistakes(error, content, SweepSpec)
        mistakes += wrong + _further(reading.without(content, wrong), {mistake.key for mistake in wrong})
        raise InputError(place, mistakes) from None
    mistakes += rules.broken(spec, set())
    if mistakes:
        raise InputError(place, mistakes)
    return spec


def _further(content: dict[str, Any], wrong: set[str]) -> list[Mistake]:
    """The mistakes between keys that are each right, where others are wrong."""
    try:
        stand_ins = {"name": "x", "model": "tiny", "device": "cpu"} | content
        axes = content.get("space", {})
        stand_ins["space"] = {"gpus": 1} | ({} if "global_batch" in axes else {"batch_size": 1}) | axes
        return rules.broken(SweepSpec.model_validate(stand_ins), wrong)
    except (pydantic.ValidationError, TypeError):  # a section that is none
        return []


def json_schema() -> dict[str, Any]:
    """For editors: completion and checks while a sweep file is written."""
    return SweepSpec.model_json_schema()
