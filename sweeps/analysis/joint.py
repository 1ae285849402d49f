"""How sure a sum of independent figures is, such as the difference of two means of logarithms.

Each figure comes with the variance of its mean and the degrees of freedom of that, estimated by its own side alone:
nothing says that two sides are equally noisy, and where the noisier one has fewer repeats, one variance for both makes
the interval too narrow (3 repeats beside 10 that are five times as quiet: 33% false differences in place of 5%).

Half of the joint interval is the root of the squared halves of the figures' own t-intervals (Hajek 1962). It holds the
truth at least as often as it says, whatever the true variances are. Proof: the error of the sum, squared and over its
true variance, is the square Q of a standard normal number, independent of the estimates. Half of the interval, squared
and over the same, is a mean of t² s²/σ² over the figures, weighted by their true variances. P(Q ≤ x) is concave in x,
so it is at least the same mean of P(Q ≤ t² s²/σ²), each of which is the confidence asked for.

Welch's interval with Satterthwaite's degrees of freedom is narrower, and promises too much where few repeats look quiet
by chance: 9% of false differences between 2 and 8 repeats that are equally noisy. The price of the proof is paid where
all is alike and little is known: with 3 repeats a side and no other cells to learn from, half is 4.3 standard errors,
where Welch's would be 2.8 or more. It goes as variances are shared between cells (`noise`).
"""

from __future__ import annotations

from typing import Any

LEAST_CHANCE = 1e-12  # what is less likely is told as this


def half_width(variances: Any, freedom: Any, confidence: float) -> Any:
    """Return half of the interval of a sum; figures along the first axis. One without a variance stands as it is."""
    import numpy as np

    from workers.measure import student_t

    variances, freedom = _as_arrays(variances, freedom)
    return np.sqrt((student_t.quantile(freedom, confidence) ** 2 * variances).sum(axis=0))


def chance(distance: Any, variances: Any, freedom: Any) -> Any:
    """Return the least chance at which the interval of a sum that is so far from zero does not hold zero."""
    import numpy as np

    from workers.measure import student_t

    variances, freedom = _as_arrays(variances, freedom)
    low, high = np.full(variances.shape[1:], np.log(LEAST_CHANCE)), np.zeros(variances.shape[1:])
    for _ in range(60):  # halvings, to the last digit
        middle = (low + high) / 2
        half = np.sqrt((student_t.quantile(freedom, 1 - np.exp(middle)) ** 2 * variances).sum(axis=0))
        is_held = half >= np.abs(distance)
        low, high = np.where(is_held, middle, low), np.where(is_held, high, middle)
    return np.exp(high)


def _as_arrays(variances: Any, freedom: Any) -> tuple[Any, Any]:
    """Return both as arrays, with some degrees of freedom where there is no variance and they don't matter."""
    import numpy as np

    variances, freedom = np.broadcast_arrays(np.asarray(variances, float), np.asarray(freedom, float))
    return variances, np.where(variances > 0, freedom, 1.0)
