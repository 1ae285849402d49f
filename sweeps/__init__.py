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
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeps.analysis import best, frontier, pareto, scaling
    from sweeps.query import cells, readings, series, trials
    from sweeps.query import list_sweeps as list  # noqa: A004, read as sweeps.list

__all__ = ["best", "cells", "frontier", "list", "pareto", "readings", "scaling", "series", "trials"]


def __getattr__(name: str) -> object:
    """The names above, loaded at first use: pandas and MLflow take seconds that `sweep plan` doesn't have."""
    if name in ("best", "frontier", "pareto", "scaling"):
        from sweeps import analysis

        return getattr(analysis, name)
    if name in ("cells", "list", "readings", "series", "trials"):
        from sweeps import query

        return getattr(query, "list_sweeps" if name == "list" else name)
    raise AttributeError(f"module 'sweeps' has no attribute {name!r}")
