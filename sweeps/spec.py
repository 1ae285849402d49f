"""The sweep file as typed values: every mistake in it is found here, all at once, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

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

from sweeps import reading, rules, space
from sweeps.errors import InputError, Mistake
from workers import contract, schedules

MOST_GPUS = 32
MOST_THREADS = 1024


class _AxisOf:
    """Pydantic's side of an axis: each of its points is checked as the type it stands for."""

    def __init__(self, point: Any) -> None:
        self._point = point

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def validate(raw: Any, check: Any) -> space.Axis:
            try:
                points = space.axis(raw).points()
            except space.AxisError as error:
                raise _said(error.rule, error.got) from None
            return space.Choice(tuple(check(points)))

        return core_schema.no_info_wrap_validator_function(
            validate, core_schema.list_schema(handler.generate_schema(self._point))
        )

    def __get_pydantic_json_schema__(self, _: core_schema.CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        point = TypeAdapter(self._point).json_schema()
        forms: list[dict[str, Any]] = [point, {"type": "array", "items": point, "minItems": 1}]
        for name, most in (("log2", 2), ("range", 3)) if point.get("type") == "integer" else ():
            bounds = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": most}
            forms.append(
                {
                    "type": "object",
                    "properties": {name: bounds},
                    "required": [name],
                    "additionalProperties": False,
                }
            )
        return {"anyOf": forms}


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
Data = Annotated[str, PlainValidator(_folder), WithJsonSchema({"type": "string", "minLength": 1})]


def _axis(default: Any, description: str) -> Any:
    """An axis that holds one point where the file says nothing."""
    return Field(space.Choice((default,)), description=description)


class Space(_Section):
    """What is varied. Every combination of the axes' points is a cell."""

    batch_size: Annotated[space.Axis, _AxisOf(Annotated[int, Field(ge=1, le=65536)])] = Field(
        description="images per rank and step"
    )
    gpus: Annotated[space.Axis, _AxisOf(Annotated[int, Field(ge=1, le=MOST_GPUS)])] = Field(
        description="ranks, one a GPU; on `device: cpu` each rank is a CPU slot"
    )
    placement: Annotated[space.Axis, _AxisOf(contract.Placement)] = _axis(
        "pack", "ranks on as few nodes as possible, or on as many"
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
    search: Literal["grid"] = "grid"
    repeats: Annotated[int, Field(ge=1, le=100)] = 3
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

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Every axis and its points, named as a trial's fields are; a variable of `env` is `env.NAME`."""
        plain = {name: getattr(self.space, name) for name in AXES[2:]}
        variables = {f"env.{name}": axis for name, axis in self.space.env.items()}
        axes = {"model": self.model, "data": self.data, **plain, **variables}
        return {name: axis.points() for name, axis in axes.items()}


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
        stand_ins["space"] = {"batch_size": 1, "gpus": 1} | content.get("space", {})
        return rules.broken(SweepSpec.model_validate(stand_ins), wrong)
    except (pydantic.ValidationError, TypeError):  # a section that is none
        return []


def json_schema() -> dict[str, Any]:
    """For editors: completion and checks while a sweep file is written."""
    return SweepSpec.model_json_schema()
