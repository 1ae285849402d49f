"""Start a process whose part of the project is compiled from its sources, never taken from a `.pyc`.

    python -P workers/node/start_from_source.py MODULE FUNCTION [ARGUMENT ...]

Python takes a `.pyc` for as good as its source if the source's size and second are those that it was compiled from.
A copy that keeps times, or two edits within a second, is enough for what runs to be another program than what lies
there. A fingerprint of the files would then name a program that nobody has measured. So what measures, a node's
fork server and each rank that is a process of its own, starts here: this file is run by its path, which Python always
compiles, and every module of the project behind it is compiled from the bytes that its loader has read. The loader
keeps their digest. All else, TensorFlow above all, comes from its `.pyc` as usual.

Imports the standard library alone, nothing of the project, and starts no thread.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

SCRIPT = Path(__file__).resolve()
PACKAGE = SCRIPT.parents[1]


def command(module: str, function: str, *arguments: str) -> list[str]:
    """Return the command line that calls a module's function with these texts, in a process of its own."""
    return [sys.executable, "-P", str(SCRIPT), module, function, *arguments]


def digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def compiled(module: ModuleType) -> str:
    """Return the digest of the source that a module was compiled from here; empty if it came from elsewhere."""
    return str(getattr(module.__loader__, "digest", ""))


class Compiling(SourceFileLoader):
    """Compiles a module from its source, whatever `.pyc` lies beside it."""

    digest = ""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        self.digest = digest(source)
        return self.source_to_code(source, path)


class Finder:
    """Finds the project's modules where Python would, and has them compiled."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE.name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.origin and isinstance(spec.loader, SourceFileLoader):
            spec.loader, spec.cached = Compiling(fullname, spec.origin), None
        return spec


def main(module: str, function: str, *arguments: str) -> None:
    root = str(PACKAGE.parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    sys.meta_path.insert(0, Finder)
    getattr(importlib.import_module(module), function)(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
