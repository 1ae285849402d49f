"""How a command on a cluster's head and whoever asked for it from afar understand each other.

A job's log has one stream, so each line says which of a process it was of, and the last one its exit code.
"""

from __future__ import annotations

import io
import re
from typing import TextIO

OUT, ERR, CODE = "o", "e", "x"
ESCAPE = "\x10"  # which no text has, and would come through if one had
LINE = re.compile(rf"sweep\|([{OUT}{ERR}{CODE}])\|(.*)")


def parsed(line: str) -> tuple[str, str] | None:
    """Which stream it was of, and what was said; nothing for what is no line of ours: Ray's own, say."""
    found = LINE.fullmatch(line)
    return (found[1], _unescaped(found[2])) if found else None


def _escaped(line: str) -> str:
    """Without a carriage return, which Ray's reader of logs takes for the end of a line."""
    return line.replace(ESCAPE, f"{ESCAPE}e").replace("\r", f"{ESCAPE}r")


def _unescaped(line: str) -> str:
    return line.replace(f"{ESCAPE}r", "\r").replace(f"{ESCAPE}e", ESCAPE)


class Marked(io.TextIOBase):
    """Whole lines, each marked."""

    def __init__(self, mark: str, to: TextIO) -> None:
        self._mark, self._to, self._rest = mark, to, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._to.write(f"sweep|{self._mark}|{_escaped(line)}\n")
        self._to.flush()
        return len(text)

    def close(self) -> None:
        if self._rest:
            self.write("\n")
