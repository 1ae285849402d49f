"""A sweep of ours as a benchmark runs it: on a Ray of its own, with ranks that do what the benchmark asks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from sweeps import cluster, ledger, plan, spec
from sweeps.cache import Cache
from sweeps.durations import Durations
from sweeps.engine import Engine
from sweeps.feasibility import Feasibility
from sweeps.ledger import TrialRecord
from sweeps.search import Listed


def swept(text: str, entry: str, overrides: Sequence[str] = ()) -> tuple[TrialRecord, ...]:
    """Every trial of a sweep file's text, in the order in which they ended."""
    from sweeps import runner

    planned = plan.plan(spec.parse(text, "benchmark", overrides))
    with tempfile.TemporaryDirectory() as folder, cluster.connected(None) as site:
        os.environ["SWEEP_RESULTS"] = folder
        engine = Engine(lambda _: Listed(planned.trials), Durations(lambda _: 1.0), Feasibility(), Cache())
        assert runner.run(engine, planned.spec, ledger.create(planned, text), site, [], entry=entry)
        return ledger.read(planned.spec.name).trials
