from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from verdicts import conclude

from workers import steady, student
from workers.steady import Known, Rule

SEED = 20261120
TRIALS = 4  # of a sequence
LATE = 5  # steps that a trial takes at most between the step that decides and its last
RULE = Rule()
Steps = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    draw: Callable[[Generator, int], Steps]
    mean: float | None = 1.0  # None: it has none
    is_bounded: bool = True


def white(rng: Generator, n: int, spread: float = 0.03) -> Steps:
    return 1 + spread * rng.standard_normal(n)


def skewed(rng: Generator, n: int) -> Steps:
    return 0.9 + 0.1 * rng.gamma(4, 1 / 4, n)


def autoregressive(rng: Generator, n: int, phi: float) -> Steps:
    noise = 0.03 * rng.standard_normal(n)
    noise[1:] *= math.sqrt(1 - phi**2)
    for i in range(1, n):
        noise[i] += phi * noise[i - 1]
    return 1 + noise


def stalling(rng: Generator, n: int, chance: float, factor: float) -> Steps:
    return white(rng, n) * np.where(rng.random(n) < chance, factor, 1.0)


def drifting(rng: Generator, n: int, share: float) -> Steps:
    return white(rng, n) * np.exp(math.log1p(share) / 100 * np.arange(n))


def two_level(rng: Generator, n: int) -> Steps:
    held = rng.integers(20, 41, n // 20 + 1)
    is_high = np.repeat((np.arange(len(held)) + rng.integers(2)) % 2, held)[:n]
    return white(rng, n) * (1 + 0.06 * is_high)


def staircase(rng: Generator, n: int) -> Steps:
    """Two to four stairs of 5 to 15 steps each, down from an excess of 20% to 100%."""
    stairs = rng.integers(2, 5)
    excess = rng.uniform(0.2, 1.0) * np.arange(stairs, 0, -1) / stairs
    start = np.repeat(excess, rng.integers(5, 16, stairs))
    factors = np.ones(n)
    factors[: len(start)] += start
    return white(rng, n) * factors


def stall(one_in: int, factor: float, is_bounded: bool = True) -> Family:
    return Family(partial(stalling, chance=1 / one_in, factor=factor), 1 + (factor - 1) / one_in, is_bounded)


FAMILIES = {
    "white_1pct": Family(partial(white, spread=0.01)),
    "white_3pct": Family(white),
    "white_10pct": Family(partial(white, spread=0.10)),
    "skewed": Family(skewed),
    **{f"ar_{phi}": Family(partial(autoregressive, phi=phi)) for phi in (0.3, 0.5, 0.8)},
    **{f"stall_{one_in}_x{factor}": stall(one_in, factor) for one_in in (20, 50) for factor in (1.5, 2, 3)},
    **{
        f"drift_{sign}{percent}": Family(partial(drifting, share=math.copysign(percent / 100, int(sign + "1"))), None)
        for percent in (3, 5, 8, 12)
        for sign in "+-"
    },
    "two_level": Family(two_level, None),
    "staircase": Family(staircase),
    "stall_200_x2": stall(200, 2, False),
}


def warmup(rng: Generator, n: int) -> Steps:
    """What the steps are multiplied with: a quarter begins slower."""
    factors = np.ones(n)
    if rng.random() < 0.25:
        length, excess = rng.integers(1, 31), rng.uniform(0.2, 1.0)
        factors[:length] += excess * (1 if rng.random() < 0.5 else np.exp(-3 * np.arange(length) / length))
    return factors


@dataclass(frozen=True)
class Trial:
    steps: int
    why_not: str
    is_right: bool
    naive_steps: int
    is_naively_right: bool


def sequence(name: str, number: int) -> list[Trial]:
    family = FAMILIES[name]
    rng = np.random.default_rng([SEED, list(FAMILIES).index(name), number])
    known, trials = Known(), []
    for _ in range(TRIALS):
        trace = 100 * family.draw(rng, RULE.max_steps) * (1 if name == "staircase" else warmup(rng, RULE.max_steps))
        taken = min(stop(trace, known) + int(rng.integers(1, LATE + 1)), RULE.max_steps)
        found = steady.estimate(trace[:taken], RULE.min_warmup, known)
        assert found
        naive_steps, mean, half = stop_naively(trace)
        trials.append(
            Trial(
                steps=taken,
                why_not=found.why_not,
                is_right=is_right(family, found.mean_ms, found.half_width_ms or 0.0),
                naive_steps=naive_steps,
                is_naively_right=is_right(family, mean, half),
            )
        )
        known = steady.learnt(known, trace[:taken], found.start)
    return trials


def is_right(family: Family, mean_ms: float, half_width_ms: float) -> bool:
    return family.mean is not None and abs(mean_ms - 100 * family.mean) <= half_width_ms


def stop(trace: Steps, known: Known) -> int:
    looks = (n for n in range(RULE.block, RULE.max_steps, RULE.block) if steady.is_look(n, RULE.block))
    for n in looks:
        if steady.decide(trace[:n], RULE, known).kind == "stop":
            return n
    return RULE.max_steps


def stop_naively(trace: Steps) -> tuple[int, float, float]:
    """Steps taken, mean and half-width."""
    window = trace[RULE.min_warmup :]
    n = np.arange(1, len(window) + 1)
    means = np.cumsum(window) / n
    squares = np.cumsum((window - window[0]) ** 2) - n * (means - window[0]) ** 2
    halves = student.quantile(np.maximum(n - 1, 1)) * np.sqrt(squares / np.maximum(n - 1, 1) / n)
    is_narrow = (n >= 10) & (halves <= RULE.ci * means)
    last = int(is_narrow.argmax()) if is_narrow.any() else len(window) - 1
    return RULE.min_warmup + last + 1, float(means[last]), float(halves[last])


def share(held: list[bool]) -> float:
    return statistics.fmean(held) if held else math.nan


def coverage(trials: list[Trial]) -> float:
    return share([trial.is_right for trial in trials if not trial.why_not])


def main(argv=None):
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    names = [x for x in FAMILIES if len(sys.argv) < 3 or any(p in x for p in sys.argv[2].split(","))]
    print(f"{'':<14}{'cov 1st':>8}{'2-4':>7}{'all':>7}{'naive':>7}{'wrong1':>8}{'2-4':>7}{'med1':>6}{'med2+':>6}{'med':>6}{'mean':>6} withheld1 | later")
    with ProcessPoolExecutor(2) as pool:
        for name in names:
            seqs = list(pool.map(partial(sequence, name), range(n), chunksize=25))
            first = [s[0] for s in seqs]
            later = [t for s in seqs for t in s[1:]]
            both = first + later
            def w(ts): return share([not t.why_not and not t.is_right for t in ts])
            def r(ts): return {k: round(v/len(ts),3) for k,v in Counter(t.why_not for t in ts).items() if k}
            print(f"{name:<14}{coverage(first):>8.3f}{coverage(later):>7.3f}{coverage(both):>7.3f}{share([t.is_naively_right for t in both]):>7.3f}"
              f"{w(first):>8.3f}{w(later):>7.3f}{statistics.median(t.steps for t in first):>6.0f}{statistics.median(t.steps for t in later):>6.0f}{statistics.median(t.steps for t in both):>6.0f}{statistics.fmean(t.steps for t in both):>6.0f} {r(first)} | {r(later)}", flush=True)

if __name__ == "__main__":
    main()
