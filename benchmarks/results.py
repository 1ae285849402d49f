"""The last run of every benchmark, as `results.json` keeps it, and whether the code that it measured is still the same.

A digest of Python code leaves out comments, docstrings and layout, which move no figure.

Beside each figure stands how quiet the machine was: the share of it that others took just before, and the pace of a
fixed computation before and after. A run beside others is no measure of a claim. The pace is told and no more: a
virtual machine's own goes up and down by a fifth, unseen from inside, which is why the sides of each benchmark take
turns; what is left of it widens their spread.

The packages that a claim's code imports are kept with their versions. They still are what is measured as long as they
are among those that pyproject.toml takes: what one machine has installed of these would mark a claim there alone.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import statistics
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from claims import Claim

ROOT = Path(__file__).parents[1]
FILE = "benchmarks/results.json"
OF_THE_PROJECT = ("sweeps", "workers", "tests")
BUSY = 0.05  # of all cores, taken by others: more is not quiet
PACKAGES = {  # by the module that they bring
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "google": "protobuf",
    "pynvml": "nvidia-ml-py",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


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
    packages: Mapping[str, str] = field(default_factory=dict)  # their versions; empty where one was not installed
    pace_before_ms: tuple[float, ...] = ()  # of a fixed computation (`pace`), second by second
    pace_after_ms: tuple[float, ...] = ()
    pace_best_ms: float = 0.0  # the best mean of such seconds that this machine is known to have had
    pace_code: str = ""  # the digest of that computation


def read(root: Path = ROOT) -> dict[str, Result]:
    def result(entry: dict[str, object]) -> Result:
        lists = {name: tuple(value) for name, value in entry.items() if isinstance(value, list)}
        return Result(**entry | lists)  # type: ignore[arg-type]

    found = {name: result(entry) for name, entry in json.loads((root / FILE).read_text()).items()}
    return {name: _by_the_best(one, found.values()) for name, one in found.items()}


def _by_the_best(result: Result, known: Iterable[Result]) -> Result:
    """Return a result with the best pace that any shows of its machine, though it was measured before."""
    if not result.pace_before_ms:
        return result
    best = best_pace_ms([result.pace_before_ms, result.pace_after_ms], result.machine, result.pace_code, known)
    return dataclasses.replace(result, pace_best_ms=best)


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
    return _digest(file.read_bytes(), file.suffix == ".py")


@functools.cache  # many claims name the same files
def _digest(content: bytes, is_python: bool) -> str:
    if is_python:
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


def best_pace_ms(paces: Sequence[Sequence[float]], machine: str, code: str, earlier: Iterable[Result]) -> float:
    """Return the best that a machine has shown: now, and in all that is kept of it by the same computation."""
    known = [one.pace_best_ms for one in earlier if (one.machine, one.pace_code) == (machine, code)]
    return min([*map(statistics.fmean, paces), *known])


def unevenness(result: Result) -> float:
    """Return how much slower its slowest second was than its fastest."""
    paces = (*result.pace_before_ms, *result.pace_after_ms)
    return max(paces) / min(paces) - 1


def slowness(result: Result) -> float:
    """Return how much slower the machine was than at its best."""
    return statistics.fmean((*result.pace_before_ms, *result.pace_after_ms)) / result.pace_best_ms - 1


def disturbed(result: Result) -> str:
    """Return what a result says against itself, where others used its machine; nothing where it was quiet."""
    return f"{result.busy_before:.0%} of the machine was busy just before" if result.busy_before > BUSY else ""


def is_good(claim: Claim, result: Result, root: Path = ROOT) -> bool:
    """Whether the claim's last run met its bounds, with the code and packages as they are, beside no others."""
    if not result.met or result.arguments or disturbed(result):
        return False
    return not changed(claim, result, root) and not outdated(claim, result, root)


def packages(claim: Claim, root: Path = ROOT) -> dict[str, str]:
    """Return the version of each package that the claim's code imports, as it is installed here."""
    return {name: _version(name) for name in sorted(_imported(claim, root))}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _imported(claim: Claim, root: Path) -> set[str]:
    """Return the packages that any of the claim's files imports, wherever in the file."""
    files = [root / name for name in digests(claim, root) if name.endswith(".py")]
    own = {*sys.stdlib_module_names, *OF_THE_PROJECT, *(path.stem for path in (root / "benchmarks").glob("*.py"))}
    modules = {name.partition(".")[0] for file in files for name in imports(file)} - own
    return {canonicalize_name(PACKAGES.get(name, name)) for name in modules}


def imports(file: Path) -> frozenset[str]:
    """Return every module that a file imports, wherever in it; of `from a import b` both `a` and `a.b`."""
    return _imports(file.read_bytes())


@functools.cache
def _imports(content: bytes) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(found)


def outdated(claim: Claim, result: Result, root: Path = ROOT) -> list[str]:
    """Return the packages of which the run measured another version than the project takes now, in words.

    An entry keeps all that its code imported, or none: what the code imports since then is a change of code."""
    taken = _taken(root)
    names = _imported(claim, root)
    return [
        words
        for name in sorted(names & result.packages.keys() or names)
        if (words := _unlike(name, result.packages.get(name), taken.get(name, SpecifierSet())))
    ]


def _unlike(name: str, version: str | None, taken: SpecifierSet) -> str:
    if version is None:
        return f"{name} of a version that was not kept"
    if version and not taken.contains(version, prereleases=True):
        return f"{name} {version}, where the project takes {taken}"
    return ""


def _taken(root: Path) -> dict[str, SpecifierSet]:
    """Return what pyproject.toml takes of each package that it names."""
    file = root / "pyproject.toml"
    content = tomllib.loads(file.read_text()) if file.exists() else {}
    project = content.get("project", {})
    texts = [*project.get("dependencies", ()), *content.get("dependency-groups", {}).get("dev", ())]
    texts += [text for group in project.get("optional-dependencies", {}).values() for text in group]
    taken: dict[str, SpecifierSet] = {}
    for one in map(Requirement, texts):
        name = canonicalize_name(one.name)
        taken[name] = taken.get(name, SpecifierSet()) & one.specifier
    return taken
