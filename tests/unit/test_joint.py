"""How sure a difference of two means is, whichever side is noisier or was repeated more often, on drawn figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.analysis import comparison, joint, noise
from workers.measure import student_t

RUNS = 1000
SPREAD = 0.01  # of the quieter side
ARRANGED = [(3, 3, 1), (3, 3, 5), *((3, 10, ratio) for ratio in (1, 5, 0.2)), *((2, 8, ratio) for ratio in (1, 5, 0.2))]


def spread(figures: Any) -> tuple[Any, Any]:
    """The variances of the means of cells with these repeats, and their degrees of freedom; of each run by itself."""
    _, cells, n = figures.shape
    own = figures.var(axis=2, ddof=1)
    found = [noise.of_means(one, np.full(cells, n - 1.0), np.full(cells, n)) for one in own]
    variances, freedom = zip(*found, strict=True)
    return np.array(variances), np.array(freedom)


def verdicts(n_a: int, n_b: int, ratio: float, truth: Any) -> Any:
    """Which cells of many comparisons are said to differ, if B's logarithms are this far from A's; A's spread is
    `ratio` times B's."""
    rng = np.random.default_rng(7)
    shape = RUNS, len(truth)
    a = rng.normal(0, SPREAD * max(1.0, ratio), (*shape, n_a))
    b = rng.normal(0, SPREAD * max(1.0, 1 / ratio), (*shape, n_b)) + np.asarray(truth)[None, :, None]
    low, high, p = comparison.judged(b.mean(axis=2) - a.mean(axis=2), [spread(a), spread(b)])
    found = (low > 1) | (high < 1)
    assert (found == (p < 0.05)).all()
    return found


@pytest.mark.parametrize("cells", [1, 10])
@pytest.mark.parametrize(("n_a", "n_b", "ratio"), ARRANGED)
def test_a_sweep_beside_itself_shows_a_difference_as_seldom_as_promised(
    n_a: int, n_b: int, ratio: float, cells: int
) -> None:
    """One in twenty comparisons, however unequal repeats and noise; 7% is what 1,000 runs may show of 5%."""
    assert verdicts(n_a, n_b, ratio, np.zeros(cells)).any(axis=1).mean() <= 0.07


@pytest.mark.parametrize("cells", [1, 10])
@pytest.mark.parametrize(("n_a", "n_b", "ratio"), [(3, 3, 1), (3, 10, 1), (3, 10, 0.5), (8, 8, 5)])
def test_a_tenth_is_found_where_repeats_differ_by_a_percent(n_a: int, n_b: int, ratio: float, cells: int) -> None:
    """In nine of ten comparisons, by few repeats of a quiet side or many of a noisy one."""
    found = verdicts(n_a, n_b, ratio, [math.log(1.1)] + [0.0] * (cells - 1))
    assert found[:, 0].mean() >= 0.9


@given(st.floats(1e-9, 1e3), st.floats(1, 40), st.floats(0.5, 0.999))
def test_a_figure_beside_one_that_stands_as_it_is_has_its_own_interval(
    variance: float, freedom: float, confidence: float
) -> None:
    half = joint.half_width([variance, 0.0], [freedom, math.inf], confidence)
    assert half == pytest.approx(student_t.quantile(freedom, confidence) * math.sqrt(variance))
    assert joint.chance(half, [variance, 0.0], [freedom, math.inf]) == pytest.approx(1 - confidence, rel=1e-5)


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(1, 40)), min_size=2, max_size=4), st.floats(0.5, 0.999))
def test_a_sum_is_less_sure_than_each_of_its_figures(figures: list[tuple[float, float]], confidence: float) -> None:
    variances, freedom = zip(*figures, strict=True)
    half = joint.half_width(variances, freedom, confidence)
    alone = [student_t.quantile(df, confidence) * math.sqrt(variance) for variance, df in figures]
    assert max(alone) <= half <= sum(alone) * (1 + 1e-9)
    assert half == pytest.approx(math.sqrt(sum(one**2 for one in alone)))


def test_what_is_far_from_zero_has_the_least_chance_and_what_is_at_zero_every_one() -> None:
    found = joint.chance(np.array([0.0, 1e3]), np.full((2, 2), 1e-12), np.full((2, 2), 20.0))
    assert found == pytest.approx([1.0, joint.LEAST_CHANCE])
