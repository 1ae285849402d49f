"""What a sweep found, in words: the one source of what the console, the report and MLflow say of it. Pure.

best        the answer: the cell to train with, how sure that is, and the notes that belong to it
axes        what the axes are worth: which explains most, and each number format over the first
doubts      what must be known before the figures are used, from the trials
outcomes    how trials ended, and what that means for the figures
next_steps  what to do now

Whoever shows findings shows their sentences as they are. The console's front
(`overview.front`) and the report's sections on cost, foresight and the simulated twin still write leads of their own.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from sweeps.analysis.findings import axes, best, doubts, outcomes
from sweeps.analysis.findings.finding import Finding, Rule, Severity, Sureness

if TYPE_CHECKING:
    from sweeps.analysis.findings.best import Best
    from sweeps.analysis.study import Study

__all__ = ["Finding", "Findings", "Rule", "Severity", "Sureness", "find"]


@dataclasses.dataclass(frozen=True)
class Findings:
    """All that a sweep found: the answer first, then notes, then doubts."""

    all: tuple[Finding, ...]
    best: Best | None  # None where nothing was measured

    @property
    def answer(self) -> Finding:
        return self.all[0]

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(found for found in self.all if found.severity == "note")

    @property
    def doubts(self) -> tuple[Finding, ...]:
        return tuple(found for found in self.all if found.severity == "doubt")

    def lines(self) -> list[str]:
        """Return them as a console has them."""
        cares = ["Read with care", *(f"  {found.plain}" for found in self.doubts)] if self.doubts else []
        return [self.answer.plain, *(found.plain for found in self.notes), *cares]

    def tag(self, longest: int) -> str:
        """Return them as JSON for a program; of more than fit, the first."""
        kept: list[str] = []
        room = longest - len("[]")
        for found in self.all:
            row = json.dumps(found.row(), ensure_ascii=False)
            if room < len(row) + 2:
                row = json.dumps(found.row() | {"cells": []}, ensure_ascii=False)
            if room < len(row) + 2:
                break
            kept.append(row)
            room -= len(row) + 2
        return f"[{', '.join(kept)}]"


def find(study: Study) -> Findings:
    """Return what a sweep found."""
    top = best.find(study)
    first = [*best.findings(study, top), *axes.findings(study)] if top else [*outcomes.nothing_measured(study)]
    return Findings(
        (*first, *outcomes.cached(study), *outcomes.begun_anew(study), *outcomes.incomplete(study), *_doubts(study)),
        top,
    )


def _doubts(study: Study) -> tuple[Finding, ...]:
    target = study.facts.spec.target
    if study.trials.empty:
        return ()
    if study.is_convergence:
        found = doubts.of_convergence(study.trials, bool(target.top1 or target.top5))
    else:
        found = doubts.of_throughput(study.trials, study.is_strong, study.rate, study.rank)
    if study.facts.simulated:
        found = [dataclasses.replace(one, rule="simulated") if one.rule == "mixed sources" else one for one in found]
        found += doubts.of_simulation(study.configs, study.facts.simulated)
    return (*found, *outcomes.doubts(study))
