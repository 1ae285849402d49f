"""Planted traces: where their warm-up ends, what their interval is, when they stop."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from workers.contract.messages import CALM_STEPS
from workers.measure import steady
from workers.measure.steady import NOTHING, Known, Rule, decide, estimate, learnt, next_look

Trace = NDArray[np.float64]
CALM = Known(calm_steps=1000, calm_ms=1e5, steps=1000)


def white(seed: int, n: int, spread: float = 0.03) -> Trace:
    return 100 * (1 + spread * np.random.default_rng(seed).standard_normal(n))


def autoregressive(seed: int, n: int, phi: float, spread: float = 0.03) -> Trace:
    noise = np.random.default_rng(seed).standard_normal(n)
    noise[1:] *= math.sqrt(1 - phi**2)
    for i in range(1, n):
        noise[i] += phi * noise[i - 1]
    return 100 * (1 + spread * noise)


def stalling(seed: int, n: int, every: int, factor: float, spread: float = 0.03) -> Trace:
    """A stall at regular steps, so that their number is known."""
    return white(seed, n, spread) * np.where(np.arange(n) % every == every // 2, factor, 1.0)


def ended(trace: Trace, rule: Rule, known: Known = NOTHING) -> steady.Decision:
    """The decision at which a trial with this trace stops."""
    n = 1
    while (decision := decide(trace[:n], rule, known)).kind == "go on":
        n = next_look(n, rule, known)
    return decision


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
    found = estimate(white(seed, 100), known=CALM)
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
    found = estimate(step_ms, known=CALM)
    scaled = estimate([scale * ms for ms in step_ms], known=dataclasses.replace(CALM, calm_ms=scale * CALM.calm_ms))
    assert found
    assert scaled
    assert (scaled.start, scaled.why_not, scaled.needed_steps) == (found.start, found.why_not, found.needed_steps)
    assert scaled.mean_ms == pytest.approx(scale * found.mean_ms)
    if found.half_width_ms is not None:
        assert scaled.half_width_ms == pytest.approx(scale * found.half_width_ms)


def test_independent_steps_have_the_t_interval() -> None:
    window = np.tile([97.0, 99.0, 101.0, 103.0], 10)
    t_39 = 2.022691
    assert steady.half_width(window, 40.0) == pytest.approx(t_39 * window.std(ddof=1) / math.sqrt(40), rel=1e-3)


def test_skewed_steps_have_a_wider_interval_than_even_ones_of_the_same_tail() -> None:
    even = np.tile([90.0, 100.0, 100.0, 110.0], 20)
    skewed = np.tile([95.0, 95.0, 95.0, 115.0], 20)
    skewness, n, t = 2 / math.sqrt(3), 80, 1.99045
    term = (2 * t**2 + 1) * skewness / (6 * math.sqrt(n))
    assert steady.half_width(even, 80.0) == pytest.approx(t * even.std(ddof=1) / math.sqrt(n), rel=1e-3)
    assert steady.half_width(skewed, 80.0) == pytest.approx(
        (t + steady.SKEWED * term) * skewed.std(ddof=1) / math.sqrt(n), rel=1e-3
    )


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
    assert found.half_width_ms is not None
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
    assert decision.estimate.half_width_ms is None


def test_two_levels_are_said() -> None:
    trace = white(0, 500) * np.where(np.arange(500) // 30 % 2, 1.08, 1.0)
    found = ended(trace, Rule()).estimate
    assert found
    assert found.why_not == "two levels"
    assert found.half_width_ms is None
    assert not found.is_steady


def test_a_trial_of_which_nothing_is_known_stops_once_a_stall_of_one_in_fifty_would_have_come() -> None:
    stops = [ended(white(seed, 500, spread=0.01), Rule()) for seed in range(20)]
    found = [stop.estimate for stop in stops if stop.estimate]
    assert {stop.reason for stop in stops} == {"interval"}
    assert 0.98**CALM_STEPS <= 0.01 < 0.98 ** (CALM_STEPS - 1)
    assert min(one.steps for one in found) >= CALM_STEPS
    assert np.median([one.steps for one in found]) <= 1.1 * CALM_STEPS


def test_after_a_calm_trial_the_next_stops_once_the_shortest_window_is_full() -> None:
    for seed in range(20):
        known = learnt(NOTHING, white(seed, 260, spread=0.01), 10)
        assert (known.calm_steps, known.stalls) == (250, 0)
        found = ended(white(100 + seed, 500, spread=0.01), Rule(), known).estimate
        assert found
        assert found.why_not == ""
        assert found.half_width_ms is not None
        assert found.half_width_ms <= 0.01 * found.mean_ms
        assert 40 <= found.steps <= 100


def test_half_the_calm_that_is_needed_leaves_the_other_half_to_the_window() -> None:
    found = estimate(white(0, 200), known=Known(calm_steps=100, calm_ms=1e4))
    assert found
    assert (found.needed_steps, found.why_not) == (128, "")
    shorter = estimate(white(0, 130), known=Known(calm_steps=100, calm_ms=1e4))
    assert shorter
    assert (shorter.steps, shorter.why_not, shorter.half_width_ms) == (120, "too short to know", None)


def test_short_steps_do_not_vouch_for_long_ones() -> None:
    """Stalls that come by the clock hit a step ten times as long ten times as often."""
    found = estimate(white(0, 200), known=Known(calm_steps=1000, calm_ms=1000 * 10.0))
    assert found
    assert found.needed_steps == CALM_STEPS


def test_a_window_that_may_not_grow_to_what_is_needed_has_its_interval_withheld() -> None:
    decision = ended(white(0, 100, spread=0.01), Rule(max_steps=100))
    assert decision.reason == "max_steps"
    assert decision.estimate
    assert decision.estimate.why_not == "too short to know"
    assert decision.estimate.half_width_ms is None
    assert decision.estimate.mean_ms == pytest.approx(100, rel=0.01)


def test_trials_that_are_too_short_alone_know_enough_together() -> None:
    known, why = NOTHING, []
    for seed in range(4):
        trace = white(seed, 100, spread=0.01)
        found = ended(trace, Rule(max_steps=100), known).estimate
        assert found
        why.append(found.why_not)
        known = learnt(known, trace[: found.start + found.steps], found.start)
    assert why == ["too short to know", "too short to know", "", ""]


def test_a_stall_in_a_short_window_ends_the_credit() -> None:
    trace = white(0, 500, spread=0.01)
    trace[30] *= 2
    found = estimate(trace[:60], known=CALM)
    assert found
    assert (found.why_not, found.needed_steps) == ("too short to know", CALM_STEPS)
    decision = ended(trace, Rule(), CALM)
    assert decision.estimate
    assert decision.estimate.steps >= CALM_STEPS


@pytest.mark.parametrize(
    "shows",
    [
        stalling(0, 300, every=60, factor=1.5),
        white(0, 300) * (1 + 0.0003 * np.arange(300)),
        white(0, 300) * (1 - 0.0003 * np.arange(300)),
        white(0, 300) * np.where(np.arange(300) // 30 % 2, 1.06, 1.0),
    ],
    ids=["stalls", "drift up", "drift down", "two levels"],
)
def test_a_trial_that_shows_something_ends_the_calm_of_those_before_it(shows: Trace) -> None:
    known = learnt(CALM, shows, 10)
    assert (known.calm_steps, known.calm_ms) == (0, 0.0)


def after(number: int, known: Known, of: list[Trace]) -> tuple[list[steady.Estimate], Known]:
    """What so many trials come to, one after the other, and what is known then."""
    found = []
    for trace in of[:number]:
        one = ended(trace, Rule(), known).estimate
        assert one
        known = learnt(known, trace[: one.start + one.steps], one.start)
        found.append(one)
    return found, known


def test_a_drift_that_begins_after_calm_trials_is_seen_though_a_short_window_cannot_show_it() -> None:
    """48 steps show a drift of 3% in 100 as a slope of one standard error."""
    wrong = {0.03: 0, 0.05: 0, 0.08: 0, 0.12: 0}
    for seed in range(16):
        rng = np.random.default_rng([seed, 1])
        calm = [white(100 * seed + n, 500) for n in range(int(rng.integers(1, 4)))]
        _, known = after(len(calm), NOTHING, calm)
        way = rng.choice([-1, 1])
        for share in wrong:
            factors = np.exp(way * share / 100 * np.arange(500))
            drifting = [white(100 * seed + 10 + n, 500) * factors for n in range(3)]
            found, _ = after(3, known, drifting)
            wrong[share] += sum(one.is_steady for one in found)
    assert wrong[0.03] / 48 <= 0.25, (
        wrong
    )  # 0.85 of first trials, if calm is lent for ever and to all; see the benchmark
    assert all(wrong[share] / 48 <= 0.08 for share in (0.05, 0.08, 0.12)), wrong


def test_three_short_windows_live_on_a_long_one_and_the_next_is_long_again() -> None:
    long, known = [], NOTHING
    for _ in range(9):
        (found,), known = after(1, known, [flat()])
        long.append(found.steps >= CALM_STEPS)
    assert long == [True, False, False, False, True, False, False, False, True]


def flat() -> Trace:
    """As calm as can be, with a mean that is the same from window to window."""
    return np.asarray(100 + np.tile([0.3, -0.3, -0.3, 0.3], 125), np.float64)


@pytest.mark.parametrize("factor", [0.98, 0.99, 1.01, 1.02])
def test_a_window_whose_mean_is_not_that_of_the_calm_ones_is_measured_in_full(factor: float) -> None:
    found = ended(factor * white(1, 500, spread=0.01), Rule(), CALM).estimate
    assert found
    assert (found.why_not, found.needed_steps) == ("", CALM_STEPS)
    assert found.steps >= CALM_STEPS
    assert decide(factor * white(1, 60, spread=0.01), Rule(), CALM).kind == "go on"


def test_windows_that_differ_by_next_to_nothing_are_alike_however_sure_each_is() -> None:
    found = ended(1.004 * white(1, 500, spread=0.002), Rule(), CALM).estimate
    assert found
    assert found.steps < 100


def test_of_calm_windows_the_latest_count() -> None:
    known = learnt(CALM, 1.1 * white(0, 300), 10)
    assert known.calm_steps == 290
    assert known.calm_ms == pytest.approx(290 * 110, rel=0.01)
    known = learnt(known, white(1, 110), 10)
    assert known.calm_steps == CALM_STEPS
    assert known.calm_ms == pytest.approx(100 * 100 + 128 * 110, rel=0.01)


def test_the_warm_up_shows_nothing() -> None:
    trace = white(0, 300)
    trace[:40] *= 3
    assert learnt(NOTHING, trace, 40).calm_steps == 260
    assert learnt(NOTHING, trace, 40).stalls == 0


def test_windows_too_short_to_show_a_drift_earn_nothing_but_their_stalls_count() -> None:
    assert learnt(CALM, white(0, 60), 10) == dataclasses.replace(CALM, steps=1050, lent=1)
    found = learnt(CALM, stalling(0, 60, every=40, factor=2.0), 10)
    assert (found.calm_steps, found.stalls) == (0, 1)


def test_of_a_trial_without_a_window_nothing_is_learnt() -> None:
    assert learnt(CALM, white(0, 25), 10) == CALM


def test_stalls_are_counted_with_what_they_took() -> None:
    known = learnt(NOTHING, stalling(0, 510, every=100, factor=3.0, spread=0.001), 10)
    assert (known.steps, known.stalls) == (500, 5)
    assert known.excess == pytest.approx(5 * 2.0, rel=0.01)


def test_a_step_that_is_no_twentieth_longer_is_no_stall() -> None:
    assert learnt(NOTHING, stalling(0, 300, every=50, factor=1.04, spread=0.001), 0).stalls == 0
    assert learnt(NOTHING, stalling(0, 300, every=50, factor=1.06, spread=0.001), 0).stalls == 6


def test_stalls_are_forgotten_in_the_end() -> None:
    known = learnt(NOTHING, stalling(0, 500, every=100, factor=3.0), 0)
    shares = [known.excess / known.steps]
    for seed in range(60):
        known = learnt(known, white(seed, 500), 0)
        shares.append(known.excess / known.steps)
    assert all(later < earlier for earlier, later in itertools.pairwise(shares))
    assert shares[-1] < 1e-4
    assert known.steps <= steady.MEMORY


def test_known_stalls_too_rare_for_a_window_withhold_its_interval() -> None:
    rare = Known(calm_steps=400, calm_ms=4e4, steps=1000, stalls=5, excess=5.0)  # 1 in 200, of twice a step
    needed = math.ceil(math.log(0.01) / math.log(1 - 1 / 200))
    decision = ended(white(0, 500), Rule(), rare)
    assert decision.reason == "max_steps"
    assert decision.estimate
    assert (decision.estimate.why_not, decision.estimate.needed_steps) == ("rare stalls", needed)
    assert decision.estimate.half_width_ms is None
    longer = ended(white(0, 1500), Rule(max_steps=1500), rare)
    assert longer.reason == "interval"
    assert longer.estimate
    assert longer.estimate.steps >= needed


def test_known_stalls_that_cost_next_to_nothing_withhold_nothing() -> None:
    cheap = Known(calm_steps=400, calm_ms=4e4, steps=4000, stalls=2, excess=2.0)
    found = ended(white(0, 500), Rule(), cheap).estimate
    assert found
    assert found.why_not == ""
    assert found.steps < 150


def test_fixed_steps_are_judged_as_those_that_chose_their_number() -> None:
    window = white(0, 300)
    found = steady.fixed(window)
    assert found
    assert (found.start, found.steps, found.why_not) == (0, 300, "")
    assert found.half_width_ms == steady.half_width(window, steady.effective_steps(window))
    shorter = steady.fixed(window[:100])
    assert shorter
    assert shorter.why_not == "too short to know"
    assert steady.fixed(window[:19]) is None


def test_what_is_known_survives_json() -> None:
    known = learnt(CALM, stalling(0, 300, every=60, factor=1.5), 10)
    assert Known(**json.loads(json.dumps(dataclasses.asdict(known)))) == known


@pytest.mark.parametrize("seed", range(10))
def test_a_warm_up_in_stairs_is_over_at_its_last_stair(seed: int) -> None:
    trace = white(seed, 260)
    for end in (12, 24, 36, 48):
        trace[:end] += 10
    found = estimate(trace)
    assert found
    assert 44 <= found.start <= 60
    assert found.why_not == ("too short to know" if found.steps < CALM_STEPS else "")


@pytest.mark.parametrize("share", [-0.12, -0.08, -0.05, -0.03, 0.03, 0.05, 0.08, 0.12])
def test_each_drift_of_three_percent_is_seen_by_a_trial_of_which_nothing_is_known(share: float) -> None:
    for seed in range(20):
        found = ended(white(seed, 500) * np.exp(share / 100 * np.arange(500)), Rule()).estimate
        assert found
        assert found.why_not == "drift"


def test_a_longer_shortest_window_is_kept() -> None:
    found = ended(white(0, 500, spread=0.01), Rule(min_window=300)).estimate
    assert found
    assert 300 <= found.steps <= 1.2 * 300


def test_a_restless_trial_stops_at_max_steps() -> None:
    decision = ended(white(0, 100, spread=0.2), Rule(max_steps=100), CALM)
    assert decision.reason == "max_steps"
    assert decision.estimate
    assert decision.estimate.half_width_ms is not None
    assert decision.estimate.half_width_ms > 0.01 * decision.estimate.mean_ms


def test_the_last_step_decides_though_no_block_ends_there() -> None:
    assert decide(white(0, 97, spread=0.2), Rule(max_steps=97)).reason == "max_steps"


def test_steps_that_all_take_the_same_are_known_exactly() -> None:
    decision = ended(np.full(100, 100.0), Rule(max_steps=100), CALM)
    assert decision.reason == "interval"
    assert decision.estimate
    assert (decision.estimate.mean_ms, decision.estimate.half_width_ms) == (100.0, 0.0)


def looks(rule: Rule, known: Known) -> list[int]:
    found = [next_look(0, rule, known)]
    while found[-1] < rule.max_steps:
        found.append(next_look(found[-1], rule, known))
    return found


def test_a_trace_is_looked_at_at_a_block_s_end_once_it_has_grown_by_a_tenth() -> None:
    found = looks(Rule(max_steps=2001), CALM)
    assert all(n % 5 == 0 for n in found[:-1])
    assert (found[:2], found[-1]) == ([50, 55], 2001)
    assert all(n < 1.1 * last + 10 for last, n in itertools.pairwise(found))
    assert len(found) < 50


def test_no_look_comes_before_a_trace_could_stop() -> None:
    assert looks(Rule(), NOTHING)[0] >= 10 + CALM_STEPS
    assert looks(Rule(min_window=100), CALM)[0] >= 110
    assert looks(Rule(max_steps=97), NOTHING) == [97]


@given(st.integers(1, 300), st.integers(0, 50))
@settings(deadline=None)
def test_asked_at_any_step_it_answers_as_at_the_last_look(steps: int, seed: int) -> None:
    trace, rule = white(seed, 300), Rule(max_steps=300)
    before = [n for n in looks(rule, CALM) if n <= steps]
    expected = decide(trace[: before[-1]], rule, CALM) if before else steady.Decision(kind="go on")
    assert decide(trace[:steps], rule, CALM) == expected


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
    stops = [ended(autoregressive(seed, 500, phi), Rule(), CALM) for seed in range(75)]
    widths = [(one.estimate.mean_ms, one.estimate.half_width_ms) for one in stops if one.estimate]
    covered = [abs(mean - 100) <= half for mean, half in widths if half is not None]
    assert 0.90 <= np.mean(covered) <= 0.99
    assert np.mean([stop.reason == "interval" for stop in stops]) > 0.95
