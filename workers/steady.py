"""When a trial's steps have become steady, how long a step is, how sure that is, and when to stop. NumPy only.

The quantity is the mean step time: throughput is images over it, so a stall counts for what it costs. All are pure
functions of the trace: ranks that are given the same trace, on processors that round alike, decide alike.

What is done, and why the 95% interval still holds at a step that the trace itself has chosen:

- Warm-up ends at the last change from slower to faster steps (least squares), at most a third into the trace and
  never before `min_warmup`. Steps are clipped for this at three robust deviations: one stall is no change.
- The interval is a t-interval of as many values as the window has independent steps. Their number comes from an AR(1)
  fit, corrected for its bias and widened where correlation shows (short traces understate it), or from a longer AR
  fit where Schwarz's criterion prefers one, whichever is wider.
- Its degrees of freedom fall with the kurtosis: a few stalls tell little about the spread.
- A trace is looked at when it has grown by a tenth, not after each step, and may stop once `min_window` steps are in
  the window: the more looks at short windows, the more often a lucky one stops.
- A window that drifts or holds two levels does not stop at its interval, however narrow that is.

No rule sees what has not happened yet. A stall that comes once in n steps, at random, is absent from m steps with the
chance (1 - 1/n)^m; until it comes, the trace is that of a trial without stalls, and so are the interval and the stop.
The 40 steps that let a quiet trial stop early miss a 1-in-50 stall 45 times in 100; 228 miss it once in 100. Likewise
a drift is seen once it has moved the window by more than its noise, and a second level once it has come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workers import student

Trace = NDArray[np.float64]
Steps = Sequence[float] | Trace
WhyNot = Literal["", "drift", "two levels", "too short to know"]

SHORTEST = 20  # steps that a window needs for anything to be said
LONG = 228  # steps in which a stall of 1 in 50 comes with the chance 0.99
GROWTH = 1.1  # from one look to the next
CLIP = 3.0  # robust deviations
STALL = 6.0  # robust deviations above the median ...
STALL_SHARE = 0.05  # ... and this share of it
CHANGE = 3.5  # standard errors between a slower start and the rest
ORDERS = 10  # of the longest autoregression tried
LEVEL_STEPS = 8  # that a level is held at least


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When to stop. A stall rarer than once in `min_window` steps may never be seen: see the module."""

    ci: float = 0.01  # half of the 95% interval, relative to the mean
    max_steps: int = 500  # warm-up included
    min_warmup: int = 10
    min_window: int = 40  # steps after warm-up before the interval may stop a trial
    block: int = 5  # steps between decisions

    def __post_init__(self) -> None:
        if not 0 < self.ci < 1:
            raise ValueError(f"0 < ci < 1 must hold, but ci is {self.ci}")
        if self.block < 1 or self.min_warmup < 0:
            raise ValueError(f"block >= 1 and min_warmup >= 0 must hold, but got {self.block} and {self.min_warmup}")
        if self.max_steps < self.min_warmup + SHORTEST:
            raise ValueError(
                f"max_steps >= min_warmup + {SHORTEST} must hold, but got {self.max_steps} and {self.min_warmup}"
            )


@dataclass(frozen=True, kw_only=True)
class Known:
    """What earlier trials of one kind have shown on these nodes; empty: nothing."""

    calm_steps: int = 0  # in the windows since the last that showed a stall, a drift or two levels
    calm_ms: float = 0.0  # that these took


NOTHING = Known()


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The mean step time over a window with its 95% interval, withheld where it would mean nothing."""

    start: int  # first step of the window
    steps: int  # in it
    mean_ms: float
    half_width_ms: float | None  # None where withheld
    effective_steps: float  # independent steps that would say as much
    why_not: WhyNot  # the reason for which the interval is withheld; empty if it is not
    needed_steps: int = 0

    @property
    def is_steady(self) -> bool:
        return not self.why_not


@dataclass(frozen=True, kw_only=True)
class Decision:
    kind: Literal["go on", "stop"]
    reason: Literal["", "interval", "max_steps"] = ""
    estimate: Estimate | None = None  # of this look; a stop has one


def decide(step_ms: Steps, rule: Rule, known: Known = NOTHING) -> Decision:
    """Whether to stop after these steps, the first of the trial included. Ask after every block."""
    trace = checked(step_ms)
    is_last = len(trace) >= rule.max_steps
    if not is_last:
        trace = trace[: last_look(len(trace), rule.block)]
        if len(trace) - rule.min_warmup < max(rule.min_window, LONG - known.calm_steps):
            return Decision(kind="go on")
    found = estimate(trace, rule.min_warmup, known)
    if (
        found
        and found.half_width_ms is not None
        and found.steps >= rule.min_window
        and found.half_width_ms <= rule.ci * found.mean_ms
    ):
        return Decision(kind="stop", reason="interval", estimate=found)
    if is_last:
        return Decision(kind="stop", reason="max_steps", estimate=found)
    return Decision(kind="go on", estimate=found)


def is_look(steps: int, block: int) -> bool:
    """Whether a trace is looked at: at a block's end, once it has grown by a tenth (a power of 1.1 is passed)."""
    return steps % block == 0 and (steps <= block or _powers(steps) != _powers(steps - block))


