"""What a sweep file must not hold, because it is recorded and sent as it is: secrets. Pure."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from sweeps.errors import Mistake
from workers.contract import redact

RULE = "must not hold a secret, since a sweep file is recorded as it is"
CURE = f"{RULE}: leave it out, and have a file or a variable of the nodes hold it (env_from)"
NAME = re.compile(r"[\w.-]+")
NOTHING = re.compile(r"(null|none|~|\s)*", re.IGNORECASE)
FILLED_IN = ("$", "{", "<", "[", "|")  # begin a value that a program puts in, or a mark in a vocabulary
PAIR = re.compile(  # in a line of a data file that is no JSON, YAML or TOML, or too large to be read as one
    r"""["']?(?<![\w.-])([\w.-]++)["']?[ \t]*[:=](?!=)[ \t]*"""
    r"""(?:"([^"\n]*)"|'([^'\n]*)'|([^\s"',;{}\[\]=][^\n"',;{}]*))"""
)
ONE_FOR_ALL = re.compile(r"(pass(words?|wd|phrases?)|secrets?|credentials?)$")  # ends a name that all below it has
STAND_IN = "HIDDEN"  # for what is hidden, where `***` would be no YAML
KEY = re.compile(r"(?:- )?([\w.-]+)\s*[:=]")  # that a line or an override begins with


class _AnyTag(yaml.CBaseLoader):
    """Reads every value as a text, whatever its tag."""


def mistakes(content: Mapping[str, Any], text: str, overrides: Sequence[str] = ()) -> list[Mistake]:
    """Every secret in a file's content, by its name; where no name tells one, in the lines of its text, and in what
    these mean. None is shown, nor what stands around it, which may be a part of it."""
    if named := list(_named(content, "")):
        return named
    lines = {f"line {number}": line.strip() for number, line in enumerate(text.splitlines(), 1)}
    places = [*lines.items(), *(("--set", override) for override in overrides)]
    wrong = [(place, part) for place, part in places if _masked(part) != part]
    keys = {key for key, _ in _texts(content, "")}
    found = [Mistake(place, CURE, _shown(part, keys)) for place, part in wrong]
    meant = [*_texts(content, ""), *(("--set", leaf) for override in overrides for leaf in _given(override))]
    unseen = [(key, leaf) for key, leaf in meant if not any(leaf in part or part in leaf for _, part in wrong)]
    held = dict.fromkeys(key for key, leaf in unseen if redact.masked(leaf) != leaf)
    return found + [Mistake(key, CURE, redact.HIDDEN) for key in held]


def _shown(part: str, keys: set[str]) -> str:
    """Return the key that a line begins with, if it is one, in place of what the line holds."""
    found = KEY.match(part)
    is_key = found and any(found[1] in (key, key.rpartition(".")[2]) for key in keys)
    return f"{found[1]}: {redact.HIDDEN}" if found and is_key else redact.HIDDEN


def _given(override: str) -> Iterator[str]:
    """Yield the texts in an override's value, which another override may have put away."""
    yield from (leaf for _, leaf in _texts({"": yaml.safe_load(override.partition("=")[2])}, ""))


def in_data(text: str, kind: str, *, is_whole: bool = True) -> bool:
    """Say whether a secret stands in the text of a data file (`.json`, `.yaml`, …), or in a piece of it: a key of a
    known form, a password in an address, or a text whose name says so."""
    return redact.has_known(text) or any(_is_kept(*pair) for pair in _told(text, kind, is_whole))


def _told(text: str, kind: str, is_whole: bool) -> Iterator[tuple[str, str]]:
    """Yield the names in a data file with the texts behind them. What a notebook holds is code and its output: in there
    a name says as little as in any source."""
    if kind == ".ipynb":
        return
    if is_whole:
        with contextlib.suppress(ValueError, yaml.YAMLError, RecursionError):
            if kind == ".json":
                yield from _pairs(json.loads(text))
            elif kind == ".toml":
                yield from _pairs(tomllib.loads(text))
            elif kind in (".yaml", ".yml"):
                for one in yaml.load_all(text, _AnyTag):
                    yield from _pairs(one)
            if kind in (".json", ".toml", ".yaml", ".yml"):
                return
    for found in PAIR.finditer(text):
        if kind != ".json" or found[4] is None:  # a number is none in JSON, where vocabularies count words
            yield found[1], next(part for part in found.groups()[1:] if part is not None).strip()


