"""Whether the interval of an adaptive trial holds at the step where it stopped: `workers.steady` on seeded traces.

Beside it naive stopping: the plain t-interval after ten steps of warm-up, checked after every step once ten are in.
Both ask for 1% within 500 steps. A quarter of the traces begin slower, by 20% to 100% for 1 to 30 steps, at once or
fading. Each kind's steps scatter around one true mean:

- `white_S`: independent, normal, with a spread of S%. `skewed`: independent, gamma-shaped, 5%.
- `ar_P`: AR(1) with correlation P from step to step, 3%.
- `stall`: `white_3pct`, each step three times as long with the chance 1/50, so that the mean is 4% longer. Under
  `min_window: 228`, by which a stall has come in 99 traces of 100. `stall_short` is the same at the defaults: without
  a bound, because a rule that stops half of all white traces by step 55 stops half of those in which no stall has
  come by then, 0.33 of all, at the wrong mean. No such rule covers more than 0.84 of them.

And some have none, so they are to be flagged, on `white_3pct`:

- `drift`: by 12% per 100 steps, up or down. `drift_slow`: 5%, without a bound, since the first 50 steps hide it.
- `two_level`: 6% apart, each held for 20 to 40 steps.

    python benchmarks/intervals.py [TRACES]
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from verdicts import conclude

from workers import steady
from workers.steady import Rule

SEED = 20261120
STALL, STALL_CHANCE = 3.0, 1 / 50
DEFAULTS = Rule()
Steps = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    draw: Callable[[Generator, int], Steps]
    mean: float | None = 1.0  # None: it has none
    rule: Rule = DEFAULTS
    is_bounded: bool = True


def white(spread: float) -> Callable[[Generator, int], Steps]:
    return lambda rng, n: 1 + spread * rng.standard_normal(n)


def skewed(rng: Generator, n: int) -> Steps:
    return 0.9 + 0.1 * rng.gamma(4, 1 / 4, n)


def autoregressive(phi: float) -> Callable[[Generator, int], Steps]:
    def draw(rng: Generator, n: int) -> Steps:
        noise = 0.03 * rng.standard_normal(n)
        noise[1:] *= math.sqrt(1 - phi**2)
        for i in range(1, n):
            noise[i] += phi * noise[i - 1]
        return 1 + noise

    return draw


def stalling(rng: Generator, n: int) -> Steps:
    return np.asarray(white(0.03)(rng, n) * np.where(rng.random(n) < STALL_CHANCE, STALL, 1.0))


def drifting(per_step: float) -> Callable[[Generator, int], Steps]:
    return lambda rng, n: white(0.03)(rng, n) * np.exp(rng.choice([-1, 1]) * per_step * np.arange(n))


def two_level(rng: Generator, n: int) -> Steps:
    held = rng.integers(20, 41, n // 20 + 1)
    is_high = np.repeat((np.arange(len(held)) + rng.integers(2)) % 2, held)[:n]
    return white(0.03)(rng, n) * (1 + 0.06 * is_high)


STALL_MEAN = 1 + (STALL - 1) * STALL_CHANCE
KINDS = {
    "white_1pct": Kind(white(0.01)),
    "white_3pct": Kind(white(0.03)),
    "white_10pct": Kind(white(0.10)),
    "skewed": Kind(skewed),
    "ar_0.3": Kind(autoregressive(0.3)),
    "ar_0.5": Kind(autoregressive(0.5)),
    "ar_0.8": Kind(autoregressive(0.8)),
    "stall": Kind(stalling, STALL_MEAN, Rule(min_window=228)),
    "stall_short": Kind(stalling, STALL_MEAN, is_bounded=False),
    "drift": Kind(drifting(0.12 / 100), None),
    "drift_slow": Kind(drifting(0.05 / 100), None, is_bounded=False),
    "two_level": Kind(two_level, None),
}


def warmup(rng: Generator, n: int) -> Steps:
    """What the steps are multiplied with."""
    factors = np.ones(n)
    if rng.random() < 0.25:
        length, excess = rng.integers(1, 31), rng.uniform(0.2, 1.0)
        factors[:length] += excess * (1 if rng.random() < 0.5 else np.exp(-3 * np.arange(length) / length))
    return factors


def stop(trace: Steps, rule: Rule) -> tuple[int, steady.Estimate]:
    """As a rank does it: ask after every block."""
    for n in range(rule.block, rule.max_steps + 1, rule.block):
        decision = steady.decide(trace[:n], rule)
        if decision.kind == "stop" and decision.estimate:
            return n, decision.estimate
    raise AssertionError("max_steps is a block's end here")


def stop_naively(trace: Steps, rule: Rule) -> tuple[int, float, float]:
    """Steps taken, mean and half-width."""
    window = trace[rule.min_warmup :]
    n = np.arange(1, len(window) + 1)
    means = np.cumsum(window) / n
    squares = np.cumsum((window - window[0]) ** 2) - n * (means - window[0]) ** 2
    halves = np.vectorize(steady.t_quantile)(np.maximum(n - 1, 1)) * np.sqrt(squares / np.maximum(n - 1, 1) / n)
    is_narrow = (n >= 10) & (halves <= rule.ci * means)
    last = int(is_narrow.argmax()) if is_narrow.any() else len(window) - 1
    return rule.min_warmup + last + 1, float(means[last]), float(halves[last])


def main(traces: int) -> int:
    figures: dict[str, float] = {}
    bounds: dict[str, str] = {}
    flagged_steady = []
    print(f"{'':<12}{'coverage':>9}{'naive':>7}{'steps: median':>15}{'mean':>6}{'naive':>7}{'flagged':>9}")
    for number, (name, kind) in enumerate(KINDS.items()):
        taken, naively, covered, naively_covered, flagged = [], [], [], [], []
        for i in range(traces):
            rng = np.random.default_rng([SEED, number, i])
            trace = 100 * kind.draw(rng, kind.rule.max_steps) * warmup(rng, kind.rule.max_steps)
            steps, found = stop(trace, kind.rule)
            naive_steps, mean, half = stop_naively(trace, kind.rule)
            taken.append(steps)
            naively.append(naive_steps)
            flagged.append(not found.is_steady)
            if kind.mean is not None:
                covered.append(abs(found.mean_ms - 100 * kind.mean) <= found.half_width_ms)
                naively_covered.append(abs(mean - 100 * kind.mean) <= half)
        shares = [f"{statistics.fmean(held):.3f}" if held else "" for held in (covered, naively_covered)]
        print(
            f"{name:<12}{shares[0]:>9}{shares[1]:>7}{statistics.median(taken):>15.0f}{statistics.fmean(taken):>6.0f}"
            f"{statistics.median(naively):>7.0f}{statistics.fmean(flagged):>9.3f}",
            flush=True,
        )
        if kind.mean is None:
            figures[f"flagged_{name}"] = statistics.fmean(flagged)
            bound = {f"flagged_{name}": ">= 0.9"}
        else:
            figures[f"coverage_{name}"] = statistics.fmean(covered)
            bound = {f"coverage_{name}": ">= 0.92 and <= 0.97"}
            flagged_steady.append(statistics.fmean(flagged))
        if kind.is_bounded:
            bounds |= bound
        if name == "white_3pct":
            figures["steps_white_3pct"] = statistics.median(taken)
            bounds["steps_white_3pct"] = "<= 55"
    figures["flagged_steady"] = max(flagged_steady)
    bounds["flagged_steady"] = "<= 0.05"
    return conclude("intervals", figures=figures, bounds=bounds)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
