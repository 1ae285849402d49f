"""What benchmarks/agreement.py can tell of intervals that are too wide or too narrow, from 16 cells of two sweeps."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import agreement
import verdicts
from workers.measure import student_t

CELLS, REPEATS, RUNS = 16, 8, 1000


@functools.cache
def drawn() -> list[list[agreement.Cells]]:
    """Runs of two sweeps each, whose intervals are right: means of independent repeats, with their t-intervals."""
    repeats = np.random.default_rng(20261123).normal(100, 5, (RUNS, 2, CELLS, REPEATS))
    halves = student_t.quantile(REPEATS - 1) * repeats.std(axis=-1, ddof=1) / np.sqrt(REPEATS)
    return [
        [{str(n): cell for n, cell in enumerate(zip(*of_sweep, strict=True))} for of_sweep in zip(*of_run, strict=True)]
        for of_run in zip(repeats.mean(axis=-1), halves, strict=True)
    ]


def passing(width: float) -> float:
    """Of runs whose intervals are so many times as wide as they should be."""

    def is_passed(run: list[agreement.Cells]) -> bool:
        first, second = ({cell: (mean, width * half) for cell, (mean, half) in cells.items()} for cells in run)
        apart = agreement.errors_apart(first, second, REPEATS)
        return not verdicts.unmet({"errors_apart": apart}, {"errors_apart": agreement.ERRORS_APART})

    return float(np.mean([is_passed(run) for run in drawn()]))


def test_right_intervals_pass() -> None:
    assert passing(1) >= 0.97


@pytest.mark.parametrize(("width", "most"), [(10, 0.0), (3, 0.01), (2, 1 / 6), (0.5, 1 / 6), (0.3, 0.01)])
def test_intervals_that_are_too_wide_or_too_narrow_do_not(width: float, most: float) -> None:
    assert passing(width) <= most


def test_two_means_one_standard_error_apart_are_so() -> None:
    half = float(student_t.quantile(REPEATS - 1)) / 2**0.5  # of a cell whose standard error is the root of a half
    first, second = ({"a": (mean, half), "b": (mean, half)} for mean in (100.0, 101.0))
    assert agreement.errors_apart(first, second, REPEATS) == pytest.approx(1)
