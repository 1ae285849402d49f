"""How a sweep's trials ended, and what their records say that bears on its figures."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from sweeps.analysis.findings.finding import Finding, doubt
from workers.contract.messages import Status

if TYPE_CHECKING:
    import pandas as pd

    from sweeps.analysis.study import Study

NO_NODES = (
    "an earlier version stored it without its nodes, so placements that were equal there have separate rows here, and"
    " all count as planned"
)
LEFT_OUT = "curves by epoch, telemetry, the facts and self-tests of nodes, attempts that were tried again"


def ends(study: Study) -> str:
    """`54 trials of 18 cells: 36 completed, 18 infeasible`."""
    counts = collections.Counter(study.trials["outcome"])
    if not counts:
        return "no trial has ended"
    counted = ", ".join(f"{counts[status]} {status}" for status in get_args(Status) if counts[status])
    cells = study.cells["cell"].nunique()
    return f"{len(study.trials)} trials of {cells} cell{'' if cells == 1 else 's'}: {counted}"


def nothing_measured(study: Study) -> Iterator[Finding]:
    says = f"No trial of {study.name} measured anything"
    yield Finding(rule="nothing measured", severity="answer", sureness="counted", says=says)
    says = f"{_upper(ends(study))}."
    yield Finding(rule="nothing measured", severity="note", sureness="counted", says=says)


def cached(study: Study) -> Iterator[Finding]:
    done = study.trials[study.trials["outcome"] == "completed"]
    if are_all_cached(study):
        says = f"Nothing was measured anew: all {len(done)} figures are of earlier sweeps."
        yield Finding(rule="cached", severity="note", sureness="counted", says=says)


def are_all_cached(study: Study) -> bool:
    done = study.trials[study.trials["outcome"] == "completed"]
    return len(done) > 0 and bool((done["cached_from"] != "").all())


def begun_anew(study: Study) -> Iterator[Finding]:
    """Trials that did not go on from the checkpoint that was there."""
    measured = [(record.config, record.outcome.measurement) for record in study.records if record.outcome.measurement]
    anew = [(config, why) for config, one in measured if (why := one.ranks[0].begun_anew)]
    if anew:
        config, why = anew[0]
        count = f"{len(anew)} of {len(study.trials)} trials began anew although a checkpoint was there"
        says = f"{count}, such as {config.trial}: {why}."
        cells = tuple(dict.fromkeys(config.cell for config, _ in anew))
        yield Finding(rule="begun anew", severity="note", sureness="counted", says=says, cells=cells)


def incomplete(study: Study) -> Iterator[Finding]:
    """Yield what is missing of the sweep's records."""
    if study.stored is not None:
        says = f"made from the tracking store alone. **Left out**, since only the sweep's ledger has them: {LEFT_OUT}"
        if not study.facts.nodes:
            says += f". **Planned for no nodes**: {NO_NODES}"
        yield doubt("from the store", says)
    if not study.is_complete:
        planned = f" of {len(study.facts.trials)} planned" if study.facts.trials else ""
        yield doubt("incomplete", f"the sweep did not come to its end: {len(study.trials)} trials{planned} are here")


def doubts(study: Study) -> Iterator[Finding]:
    """Yield what was found by trials or nodes that were not as they should be."""
    trials = study.trials
    done = trials[trials["outcome"] == "completed"]
    yield from withheld(trials)
    loose = done[done["is_pinned"] == 0]
    if len(loose):
        why = next((f": {words}" for words in loose["why_not_pinned"] if words), "")  # cached trials don't say
        says = f"in {len(loose)} of {len(done)} trials the ranks had no cores of their own{why}"
        yield doubt("not pinned", says, tuple(dict.fromkeys(loose["cell"])))
    bad = trials[trials["outcome"].isin(["failed", "lost"])]
    if len(bad):
        kinds = ", ".join(f"{n} {kind}" for kind, n in bad["kind"].value_counts().items() if kind)
        says = f"{len(bad)} of {len(trials)} trials failed or were lost{f' ({kinds})' if kinds else ''}"
        yield doubt("failed", f"{says}: the report's “What stands out” has each", tuple(dict.fromkeys(bad["cell"])))
    slow = [probe for probe in study.probes if probe.get("slow")]
    if slow:
        nodes = ", ".join(sorted({str(probe["node"]) for probe in slow}))
        whom = "its peers" if len({probe["node"] for probe in study.probes}) > 2 else "the one other node"
        yield doubt("slow nodes", f"self-tests found {nodes} slower than {whom}, or than itself before")


def withheld(trials: pd.DataFrame) -> Iterator[Finding]:
    """How many trials have no interval of their own, and why."""
    done = trials[(trials["outcome"] == "completed") & trials["steps_taken"].notna()]
    loose = done[_is_loose(done)]
    if len(loose):
        reasons = loose["why_withheld"].astype(str).replace("", "of an earlier sweep").value_counts()
        counted = ", ".join(f"{count} {why}" for why, count in reasons.items())
        says = f"{len(loose)} of {len(done)} trials have no interval of their own ({counted})"
        yield doubt("withheld", f"{says}: a cell's comes from its repeats", tuple(dict.fromkeys(loose["cell"])))


def why_all_withheld(trials: pd.DataFrame) -> set[str]:
    """Return the reasons why no window has an interval of its own; none where one has, or there was no window."""
    done = trials[(trials["outcome"] == "completed") & trials["steps_taken"].notna()]
    return {*done["why_withheld"].astype(str)} if len(done) and _is_loose(done).all() else set()


def _is_loose(done: pd.DataFrame) -> pd.Series:
    return (done["is_steady"] != 1) | done["images_per_s_within"].isna()


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
