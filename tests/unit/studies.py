"""Studies that were never run, for tests of what a report says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from sweeps.analysis.study import Study
from sweeps.record.ledger import SweepFacts, TrialRecord
from sweeps.simulator.cluster import parse
from sweeps.simulator.group import SimulatedGroup
from sweeps.spec import arrangements, plan, sweep_file
from tests.unit.records import record
from workers.contract.messages import TrialConfig, TrialOutcome

BEGAN = 1_700_000_000.0


def planted(
    text: str,
    images_per_s: Callable[[TrialConfig], float],
    hardware: Callable[[TrialConfig], str] = lambda config: "",
    **fields: Any,
) -> Study:
    """Each planned trial with the rate given; below zero it was infeasible."""

    def of(config: TrialConfig, n: int) -> TrialRecord:
        rate = images_per_s(config)
        unfit = TrialOutcome(status="infeasible", kind="device memory", message="2 GiB are needed, but 1 GiB is there")
        made = record(config, max(rate, 1.0), unfit if rate < 0 else None, hardware(config))
        return dataclasses.replace(made, started_at=BEGAN + n, ended_at=BEGAN + n + 1)

    facts = _facts(text)
    records = tuple(of(config, n) for n, config in enumerate(facts.trials))
    return Study(facts, records, **fields)


def simulated(text: str, where: str) -> Study:
    """Each planned trial as the simulator answers, one after the other."""
    cluster = parse(where)
    facts = dataclasses.replace(_facts(text), simulated=where)
    clock, records = BEGAN, []
    for config in facts.trials:
        seats = arrangements.place(config, cluster.nodes, arrangements.idle(cluster.nodes))
        assert seats
        group = SimulatedGroup(cluster, seats)
        group.start(config, at=clock)
        outcome = group.wait()
        assert outcome
        records.append(TrialRecord(config=config, outcome=outcome, started_at=clock, ended_at=clock + group.took_s))
        clock += group.took_s
    return Study(facts, tuple(records))


def with_nodes(study: Study, nodes: Mapping[str, Mapping[str, Any]]) -> Study:
    """Nodes by name, with facts of their hardware."""
    entries = tuple(
        {"node": name, "id": name, "hardware": {"digest": "h", **facts}, "software": {"digest": "s", "python": "3.11"}}
        for name, facts in nodes.items()
    )
    return dataclasses.replace(study, nodes=entries)


def _facts(text: str) -> SweepFacts:
    parsed = sweep_file.parse(text, "test")
    return SweepFacts(
        name=parsed.name,
        id="0",
        study=parsed.name,
        created_at=BEGAN,
        file=text,
        overrides=(),
        trials=plan.plan(parsed).trials,
    )
