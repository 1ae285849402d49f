"""Trials that were never run, by what they read and the nodes that their ranks sat on."""

from __future__ import annotations

import dataclasses

from sweeps.record.ledger import TrialRecord
from tests.unit.records import config, record
from workers.contract.messages import Granted, TrialConfig


def reading(folder: str, **fields: object) -> TrialConfig:
    return dataclasses.replace(config(**fields), data=folder)


def on(nodes: str, **places: str) -> tuple[Granted, ...]:
    return tuple(Granted(rank=n, node=node, node_id=node, **places) for n, node in enumerate(nodes))  # type: ignore[arg-type]


def measured(trial: TrialConfig, rate: float = 100.0, nodes: str = "aabb", **places: str) -> TrialRecord:
    made = record(trial, rate)
    return dataclasses.replace(made, outcome=dataclasses.replace(made.outcome, granted=on(nodes, **places)))
