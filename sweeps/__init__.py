"""The control plane: what to measure, in what order, and what it meant. Never imports tensorflow or horovod.

import sweeps
sweeps.list()                    # a DataFrame, one row a sweep
trials = sweeps.trials("demo")   # one row a trial; where="gpus >= 4", columns=["gpus", "images_per_s"], store=…
sweeps.cells("demo")             # one row a cell: means with intervals; of trials too
sweeps.series(trials.trial[0], "steps/step_ms")
sweeps.scaling(trials)           # one row a cell: images/s with interval, efficiency
sweeps.best(trials)
sweeps.pareto(sweeps.cells(trials), ["images_per_s"], ["gpu_hours_per_epoch"])
sweeps.readings("demo")          # disks and networks over time, a row a node and second

In a training script of your own, which a sweep runs:

for batch in sweeps.steps(loader, items=64): …   # its steps are measured
sweeps.alone()                   # whether this step goes without its reduction
sweeps.report(loss=0.5, epoch=3) # what it has come to: columns, series, a search's goal
sweeps.checkpoint_dir()          # a folder that the next attempt at the trial finds again
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeps.analysis import (
        batch_curve,
        best,
        convergence,
        costs,
        decode_curve,
        effects,
        feasible,
        frontier,
        interactions,
        outliers,
        pareto,
        precision_ratios,
        ratios,
        scaling,
        stragglers,
    )
    from sweeps.cli.diff import diff
    from sweeps.store.query import cells, readings, series, trials
    from sweeps.store.query import list_sweeps as list  # noqa: A004, read as sweeps.list
    from workers.workloads.script.here import alone, checkpoint_dir, steps

__all__ = [
    "alone",
    "batch_curve",
    "best",
    "cells",
    "checkpoint_dir",
    "convergence",
    "costs",
    "decode_curve",
    "diff",
    "effects",
    "feasible",
    "frontier",
    "interactions",
    "list",
    "outliers",
    "pareto",
    "precision_ratios",
    "ratios",
    "readings",
    "report",
    "scaling",
    "series",
    "steps",
    "stragglers",
    "trials",
]
_OF_SCRIPTS = ("alone", "checkpoint_dir", "steps")
_OF_STORES = ("cells", "list", "readings", "series", "trials")


def __getattr__(name: str) -> object:
    """Return one of the names above, loaded at first use: pandas and MLflow take seconds that `sweep plan` doesn't
    have."""
    if name in _OF_STORES:
        from sweeps.store import query

        return getattr(query, "list_sweeps" if name == "list" else name)
    if name == "report":  # a room too, which can be called
        return importlib.import_module("sweeps.report")
    if name in _OF_SCRIPTS:
        from workers.workloads.script import here

        return getattr(here, name)
    if name == "diff":
        from sweeps.cli import diff

        return diff.diff
    if name in __all__:
        from sweeps import analysis

        return getattr(analysis, name)
    raise AttributeError(f"module 'sweeps' has no attribute {name!r}")
