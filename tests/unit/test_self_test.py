"""The judge of a node's self-test names what is slow, and nothing else."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from workers.checks import self_test

USUAL = {"core_gflops": 100.0, "copy_gib_per_s": 20.0, "decode_images_per_s": 1000.0}
figures = st.fixed_dictionaries({name: st.floats(1, 1e4) for name in USUAL})


def test_a_node_like_its_peers_is_not_slow() -> None:
    within = {name: 0.91 * value for name, value in USUAL.items()}
    assert self_test.slow(within, [USUAL] * 3, [USUAL] * 2) == []


def test_a_figure_below_the_median_of_peers_is_named_with_both() -> None:
    peers = [{**USUAL, "core_gflops": value} for value in (10.0, 100.0, 102.0)]
    assert self_test.slow({**USUAL, "core_gflops": 80.0}, peers, []) == [
        "matrix products on one core: 80 GFLOP/s, 20% below the median of its 3 peers (100)"
    ]


def test_a_figure_below_its_own_earlier_ones_is_named() -> None:
    found = self_test.slow({**USUAL, "copy_gib_per_s": 10.0}, [], [USUAL, USUAL])
    assert found == ["copying memory on one core: 10 GiB/s, 50% below the median of its 2 earlier tests (20)"]


def test_beside_one_peer_a_node_is_held_against_that_one() -> None:
    """Two that differ don't tell which of them is unusual."""
    found = self_test.slow({**USUAL, "core_gflops": 80.0}, [USUAL], [])
    assert found == ["matrix products on one core: 80 GFLOP/s, 20% below its one peer (100)"]


def test_a_node_that_fell_behind_both_is_named_for_both() -> None:
    assert len(self_test.slow({"core_gflops": 50.0}, [USUAL], [USUAL])) == 2


def test_one_slow_peer_makes_nobody_slow() -> None:
    lame = {name: 0.1 * value for name, value in USUAL.items()}
    assert self_test.slow(USUAL, [lame, USUAL, USUAL], []) == []


def test_figures_that_nobody_else_has_are_not_judged() -> None:
    assert self_test.slow({"core_gflops": 1.0}, [{"copy_gib_per_s": 20.0}], [{}]) == []
    assert self_test.slow({"core_gflops": 1.0}, [], []) == []


def test_the_tolerance_is_the_callers() -> None:
    now = {name: 0.97 * value for name, value in USUAL.items()}
    assert self_test.slow(now, [USUAL], []) == []
    assert len(self_test.slow(now, [USUAL], [], tolerance=0.02)) == 3


@given(figures, st.lists(figures, min_size=1, max_size=5), st.floats(1, 5))
def test_a_faster_node_is_never_blamed_for_more(
    now: dict[str, float], peers: list[dict[str, float]], faster: float
) -> None:
    quick = {name: faster * value for name, value in now.items()}
    assert len(self_test.slow(quick, peers, [])) <= len(self_test.slow(now, peers, []))


def test_work_is_counted_a_second() -> None:
    assert 0 < self_test.per_second(lambda: time.sleep(0.002)) <= 500
