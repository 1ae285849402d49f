"""How a command on a cluster's head and whoever asked for it from afar understand each other.

A job's log has one stream, so each line says which of a process it was of, and the last one its exit code.

Whoever follows may fall silent without a word: a laptop is closed. So nothing on the head is followed for longer than
the follower allows, in `FOLLOWED_S`: a command that could go on then ends with `ASK_AGAIN`, and who still listens asks
again. A driver's log needs no command meanwhile: its job is named, and followed by whoever asked.
"""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TextIO

OUT, ERR, CODE, JOB = "o", "e", "x", "j"
ESCAPE = "\x10"  # which no text has, and would come through if one had
LINE = re.compile(rf"sweep\|([{OUT}{ERR}{CODE}{JOB}])\|(.*)")
FOLLOWED_S = "SWEEP_FOLLOWED_S"  # in the environment of a command that is followed: seconds
ASK_AGAIN = 75  # its exit code where there is more to come


def parsed(line: str) -> tuple[str, str] | None:
    """Which stream it was of, and what was said; nothing for what is no line of ours: Ray's own, say."""
    found = LINE.fullmatch(line)
    return (found[1], _unescaped(found[2])) if found else None


def _escaped(line: str) -> str:
    """Without a carriage return, which Ray's reader of logs takes for the end of a line."""
    return line.replace(ESCAPE, f"{ESCAPE}e").replace("\r", f"{ESCAPE}r")


def _unescaped(line: str) -> str:
    return line.replace(f"{ESCAPE}r", "\r").replace(f"{ESCAPE}e", ESCAPE)


def followed_s() -> float:
    """How long this process may be followed; for ever where nobody elsewhere asked."""
    return float(os.environ.get(FOLLOWED_S, "inf"))


def leaves_job(job: str) -> bool:
    """Name the job whose log is wanted to whoever asked for it, who can follow it without us; whether they can."""
    if FOLLOWED_S not in os.environ or not isinstance(sys.stdout, Marked):
        return False
    sys.stdout.say(JOB, job)
    return True


class Marked(io.TextIOBase):
    """Whole lines, each marked."""

    def __init__(self, mark: str, to: TextIO) -> None:
        self._mark, self._to, self._rest = mark, to, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self.say(self._mark, line)
        self._to.flush()
        return len(text)

    def say(self, mark: str, line: str) -> None:
        self._to.write(f"sweep|{mark}|{_escaped(line)}\n")

    def close(self) -> None:
        if self._rest:
            self.write("\n")
