"""What can go wrong that a user can mend, and the exit code it ends the command with.

SweepError
├── InputError    2: the input is wrong; every mistake at once
├── DataError     2: a set of images is damaged, or can't be made as it was asked for; a line each
└── RefusedError  3: the machine, the cluster or the tracking server refused
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from workers.contract.redact import masked

DONE, SOME_FAILED, WRONG_INPUT, REFUSED = 0, 1, 2, 3
INTERRUPTED = 130  # as a shell has it


class SweepError(Exception):
    exit_code = SOME_FAILED

    def __init__(self, says: str) -> None:
        super().__init__(masked(says))


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A rule that does not hold, and the value given in its place."""

    key: str
    rule: str
    got: object
    pointer: str = ""  # to the place inside a long value, as lines of their own

    def __str__(self) -> str:
        place = f"{self.key}: " if self.key else ""
        pointer = f"\n{self.pointer}" if self.pointer else ""
        return f"{place}{self.rule}, but got {shown(self.got)}{pointer}"


def shown(value: object) -> str:
    """Return a value as a user wrote it, without secrets, cut where it gets long."""
    text = (
        "nothing" if value is None else "true" if value is True else "false" if value is False else masked(str(value))
    )
    return text if len(text) <= 60 else f"{text[:57]}…"


class InputError(SweepError):
    exit_code = WRONG_INPUT

    def __init__(self, place: str, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(f"{place}: {mistake}" for mistake in mistakes))
        self.mistakes = tuple(mistakes)


class DataError(SweepError):
    exit_code = WRONG_INPUT


class RefusedError(SweepError):
    exit_code = REFUSED
