"""What the trials mean: functions from DataFrame to DataFrame, by subject. Only `study`, `publication` and
`references` read files.

alike      which cells may be compared, by what they were measured with
means      a cell's figure is the mean over its repeats, with an interval
ratios     one figure over another: precisions, or any two values of an axis
speedup    over GPU counts, inside a node × between nodes
curves     how the rate saturates along an axis, and its knee: batch size, decode threads
target     time to an accuracy as throughput × statistical efficiency
costs      GPU-hours and joules an epoch, the front, the largest batch that fits, what is feasible
noise      how much repeats differ, where each cell has few of them
joint      how sure a sum of independent figures is
effects    how much of the differences each axis explains, alone and with another
best_cell  which cell is best, as far as that is shown
outliers   repeats that don't agree with the others, ranks that hold up theirs
"""

from sweeps.analysis.alike import APART, FINGERPRINTS, STUDIED_BY, apart, conditions, named, unlike
from sweeps.analysis.best_cell import Pick, pick
from sweeps.analysis.costs import FRONTIER, costs, feasible, frontier, pareto
from sweeps.analysis.curves import batch_curve, decode_curve, knees
from sweeps.analysis.effects import effects, interactions
from sweeps.analysis.frames import frame
from sweeps.analysis.means import (
    CONFIDENCE,
    ENERGY,
    FIGURES,
    SHARES,
    TO_TARGET,
    best,
    cells,
    half_width,
    log_spread,
    parameters,
    plain,
    pooled,
    repeats,
    varied,
)
from sweeps.analysis.outliers import outliers, stragglers
from sweeps.analysis.ratios import precision_ratios, ratio_ci, ratios
from sweeps.analysis.speedup import scaling
from sweeps.analysis.target import convergence

__all__ = [
    "APART",
    "CONFIDENCE",
    "ENERGY",
    "FIGURES",
    "FINGERPRINTS",
    "FRONTIER",
    "SHARES",
    "STUDIED_BY",
    "TO_TARGET",
    "Pick",
    "apart",
    "batch_curve",
    "best",
    "cells",
    "conditions",
    "convergence",
    "costs",
    "decode_curve",
    "effects",
    "feasible",
    "frame",
    "frontier",
    "half_width",
    "interactions",
    "knees",
    "log_spread",
    "named",
    "outliers",
    "parameters",
    "pareto",
    "pick",
    "plain",
    "pooled",
    "precision_ratios",
    "ratio_ci",
    "ratios",
    "repeats",
    "scaling",
    "stragglers",
    "unlike",
    "varied",
]
