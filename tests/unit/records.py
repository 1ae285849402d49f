"""Trials that were never run, for tests of what is done with their records."""

from __future__ import annotations

import dataclasses
import itertools

from sweeps.record.ledger import TrialRecord
from sweeps.spec import keys, plan
from workers.contract.messages import (
    EpochRecord,
    Granted,
    Measurement,
    RankReport,
    StepRecord,
    TrialConfig,
    TrialOutcome,
)

_seconds = itertools.count(1_700_000_000)


def config(**fields: object) -> TrialConfig:
    content = {"name": "x", "model": "tiny", "device": "cpu", "repeats": 1, "space": {"batch_size": 8, "gpus": 1}}
    content["space"] = {"batch_size": 8, "gpus": 1} | {k: v for k, v in fields.items() if k != "repeat"}
    (made,) = plan.plan(keys.SweepSpec.model_validate(content)).trials
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
        flops=20_000_000,
    )


def record(
    config: TrialConfig, images_per_s: float = 100.0, outcome: TrialOutcome | None = None, hardware: str = ""
) -> TrialRecord:
    """A trial of ten steps in a window of one second."""
    share = images_per_s / config.gpus
    ranks = tuple(report(rank, share, [100.0] * 10) for rank in range(config.gpus))  # type: ignore[arg-type]
    granted = tuple(Granted(rank=rank, node="a", hardware=hardware) for rank in range(config.gpus))
    measured = TrialOutcome(status="completed", measurement=Measurement(ranks=ranks), granted=granted)
    at = float(next(_seconds))
    return TrialRecord(config=config, outcome=outcome or measured, started_at=at, ended_at=at + 3)


def converged(
    top1: list[float],
    repeat: int = 0,
    train_s: float = 10.0,
    evaluate_s: float = 2.0,
    reached_target: bool = False,
    checkpoint_s: float = 0.0,
) -> TrialRecord:
    """A convergence trial of epochs with these accuracies, each as long as the next."""
    content = {"name": "x", "model": "tiny", "data": "digits", "device": "cpu", "repeats": 1, "protocol": "convergence"}
    content |= {"epochs": 6, "target": {"top1": 0.95}, "space": {"batch_size": 8, "gpus": 1}}
    (made,) = plan.plan(keys.SweepSpec.model_validate(content)).trials
    epochs = tuple(
        EpochRecord(
            epoch=n + 1, images=100, loss=1 / (n + 1), rate=0.1, train_s=train_s, evaluate_s=evaluate_s,
            checkpoint_s=checkpoint_s if n else 0.0, top1=at, top5=min(1.0, at + 0.04),
        )
        for n, at in enumerate(top1)
    )  # fmt: skip
    ended = report(0, 100 * len(epochs), [1000 * train_s * len(epochs)])
    ended = dataclasses.replace(ended, steps=(), epochs=epochs, reached_target=reached_target)
    outcome = TrialOutcome(status="completed", measurement=Measurement(ranks=(ended,)))
    at = float(next(_seconds))
    return TrialRecord(config=dataclasses.replace(made, repeat=repeat), outcome=outcome, started_at=at, ended_at=at + 3)