def _is_kept(name: str, value: str) -> bool:
    """Say whether a value in a data file is secret. A reference, a mark or nothing is none. Behind a name that ends in
    a bare `key` or `token` most values are columns and words: there only what looks random is one."""
    if not NAME.fullmatch(name) or NOTHING.fullmatch(value) or value.lstrip().startswith(FILLED_IN):
        return False
    if redact.is_of_access(name):
        return redact.gives_away(name, value) and not redact.KEPT_IN.fullmatch(value)
    return redact.is_secret(name, value) and redact.looks_random(value) and not redact.KEPT_IN.fullmatch(value)


def _pairs(content: Any) -> Iterator[tuple[str, str]]:
    """Yield every name in a file's content with the texts behind it, each part once however often it is named. Of what
    lies below a name such as `secrets` a text that is no word is yielded under that name."""
    left, seen = [("", False, content)], set()
    while left:
        name, is_below, one = left.pop()
        if isinstance(one, str):
            if not is_below or redact.is_no_word(one):
                yield name, one
        elif isinstance(one, (dict, list)) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, list):
                left += [(name, is_below, part) for part in one]
            elif is_below or ONE_FOR_ALL.search(name.lower()):
                left += [(name, True, part) for part in one.values()]
            else:
                left += [(str(key), False, part) for key, part in one.items()]


def masked(text: str) -> str:
    """Return the text of a sweep file as it may be shown: one that was recorded before secrets were refused may hold
    some. Of one whose lines do not tell them all, what it means is shown."""
    content = None
    with contextlib.suppress(yaml.YAMLError):
        content = yaml.safe_load(text)
    values = {*_secrets(content)} if isinstance(content, Mapping) else set()
    shown = _masked_lines(text, values)
    if not isinstance(content, Mapping):
        return shown
    meant = _without(content, values)
    with contextlib.suppress(yaml.YAMLError):
        if yaml.safe_load(shown.replace(redact.HIDDEN, STAND_IN)) == _with_stand_ins(meant):
            return shown
    return yaml.safe_dump(meant, sort_keys=False, allow_unicode=True)


def _without(value: Any, values: set[str]) -> Any:
    """Return what a file means, without its secrets, and without these values."""
    if isinstance(value, str):
        return _masked_lines(value, values)
    if isinstance(value, Mapping):
        return {_without(name, values): _without(one, values) for name, one in value.items()}
    if isinstance(value, list):
        return [_without(one, values) for one in value]
    return redact.HIDDEN if str(value) in values else value


def _with_stand_ins(meant: Any) -> Any:
    return yaml.safe_load(yaml.safe_dump(meant).replace(redact.HIDDEN, STAND_IN))


def _masked_lines(text: str, values: set[str]) -> str:
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
        key = redact.masked(f"{prefix}{name}")
        if any(redact.is_secret(str(name), leaf) for leaf in _leaves(value)):
            cure = f"set {name} on every node, and say env_from: [{name}]"
            yield Mistake(key, f"{RULE}: {cure}", redact.HIDDEN)
        elif isinstance(value, Mapping):
            yield from _named(value, f"{key}.")
        elif isinstance(value, list) and redact.secret_words(value):
            cure = "have a file or a variable of the nodes hold it (env_from)"
            yield Mistake(key, f"{RULE}: {cure}", redact.HIDDEN)


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a value, and every key, by the key that it stands at."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, key)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield key, str(name)
            yield from _texts(one, redact.masked(f"{key}.{name}" if key else str(name)))


def _leaves(value: Any) -> Iterator[str]:
    """Yield what stands in a value, however deep, but nothing."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, (Mapping, list)):
            left += one.values() if isinstance(one, Mapping) else one
        elif one is not None:
            yield str(one)
