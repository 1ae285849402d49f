"""How a link is throttled and judged, on steps with known parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import link
from link import BATCH, RANKS, LinkTrial
from sweeps.spec import plan, sweep_file

MS = st.floats(1, 1000)


def trial(computing_ms: float, waiting_ms: float, off: float = 0.0) -> LinkTrial:
    """Of a step with these parts, whose share of waiting is told with an error."""
    step_ms = computing_ms + waiting_ms
    return LinkTrial(1e3 * RANKS * BATCH / step_ms, waiting_ms / step_ms + off, parameters=1e5)


@given(MS, st.floats(0, 100), st.floats(0, 1000))
def test_shares_that_are_right_say_what_removing_the_throttle_gives(
    computing_ms: float, waiting_ms: float, throttle_ms: float
) -> None:
    """Though ranks wait for each other without a throttle too."""
    slow, free = trial(computing_ms, waiting_ms + throttle_ms), trial(computing_ms, waiting_ms)
    assert link.removed(slow, free) == pytest.approx(throttle_ms / (computing_ms + waiting_ms + throttle_ms))
    assert link.attributed(slow, free) == pytest.approx(link.removed(slow, free))


@pytest.mark.parametrize(("off", "is_near"), [(0.04, True), (-0.04, True), (0.06, False), (-0.06, False)])
def test_a_share_that_is_off_by_more_than_five_points_is_not_near(off: float, is_near: bool) -> None:
    assert (link.off(trial(100, 60, off), trial(100, 10)) <= link.WITHIN) is is_near


@pytest.mark.parametrize("share", link.SHARES)
def test_the_throttle_takes_the_share_that_is_aimed_at(share: float) -> None:
    free = trial(200, 0)
    sending_s = 8e-6 * (4 * free.parameters - link.BURST_BYTES) / link.throttle_mbit(free, share)
    exposed_s = sending_s - link.HIDDEN * free.step_s
    assert exposed_s / (free.step_s + exposed_s) == pytest.approx(share, abs=0.03)


def test_no_link_is_so_slow_that_a_cluster_falls_apart() -> None:
    assert link.throttle_mbit(trial(1e6, 0), 0.5) == link.SLOWEST_MBIT


def test_its_sweep_can_be_planned_and_its_trials_are_long_enough_to_tell_shares() -> None:
    (planned,) = plan.plan(sweep_file.parse(link.SWEEP.replace("NAME", "x"), "x")).trials
    assert (planned.global_batch, planned.gpus, planned.explain) == (BATCH * RANKS, RANKS, True)
    assert planned.measured_steps >= 16