def last_look(steps: int, block: int) -> int:
    n = steps - steps % block
    while n and not is_look(n, block):
        n -= block
    return n


def _powers(steps: int) -> int:
    return math.floor(math.log(steps) / math.log(GROWTH))


def estimate(step_ms: Steps, min_warmup: int = 10, known: Known = NOTHING) -> Estimate | None:
    """What the trace says so far; None while the window would be shorter than `SHORTEST` steps."""
    trace = checked(step_ms)
    if len(trace) < min_warmup + SHORTEST:
        return None
    deviations = robust(trace)
    calm = deviations.clip(-CLIP, CLIP)
    start = max(min_warmup, warmup_end(calm))
    window = trace[start:]
    effective = effective_steps(window)
    mean_ms = float(window.mean())
    why_not = unsteadiness(calm[start:])
    needed = LONG if stalls(trace, start) else needed_steps(known, mean_ms)
    if not why_not and len(window) < needed:
        why_not = "too short to know"
    return Estimate(
        start=start,
        steps=len(window),
        mean_ms=mean_ms,
        half_width_ms=None if why_not else half_width(window, effective),
        effective_steps=effective,
        why_not=why_not,
        needed_steps=needed,
    )


def needed_steps(known: Known, step_ms: float) -> int:
    return max(LONG - int(min(known.calm_steps, known.calm_ms / step_ms)), 0)


def stalls(trace: Trace, start: int) -> int:
    median = float(np.median(trace[start:]))
    is_long = (robust(trace)[start:] > STALL) & (trace[start:] > (1 + STALL_SHARE) * median)
    return int(is_long.sum())


def learnt(known: Known, step_ms: Steps, start: int) -> Known:
    trace = checked(step_ms)
    window = trace[start:]
    if len(window) < SHORTEST:
        return known
    if stalls(trace, start) or unsteadiness(calmed(trace)[start:]):
        return NOTHING
    return Known(calm_steps=known.calm_steps + len(window), calm_ms=known.calm_ms + float(window.sum()))


def checked(step_ms: Steps) -> Trace:
    trace = np.asarray(step_ms, dtype=np.float64)
    wrong = np.flatnonzero(~((trace > 0) & np.isfinite(trace)))
    if len(wrong):
        raise ValueError(f"0 < step_ms < inf must hold, but step {wrong[0]} took {trace[wrong[0]]} ms")
    return trace


def effective_steps(window: Trace) -> float:
    """Independent steps that would say as much about the mean."""
    return max(len(window) / correlation_time(window), 3.0)


def half_width(window: Trace, effective: float) -> float:
    """Half of the t-interval of the mean of a window that holds so many independent steps.

    The variance of a spread estimate grows with the kurtosis k: it is worth 2n / (k - 1) degrees of freedom, which is
    n for the normal's 3.
    """
    deviations = window - window.mean()
    variance = float(np.mean(deviations**2))
    if variance == 0:
        return 0.0
    kurtosis = float(np.mean(deviations**4)) / variance**2
    freedom = max(min(effective - 1, 2 * effective / max(kurtosis - 1, 1e-9)), 2.0)
    return float(student.quantile(freedom)) * math.sqrt(variance / (effective - 1))


