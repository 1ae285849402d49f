"""How a command on a cluster's head and whoever asked for it from afar understand each other.

A job's log has one stream, so each line says which of a process it was of, and the last one its exit code. A driver
says what it has to say as it is, and names its sweep in a line that whoever submitted it reads and nobody is shown.

Whoever follows may fall silent without a word: a laptop is closed. So nothing on the head is followed for longer than
the follower allows, in `FOLLOWED_S`: a command that could go on then ends with `ASK_AGAIN`, and who still listens asks
again. A driver's log needs no command meanwhile: its job is named, and followed by whoever asked.
"""

from __future__ import annotations

import io
import os
import re
import sys
from typing import NamedTuple, TextIO

OUT, ERR, CODE, JOB = "o", "e", "x", "j"
BEGUN, OVER = "b", "v"  # a driver's sweep: it goes on, or nothing of it was left to run
ESCAPE = "\x10"  # which no text has, and would come through if one had
LINE = re.compile(rf"sweep\|([{OUT}{ERR}{CODE}{JOB}{BEGUN}{OVER}])\|(.*)")
NAMES = re.compile(rf"^(sweep\|[{BEGUN}{OVER}]\|.*)\n", re.MULTILINE)
FOLLOWED_S = "SWEEP_FOLLOWED_S"  # in the environment of a command that is followed: seconds
ASK_AGAIN = 75  # its exit code where there is more to come


class Named(NamedTuple):
    """What a driver has called its sweep, and whether nothing of it was left to run."""

    sweep: str
    is_over: bool


def parsed(line: str) -> tuple[str, str] | None:
    """Which stream it was of, and what was said; nothing for what is no line of ours: Ray's own, say."""
    found = LINE.fullmatch(line)
    return (found[1], _unescaped(found[2])) if found else None


def line(mark: str, text: str) -> str:
    """Return a marked line, with its end."""
    return f"sweep|{mark}|{_escaped(text)}\n"


def named(log: str) -> Named | None:
    """Return what a driver has called its sweep; nothing if it has not yet."""
    for words in filter(None, map(parsed, NAMES.findall(log))):
        return Named(words[1], is_over=words[0] == OVER)
    return None


def without_names(log: str) -> str:
    """Return a driver's log as people read it."""
    return NAMES.sub("", log)


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
        for whole in lines:
            self.say(self._mark, whole)
        self._to.flush()
        return len(text)

    def say(self, mark: str, text: str) -> None:
        self._to.write(line(mark, text))

    def close(self) -> None:
        if self._rest:
            self.write("\n")
