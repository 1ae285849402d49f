"""The content of a user's own code, as far as a rank has loaded it: what tells an edited script from the one before."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from workers.contract import functions
from workers.contract.messages import TrialConfig


def digest(command: Sequence[str], folder: Path) -> str:
    """Of the files that the command names from this folder, and of every module that was loaded from their folders or
    from this one. What a script reads besides, or runs as a program, is not in it."""
    named = {path.resolve() for word in command if (path := folder / word).is_file()}
    summed = hashlib.sha256()
    for path in sorted({*named, *_loaded(folder, {folder, *(path.parent for path in named)})}):
        summed.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return summed.hexdigest()[:10]


def version(command: Sequence[str], folder: Path) -> str:
    """Of the files that the command names from this folder, and of the Python files beside them (of none, those of this
    folder): the same at every rank, and before anything of it is loaded."""
    named = {path.resolve() for word in command if (path := folder / word).is_file()}
    beside = {path for near in {path.parent for path in named} or {folder} for path in near.glob("*.py")}
    summed = hashlib.sha256()
    for path in sorted(named | {path for path in beside if path.is_file()}):
        summed.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return summed.hexdigest()[:10]


def of_cells(config: TrialConfig, folder: Path) -> str:
    """Of the files that the sweep file names for every cell, and of the Python files beside them: what cells of the
    same code have in common, whatever each of them loads; empty where all is ours."""
    if not config.own_code:
        return ""
    words = [word for word in shlex.split(config.script.run) if "{" not in word] if config.script else []
    points = () if config.script else functions.named(config.model, config.data).values()
    return version([*words, *(f"{point.partition(':')[0].replace('.', '/')}.py" for point in points)], folder)


def _loaded(folder: Path, roots: Collection[Path]) -> Iterator[Path]:
    for module in list(sys.modules.values()):
        if file := getattr(module, "__file__", None):
            path = (folder / file).resolve()
            is_own = any(path.is_relative_to(root) for root in roots) and "site-packages" not in path.parts
            if is_own and path.suffix == ".py" and path.is_file():
                yield path
