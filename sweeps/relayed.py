"""A command that is run on a cluster's head for somebody elsewhere.

    python -m sweeps.relayed ARGUMENTS of sweep

A job's log has one stream, so each line says which of a process it was of, and the last one its exit code. `told` is
the other side of it.
"""

from __future__ import annotations

import io
import re
import sys
from typing import TextIO

OUT, ERR, CODE = "o", "e", "x"
LINE = re.compile(rf"sweep\|([{OUT}{ERR}{CODE}])\|(.*)")


def told(line: str) -> tuple[str, str] | None:
    """Which stream it was of, and what was said; nothing for what is no line of ours: Ray's own, say."""
    found = LINE.fullmatch(line)
    return (found[1], found[2]) if found else None


class Marked(io.TextIOBase):
    """Whole lines, each marked."""

    def __init__(self, mark: str, to: TextIO) -> None:
        self._mark, self._to, self._rest = mark, to, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._to.write(f"sweep|{self._mark}|{line}\n")
        self._to.flush()
        return len(text)

    def close(self) -> None:
        if self._rest:
            self.write("\n")


def main(arguments: list[str]) -> None:
    from sweeps import cli, versions

    to = sys.stdout
    streams = Marked(OUT, to), Marked(ERR, to)
    sys.stdout, sys.stderr = streams
    if differs := versions.told():
        print(differs, file=sys.stderr)
    try:
        code: object = cli.main(arguments)
    except SystemExit as end:  # argparse
        code = end.code
    for stream in streams:
        stream.close()
    to.write(f"sweep|{CODE}|{code if isinstance(code, int) else 1}\n")
    to.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
