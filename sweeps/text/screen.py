"""Where words for a person go: plain text, never markup, since the text of an error may hold brackets."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text


def beside() -> Console:
    """Return the console for what is said while something runs: on stderr, in lines that are not folded."""
    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True)


def answers(width: int = 200) -> Console:
    """Return the console for what was asked for: on stdout, this wide where no terminal says how wide."""
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else width)


def named(name: str, words: str) -> Text:
    """`name: words`, the name in bold."""
    return Text.assemble((name, "bold"), f": {words}")
