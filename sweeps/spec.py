"""The sweep file as typed values: every mistake in it is found here, all at once, before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
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

from sweeps import space
from sweeps.errors import InputError, Mistake
from workers import contract

LARGEST_FILE = 1 << 20
MOST_GPUS = 32


class _AxisOf:
    """Pydantic's side of an axis: each of its points is checked as the type it stands for."""

    def __init__(self, point: Any) -> None:
        self._point = point

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def validate(raw: Any, check: Any) -> space.Axis:
            try:
                axis = space.axis(raw)
            except space.AxisError as error:
                raise PydanticCustomError("axis", "{rule}", {"rule": error.rule, "got": error.got}) from None
            check(axis.points())
            return axis

        return core_schema.no_info_wrap_validator_function(
            validate, core_schema.list_schema(handler.generate_schema(self._point))
        )

    def __get_pydantic_json_schema__(self, _: core_schema.CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        point = TypeAdapter(self._point).json_schema()
        forms: list[dict[str, Any]] = [point, {"type": "array", "items": point, "minItems": 1}]
        for name, most in (("log2", 2), ("range", 3)):
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


class _Section(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
BatchSize = Annotated[int, Field(ge=1, le=65536)]
Gpus = Annotated[int, Field(ge=1, le=MOST_GPUS)]
MOST_THREADS = 1024


def _threads(raw: Any) -> contract.DecodeThreads:
    if raw == "auto" or (type(raw) is int and 1 <= raw <= MOST_THREADS):
        return raw  # type: ignore[no-any-return]
    raise PydanticCustomError("rule", f"must be auto or a whole number from 1 to {MOST_THREADS}")


Threads = Annotated[
    contract.DecodeThreads,
    PlainValidator(_threads),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": MOST_THREADS}]}),
]


class Space(_Section):
    """What is varied. Every combination of the axes' points is a cell."""

    batch_size: Annotated[space.Axis, _AxisOf(BatchSize)] = Field(description="images per rank and step")
    gpus: Annotated[space.Axis, _AxisOf(Gpus)] = Field(
        description="ranks, one a GPU; on `device: cpu` each rank is a CPU slot"
    )
    precision: Annotated[space.Axis, _AxisOf(contract.Precision)] = Field(
        space.Choice(("fp32",)), description="number format of the arithmetic; weights stay fp32"
    )
    decode_threads: Annotated[space.Axis, _AxisOf(Threads)] = Field(
        space.Choice(("auto",)), description="JPEG decoding threads per node, shared by its ranks"
    )
    placement: Annotated[space.Axis, _AxisOf(contract.Placement)] = Field(
        space.Choice(("pack",)), description="ranks on as few nodes as possible, or on as many"
    )


class Steps(_Section):
    warmup: Annotated[int, Field(ge=1, le=100_000)] = Field(10, description="steps before the window opens")
    measured: Annotated[int, Field(ge=2, le=1_000_000)] = Field(100, description="steps in the window")


class Deadlines(_Section):
    """How long a trial's ranks may stand still before the trial is given up."""

    nursery_s: Seconds = contract.Deadlines.nursery_s
    ring_s: Seconds = contract.Deadlines.ring_s
    build_s: Seconds = contract.Deadlines.build_s
    step_s: Seconds = contract.Deadlines.step_s


class SweepSpec(_Section):
    """One sweep: what is trained, on what, and which axes are varied."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
    protocol: Literal["throughput"] = "throughput"
    model: contract.Model
    data: str = Field("synthetic", description="`synthetic`, or a folder of ImageNet-convention TFRecords")
    device: contract.Device
    space: Space
    search: Literal["grid"] = "grid"
    repeats: Annotated[int, Field(ge=1, le=100)] = 3
    steps: Steps = Steps()
    image_size: Annotated[int, Field(ge=32, le=4096)] = 224
    classes: Annotated[int, Field(ge=2, le=100_000)] = 1000
    learning_rate: Annotated[float, Field(gt=0, le=1000)] = 0.01
    cores_per_worker: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="on `device: cpu`, the cores that a rank computes with"
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    deadlines: Deadlines = Deadlines()


def load(path: Path, overrides: Sequence[str] = ()) -> SweepSpec:
    """The spec in a file, with `key=value` overrides; raises `InputError` with every mistake."""
    return parse(read(path), str(path), overrides)


def read(path: Path) -> str:
    """The text of a sweep file."""
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE and path.is_file():
            raise _wrong(path, "a sweep file holds at most 1 MB", f"{size / 1e6:.1f} MB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _wrong(path, "must be a file that exists", "nothing there") from None
    except IsADirectoryError:
        raise _wrong(path, "must be a file", "a folder") from None
    except UnicodeDecodeError:
        raise _wrong(path, "must be text in UTF-8", "other bytes") from None
    except OSError as error:
        raise _wrong(path, "must be a file that can be read", error.strerror) from None


def parse(text: str, place: str, overrides: Sequence[str] = ()) -> SweepSpec:
    content = _mapping(text, place)
    for override in overrides:
        _override(content, override)
    try:
        return SweepSpec.model_validate(content)
    except pydantic.ValidationError as error:
        raise InputError(place, [_mistake(detail, content) for detail in error.errors()]) from None


def _wrong(place: object, rule: str, got: object) -> InputError:
    return InputError(str(place), [Mistake("", rule, got)])


class _Loader(yaml.CSafeLoader):
    """YAML that refuses a key written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} a second time", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _mapping(text: str, place: str) -> dict[str, Any]:
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):  # aliases blow a small file up to gigabytes
            if isinstance(event, yaml.AliasEvent):
                raise yaml.MarkedYAMLError(problem="an alias, which is not allowed", problem_mark=event.start_mark)  # type: ignore[arg-type]
        content = yaml.load(text, _Loader)
    except RecursionError:
        raise _wrong(place, "must be nested less deeply", "too many levels") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "can't be read"
        raise _wrong(place, "must be valid YAML", f"{at}{problem}") from None
    if not isinstance(content, dict):
        raise _wrong(place, "must hold keys and values", "an empty file" if content is None else content)
    return content


