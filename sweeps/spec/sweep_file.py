"""A sweep file read: every mistake in it is found here, all at once, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from sweeps.errors import InputError, Mistake
from sweeps.spec import reading, rules, secrecy
from sweeps.spec.keys import Space, SweepSpec


def load(path: Path, overrides: Sequence[str] = ()) -> SweepSpec:
    """Return the spec in a file, with `key=value` overrides; raises `InputError` with every mistake."""
    return parse(reading.read(path), str(path), overrides)


def parse(text: str, place: str, overrides: Sequence[str] = (), *, is_recorded: bool = False) -> SweepSpec:
    """Return the spec in a text; raises `InputError` with every mistake. What is recorded already may hold secrets, and
    keys that have another name since."""
    content = reading.mapping(text, place)
    for override in overrides:
        own = content["space"] if isinstance(content.get("space"), dict) else ()
        reading.override(content, override, [*Space.model_fields, *own])
    if is_recorded:
        reading.rename(content)
    if secrets := [] if is_recorded else secrecy.mistakes(content, text, overrides):
        raise InputError(place, secrets)  # before any other mistake shows one
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
    """Return the mistakes between keys that are each right, where others are wrong."""
    try:
        stand_ins = {"name": "x", **({} if "run" in content else {"model": "tiny"}), "device": "cpu"} | content
        axes = content.get("space", {})
        stand_ins["space"] = {"gpus": 1} | ({} if "global_batch" in axes else {"batch_size": 1}) | axes
        return rules.broken(SweepSpec.model_validate(stand_ins), wrong)
    except (pydantic.ValidationError, TypeError):  # a section that is none
        return []


def json_schema() -> dict[str, Any]:
    """Return the schema for editors: completion and checks while a sweep file is written."""
    return SweepSpec.model_json_schema()
