"""A function of a user's own, which a sweep file names MODULE:FUNCTION: what it asks for, as its file says or as it was
imported, and its call in a rank. Standard library only.

It is called by the names of its parameters: it gets what it asks for of what we hand over and of the axes that the
sweep file has for it, and must have defaults for all else.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import inspect
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from workers.contract.messages import TrialConfig, is_own
from workers.contract.ranks import Fault, Infeasible
from workers.contract.rule import RuleError
from workers.contract.spelling import did_you_mean

Key = Literal["model", "data"]  # of the sweep file, that may name one
HANDED: dict[Key, tuple[str, ...]] = {
    "model": ("image_size", "classes", "framework"),
    "data": ("rank", "size", "batch_size", "seed", "split", "epoch", "image_size", "classes"),
}
NOT_AXES = {name for names in HANDED.values() for name in names}
SPLIT = "split"  # which a function for data must ask for where there is a validation
REFUSED = "ResourceExhaustedError"  # TensorFlow's: memory that ran out is a finding, whosever code it was


@dataclasses.dataclass(frozen=True)
class Parameters:
    """What a function asks for by name."""

    names: tuple[str, ...]
    needed: tuple[str, ...]  # without a default
    takes_any: bool = False  # by `**`: it gets all axes of its user's own
    unnamed: tuple[str, ...] = ()  # that can't be given by name

    def takes(self, name: str) -> bool:
        return self.takes_any or name in self.names


def named(model: str, data: str) -> dict[Key, str]:
    """Return the functions of the user's own among a network and its data."""
    words: dict[Key, str] = {"model": model, "data": data}
    return {key: word for key, word in words.items() if is_own(word)}


def check(asked: Mapping[Key, Parameters], words: Mapping[Key, str], own: Iterable[str], has_validation: bool) -> None:
    """Raise what is wrong between what functions ask for and what they are given. All of them are known."""
    own = [*own]
    for key, parameters in asked.items():
        given = (*HANDED[key], *own)
        if parameters.unnamed:
            rule = f"{key}: a function's parameters must be given by name (no `/` behind them)"
            raise RuleError(rule, f"{', '.join(parameters.unnamed)} of {words[key]}")
        if lacking := [name for name in parameters.needed if name not in given]:
            rule = f"{key}: a parameter without a default must be one of {', '.join(given)} (add it under space:)"
            raise RuleError(rule, f"{', '.join(lacking)} of {words[key]}")
        if key == "data" and has_validation and SPLIT not in parameters.names:
            rule = "data: with protocol: convergence the function must ask for split, which is train or validation"
            raise RuleError(rule, f"{words[key]}({', '.join(parameters.names)})")
    for name in own:
        if not any(parameters.takes(name) for parameters in asked.values()):
            asks = "; ".join(f"{words[key]}({', '.join(found.names)})" for key, found in asked.items())
            near = did_you_mean(name, [one for found in asked.values() for one in found.names])
            raise RuleError(f"space.{name}: an axis of your own must be a parameter of a function{near}", asks)


def file_of(module: str, folder: Path) -> Path | None:
    """Return the file of a module that lies in a folder; None where none does."""
    base = folder.joinpath(*module.split("."))
    return next((path for path in (base / "__init__.py", base.parent / f"{base.name}.py") if path.is_file()), None)


def parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else f": {error}"
        raise RuleError("must be in a module that Python can read", f"{path.name}{line}") from None


def read(word: str, folder: Path) -> Parameters | None:
    """Return what a function asks for as its file says, without running it; None where that does not tell."""
    module, _, name = word.partition(":")
    if not (path := file_of(module, folder)):
        if (folder / module.partition(".")[0]).is_dir() and "." in module:
            raise RuleError(f"must be MODULE:FUNCTION of a module in {folder}", word)
        return None
    tree = parsed(path)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if found and not found[-1].decorator_list:
        return _written(found[-1].args)
    bound = {found for node in ast.walk(tree) for found in _bound(node)}
    if not bound & {name, "*", "__getattr__"}:
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        raise RuleError(f"must name a function of {path}{did_you_mean(name, functions)}", word)
    return None


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a part of a module may give to something."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]