def _override(content: dict[str, Any], override: str) -> None:
    """Put `key=value` over the file: a key of the file, `section.key`, or the plain name of an axis."""
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise _wrong("--set", "must be written key=value", override)
    path = ["space", key] if key in Space.model_fields else key.split(".")
    at = content
    for part in path[:-1]:
        at = at.setdefault(part, {})
        if not isinstance(at, dict):
            raise _wrong("--set", f"{part} must be a section", override)
    try:
        at[path[-1]] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise _wrong("--set", "the value must be valid YAML", override) from None


def _mistake(detail: Any, content: Mapping[str, Any]) -> Mistake:
    """Pydantic's finding in our words."""
    kind, context, got = detail["type"], detail.get("ctx", {}), detail["input"]
    location = detail["loc"]
    key = _key(location, content)
    match kind:
        case "missing":
            return Mistake(key, "must be given", None)
        case "extra_forbidden":
            return Mistake(key, f"must be a known key{_near(str(location[-1]), _siblings(location))}", location[-1])
        case "axis":
            return Mistake(key, context["rule"], context["got"])
        case "literal_error":
            rule = f"must be one of {context['expected'].replace(chr(39), '').replace(' or ', ', ')}"
            return Mistake(key, rule, got)
    rules = {
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "less_than_equal": f"must be at most {context.get('le')}",
        "greater_than": f"must be more than {context.get('gt')}",
        "int_type": "must be a whole number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "string_type": "must be text",
        "model_type": "must be a section with keys",
        "string_pattern_mismatch": "must be letters, digits, '.', '_' and '-', at most 80 of them",
    }
    return Mistake(key, rules.get(kind, detail["msg"]), got)


def _key(location: Sequence[Any], content: Mapping[str, Any]) -> str:
    """`space.batch_size[1]`; the index is left out where the file writes no list."""
    at: Any = content
    key = ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]" if isinstance(at, list) else ""
        else:
            key += f".{part}" if key else str(part)
        at = at[part] if isinstance(at, dict) and part in at else None
    return key


def _siblings(location: Sequence[Any]) -> list[str]:
    section: Any = SweepSpec
    for part in location[:-1]:
        section = section.model_fields[part].annotation
    return list(section.model_fields)


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def json_schema() -> dict[str, Any]:
    """For editors: completion and checks while a sweep file is written."""
    return SweepSpec.model_json_schema()
