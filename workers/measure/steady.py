"""When the steps of a trial have become steady, how long a step is, how sure that is, and when to stop.

The quantity is the mean step time: throughput is images over it, so a stall counts for what it costs. All are pure
functions of the trace and of what earlier trials have shown: who is given the same decides alike.

What is done, and why the 95% interval still holds at a step that the trace itself has chosen:

- Warm-up ends at the last change from slower to faster steps (least squares), at most a third into the trace and
  never before `min_warmup`. Steps are clipped for this at three robust deviations: one stall is no change.
- The interval is a t-interval of as many values as the window has independent steps. Their number comes from an AR(1)
  fit, corrected for its bias and widened where correlation shows (short traces understate it), or from a longer AR
  fit where Schwarz's criterion prefers one, whichever is wider.
- Its degrees of freedom fall with the kurtosis, and it widens with the skewness: a few stalls tell little about the
  spread, and a trace that has had too few of them looks short and calm at once.
- A trace is looked at when it has grown by a tenth, not after each step, and may stop once `min_window` steps are in
  the window: the more looks at short windows, the more often a lucky one stops.

And when the interval is withheld, with the reason, because no width would make it true:

- `drift`, `two levels`: the window has no one mean. Such a trial goes on to `max_steps`.
- `too short to know`: 40 steps miss a stall of 1 in 50 steps 45 times in 100 and cannot show a drift of 3% in 100
  steps under a spread of 3%; 228 steps miss the stall once in 100 and show the drift. So 228 steps without stall, drift
  or levels have to be seen before a shorter window is believed: in this window and in those of earlier trials of the
  same kind on the same nodes together (`Known`, `learnt`). What earlier windows have shown is a credit, and it ends:
  when a window shows something; for a window that is unlike them (`_is_unlike`), because a machine may have begun to
  slow down since, and because stalls that come by the clock hit longer steps more often; and when three windows too
  short to show a drift have lived on it. Then 228 steps are seen anew.
- `rare stalls`: earlier windows had stalls so seldom that one of this length misses them all more than once in 100,
  and they cost more than a quarter of the interval. The repeats of a cell still carry them.

No rule sees what has never happened. A stall of 1 in 200 steps is absent from 228 steps 32 times in 100, and until it
comes, here or in an earlier trial, the trace is that of a trial without stalls, and so are the interval and the stop.
Nor can a short window show a stall that began after the calm ones: 48 steps miss one of 1 in 50 steps 38 times in 100.
Of four windows in a row at least one is long, and from the first stall that is seen on, all are.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workers.contract.messages import CALM_STEPS, LENT
from workers.measure import student_t

Trace = NDArray[np.float64]
Steps = Sequence[float] | Trace
WhyNot = Literal["", "drift", "two levels", "rare stalls", "too short to know"]

SHORTEST = 20  # steps that a window needs for anything to be said
MISSED = 0.01  # chance at which a stall may be absent from all that is known
SHOWS_DRIFT = 90  # steps of a window that counts as calm: three such show 3% in 100 steps 9 times in 10
MEMORY = 4000  # steps for which stalls are remembered
GROWTH = 1.1  # from one look to the next
CLIP = 3.0  # robust deviations
STALL = 6.0  # robust deviations above the median that make a step a stall, if they are also ...
STALL_EXCESS = 0.05  # ... this share of it: 1 in 50 of less changes the mean by less than 0.1%
NEGLIGIBLE = 0.25  # of the half-width: an interval that misses stalls of this cost still covers 92%
CHANGE = 3.5  # standard errors between a slower start and the rest
SLOPE = 2.3  # standard errors of a drift: 1 in 50 steady traces has it by chance
SKEWED = 0.3  # of Johnson's term, which moves one end of the interval out and the other in; set by measuring coverage
HINT = 1.3  # standard errors of a slope that make a short window go on: 1 in 5 of steady ones does so by chance
UNLIKE = 1.0  # of the interval of their difference, by which a short window that goes on is off the earlier ones ...
UNLIKE_SHARE = 0.005  # ... if that is this share of it: at such small spreads a slope of 3% in 100 steps shows itself
ORDERS = 10  # of the longest autoregression tried
LEVEL_STEPS = 8  # that a level is held at least


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When to stop."""

    ci: float = 0.01  # half of the 95% interval, relative to the mean
    max_steps: int = 500  # warm-up included
    min_warmup: int = 10
    min_window: int = 40  # steps after warm-up before the interval may stop a trial, however much is known
    block: int = 5  # steps between looks, at least

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
    """What the windows of earlier trials of one kind have shown on the same nodes; empty: nothing is known."""

    calm_steps: int = 0  # the latest, since the last window that showed a stall, a drift or two levels
    calm_ms: float = 0.0  # that these took
    lent: int = 0  # windows since then that were too short to show a drift
    steps: float = 0.0  # in which stalls were counted; the oldest fade
    stalls: float = 0.0
    excess: float = 0.0  # what these took beyond an ordinary step, in ordinary steps


