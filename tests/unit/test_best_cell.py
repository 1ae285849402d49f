"""The best of many cells: called so no more often than promised where it is not, and found where it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import analysis

SWEEPS = 1000


def drawn(cells: list[float], noise: list[float], repeats: int, sweeps: int = SWEEPS) -> Any:
    """Rates of many sweeps: of cells with these true ones, and with this relative noise."""
    random = np.random.default_rng(13)
    logs = np.log(cells)[:, None] + np.array(noise)[:, None] * random.normal(size=(sweeps, len(cells), repeats))
    return np.exp(logs)


def picks(rates: Any) -> list[analysis.Pick]:
    return [analysis.pick(list(sweep), is_ratio=True) for sweep in rates]


def surely_at_most(promised: float, of: int = 2000) -> float:
    """The share that so many sweeps may show by chance where it is as promised: three standard errors more. It binds
    fewer too."""
    return promised + 3 * math.sqrt(promised * (1 - promised) / of)


@pytest.mark.parametrize(("cells", "repeats"), [(2, 3), (2, 5), (3, 3), (8, 2), (8, 3), (20, 3)])
def test_among_equal_cells_one_is_called_the_best_in_5_of_100_sweeps_at_most(cells: int, repeats: int) -> None:
    found = picks(drawn([100.0] * cells, [0.01] * cells, repeats))
    assert sum(one.is_shown for one in found) / SWEEPS <= 0.05


@pytest.mark.parametrize("noise", [[0.03, 0.01, 0.01], [0.01, 0.03, 0.01], [0.03, 0.02, 0.01, 0.01, 0.01, 0.01]])
def test_of_two_best_cells_none_is_called_the_best_where_noise_is_unlike(noise: list[float]) -> None:
    """The hardest case: two are equal, and the others are far behind."""
    found = picks(drawn([100.0, 100.0, *[50.0] * (len(noise) - 2)], noise, 3))
    assert sum(one.is_shown for one in found) / SWEEPS <= surely_at_most(0.05)


def test_a_truly_faster_cell_is_found() -> None:
    found = picks(drawn([105.0, *[100.0] * 7], [0.01] * 8, 3))
    assert sum(one.is_shown and one.top == 0 for one in found) / SWEEPS >= 0.8
    many = picks(drawn([105.0, *[100.0] * 7], [0.01] * 8, 6))
    assert sum(one.is_shown and one.top == 0 for one in many) / SWEEPS >= 0.99


@pytest.mark.parametrize("cells", [[100.0] * 6, [101.0, *[100.0] * 9], [100.0, 99.5, 99.0, 98.0], [103.0, 100.0]])
def test_the_interval_holds_the_true_lead_of_whichever_cell_was_picked(cells: list[float]) -> None:
    logs = np.log(cells)

    def is_held(one: analysis.Pick) -> bool:
        lead = logs[one.top] - np.delete(logs, one.top).max()
        return bool(one.low <= lead <= one.high)

    found = picks(drawn(cells, [0.01] * len(cells), 3))
    assert sum(map(is_held, found)) / SWEEPS >= 0.95
    contenders = sum(bool({one.top, *one.rivals} & {int(logs.argmax())}) for one in found)
    assert contenders / SWEEPS >= 0.95, "the best is the one picked or among those not told from it"


figures = st.lists(st.lists(st.floats(1, 1e4), min_size=1, max_size=4).map(np.array), min_size=1, max_size=6)


@given(figures, st.booleans(), st.booleans())
def test_a_cell_is_the_best_exactly_where_no_other_is_a_rival(cells: Any, is_ratio: bool, is_more_better: bool) -> None:
    found = analysis.pick(cells, is_ratio=is_ratio, is_more_better=is_more_better)
    compared = sum(len(values) > 1 for values in cells)
    assert found.singles == tuple(n for n, values in enumerate(cells) if len(values) == 1)
    assert found.top not in found.rivals
    assert not {*found.rivals} & {*found.singles}
    if found.is_shown:
        assert not found.rivals
        assert compared == len(cells) > 1
    elif not found.singles and len(cells) > 1:
        assert found.rivals
        assert found.low <= 0 <= found.high


def test_less_is_better_of_times_and_whole_numbers_are_as_loose_as_their_rounding() -> None:
    hours = [np.array([10.0, 10.1, 9.9]), np.array([5.0, 5.1, 4.9])]
    assert analysis.pick(hours, is_ratio=True, is_more_better=False).is_shown
    assert analysis.pick(hours, is_ratio=True, is_more_better=False).top == 1
    epochs = [np.array([12.0, 12.0, 12.0]), np.array([13.0, 13.0, 13.0])]
    assert analysis.pick(epochs, is_ratio=True, is_more_better=False).is_shown
    assert not analysis.pick(epochs, is_ratio=True, is_more_better=False, least_spread=12**-0.5).is_shown
