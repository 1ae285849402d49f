"""The last run of every benchmark, as `results.json` keeps it, and whether the code that it measured is still the same.

A digest of Python code leaves out comments, docstrings and layout, which move no figure.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from claims import Claim

ROOT = Path(__file__).parents[1]
FILE = "benchmarks/results.json"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run of one benchmark."""

    figures: Mapping[str, float]  # empty if it did not come to its verdict
    bounds: Mapping[str, str]
    met: bool
    unmet: tuple[str, ...]  # the figures whose bound was not met
    arguments: tuple[str, ...]  # none: the claim as README makes it
    run: str  # when the run of this and perhaps of others began: equal if they ran together
    date: str  # when this one began
    took_s: float
    commit: str  # "with changes" behind it if files differed from it
    machine: str
    busy_before: float  # the share of all cores that others took just before
    code: Mapping[str, str]  # a digest a file


def read(root: Path = ROOT) -> dict[str, Result]:
    def result(entry: dict[str, object]) -> Result:
        lists = {name: tuple(value) for name, value in entry.items() if isinstance(value, list)}
        return Result(**entry | lists)  # type: ignore[arg-type]

    return {name: result(entry) for name, entry in json.loads((root / FILE).read_text()).items()}


def write(results: Mapping[str, Result], root: Path = ROOT) -> None:
    """Write the whole file or leave it as it was."""
    entries = {name: dataclasses.asdict(results[name]) for name in sorted(results)}
    fresh = (root / FILE).with_suffix(".new")
    fresh.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
    os.replace(fresh, root / FILE)


def digests(claim: Claim, root: Path = ROOT) -> dict[str, str]:
    """Return a digest of each file whose change may move the claim's figures."""
    found: dict[str, str] = {}
    for name in (claim.script, *claim.code):
        path = root / name
        if not path.exists():
            raise SystemExit(
                f"each claim names the code that it measures, but '{name}' of {claim.benchmark} is not there: "
                "name in benchmarks/claims.py where that code is now"
            )
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found |= {file.relative_to(root).as_posix(): digest(file) for file in files}
    return found


def digest(file: Path) -> str:
    content = file.read_bytes()
    if file.suffix == ".py":
        content = ast.dump(_without_docstrings(ast.parse(content))).encode()
    return hashlib.sha256(content).hexdigest()[:12]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if ast.get_docstring(node, clean=False) is not None:
                    node.body = node.body[1:]
    return tree


def changed(claim: Claim, result: Result, root: Path = ROOT) -> list[str]:
    """Return the files that are not what the run measured: edited, new or gone."""
    now = digests(claim, root)
    return sorted(name for name in now.keys() | result.code.keys() if now.get(name) != result.code.get(name))
