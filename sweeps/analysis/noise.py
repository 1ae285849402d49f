"""How much repeats of a cell differ, when each cell has only a few of them.

Three repeats say little about their own spread. But a sweep has many cells on one machine: as far as their spreads are
alike, each borrows from all, and as far as they are not, each keeps its own (Smyth 2004, "moderated" variances). How
alike they are is itself estimated: `prior_n` degrees of freedom, infinite where cells differ no more than chance would
have it, zero where one can't be told from another.
"""

from __future__ import annotations

import math
from typing import Any

QUIETEST = 1e-4  # of the median variance: values that are exactly equal have no logarithm
LEAST_VARIANCE = 1e-18  # of a logarithm: what its digits can tell


def moderated(variances: Any, n: Any) -> tuple[Any, Any]:
    """Return the variances and degrees of freedom to test with, from those of each cell alone; cells with none get the
    rest's.

    Both are NaN and zero where no cell has any.
    """
    import numpy as np

    variances, n = np.asarray(variances, float), np.asarray(n, float)
    known = (n > 0) & np.isfinite(variances)
    if not known.any():
        return np.full_like(variances, np.nan), np.zeros_like(n)
    own, own_n = np.where(known, variances, 0.0), np.where(known, n, 0.0)
    prior, prior_n = _prior(own[known], own_n[known])
    if math.isinf(prior_n):
        return np.full_like(own, prior), np.full_like(own, own_n.sum())
    total = own_n + prior_n
    weighed = (own_n * own + prior_n * prior) / np.where(total > 0, total, 1.0)
    return np.where(total > 0, weighed, np.nan), np.minimum(total, own_n.sum())


def of_means(variances: Any, freedom: Any, n: Any) -> tuple[Any, Any]:
    """Return the variances of the means of `n` repeats, moderated, and their degrees of freedom. A cell that has no
    degrees of freedom of its own stands as it is: its variance is zero."""
    import numpy as np

    freedom = np.asarray(freedom, float)
    shared, shared_freedom = moderated(variances, freedom)
    is_known = freedom > 0
    means = np.maximum(shared, LEAST_VARIANCE) / np.asarray(n, float)
    return np.where(is_known, means, 0.0), np.where(is_known, shared_freedom, np.inf)


def _prior(variances: Any, n: Any) -> tuple[float, float]:
    """Return what the variances have in common, and the degrees of freedom that this is worth."""
    import numpy as np
    from scipy.special import digamma, polygamma

    middle = float(np.median(variances))
    if len(variances) < 3 or middle == 0:
        return float(np.average(variances, weights=n)), 0.0
    logs = np.log(np.maximum(variances, QUIETEST * middle)) - digamma(n / 2) + np.log(n / 2)
    beyond_chance = float(logs.var(ddof=1) - polygamma(1, n / 2).mean())
    if beyond_chance <= 0:
        return float(np.average(variances, weights=n)), math.inf
    prior_n = 2 * _inverse_trigamma(beyond_chance)
    return math.exp(float(logs.mean()) + float(digamma(prior_n / 2)) - math.log(prior_n / 2)), prior_n


def _inverse_trigamma(value: float) -> float:
    """Invert it by Newton's steps on 1 / trigamma, which is nearly straight."""
    from scipy.special import polygamma

    at = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, at))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, at))
        at += step
        if abs(step) < 1e-10 * at:
            break
    return at
