"""The control plane: what to measure, in what order, and what it meant. Never imports tensorflow or horovod.

import sweeps
trials = sweeps.trials("demo")   # a DataFrame, one row a trial
sweeps.scaling(trials)           # one row a cell: images/s with interval, efficiency
sweeps.best(trials)
sweeps.pareto(sweeps.cells(trials), ["images_per_s"], ["gpu_hours_per_epoch"])
sweeps.readings("demo")          # disks and networks over time, a row a node and second
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeps.analysis import best, cells, frontier, pareto, scaling
    from sweeps.query import readings, trials

__all__ = ["best", "cells", "frontier", "pareto", "readings", "scaling", "trials"]


def __getattr__(name: str) -> object:
    """The names above, loaded at first use: pandas and MLflow take seconds that `sweep plan` doesn't have."""
    if name in ("best", "cells", "frontier", "pareto", "scaling"):
        from sweeps import analysis

        return getattr(analysis, name)
    if name in ("readings", "trials"):
        from sweeps import query

        return getattr(query, name)
    raise AttributeError(f"module 'sweeps' has no attribute {name!r}")
