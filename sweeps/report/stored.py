"""A sweep as the tracking store alone knows it: its trials, and, from its own run, its file and the nodes that it was
planned for.

What only a ledger holds is not there: `findings.outcomes.LEFT_OUT`.
"""

from __future__ import annotations

import re
from typing import Any

from sweeps.analysis.study import Study
from sweeps.errors import InputError, Mistake
from sweeps.record.ledger import SweepFacts
from sweeps.spec import plan, sweep_file
from sweeps.store import description, query

# In the note of a sweep's run, where an earlier version kept no file of its own, or its artifacts lie out of reach.
NOTE = re.compile(r"```yaml\n(.*)\n```(?:\nwith `(.*)`)?\s*$", re.DOTALL)


def read(name: str, store: str = "") -> Study:
    """Return the latest sweep of that name; raises where the store has none, or not its whole file."""
    trials = query.trials(name, store=store)
    own = query.sweep(name, store=store)
    file, overrides = _file(name, own, store)
    parsed = sweep_file.parse(file, f"{name} (tracking store)", overrides, is_recorded=True)
    facts = SweepFacts(
        name=name,
        id=own["id"],
        study=own["study"],
        created_at=own["started_ms"] / 1000,
        file=file,
        overrides=overrides,
        trials=plan.plan(parsed, name, own["nodes"]).trials,
        simulated=own["simulated"],
        nodes=own["nodes"],
    )
    return Study(facts, (), is_complete=own["status"] == "FINISHED", stored=trials, spent=own["gpu_hours"])


def _file(name: str, own: dict[str, Any], store: str) -> tuple[str, tuple[str, ...]]:
    """Return the sweep's file, and the values set on the command line."""
    whole = query.sweep_file(own["run"], store=store) if own["overrides"] is not None else None
    if whole is not None:
        return whole, tuple(own["overrides"])
    noted = NOTE.search(own["note"])
    if not noted or noted[1].endswith(description.CUT):
        rule = "must have the sweep's file, as an artifact of its run or in its note, to be reported without its ledger"
        got = "a part of it" if noted else "another note" if own["note"] else "no note"
        raise InputError("tracking store", [Mistake(name, rule, got)])
    return noted[1], tuple(own["overrides"] if own["overrides"] is not None else (noted[2] or "").split())