def _written(given: ast.arguments) -> Parameters:
    unnamed = given.posonlyargs
    plain = [one.arg for one in given.args]
    defaults = len(given.defaults)
    keywords = [(one.arg, value) for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    without = [name for n, name in enumerate(plain) if len(plain) - n > defaults]
    return Parameters(
        (*plain, *(name for name, _ in keywords)),
        (*without, *(name for name, value in keywords if value is None)),
        given.kwarg is not None,
        tuple(one.arg for one in unnamed[: max(0, len(unnamed) + len(plain) - defaults)]),
    )


def parameters(function: Callable[..., Any]) -> Parameters:
    """Return what an imported function asks for."""
    found = inspect.signature(function).parameters.values()
    named = [one for one in found if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return Parameters(
        tuple(one.name for one in named),
        tuple(one.name for one in named if one.default is one.empty),
        any(one.kind == one.VAR_KEYWORD for one in found),
        tuple(one.name for one in found if one.kind == one.POSITIONAL_ONLY and one.default is one.empty),
    )


def imported(word: str) -> Callable[..., Any]:
    """Return a function of the user's own, its module imported from the working folder, or as installed."""
    module, _, name = word.partition(":")
    with blamed(word):
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                rule = f"{word} must be MODULE:FUNCTION of a module in {os.getcwd()}, or of one that is installed"
                raise Fault("no module", f"{rule}; {os.uname().nodename} has no module {error.name}") from None
            raise
    if not callable(found):
        got = "nothing of that name" if found is None else f"{type(found).__name__} {found!r:.40}"
        raise Fault("no function", f"{word} must be a function, but {module} has {got}")
    return found  # type: ignore[no-any-return]


def check_imported(config: TrialConfig) -> None:
    """Raise a fault where a trial's functions don't fit what it gives them."""
    words = named(config.model, config.data)
    asked = {key: parameters(imported(word)) for key, word in words.items()}
    try:
        check(asked, words, config.own, config.protocol == "convergence")
    except RuleError as error:
        raise Fault("parameters", str(error)) from None


def called(key: Key, config: TrialConfig, handed: Mapping[str, Any]) -> Any:
    """Return what a trial's function gives, called with what it asks for."""
    word = named(config.model, config.data)[key]
    function = imported(word)
    asked = parameters(function)
    given = {name: value for name, value in handed.items() if name in asked.names}
    given |= {name: value for name, value in config.own.items() if asked.takes(name)}
    with blamed(word):
        return function(**given)


@contextlib.contextmanager
def blamed(word: str) -> Iterator[None]:
    """Turn what a user's own code raises within the block into a line that names it."""
    try:
        yield
    except (Fault, Infeasible, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if any(kind.__name__ == REFUSED for kind in type(error).__mro__):
            raise
        first = next(iter(str(error).strip().splitlines()), "")
        rule = f"{word} must run without an error, but raised {type(error).__name__}"
        raise Fault("own code", f"{rule}: {first}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """Return the last line of the user's own that was under way, in words."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({os.path.relpath(error.filename)}, line {error.lineno})"
    here = os.getcwd()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_within(frame.filename, here)]
    return f" ({os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


def _is_within(file: str, folder: str) -> bool:
    ours = str(Path(__file__).parents[1])
    return file.startswith(f"{folder}{os.sep}") and "site-packages" not in file and not file.startswith(ours)


def followed(words: Iterable[str], folder: Path) -> set[Path]:
    """Return the files in a folder that functions need: their modules, and what these import of the folder; but for
    this project's own packages."""
    found: set[Path] = set()
    ours = ("sweeps", "workers")
    waiting = [word.partition(":")[0] for word in words]
    while waiting:
        module = waiting.pop()
        parts = module.split(".")
        if parts[0] in ours:
            continue
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            path = file_of(name, folder)
            if path and path not in found:
                found.add(path)
                waiting += _imports(path, name)
    return found


def _imports(path: Path, module: str) -> Iterator[str]:
    """Yield the modules that a file may import, and names that it takes from them, which may be modules too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module or ""]))
            yield from (f"{base}.{name.name}".lstrip(".") for name in node.names)
