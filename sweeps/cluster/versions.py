"""What a user's side and a cluster run, held against each other: the project's code, and the packages that count.

A sweep that is submitted brings its code along, and finds the packages that are there. A question is answered by the
code that is there, too.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence

from sweeps.cluster import upload
from sweeps.text import caller

ASKED_BY = "SWEEP_ASKED_BY"  # in the environment of a command that somebody elsewhere has asked for
PACKAGES = ("ray", "tensorflow", "horovod", "mlflow")
DIFFERS = "the cluster's side differs from yours"
OTHER_CODE = "another version of the project's code"


def here() -> str:
    """Return what runs here, as text for an environment."""
    return json.dumps({"code": _code(), **{name: _version(name) for name in PACKAGES}})


def shown() -> str:
    """Return the versions of this project and of what it measures with, as a line."""
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return f"sweep {_version('ray-sweeps')} ({packages}, Python {platform.python_version()})"


def difference(asked_by: str, own: str) -> str:
    """Return what differs between who asks and who answers, in a line with its cure; empty if nothing does."""
    theirs, ours = json.loads(asked_by), json.loads(own)
    differing = [
        f"{name} {ours[name]} there, {theirs[name]} here"
        for name in (theirs.keys() & ours.keys()) - {"code"}
        if theirs[name] != ours[name]
    ]
    if {*theirs["code"].split()} - {*ours["code"].split()}:
        differing.append(OTHER_CODE)
    return said(differing) if differing else ""


def said(differing: Sequence[str]) -> str:
    return f"{DIFFERS} ({', '.join(sorted(differing))}): {caller.current().ray_up} brings it there, and ends sweeps"


def difference_from_caller() -> str:
    """Return the same of this process and whoever has asked for it; empty if that is nobody."""
    return difference(os.environ[ASKED_BY], here()) if ASKED_BY in os.environ else ""


def _code() -> str:
    """Return a digest of each file that a submission would bring along. What lies there beside them means nothing:
    `ray up` deletes no file, so those that were removed or renamed here stay."""
    return " ".join(
        hashlib.sha256(f"{path}\0".encode() + content).hexdigest()[:8] for path, content in upload.contents()
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"
