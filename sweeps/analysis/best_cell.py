"""Which cell is best, said only as far as its repeats show it.

The cell with the best mean was picked because it looked best, so an ordinary interval of its lead is wrong: among many
equal cells one always leads. Here the interval is of the picked cell's lead over the best of all others, and it is the
verdict too: the cell is shown to be the best where the interval leaves zero.

The method. Let t be the cell with the best of k means, D_j its lead over cell j, s_j that lead's standard error, and
h_j = q · s_j with q Student's quantile at 1 − 0.05/k. The interval is [min (D_j − h_j), min (D_j + h_j)]. It holds the
true lead in at least 95 of 100 sweeps, whichever cell was picked. For let b be a cell that is truly best, and call it a
surprise if some cell's mean is ahead of b's by more than h beyond what is true (k − 1 chances of 0.05/k each), or b's
ahead of the second's (one more). Without a surprise the interval holds: if t is b, the lower end is at most the lead
over the second, which is the true one, and the upper end fails for no j; if t is not b, the true lead is that over b,
which D_b − h_b does not exceed, and it is below zero, which the upper end is not. So of cells that are equal one is
called the best in 5% of sweeps at most, and in 95% those that are not told from t, with t, hold a best one.

The standard errors. Repeats are few, so cells share what they know of the noise (`noise.moderated`), but a cell whose
own repeats differ by more than that keeps its own: the noisiest cell is picked more often than others. Of two cells the
fewer degrees of freedom count. In 1,200 sweeps each, of 2 to 12 cells with 2, 3 or 5 repeats, this called a cell the
best that was not in at most 3.5% where noise was alike; in 4,000 each in at most 5.6% where its deviation differs by a
factor of 3 between the calmest and the noisiest cell; where it differs by a factor of 11 among three cells, in 7.7%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.analysis.means import CONFIDENCE
from sweeps.analysis.noise import moderated

NOT_SHOWN = "by means; not shown to differ"  # is said of a lead that was not tested, or is not told at 95%
SMALLEST_VARIANCE = 1e-18  # of values that are exactly equal


@dataclass(frozen=True)
class Pick:
    """The cell with the best mean, and its lead over the best other one. Cells go by their place."""

    top: int
    rivals: tuple[int, ...]  # that it is not told from, the nearest first
    singles: tuple[int, ...]  # with one repeat: nothing is told of them
    low: float  # of the 95% interval of the lead; in logarithms where figures are compared as ratios
    high: float
    enough: float  # repeats that would tell it from the nearest rival, if the lead is what it seems

    @property
    def is_shown(self) -> bool:
        """True where it is the best for sure."""
        return self.low > 0 and not self.singles


def pick(
    repeats: Sequence[Any],
    *,
    is_ratio: bool,
    is_more_better: bool = True,
    least_spread: float = 0.0,
    picks: int = 1,
) -> Pick:
    """Pick the best of at least one cell, of which each has the array of its repeats' figures.

    `least_spread` is a standard deviation that no cell's repeats can fall below: that of figures in whole numbers.
    `picks` is how many picks one statement is about, so that they hold together at 95%.
    """
    import numpy as np

    from workers.measure import student_t

    sign = 1.0 if is_more_better else -1.0
    values = [sign * (np.log(found) if is_ratio else np.asarray(found, float)) for found in repeats]
    means = np.array([found.mean() for found in values])
    n = np.array([len(found) for found in values])
    top = int(means.argmax())
    singles = tuple(int(place) for place in np.flatnonzero(n == 1))
    others = np.flatnonzero((n > 1) & (np.arange(len(n)) != top))
    if n[top] == 1 or not len(others):
        return Pick(top, (), singles, math.nan, math.nan, math.nan)
    compared = np.concatenate([[top], others])
    own = np.array([values[place].var(ddof=1) for place in compared])
    shared, freedom = moderated(own, n[compared] - 1)
    floor = (least_spread / np.abs([np.mean(repeats[place]) if is_ratio else 1.0 for place in compared])) ** 2
    per = np.maximum.reduce([shared, own, floor, np.full_like(own, SMALLEST_VARIANCE)]) / n[compared]
    tail = (1 - CONFIDENCE) / (len(compared) * picks)
    half = student_t.quantile(np.minimum(freedom[0], freedom[1:]), 1 - 2 * tail) * np.sqrt(per[0] + per[1:])
    lead = means[top] - means[others]
    is_open = lead - half <= 0
    order = np.argsort(lead[is_open], kind="stable")
    rivals = others[is_open][order]
    enough = math.nan
    if len(rivals):
        first = int(np.flatnonzero(is_open)[order[0]])
        enough = float(n[compared].max() * (half[first] / lead[first]) ** 2) if lead[first] > 0 else math.inf
    return Pick(top, tuple(map(int, rivals)), singles, float((lead - half).min()), float((lead + half).min()), enough)
