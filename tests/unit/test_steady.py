"""Planted traces: where their warm-up ends, what their interval is, when they stop."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from workers import steady
from workers.steady import Rule, decide, estimate

Trace = NDArray[np.float64]


def white(seed: int, n: int, spread: float = 0.03) -> Trace:
    return 100 * (1 + spread * np.random.default_rng(seed).standard_normal(n))


def autoregressive(seed: int, n: int, phi: float, spread: float = 0.03) -> Trace:
    noise = np.random.default_rng(seed).standard_normal(n)
    noise[1:] *= math.sqrt(1 - phi**2)
    for i in range(1, n):
        noise[i] += phi * noise[i - 1]
    return 100 * (1 + spread * noise)


def ended(trace: Trace, rule: Rule) -> steady.Decision:
    """The decision at which a trial with this trace stops."""
    made = (decide(trace[:n], rule) for n in range(rule.block, rule.max_steps + 1, rule.block))
    return next(decision for decision in made if decision.kind == "stop")


traces = st.lists(st.floats(1, 1000), min_size=40, max_size=120)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length", [14, 23, 30])
def test_warm_up_ends_where_the_slower_start_ends(seed: int, length: int) -> None:
    trace = white(seed, 120)
    trace[:length] *= 1.3
    found = estimate(trace)
    assert found
    assert found.start == pytest.approx(length, abs=2)
    assert found.start + found.steps == 120


@pytest.mark.parametrize("seed", range(5))
def test_a_start_that_fades_ends_once_it_is_lost_in_the_noise(seed: int) -> None:
    trace = white(seed, 120) * (1 + np.exp(-np.arange(120) / 8))  # within 3%, the noise, from step 28
    found = estimate(trace)
    assert found
    assert 18 <= found.start <= 40


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_are_steady_from_the_first_have_the_shortest_warm_up(seed: int) -> None:
    found = estimate(white(seed, 100))
    assert found
    assert (found.start, found.steps, found.why_not) == (10, 90, "")


@pytest.mark.parametrize("at", [3, 11, 25])
def test_one_stall_is_no_warm_up_and_counts(at: int) -> None:
    trace = white(0, 100)
    trace[at] *= 3
    found = estimate(trace)
    assert found
    assert found.start == 10
    assert found.mean_ms == pytest.approx(trace[10:].mean())


@given(traces, st.integers(0, 20))
def test_no_window_starts_before_the_warm_up_asked_for(step_ms: list[float], min_warmup: int) -> None:
    found = estimate(step_ms, min_warmup)
    assert found
    assert found.start >= min_warmup
    assert found.start + found.steps == len(step_ms)


@given(traces, st.integers(-20, 20))
def test_the_unit_of_time_changes_nothing_but_the_unit(step_ms: list[float], power: int) -> None:
    scale = 2.0**power
    found, scaled = estimate(step_ms), estimate([scale * ms for ms in step_ms])
    assert found
    assert scaled
    assert (scaled.start, scaled.why_not) == (found.start, found.why_not)
    assert scaled.mean_ms == pytest.approx(scale * found.mean_ms)
    assert scaled.half_width_ms == pytest.approx(scale * found.half_width_ms)


@pytest.mark.parametrize(
    ("freedom", "t"), [(2, 4.302653), (3, 3.182446), (5, 2.570582), (10, 2.228139), (30, 2.042272), (100, 1.983972)]
)
def test_the_quantile_is_student_s(freedom: float, t: float) -> None:
    assert steady.t_quantile(freedom) == pytest.approx(t, rel=0.01)


def test_independent_steps_have_the_t_interval() -> None:
    window = np.tile([97.0, 99.0, 101.0, 103.0], 10)
    t_39 = 2.022691
    assert steady.half_width(window, 40.0) == pytest.approx(t_39 * window.std(ddof=1) / math.sqrt(40), rel=1e-3)


def test_white_noise_counts_as_about_its_steps() -> None:
    counted = [steady.correlation_time(white(seed, 100)) for seed in range(200)]
    assert min(counted) > 0.8
    assert np.median(counted) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("phi", [0.3, 0.5, 0.8])
def test_correlated_steps_widen_the_interval_by_the_root_of_their_correlation_time(phi: float) -> None:
    trace = autoregressive(1, 3000, phi)
    independent = steady.half_width(trace, len(trace))
    found = estimate(trace)
    assert found
    assert found.half_width_ms / independent == pytest.approx(math.sqrt((1 + phi) / (1 - phi)), rel=0.2)
    assert found.effective_steps == pytest.approx(found.steps * (1 - phi) / (1 + phi), rel=0.4)


def test_memory_beyond_one_step_counts() -> None:
    noise = np.random.default_rng(0).standard_normal(2000)
    for i in range(2, len(noise)):
        noise[i] += 0.3 * noise[i - 1] + 0.4 * noise[i - 2]
    assert steady.correlation_time(noise) == pytest.approx(6.2, rel=0.3)  # the AR(1) of its first correlation: 3


def test_few_stalls_leave_fewer_degrees_of_freedom() -> None:
    stalls = np.where(np.arange(100) % 50 == 7, 300.0, 100.0)
    halves = np.where(np.arange(100) % 2 == 0, 100 - 28.0, 100 + 28.0)  # the same spread without a tail
    assert stalls.std() == pytest.approx(halves.std(), rel=0.01)
    assert steady.half_width(stalls, 100.0) > 1.2 * steady.half_width(halves, 100.0)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_drift_is_said_and_goes_on_to_the_last_step(sign: int) -> None:
    trace = white(0, 500, spread=0.01) * (1 + sign * 0.001 * np.arange(500))
    decision = ended(trace, Rule(ci=0.6))
    assert decision.reason == "max_steps"
    assert decision.estimate
    assert decision.estimate.why_not == "drift"
    assert decision.estimate.half_width_ms < 0.6 * decision.estimate.mean_ms


def test_two_levels_are_said() -> None:
    trace = white(0, 500) * np.where(np.arange(500) // 30 % 2, 1.08, 1.0)
    found = ended(trace, Rule()).estimate
    assert found
    assert found.why_not == "two levels"
    assert not found.is_steady


def test_a_calm_trial_stops_at_its_interval_once_the_shortest_window_is_full() -> None:
    stops = [ended(white(seed, 500, spread=0.01), Rule()) for seed in range(20)]
    found = [stop.estimate for stop in stops if stop.estimate]
    assert {stop.reason for stop in stops} == {"interval"}
    assert min(one.steps for one in found) == np.median([one.steps for one in found]) == 40
    assert all(one.half_width_ms <= 0.01 * one.mean_ms for one in found)


def test_a_longer_shortest_window_is_kept() -> None:
    found = ended(white(0, 500, spread=0.01), Rule(min_window=228)).estimate
    assert found
    assert 228 <= found.steps <= 1.2 * 228


def test_a_restless_trial_stops_at_max_steps() -> None:
    decision = ended(white(0, 100, spread=0.2), Rule(max_steps=100))
    assert decision.reason == "max_steps"
    assert decision.estimate
    assert decision.estimate.half_width_ms > 0.01 * decision.estimate.mean_ms


def test_the_last_step_decides_though_no_block_ends_there() -> None:
    assert decide(white(0, 97, spread=0.2), Rule(max_steps=97)).reason == "max_steps"


def test_steps_that_all_take_the_same_are_known_exactly() -> None:
    decision = ended(np.full(100, 125.0), Rule(max_steps=100))
    assert decision.reason == "interval"
    assert decision.estimate
    assert (decision.estimate.mean_ms, decision.estimate.half_width_ms) == (125.0, 0.0)


def test_a_trace_is_looked_at_at_a_block_s_end_once_it_has_grown_by_a_tenth() -> None:
    looks = [n for n in range(1, 2001) if steady.is_look(n, 5)]
    assert all(n % 5 == 0 for n in looks)
    assert looks[:12] == [*range(5, 60, 5), 65]
    assert all(n < 1.1 * last + 10 for last, n in itertools.pairwise(looks))
    assert len(looks) < 60


def test_between_looks_nothing_is_decided() -> None:
    assert decide(white(0, 51), Rule()) == steady.Decision(kind="go on")


def test_nothing_is_said_of_a_trace_that_is_too_short() -> None:
    assert estimate(white(0, 29)) is None
    assert estimate(white(0, 30)) is not None


@pytest.mark.parametrize("wrong", [-1.0, 0.0, math.nan, math.inf])
def test_a_step_that_no_clock_can_have_shown_is_refused(wrong: float) -> None:
    trace = white(0, 60)
    trace[41] = wrong
    with pytest.raises(ValueError, match=rf"0 < step_ms < inf must hold, but step 41 took {wrong} ms"):
        decide(trace, Rule())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ci": 0.0}, "0 < ci < 1 must hold, but ci is 0.0"),
        ({"ci": 1}, "0 < ci < 1 must hold, but ci is 1"),
        ({"block": 0}, "block >= 1 and min_warmup >= 0 must hold, but got 0 and 10"),
        ({"min_warmup": -1}, "block >= 1 and min_warmup >= 0 must hold, but got 5 and -1"),
        ({"max_steps": 25}, r"max_steps >= min_warmup \+ 20 must hold, but got 25 and 10"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_the_interval_holds_at_the_step_that_the_trace_has_chosen(phi: float) -> None:
    """Few traces, wide bounds; benchmarks/intervals.py has the figures."""
    stops = [ended(autoregressive(seed, 500, phi), Rule()) for seed in range(150)]
    found = [stop.estimate for stop in stops if stop.estimate]
    covered = [abs(one.mean_ms - 100) <= one.half_width_ms for one in found]
    assert 0.90 <= np.mean(covered) <= 0.99
    assert np.mean([stop.reason == "interval" for stop in stops]) > 0.95
