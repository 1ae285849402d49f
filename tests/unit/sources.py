"""The project's own files as trees, each parsed once for all the tests that read them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def tree(path: Path) -> ast.Module:
    """What a file says. Nobody changes it."""
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a tree, level by level, as `ast.walk` has it."""
    return tuple(ast.walk(tree(path)))
