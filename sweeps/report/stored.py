"""A sweep as the tracking store alone knows it: its trials, and, from its own run, its file (in the note) and the nodes
that it was planned for.

What only a ledger holds is not there: `findings.outcomes.LEFT_OUT`.
"""

from __future__ import annotations

import re

from sweeps.analysis.study import Study
from sweeps.errors import InputError, Mistake
from sweeps.record.ledger import SweepFacts
from sweeps.spec import plan, sweep_file
from sweeps.store import description, query

NOTE = re.compile(r"```yaml\n(.*)\n```(?:\nwith `(.*)`)?\s*$", re.DOTALL)


def read(name: str, store: str = "") -> Study:
    """The latest sweep of that name; raises where the store has none, or not its whole file."""
    trials = query.trials(name, store=store)
    own = query.sweep(name, store=store)
    noted = NOTE.search(own["note"])
    if not noted or noted[1].endswith(description.CUT):
        rule = "must have the sweep's file in the note of its run, to be reported without its ledger"
        got = "a part of it" if noted else "another note" if own["note"] else "no note"
        raise InputError("tracking store", [Mistake(name, rule, got)])
    file, overrides = noted[1], tuple((noted[2] or "").split())
    parsed = sweep_file.parse(file, f"{name} (note)", overrides, is_recorded=True)
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
