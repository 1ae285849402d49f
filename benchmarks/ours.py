"""A sweep of ours as a benchmark runs it: on a Ray of its own, with ranks that do what the benchmark asks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from sweeps.cluster import ray_cluster
from sweeps.record import ledger, ownership
from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.search import Listed
from sweeps.spec import plan, sweep_file
from workers.launch.gang import ENTRY


def swept(text: str, entry: str = ENTRY, overrides: Sequence[str] = ()) -> tuple[TrialRecord, ...]:
    """Every trial of a sweep file's text, in the order in which they ended."""
    from sweeps.run import executor
    from sweeps.run.ray_tune import RayTune

    planned = plan.plan(sweep_file.parse(text, "benchmark", overrides))
    with tempfile.TemporaryDirectory() as scratch, ray_cluster.connected(None) as site:
        os.environ["SWEEP_RESULTS"] = scratch
        engine = Engine(lambda _: Listed(planned.trials), Durations(lambda _: 1.0), Feasibility(), Cache())
        book = ownership.create(planned, text)
        assert executor.carry_out(engine, book, RayTune(book.facts, book.paths, site, entry))
        return ledger.read(planned.spec.name).trials