def correlation_time(values: Trace) -> float:
    """Steps that say as much about the mean as one independent step: (1 + phi) / (1 - phi) for an AR(1).

    Chance makes phi scatter around 0 in white noise: what lies within half a standard error is taken as it is, what
    lies beyond is moved up by up to a whole one. Below -0.1 it is not believed.
    """
    n = len(values)
    centred = values - values.mean()
    covariances = [float(centred[lag:] @ centred[: n - lag]) / n for lag in range(min(ORDERS, n // 10) + 1)]
    if covariances[0] == 0 or len(covariances) < 2:
        return 1.0
    phi = covariances[1] / covariances[0]
    phi += (1 + 4 * phi) / n  # the estimate's bias
    error = math.sqrt(max(1 - phi**2, 1 / n) / n)
    phi += error * min(max(phi / error - 0.5, 0.0), 1.0)
    phi = min(max(phi, -0.1), 1 - 2 / n)
    return max((1 + phi) / (1 - phi), _longer_correlation_time(covariances, n))


def _longer_correlation_time(covariances: list[float], n: int) -> float:
    """The same from the autoregression that Schwarz's criterion prefers (Levinson and Durbin); 0 if it is an AR(1)."""
    coefficients: list[float] = []
    variance = covariances[0]
    best, time = math.inf, 0.0
    for order in range(1, len(covariances)):
        past = sum(coefficients[j] * covariances[order - 1 - j] for j in range(order - 1))
        partial = (covariances[order] - past) / variance
        coefficients = [a - partial * b for a, b in zip(coefficients, coefficients[::-1], strict=True)] + [partial]
        variance *= 1 - partial**2
        if variance <= 0:
            return float(n)
        criterion = n * math.log(variance) + order * math.log(n)
        if criterion < best:
            gain = 1 / max(1 - sum(coefficients), 2 / n)
            best, time = criterion, variance / covariances[0] * gain**2 if order > 1 else 0.0
    return time


def calmed(trace: Trace) -> Trace:
    """The trace in robust deviations, clipped: a stall weighs as much as a slow step."""
    return robust(trace).clip(-CLIP, CLIP)


def robust(trace: Trace) -> Trace:
    """The trace in robust deviations from its second half's median."""
    tail = trace[len(trace) // 2 :]
    median = np.median(tail)
    scale = 1.4826 * np.median(np.abs(tail - median)) or tail.std() or 1e-12 * median
    deviations: Trace = (trace - median) / scale
    return deviations


def warmup_end(calm: Trace) -> int:
    """The first step after the slower start; 0 if there is none. A start that a line fits about as well is a drift."""
    n = len(calm)
    needed = CHANGE * math.sqrt(correlation_time(calm[n // 2 :]))
    start = 0
    while start < n // 3:
        rest = calm[start:]
        before = np.arange(1, n // 3 - start + 1)
        sums = np.cumsum(rest)
        excess = sums[: len(before)] / before - (sums[-1] - sums[: len(before)]) / (len(rest) - before)
        steps = excess * np.sqrt(before * (len(rest) - before) / len(rest))
        end = int(steps.argmax())
        centred = np.arange(len(rest)) - (len(rest) - 1) / 2
        line = abs(float(centred @ rest)) / math.sqrt(float(centred @ centred))
        if steps[end] < max(needed, 1.1 * line):
            break
        start += end + 1
    return start


def unsteadiness(calm: Trace) -> WhyNot:
    if _drifts(calm):
        return "drift"
    return "two levels" if _has_two_levels(calm) else ""


def _drifts(calm: Trace) -> bool:
    """Schwarz's criterion for a line, over blocks of five: mild on short windows, where a drift has to be caught."""
    n = len(calm)
    centred = np.arange(n) - (n - 1) / 2
    moment = float(centred @ centred)
    slope = float(centred @ calm) / moment
    residuals = calm - calm.mean() - slope * centred
    variance = float(residuals @ residuals) / (n - 2) * correlation_time(residuals)
    return slope**2 * moment > variance * math.log(n / 5)


def _has_two_levels(calm: Trace) -> bool:
    """Whether the moving average falls into two groups.

    The best split in two explains 2 / pi of a normal's variance, chance adds a share that shrinks with the square
    root of the window, and two levels leave little to explain.
    """
    sums = np.concatenate(([0.0], np.cumsum(calm)))
    levels = np.sort(sums[LEVEL_STEPS:] - sums[:-LEVEL_STEPS])
    levels -= levels.mean()
    total = float(levels @ levels)
    if total == 0:
        return False
    below = np.arange(1, len(levels))
    split = np.cumsum(levels)[:-1] ** 2 * len(levels) / (below * (len(levels) - below))
    return float(split.max()) / total > 2 / math.pi + 0.6 * math.sqrt(LEVEL_STEPS / len(calm))
