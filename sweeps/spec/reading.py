"""From a sweep file's text to keys and values, and from pydantic's findings to mistakes in our words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
import yaml

from sweeps.errors import InputError, Mistake
from workers.contract.spelling import did_you_mean

LARGEST_FILE = 1 << 20
DEEPEST = 20  # levels of keys and lists
SHORT = {"search": "method"}  # sections that may be written as the value of this key
RENAMED = {("deadlines", "nursery_s"): "fork_server_s"}  # keys of before, with their names of today


def read(path: Path, kind: str = "a sweep file") -> str:
    """Return the text of a sweep file, or of another kind."""
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE and path.is_file():
            raise _wrong(path, f"{kind} holds at most 1 MB", f"{size / 1e6:.1f} MB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _wrong(path, "must be a file that exists", "nothing there") from None
    except IsADirectoryError:
        raise _wrong(path, "must be a file", "a folder") from None
    except UnicodeDecodeError:
        raise _wrong(path, "must be text in UTF-8", "other bytes") from None
    except OSError as error:
        raise _wrong(path, "must be a file that can be read", error.strerror) from None


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


def mapping(text: str, place: str) -> dict[str, Any]:
    """Return the keys and values of a file's text."""
    try:
        _look_over(text)
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "can't be read"
        raise _wrong(place, "must be valid YAML", f"{at}{problem}") from None
    if not isinstance(content, dict):
        raise _wrong(place, "must hold keys and values", "an empty file" if content is None else content)
    return content


def _look_over(text: str) -> None:
    """Refuse what would blow up before any of it is built: an alias makes gigabytes of a small file, and whoever goes
    down thousands of levels runs out of stack."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias, which is not allowed", problem_mark=event.start_mark)  # type: ignore[arg-type]
        if depth > DEEPEST:
            problem = f"more than {DEEPEST} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]


def override(content: dict[str, Any], text: str, axes: Sequence[str]) -> None:
    """Put `key=value` over the file: a key of the file, `section.key`, or the plain name of an axis."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise _wrong("--set", "must be written key=value", text)
    path = key.split(".")
    if path[0] in axes:
        path = ["space", *path]
    at = content
    for part in path[:-1]:
        if isinstance(at.get(part), str) and part in SHORT:
            at[part] = {SHORT[part]: at[part]}
        at = at.setdefault(part, {})
        if not isinstance(at, dict):
            raise _wrong("--set", f"{part} must be a section", text)
    try:
        _look_over(value)
        at[path[-1]] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise _wrong("--set", "the value must be valid YAML", text) from None


def rename(content: Mapping[str, Any]) -> None:
    """Give the keys of a file that was recorded before they were renamed their names of today."""
    for (section, earlier), name in RENAMED.items():
        if isinstance(keys := content.get(section), dict) and earlier in keys:
            keys[name] = keys.pop(earlier)


def mistakes(
    error: pydantic.ValidationError, content: Mapping[str, Any], model: type[pydantic.BaseModel]
) -> list[Mistake]:
    """Pydantic's findings in our words."""
    return [_mistake(detail, content, model) for detail in error.errors()]


def without(content: Mapping[str, Any], wrong: Sequence[Mistake]) -> dict[str, Any]:
    """Return what is left of a file when the keys with a mistake are taken out."""
    keys = {mistake.key.split("[")[0] for mistake in wrong}
    return dict(_kept(content, "", keys))


def _kept(section: Mapping[str, Any], prefix: str, wrong: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        key = f"{prefix}{name}"
        if key not in wrong:
            yield name, dict(_kept(value, f"{key}.", wrong)) if isinstance(value, dict) else value


def _mistake(detail: Any, content: Mapping[str, Any], model: type[pydantic.BaseModel]) -> Mistake:
    kind, context, got = detail["type"], detail.get("ctx", {}), detail["input"]
    location = detail["loc"]
    key = _key(location, content)
    match kind:
        case "missing":
            return Mistake(key, "must be given", None)
        case "extra_forbidden" if name := RENAMED.get(location):
            return Mistake(key, f"was renamed to {name}", location[-1])
        case "extra_forbidden":
            hint = did_you_mean(str(location[-1]), _siblings(location, model))
            return Mistake(key, f"must be a known key{hint}", location[-1])
        case "said":
            return Mistake(key, context["rule"], context["got"])
        case "literal_error":
            rule = f"must be one of {context['expected'].replace(chr(39), '').replace(' or ', ', ')}"
            return Mistake(key, rule, got)
    rules = {
        "greater_than_equal": f"must be at least {context.get('ge', 0):g}",
        "less_than_equal": f"must be at most {context.get('le', 0):g}",
        "greater_than": f"must be more than {context.get('gt', 0):g}",
        "less_than": f"must be less than {context.get('lt', 0):g}",
        "int_type": "must be a whole number",
        "float_type": "must be a number",
        "bool_type": "must be on or off",
        "finite_number": "must be a finite number",
        "string_type": "must be text",
        "model_type": "must be a section with keys",
        "dict_type": "must be a section with keys",
        "string_pattern_mismatch": "must be letters, digits, '.', '_' and '-', at most 80 of them",
    }
    return Mistake(key, rules.get(kind, detail["msg"]), got)


def _key(location: Sequence[Any], content: Mapping[str, Any]) -> str:
    """`space.batch_size[1]`; what the file does not write is left out: the index where it has no list, the key where
    it has the short form of a section."""
    at: Any = content
    key = ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]" if isinstance(at, list) else ""
        elif isinstance(at, str):
            continue
        else:
            key += f".{part}" if key else str(part)
        at = at[part] if isinstance(at, dict) and part in at else None
    return key


def _siblings(location: Sequence[Any], model: Any) -> list[str]:
    for part in location[:-1]:
        model = model.model_fields[part].annotation
    return list(model.model_fields)