NOTHING = Known()


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The mean step time over a window, with its 95% interval unless that is withheld."""

    start: int  # first step of the window
    steps: int  # in it
    mean_ms: float
    half_width_ms: float | None  # None where it is withheld
    effective_steps: float  # independent steps that would say as much
    why_not: WhyNot  # the interval is withheld; empty if it is not
    needed_steps: int = 0  # that a window needs, with what is known, before its interval is shown

    @property
    def is_steady(self) -> bool:
        return not self.why_not


@dataclass(frozen=True, kw_only=True)
class Decision:
    kind: Literal["go on", "stop"]
    reason: Literal["", "interval", "max_steps"] = ""
    estimate: Estimate | None = None  # at the look; a stop has one


def decide(step_ms: Steps, rule: Rule, known: Known = NOTHING) -> Decision:
    """Decide whether to stop after these steps, the first of the trial included. Between looks, the answer of the
    last."""
    trace = checked(step_ms)
    is_last = len(trace) >= rule.max_steps
    if not is_last:
        trace = trace[: _last_look(len(trace), rule)]
        if len(trace) < _first_stop(rule, known):
            return Decision(kind="go on")
    found = estimate(trace, rule.min_warmup, known)
    is_sure = (
        found is not None
        and found.half_width_ms is not None
        and found.steps >= rule.min_window
        and found.half_width_ms <= rule.ci * found.mean_ms
        and (found.steps >= CALM_STEPS or _slope(calmed(trace)[found.start :]) <= HINT)
    )
    if is_sure:
        return Decision(kind="stop", reason="interval", estimate=found)
    if is_last:
        return Decision(kind="stop", reason="max_steps", estimate=found)
    return Decision(kind="go on", estimate=found)


def next_look(taken: int, rule: Rule, known: Known = NOTHING) -> int:
    """Return the number of steps at which it is worth asking again, after so many; `max_steps` is the last."""
    looks = _looks(rule.block, rule.max_steps)
    after = max(taken + 1, _first_stop(rule, known))
    return looks[min(bisect.bisect_left(looks, after), len(looks) - 1)]


def _last_look(taken: int, rule: Rule) -> int:
    looks = _looks(rule.block, rule.max_steps)
    seen = bisect.bisect_right(looks, taken)
    return looks[seen - 1] if seen else 0


@functools.cache
def _looks(block: int, max_steps: int) -> tuple[int, ...]:
    """Return the ends of blocks at which the trace has grown by a tenth (a power of 1.1 is passed), and its last
    step."""

    def powers(steps: int) -> int:
        return math.floor(math.log(steps) / math.log(GROWTH))

    ends = range(block, max_steps, block)
    return (*(n for n in ends if n == block or powers(n) != powers(n - block)), max_steps)


def _first_stop(rule: Rule, known: Known) -> int:
    """No trace shorter than this stops at its interval, whatever it shows."""
    return rule.min_warmup + max(rule.min_window, CALM_STEPS - known.calm_steps)


def estimate(step_ms: Steps, min_warmup: int = 10, known: Known = NOTHING) -> Estimate | None:
    """Return what the trace says so far; None while the window would be shorter than `SHORTEST` steps."""
    trace = checked(step_ms)
    if len(trace) < min_warmup + SHORTEST:
        return None
    far = deviations(trace)
    start = max(min_warmup, warmup_end(clipped(far)))
    return _judged(trace[start:], far[start:], start, known)


def fixed(step_ms: Steps, known: Known = NOTHING) -> Estimate | None:
    """Return what steps say that follow a warm-up of given length; None if they are fewer than `SHORTEST`."""
    window = checked(step_ms)
    return _judged(window, deviations(window), 0, known) if len(window) >= SHORTEST else None


def _judged(window: Trace, far: Trace, start: int, known: Known) -> Estimate:
    """`far`: the window's steps in robust deviations."""
    mean_ms = float(window.mean())
    effective = effective_steps(window)
    half_width_ms = half_width(window, effective)
    for_stalls = _steps_for_stalls(known, mean_ms, half_width_ms)
    is_alone = len(stalls(window, far)) > 0 or _is_unlike(window, half_width_ms, known)
    for_calm = CALM_STEPS if is_alone else max(CALM_STEPS - known.calm_steps, 0)
    why_not = unsteadiness(clipped(far))
    if not why_not and len(window) < for_stalls:
        why_not = "rare stalls"
    if not why_not and len(window) < for_calm:
        why_not = "too short to know"
    return Estimate(
        start=start,
        steps=len(window),
        mean_ms=mean_ms,
        half_width_ms=None if why_not else half_width_ms,
        effective_steps=effective,
        why_not=why_not,
        needed_steps=max(for_stalls, for_calm),
    )


