"""docs/write-a-sweep.md has a line for every key of a sweep file, as search_spaces/schema.json has it.

Another test holds the schema to the keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "search_spaces/schema.json").read_text())
PAGE = (ROOT / "docs/write-a-sweep.md").read_text().partition("\n## Every key\n")[2].partition("\n## ")[0]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The section that a key holds, or may hold; else the key's own schema."""
    for form in (schema, *schema.get("anyOf", ())):
        if "$ref" in form:
            return {**SCHEMA["$defs"][form["$ref"].rpartition("/")[2]], **schema}
    return schema


def values(schema: dict[str, Any]) -> str:
    """What a key may hold; of an axis, one of its points."""
    forms = schema.get("anyOf", [schema])
    if len(forms) > 1:
        kinds = [form.get("type") for form in forms]
        said = [
            values(form) for form, kind in zip(forms, kinds, strict=True) if kind not in ("array", "object", "null")
        ]
        is_list = "array" in kinds and "object" not in kinds  # an axis may be a section too
        return ", or ".join([*dict.fromkeys(said), *(["a list"] if is_list else [])])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "boolean":
            return "`on`, `off`"
        case "integer" | "number" as kind:
            bounds = {"minimum": " from", "exclusiveMinimum": " above", "maximum": " to", "exclusiveMaximum": ", below"}
            said = [f"{word} {schema[name]:,}" for name, word in bounds.items() if name in schema]
            return "".join(["whole number" if kind == "integer" else "number", *said])
        case "string":
            return "text"
        case ["string", "number"]:
            return "text or a number"
        case "object":  # of variables
            return values(schema["additionalProperties"])
    return "keys"


def default(schema: dict[str, Any]) -> str:
    """What holds where a file does not say; of an axis its one point."""
    if "default" not in schema:
        return "must be given"
    given = schema["default"]
    if isinstance(given, dict):
        (given,) = given.get("values", [None])
    if given is None or given == []:
        return ""
    if isinstance(given, float):
        return f"`{given:g}`"
    return f"`{ {True: 'on', False: 'off'}[given] if isinstance(given, bool) else given }`"


def lines(section: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, own in section["properties"].items():
        whole = resolved(own)
        key = f"{before}{name}" + (".NAME" if name == "env" else "")
        yield f"| `{key}` | {values(own)} | {default(own)} | {whole.get('description', '')} |"
        if "properties" in whole:
            yield from lines(whole, f"{key}.")


def test_every_key_has_its_line_with_what_it_may_hold_its_default_and_what_it_says() -> None:
    assert [line for line in PAGE.splitlines() if line.startswith("| `")] == [*lines(SCHEMA)]


def test_no_key_is_without_a_word_on_what_it_is_for() -> None:
    assert not [line for line in lines(SCHEMA) if line.endswith("|  |")]
