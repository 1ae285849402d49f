"""A trial as one flat row, the same whether it comes from the ledger or back from MLflow.

`METRICS` names each figure once: its column in a DataFrame and its name in MLflow, where `/` makes a section.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

from sweeps.ledger import TrialRecord
from sweeps.spec import Space
from workers.contract import Measurement, TrialConfig

METRICS = {
    "images_per_s": "images_per_s",
    "images_per_s_per_gpu": "images_per_s_per_gpu",
    "step_ms_mean": "step_ms/mean",
    "step_ms_p50": "step_ms/p50",
    "step_ms_p95": "step_ms/p95",
    "step_ms_p99": "step_ms/p99",
    "straggler_ratio": "ranks/slowest_over_median",
    "loss": "loss",
    "launch_s": "time/launch_s",
    "build_s": "time/build_s",
    "window_s": "time/window_s",
    "trial_s": "time/trial_s",
    "peak_memory_mib": "memory/rank_peak_mib",
    "parameters": "model/parameters",
}
AXES = tuple(Space.model_fields)
PARAMS = {field.name: field.type for field in dataclasses.fields(TrialConfig) if field.name != "deadlines"}


def params(config: TrialConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in PARAMS}


def typed(name: str, text: str) -> Any:
    """A parameter as it was before MLflow made it a string."""
    kind = {"int": int, "float": float}.get(str(PARAMS[name]), str)
    return kind(text)


def metrics(record: TrialRecord) -> dict[str, float]:
    """The figures of a trial that measured something; else only how long it took."""
    figures = {"trial_s": record.ended_at - record.started_at}
    measured = record.outcome.measurement
    if measured:
        figures |= _measured(measured, record)
    return figures


def _measured(measured: Measurement, record: TrialRecord) -> dict[str, float]:
    slowest = step_ms(measured)
    rank_means = [statistics.fmean(step.step_ms for step in rank.steps) for rank in measured.ranks]
    return {
        "images_per_s": measured.images_per_s,
        "images_per_s_per_gpu": measured.images_per_s / len(measured.ranks),
        "step_ms_mean": statistics.fmean(slowest),
        "step_ms_p50": percentile(slowest, 50),
        "step_ms_p95": percentile(slowest, 95),
        "step_ms_p99": percentile(slowest, 99),
        "straggler_ratio": max(rank_means) / statistics.median(rank_means),
        "loss": measured.ranks[0].steps[-1].loss,
        "launch_s": max(rank.entered_at for rank in measured.ranks) - record.started_at,
        "build_s": max(rank.build_s for rank in measured.ranks),
        "window_s": measured.window_s,
        "peak_memory_mib": max(rank.peak_memory_mib for rank in measured.ranks),
        "parameters": float(measured.ranks[0].parameters),
    }


def step_ms(measured: Measurement) -> list[float]:
    """Each step's time at the rank that took longest."""
    return [max(steps) for steps in zip(*([s.step_ms for s in r.steps] for r in measured.ranks), strict=True)]


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def row(record: TrialRecord) -> dict[str, Any]:
    return {
        "trial": record.config.trial,
        "cell": record.config.cell,
        "outcome": record.outcome.status,
        "kind": record.outcome.kind,
        "message": record.outcome.message,
        **params(record.config),
        **metrics(record),
        "started_at": record.started_at,
    }
