"""Where a command is to happen: one meaning of an address for all commands, by its form. Pure.

http://HEAD:8265    a cluster elsewhere, through its job server: its head does it
HOST:6379, auto     the Ray cluster that this machine belongs to: trials run there, results come here
local               this machine alone, whatever the environment says
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from sweeps.errors import InputError, Mistake

JOB_SERVER = "RAY_API_SERVER_ADDRESS"  # Ray's own names
RAY = "RAY_ADDRESS"
HEADS_PORT = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")

Kind = Literal["here", "ray", "afar"]


class Place(NamedTuple):
    kind: Kind
    address: str = ""


def of(given: str | None, environment: Mapping[str, str], may: Collection[Kind], me: str = "sweep") -> Place:
    """Where a command happens that `may` happen in such places: as `--address` says, else the environment's variables.
    Raises where it can't happen there."""
    name, text = next(
        ((name, text) for name, text in _told(given, environment, may) if text),
        ("--address", ""),
    )
    found = Place(_kind(text, name), "" if text == "local" else text)
    if found.kind not in may:
        raise InputError(name, [Mistake("", _rule(found.kind, may, name, me), text or None)])
    return found


def _told(given: str | None, environment: Mapping[str, str], may: Collection[Kind]) -> list[tuple[str, str]]:
    """By whom, and what; the first that says anything counts. On its head a cluster's Ray is no address for a command
    that only asks for results: these lie there."""
    of_ray = environment.get(RAY, "")
    is_of_use = "ray" in may or of_ray.startswith(("http://", "https://"))
    return [
        ("--address", given or ""),
        (JOB_SERVER, environment.get(JOB_SERVER, "")),
        (RAY, of_ray if is_of_use else ""),
    ]


def _kind(text: str, name: str) -> Kind:
    if text in ("", "local"):
        return "here"
    if text.startswith(("http://", "https://")):
        return "afar"
    if text == "auto" or HEADS_PORT.fullmatch(text):
        return "ray"
    rule = "must be http://HEAD:8265 (a cluster elsewhere), HOST:6379 or auto (the one this machine is in), or local"
    raise InputError(name, [Mistake("", rule, text)])


def _rule(kind: Kind, may: Collection[Kind], name: str, me: str) -> str:
    """Of a command that can't happen in a place of this kind."""
    back = "" if name == "--address" else "; --address local is this machine, whatever the environment says"
    if "afar" not in may:
        return (
            f"must be HOST:6379 or auto, on a machine of the cluster; from elsewhere: {me} submit FILE "
            f"--address http://HEAD:8265{back}"
        )
    if "here" not in may:
        return f"must be a cluster's, such as http://HEAD:8265 ({JOB_SERVER} is heeded too)"
    assert kind == "ray"
    return f"must begin with http://, such as http://HEAD:8265; on a machine of the cluster leave it away{back}"
