"""What a sweep file must not hold, because it is recorded and sent as it is: secrets. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from sweeps.errors import Mistake
from workers.contract import redact

RULE = "must not hold a secret, since a sweep file is recorded as it is"


def mistakes(content: Mapping[str, Any], text: str, overrides: Sequence[str] = ()) -> list[Mistake]:
    """Every secret in a file's content, by its name; where no name tells one, in the lines of its text."""
    if named := list(_named(content, "")):
        return named
    lines = {f"line {number}": line.strip() for number, line in enumerate(text.splitlines(), 1)}
    places = [*lines.items(), *(("--set", override) for override in overrides)]
    cure = f"{RULE}: leave it out, and have a file or a variable of the nodes hold it (env_from)"
    return [Mistake(place, cure, _masked(part)) for place, part in places if _masked(part) != part]


def masked(text: str) -> str:
    """Return the text of a sweep file as it may be shown: one that was recorded before secrets were refused may hold
    some."""
    content = None
    with contextlib.suppress(yaml.YAMLError):
        content = yaml.safe_load(text)
    values = {*_secrets(content)} if isinstance(content, Mapping) else set()
    return "\n".join(map(_masked, redact.masked(text, values).split("\n")))


def _masked(line: str) -> str:
    """Return a line without secrets, also in what was commented out."""
    before, sign, comment = redact.masked(line).partition("#")
    return before + sign + redact.masked_comment(comment)


def _secrets(content: Mapping[Any, Any]) -> Iterator[str]:
    """Every value whose name says that it is secret, whatever lines of the file it stands in."""
    for name, value in content.items():
        yield from (leaf for leaf in _leaves(value) if redact.is_secret(str(name), leaf))
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, list):
            yield from redact.secret_words(value)


def _named(content: Mapping[str, Any], prefix: str) -> Iterator[Mistake]:
    for name, value in content.items():
        key = f"{prefix}{name}"
        if any(redact.is_secret(str(name), leaf) for leaf in _leaves(value)):
            cure = f"set {name} on every node, and say env_from: [{name}]"
            yield Mistake(key, f"{RULE}: {cure}", redact.HIDDEN)
        elif isinstance(value, Mapping):
            yield from _named(value, f"{key}.")
        elif isinstance(value, list) and redact.secret_words(value):
            cure = "have a file or a variable of the nodes hold it (env_from)"
            yield Mistake(key, f"{RULE}: {cure}", redact.HIDDEN)


def _leaves(value: Any) -> Iterator[str]:
    """Yield what stands in a value, however deep, but nothing."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, (Mapping, list)):
            left += one.values() if isinstance(one, Mapping) else one
        elif one is not None:
            yield str(one)
