"""The note that a sweep's own run carries in MLflow, in Markdown: what was found, or what is asked, and the file.

Its comments are left out: their long lines would make the page wider than the window.
"""

from __future__ import annotations

import dataclasses

from sweeps.record.ledger import SweepFacts
from sweeps.spec import secrecy

LONGEST = 4000  # characters; a tag holds 5,000
CUT = "…"  # ends a file that had no room


@dataclasses.dataclass(frozen=True)
class Conclusion:
    """What was found, for the tags of a sweep's own run."""

    markdown: str  # for the eye
    findings: str  # the same findings as JSON
    gpu_hours: float | None = None  # that the sweep has spent


def write(facts: SweepFacts, verdict: str = "") -> str:
    """`verdict` is what was found, in Markdown; without one the note says what is going to be measured."""
    where = f"**Simulated** on {facts.simulated}: nothing was measured\n\n" if facts.simulated else ""
    asked = f"{len(facts.trials)} trials of" if facts.trials else f"A {facts.spec.search.method} search:"
    head = f"{where}{verdict or asked}"
    tail = f"\nwith `{secrecy.masked(' '.join(facts.overrides))}`" if facts.overrides else ""
    room = max(LONGEST - len(head) - len(tail), 0)
    lines = [line.rstrip() for line in secrecy.masked(facts.file).splitlines() if not line.lstrip().startswith("#")]
    file = "\n".join(lines).strip("\n")
    return f"{head}\n```yaml\n{file if len(file) <= room else f'{file[:room]}{CUT}'}\n```{tail}"
