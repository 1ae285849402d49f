"""A rule of what a user writes that is not kept. Standard library only."""

from __future__ import annotations


class RuleError(ValueError):
    """A rule that does not hold, and the value given in its place."""

    def __init__(self, rule: str, got: object) -> None:
        super().__init__(f"{rule}, but got {got}")
        self.rule, self.got = rule, got
