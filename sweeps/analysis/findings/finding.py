"""What a finding is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Severity = Literal["answer", "note", "doubt"]
Sureness = Literal[
    "shown",  # at 95%, with all that was looked at to find it
    "open",  # the data can't tell
    "counted",  # a fact of the records
    "estimated",  # means or single figures, as they are
]
Rule = Literal[
    "nothing measured", "best", "told apart", "fewest epochs", "most accurate", "speed-up", "limit", "cheaper",
    "target", "cached", "begun anew", "what matters", "precision", "framework",
    "mixed scaling", "single repeat", "wide interval", "untuned base", "mixed sources", "pooled", "mixed nodes",
    "missed target", "pruned", "simulated", "from the store", "incomplete", "failed", "withheld",
    "not pinned", "slow nodes",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a sweep found, or a reason to doubt what it found."""

    rule: Rule
    severity: Severity
    sureness: Sureness
    says: str  # in words, where **strong** is the only markup; of a doubt a clause, else sentences
    cells: tuple[str, ...] = ()  # that it is about; none: all
    evidence: Mapping[str, float] = dataclasses.field(default_factory=dict)  # the figures that it rests on

    @property
    def sentence(self) -> str:
        """The words as they stand alone; a doubt begins with its rule."""
        return f"**{self.rule[:1].upper()}{self.rule[1:]}**: {self.says}." if self.severity == "doubt" else self.says

    @property
    def plain(self) -> str:
        """The sentence without markup, for a console."""
        return self.sentence.replace("**", "")

    def row(self) -> dict[str, Any]:
        """Return the finding for a program, in JSON's types."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "sureness": self.sureness,
            "says": self.plain,
            "cells": [*self.cells],
            "evidence": {name: value for name, value in self.evidence.items() if value == value},
        }


def doubt(rule: Rule, says: str, cells: tuple[str, ...] = (), sureness: Sureness = "counted") -> Finding:
    return Finding(rule=rule, severity="doubt", sureness=sureness, says=says, cells=cells)
