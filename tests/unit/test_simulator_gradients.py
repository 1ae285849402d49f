"""What of a reduction outlasts the backward pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.simulator.gradients import APPEARED, exposed_ms, parts
from workers.contract.messages import Model

TIMES = st.floats(0, 1e3)
REDUCTIONS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8).map(sorted)


@pytest.mark.parametrize(
    ("reductions", "exposed"),
    [
        ([(100.0, 30.0)], 30),  # grouped: the backward pass is over
        ([(10.0, 30.0)], 0),  # over long before
        ([(10.0, 120.0)], 30),  # the link is what takes longest
        ([(10.0, 80.0), (100.0, 5.0)], 5),  # the first layers' gradients come last
        ([(10.0, 95.0), (100.0, 5.0)], 10),  # and wait for those that are still on their way
    ],
)
def test_what_outlasts_a_backward_pass_of_a_hundred(reductions: list[tuple[float, float]], exposed: float) -> None:
    assert exposed_ms(reductions, 100.0) == pytest.approx(exposed)


@given(REDUCTIONS, TIMES)
def test_no_more_is_exposed_than_there_is_and_no_less_than_the_last_of_it(
    given_: list[tuple[float, float]], backward_ms: float
) -> None:
    reductions = [(min(begins, backward_ms), takes) for begins, takes in given_]
    whole = sum(takes for _, takes in reductions)
    found = exposed_ms(reductions, backward_ms)
    assert found <= whole + 1e-6
    assert found >= exposed_ms(reductions[-1:], backward_ms) - 1e-6
    assert found >= whole - backward_ms - 1e-6
    assert exposed_ms([(backward_ms, takes) for _, takes in reductions], backward_ms) == pytest.approx(whole, abs=1e-6)


@given(REDUCTIONS, TIMES, st.floats(0, 100), st.data())
def test_a_longer_reduction_never_ends_earlier(
    reductions: list[tuple[float, float]], backward_ms: float, more: float, data: st.DataObject
) -> None:
    n = data.draw(st.integers(0, len(reductions) - 1))
    begins, takes = reductions[n]
    longer = [*reductions[:n], (begins, takes + more), *reductions[n + 1 :]]
    assert exposed_ms(longer, backward_ms) >= exposed_ms(reductions, backward_ms)


@pytest.mark.parametrize("model", APPEARED)
def test_a_network_s_parts_are_the_whole_and_come_one_after_the_other(model: Model) -> None:
    found = parts(model)
    assert sum(share for _, share in found) == pytest.approx(1)
    assert all(share > 0 for _, share in found)
    assert [at for at, _ in found] == sorted({at for at, _ in found})
    assert found[-1][0] == 1
