"""Frames of trials as they come back from a store, planted with figures whose answers are known."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pandas as pd

from sweeps import analysis
from sweeps.record import rows
from tests.unit.records import config
from workers.contract import imagenet
from workers.contract.messages import TrialConfig

FIELDS = {field.name for field in dataclasses.fields(TrialConfig)} - {"arrangement"}  # a row tells it as it was
_seconds = itertools.count(1_700_000_000)


@functools.cache
def _plain() -> TrialConfig:
    return config()


def trial(images_per_s: float | None = None, **columns: Any) -> dict[str, Any]:
    """A row: parameters by their names, figures by theirs; completed if it has a rate."""
    own = {name: value for name, value in columns.items() if name in FIELDS}
    made = dataclasses.replace(_plain(), **own)
    figures = {name: value for name, value in columns.items() if name not in FIELDS}
    variables = {name: value for name, value in figures.items() if name.startswith(rows.VARIABLE)}
    if variables:
        made = dataclasses.replace(made, env={name.removeprefix(rows.VARIABLE): v for name, v in variables.items()})
    measured = {}
    if images_per_s is not None:
        measured = {
            "images_per_s": images_per_s,
            "gpu_hours_per_epoch": made.gpus * imagenet.TRAIN_IMAGES / images_per_s / 3600,
            "step_ms_mean": 1e3 * made.global_batch / images_per_s,
            "nodes": float(-(-made.gpus // 4)),
        }
    told = {"trial": made.trial, "cell": made.cell, "outcome": "completed", "kind": "", "message": ""}
    told |= {"inferred_from": "", "limited_by": "", "pinned": "", "why_not_pinned": ""}
    where = {"hardware": "aaaa", "software": "ssss", "started_at": float(next(_seconds))}
    return told | rows.params(made) | where | measured | figures


def repeats(rates: list[float], **columns: Any) -> list[dict[str, Any]]:
    return [trial(rate, repeat=n, **columns) for n, rate in enumerate(rates)]


def frame(*parts: Any) -> pd.DataFrame:
    """Make a frame of rows and lists of rows."""
    flat = [row for part in parts for row in (part if isinstance(part, list) else [part])]
    return analysis.frame(flat)
