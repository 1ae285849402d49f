"""All of the project that a rank may import, imported at once, and the fingerprint of what was imported.

A node's nursery does so before it forks its first rank. From then on its ranks run what it has loaded, whatever
becomes of the files: an edit in the middle of a sweep changes nothing that runs. A rank that starts as a process of
its own (`knobs.needs_own_process`) loads the files as they are when it starts, and has a fingerprint of its own: if
they were edited meanwhile its trial is told apart from the others.

Files that change while they are loaded are noticed: the fingerprint that was taken first, before anything heavy came,
must be that of the files when all is loaded. A moment before it this module comes, and what it needs to take one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from workers import fingerprint

# What `workers.rank` and `workers.train` come to import, at once or later; a test reads their imports and holds this.
MODULES = (
    "workers.rank",
    "workers.train",
    "workers.inputs.digits",
    "workers.inputs.records",
    "workers.inputs.synthetic",
)


class EditedError(Exception):
    """The files have changed while they were loaded, so that nobody knows what was."""


def loaded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Import what a rank needs; return the facts of its software with what was imported."""
    before = facts.get("code") or fingerprint.code()
    for module in MODULES:
        importlib.import_module(module)
    if fingerprint.code() != before:
        raise EditedError("the project's files must stay as they are while they are loaded, but were edited")
    return {**facts, "code": before}
