"""Where a command is to happen: one meaning of an address for all commands, by its form. Pure.

cluster.yaml        a cluster elsewhere, by its launcher file: its head does it, asked through an SSH tunnel
http://HEAD:8265    the same without SSH, where its job server can be reached: the token goes there in clear text
HOST:6379, auto     the Ray cluster that this machine belongs to: trials run there, results come here
local               this machine alone, whatever the environment says
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from sweeps.errors import InputError, Mistake

JOB_SERVER = "RAY_API_SERVER_ADDRESS"  # Ray's own names
RAY = "RAY_ADDRESS"
LOCAL = "local"
LAUNCHER_FILE = (".yaml", ".yml")
URL = ("http://", "https://")
OF_THIS_MACHINE = re.compile(r"localhost|127(\.\d+){3}|::1")
HEADS_PORT = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")
DASHBOARD_PORT = 8265  # a head's, which takes jobs
JOBS_PORT = f":{DASHBOARD_PORT}"

Kind = Literal["here", "ray", "ssh", "http"]
AFAR: tuple[Kind, ...] = ("ssh", "http")  # a cluster that this machine is no part of


class Place(NamedTuple):
    kind: Kind
    address: str = ""


def choose(
    given: str | None,
    environment: Mapping[str, str],
    may: Collection[Kind],
    me: str = "sweep",
    *,
    elsewhere: str = "",
    default: str = "",
) -> Place:
    """Return where a command happens that `may` happen in such places: as `--address` says, else the environment's
    variables. Raises where it can't happen there; `elsewhere` is what to call instead, for a cluster that this machine
    is no part of."""
    name, text = next(
        ((name, text) for name, text in _stated(given, environment, may) if text),
        ("--address", default),
    )
    found = Place(_kind(text, name), "" if text == LOCAL else text)
    if found.kind not in may:
        raise InputError(name, [Mistake("", _rule(found.kind, may, name, me, elsewhere), text or None)])
    if found.kind == "http" and not text.startswith(URL):
        rule = f"must begin with http:// where its port is {DASHBOARD_PORT}, which takes jobs: http://HEAD{JOBS_PORT}"
        raise InputError(name, [Mistake("", rule, text)])
    return found


def leads(environment: Mapping[str, str]) -> bool:
    """Say whether the environment leads any command away from this machine."""
    return any(environment.get(name, "") not in ("", LOCAL) for name in (JOB_SERVER, RAY))


def is_loopback(url: str) -> bool:
    """Say whether a URL leads to this machine itself: to a server here, or into a tunnel."""
    return bool(OF_THIS_MACHINE.fullmatch(urlsplit(url).hostname or ""))


def _stated(given: str | None, environment: Mapping[str, str], may: Collection[Kind]) -> list[tuple[str, str]]:
    """Return by whom an address is stated, and which; the first that says anything counts. On its head a cluster's Ray
    is no address for a command that only asks for results: these lie there."""
    of_ray = environment.get(RAY, "")
    is_of_use = "ray" in may or of_ray.startswith(URL) or of_ray.endswith(LAUNCHER_FILE)
    return [
        ("--address", given or ""),
        (JOB_SERVER, environment.get(JOB_SERVER, "")),
        (RAY, of_ray if is_of_use else ""),
    ]


def _kind(text: str, name: str) -> Kind:
    if text in ("", LOCAL):
        return "here"
    if text.endswith(LAUNCHER_FILE) and not text.startswith(URL):
        return "ssh"
    is_port = HEADS_PORT.fullmatch(text)
    if text.startswith(URL) or (is_port and text.endswith(JOBS_PORT)):
        return "http"
    if text == "auto" or is_port:
        return "ray"
    rule = (
        f"must be cluster.yaml (a cluster elsewhere, through SSH), http://HEAD{JOBS_PORT} (the same without SSH),"
        " HOST:6379 or auto (the one this machine is in), or local"
    )
    raise InputError(name, [Mistake("", rule, text)])


def _rule(kind: Kind, may: Collection[Kind], name: str, me: str, elsewhere: str) -> str:
    """Return the rule for a command that can't happen in a place of this kind."""
    back = "" if name == "--address" else "; --address local is this machine, whatever the environment says"
    if kind == "http" and "ssh" in may:
        return f"must be cluster.yaml: what is shown is reached through SSH alone, not at http://HEAD{JOBS_PORT}{back}"
    if [*may] == ["here"]:
        return f"must be local: it is done where the store is, of a cluster after ray attach cluster.yaml{back}"
    if "ssh" not in may:
        return f"must be HOST:6379 or auto, on a machine of the cluster; from elsewhere: {elsewhere}{back}"
    if "here" not in may:
        of_ray = ", HOST:6379 or auto" if "ray" in may else ""
        return f"must be a cluster's: cluster.yaml, or http://HEAD{JOBS_PORT}{of_ray}; or set it in {JOB_SERVER}"
    assert kind == "ray"
    over_http = f", or http://HEAD{JOBS_PORT}" if "http" in may else ""
    return f"must be cluster.yaml{over_http}; on a machine of the cluster leave it out{back}"
