"""The bound that the packing is measured against: exact where the answer is plain, and never above a real schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bound
from tests.examples import examples


@pytest.mark.parametrize(
    ("nodes", "seconds", "least"),
    [
        (1, {(4,): 10.0}, 10),
        (1, {(3,): 10.0, (1,): 10.0}, 10),  # beside each other
        (1, {(3,): 10.0, (2,): 10.0}, 15),  # apart, the twos side by side; the area alone says 12.5
        (1, {(2,): 10.0, (1,): 30.0}, 12.5),  # (2 + 1 + 1) for 10, then four of the last
        (2, {(4, 1): 10.0, (3,): 10.0}, 10),
        (2, {(3, 2): 10.0, (3,): 10.0}, 15),  # 1 + 2 are left, on two nodes: apart, the threes side by side
        (2, {(3, 3): 10.0, (1, 1): 5.0, (2,): 5.0}, 11.25),
        (8, {(4,) * 5: 10.0, (4,) * 3: 10.0, (4,) * 8: 1.0}, 11),
    ],
)
def test_work_of_which_the_shortest_time_is_plain(
    nodes: int, seconds: dict[tuple[int, ...], float], least: float
) -> None:
    assert bound.shortest(nodes, 4, seconds) == pytest.approx(least, rel=2e-3)


GANGS = st.sampled_from([(1,), (2,), (3,), (4,), (1, 1), (2, 1), (4, 1), (3, 3), (4, 4)])


@examples(30)
@given(st.dictionaries(GANGS, st.floats(1, 100), min_size=1))
def test_it_lies_between_the_area_and_one_after_another(seconds: dict[tuple[int, ...], float]) -> None:
    least = bound.shortest(2, 4, seconds)
    assert sum(sum(gang) * of for gang, of in seconds.items()) / 8 <= least * 1.002
    assert least <= sum(seconds.values()) * 1.000001