def _is_unlike(window: Trace, half_width_ms: float, known: Known) -> bool:
    """Whether the mean is not that of the calm windows: something may have changed since.

    48 steps with a spread of 3% show a drift of 3% in 100 steps as a slope of 1 standard error; but where it began at
    the mean of the earlier windows, they are by then 2.3 off it. A short window that may be steady all the same loses
    nothing but the time to show it; nor does one that stops no sooner for a hint of a slope (`decide`).
    """
    if not known.calm_steps:
        return False
    earlier_ms = known.calm_ms / known.calm_steps
    off_ms = abs(float(window.mean()) - earlier_ms)
    within_ms = half_width_ms * math.sqrt(1 + len(window) / known.calm_steps)
    return off_ms > max(UNLIKE * within_ms, UNLIKE_SHARE * earlier_ms)


def _steps_for_stalls(known: Known, step_ms: float, half_width_ms: float) -> int:
    """Return the steps from which the known stalls are absent with the chance `MISSED`; 0 if they cost next to
    nothing."""
    if not known.stalls or known.excess / known.steps * step_ms <= NEGLIGIBLE * half_width_ms:
        return 0
    return math.ceil(math.log(MISSED) / math.log1p(-known.stalls / known.steps))


def stalls(window: Trace, far: Trace) -> Trace:
    """Return what each stall took beyond an ordinary step, in ordinary steps. `far`: the steps in robust deviations."""
    excess = np.asarray(window / np.median(window) - 1, np.float64)
    return excess[(far > STALL) & (excess > STALL_EXCESS)]


def learnt(known: Known, step_ms: Steps, start: int) -> Known:
    """Return what is known once a trial has ended whose window begins at this step."""
    trace = checked(step_ms)
    window, far = trace[start:], deviations(trace)[start:]
    if len(window) < SHORTEST:
        return known
    seen = stalls(window, far)
    kept = min(MEMORY / (known.steps + len(window)), 1.0)
    remembered = Known(
        steps=kept * (known.steps + len(window)),
        stalls=kept * (known.stalls + len(seen)),
        excess=kept * (known.excess + float(seen.sum())),
    )
    if len(seen) or unsteadiness(clipped(far)):
        return remembered
    if len(window) < SHOWS_DRIFT:
        if known.lent + 1 >= LENT:
            return remembered
        return dataclasses.replace(remembered, calm_steps=known.calm_steps, calm_ms=known.calm_ms, lent=known.lent + 1)
    older = min(known.calm_steps, max(CALM_STEPS - len(window), 0))  # no more than make up what is needed
    older_ms = known.calm_ms * older / known.calm_steps if older else 0.0
    return dataclasses.replace(remembered, calm_steps=older + len(window), calm_ms=older_ms + float(window.sum()))


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
    n for the normal's 3. Where long steps are rare, a mean that is too low comes with a spread that is too low, most
    often at the step where a trace stops: the interval widens by a share of Johnson's term for the skewness.
    """
    distances = window - window.mean()
    variance = float(np.mean(distances**2))
    if variance == 0:
        return 0.0
    kurtosis = float(np.mean(distances**4)) / variance**2
    freedom = max(min(effective - 1, 2 * effective / max(kurtosis - 1, 1e-9)), 2.0)
    skewness = abs(float(np.mean(distances**3))) / variance**1.5
    t = student_t.quantile(freedom)
    t += SKEWED * skewness * (2 * t**2 + 1) / (6 * math.sqrt(effective))
    return float(t * math.sqrt(variance / (effective - 1)))


def correlation_time(values: Trace) -> float:
    """Return how many steps say as much about the mean as one independent step: (1 + phi) / (1 - phi) for an AR(1).

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
    """Return the same from the autoregression that Schwarz's criterion prefers (Levinson and Durbin); 0 if it is an
    AR(1)."""
    coefficients: list[float] = []
    variance = covariances[0]
    best, time = math.inf, 0.0
    for order in range(1, len(covariances)):
        past = sum(map(operator.mul, coefficients, covariances[order - 1 : 0 : -1]))
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
    """Return the trace in robust deviations, clipped: a stall weighs as much as a slow step."""
    return clipped(deviations(trace))


def clipped(far: Trace) -> Trace:
    return far.clip(-CLIP, CLIP)


def deviations(trace: Trace) -> Trace:
    """Return the trace in robust deviations from its second half's median."""
    tail = trace[len(trace) // 2 :]
    median = np.median(tail)
    scale = 1.4826 * np.median(np.abs(tail - median)) or tail.std() or 1e-12 * median
    found: Trace = (trace - median) / scale
    return found


def warmup_end(calm: Trace) -> int:
    """Return the first step after the slower start; 0 if there is none. A start that a line fits about as well is a
    drift."""
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
    if _slope(calm) > SLOPE:
        return "drift"
    return "two levels" if _has_two_levels(calm) else ""


def _slope(calm: Trace) -> float:
    """Return the slope of the line that fits best, in standard errors; infinite where it fits exactly."""
    n = len(calm)
    centred = np.arange(n) - (n - 1) / 2
    moment = float(centred @ centred)
    slope = float(centred @ calm) / moment
    residuals = calm - calm.mean() - slope * centred
    error = math.sqrt(float(residuals @ residuals) / (n - 2) * correlation_time(residuals) / moment)
    if error:
        return abs(slope) / error
    return math.inf if slope else 0.0


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
