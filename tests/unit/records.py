"""Trials that were never run, for tests of what is done with their records."""

from __future__ import annotations

import itertools

from sweeps import plan, spec
from sweeps.ledger import TrialRecord
from workers.contract import Measurement, RankReport, StepRecord, TrialConfig, TrialOutcome

_seconds = itertools.count(1_700_000_000)


def config(**fields: object) -> TrialConfig:
    content = {"name": "x", "model": "tiny", "device": "cpu", "repeats": 1, "space": {"batch_size": 8, "gpus": 1}}
    content["space"] = {"batch_size": 8, "gpus": 1} | {k: v for k, v in fields.items() if k != "repeat"}
    (made,) = plan.plan(spec.SweepSpec.model_validate(content)).trials
    return TrialConfig(**{**vars(made), "repeat": fields.get("repeat", 0)})


def report(rank: int, images: int, step_ms: list[float]) -> RankReport:
    return RankReport(
        rank=rank,
        images=images,
        window_s=sum(step_ms) / 1000,
        steps=tuple(StepRecord(step=n, step_ms=ms, loss=2.0 - n / 100) for n, ms in enumerate(step_ms)),
        entered_at=1.5,
        build_s=0.5,
        peak_memory_mib=100,
        parameters=94_538,
    )


def record(config: TrialConfig, images_per_s: float = 100.0, outcome: TrialOutcome | None = None) -> TrialRecord:
    """A trial of ten steps in a window of one second."""
    share = images_per_s / config.gpus
    ranks = tuple(report(rank, share, [100.0] * 10) for rank in range(config.gpus))  # type: ignore[arg-type]
    measured = TrialOutcome(status="completed", measurement=Measurement(ranks=ranks))
    at = float(next(_seconds))
    return TrialRecord(config=config, outcome=outcome or measured, started_at=at, ended_at=at + 3)
