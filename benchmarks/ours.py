"""A sweep of ours as a benchmark runs it: on a Ray of its own, with ranks that do what the benchmark asks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sweeps import cluster, ledger, plan, spec
from sweeps.cache import Cache
from sweeps.durations import Durations
from sweeps.engine import Engine
from sweeps.feasibility import Feasibility
from sweeps.ledger import TrialRecord
from sweeps.search import Listed
from workers.group import ENTRY


def swept(
    text: str, entry: str = ENTRY, overrides: Sequence[str] = (), folder: Path | None = None
) -> tuple[TrialRecord, ...]:
    """Every trial of a sweep file's text, in the order in which they ended; its results lie in the folder, if one is
    named."""
    from sweeps import runner

    planned = plan.plan(spec.parse(text, "benchmark", overrides))
    with tempfile.TemporaryDirectory() as scratch, cluster.connected(None) as site:
        os.environ["SWEEP_RESULTS"] = str(folder or scratch)
        engine = Engine(lambda _: Listed(planned.trials), Durations(lambda _: 1.0), Feasibility(), Cache())
        assert runner.run(engine, planned.spec, ledger.create(planned, text), site, [], entry=entry)
        return ledger.read(planned.spec.name).trials
