"""What a user's side and a cluster run, held against each other: the project's code, and the packages that count.

A sweep that is submitted brings its code along, and finds the packages and the Python that are there. A question is
answered by the code that is there, too; it travels as text, so that Python's version is nothing to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence

from sweeps.cluster import upload
from sweeps.text import caller
from workers.contract.packages import version_of

ASKED_BY = "SWEEP_ASKED_BY"  # in the environment of a command that somebody elsewhere has asked for
PACKAGES = ("ray", "tensorflow", "horovod", "mlflow")
DIFFERS = "the cluster's side differs from yours"
PYTHON = "Python"  # 3.11 and 3.12 run the same code otherwise; Ray Jobs pickle nothing, and ask for no version of it
OTHER_CODE = "another version of the project's code"


def here() -> str:
    """Return what runs here, as text for an environment."""
    minor = ".".join(platform.python_version_tuple()[:2])
    return json.dumps({"code": _code(), PYTHON: minor, **{name: version_of(name, "none") for name in PACKAGES}})


def shown() -> str:
    """Return the versions of this project and of what it measures with, as a line."""
    packages = ", ".join(f"{name} {version_of(name, 'none')}" for name in PACKAGES)
    return f"sweep {version_of('ray-sweeps', 'none')} ({packages}, Python {platform.python_version()})"


def difference(asked_by: str, own: str, minds_python: bool = True) -> str:
    """Return what differs between who asks and who answers, in a line with its cure; empty if nothing does."""
    theirs, ours = json.loads(asked_by), json.loads(own)
    python = "" if not minds_python or theirs.get(PYTHON) in (None, ours.get(PYTHON)) else ours.get(PYTHON, "")
    differing = [
        f"{name} {ours[name]} there, {theirs[name]} here"
        for name in (theirs.keys() & ours.keys()) - {"code", PYTHON}
        if theirs[name] != ours[name]
    ]
    if {*theirs["code"].split()} - {*ours["code"].split()}:
        differing.append(OTHER_CODE)
    if not python:
        return message(differing) if differing else ""
    cures = [f"make clean setup PYTHON=python{python} gives your side that Python"]
    cures += [f"{caller.current().ray_up} brings the rest there, and ends sweeps"] if differing else []
    differing.append(f"{PYTHON} {python} there, {theirs[PYTHON]} here")
    return f"{DIFFERS} ({', '.join(sorted(differing))}): {'; '.join(cures)}"


def message(differing: Sequence[str]) -> str:
    return f"{DIFFERS} ({', '.join(sorted(differing))}): {caller.current().ray_up} brings it there, and ends sweeps"


def difference_from_caller(minds_python: bool = True) -> str:
    """Return the same of this process and whoever has asked for it; empty if that is nobody."""
    return difference(os.environ[ASKED_BY], here(), minds_python) if ASKED_BY in os.environ else ""


def _code() -> str:
    """Return a digest of each file that a submission would bring along. What lies there beside them means nothing:
    `ray up` deletes no file, so those that were removed or renamed here stay."""
    return " ".join(
        hashlib.sha256(f"{path}\0".encode() + content).hexdigest()[:8] for path, content in upload.contents()
    )
