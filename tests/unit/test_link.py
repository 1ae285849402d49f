"""How a link is throttled and judged, on steps with known parts."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import link
import verdicts
from link import BATCH, RANKS, FreeTrial, LinkRun, LinkTurn
from sweeps.spec import plan, sweep_file
from tests.unit import records
from workers.contract.messages import RankReport

MS = st.floats(1, 1000)


def free_trial(step_ms: float) -> FreeTrial:
    return FreeTrial(1e3 * RANKS * BATCH / step_ms, parameters=1e5)


def run(computing_ms: float, waiting_ms: float, throttle_ms: float, told_ms: float = 0.0) -> LinkRun:
    """Of a step with these parts, in which this much more is told to be communication than is."""
    free_ms = computing_ms + waiting_ms
    step_ms = free_ms + throttle_ms
    share = (waiting_ms + throttle_ms + told_ms) / step_ms
    return LinkRun(share, {"free": free_ms, "throttled": step_ms, "alone": computing_ms})


@given(MS, st.floats(0, 100), st.floats(0, 1000))
def test_a_share_that_is_right_says_what_ranks_save_that_train_alone(
    computing_ms: float, waiting_ms: float, throttle_ms: float
) -> None:
    """Though ranks wait for each other without a throttle too, which is not the throttle's."""
    right = run(computing_ms, waiting_ms, throttle_ms)
    assert right.removed == pytest.approx(right.comm_share)
    assert right.throttle == pytest.approx(throttle_ms / (computing_ms + waiting_ms + throttle_ms))


@pytest.mark.parametrize(("told_ms", "is_near"), [(4, True), (-4, True), (6, False), (-6, False), (40, False)])
def test_a_share_that_is_off_by_more_than_five_points_of_a_step_is_not_near_though_it_is_off_alike_in_every_trial(
    told_ms: float, is_near: bool
) -> None:
    """Of a step of 100 ms. An error that a trial without the throttle has as well shows all the same."""
    found = [run(50, 10, 40, told_ms)] * 2
    assert link.figures(found)["near"] == is_near
    assert link.figures(found)["worst_off"] == pytest.approx(abs(told_ms) / 100)


def test_runs_whose_throttle_took_little_do_not_meet_the_bounds() -> None:
    assert verdicts.unmet(link.figures([run(50, 10, 40)] * 10), link.BOUNDS) == []
    assert verdicts.unmet(link.figures([run(50, 10, 40)] * 9 + [run(50, 10, 2)]), link.BOUNDS) == ["least_throttle"]
    assert verdicts.unmet(link.figures([run(50, 10, 40, 8)] * 2 + [run(50, 10, 40)] * 8), link.BOUNDS) == ["near"]


@pytest.mark.parametrize("share", link.SHARES)
def test_the_throttle_takes_the_share_that_is_aimed_at(share: float) -> None:
    free = free_trial(200)
    sending_s = 8e-6 * (4 * free.parameters - link.BURST_BYTES) / link.throttle_mbit(free, share)
    exposed_s = sending_s - link.HIDDEN * free.step_s
    assert exposed_s / (free.step_s + exposed_s) == pytest.approx(share, abs=0.03)


def report(ms: Sequence[float]) -> RankReport:
    """Of a window that began at 1000, whose steps took so long."""
    window_at = (1000.0, 1000.0 + sum(ms) / 1e3)
    return dataclasses.replace(records.report(0, len(ms), [*ms]), window_at=window_at)


def test_steps_that_a_turn_cuts_count_for_neither_rate() -> None:
    """Steps of 200 ms, of 400 ms over the slow link, and of 300 ms where the rate changed in them; then the trial stood
    still, which made one as long, and ranks did steps of 100 ms alone."""
    found = report([200] * 9 + [300, 400, 400, 400, 1300, 200, 200])
    taken = [
        LinkTurn(1000.1, 1002.05, "free"),
        LinkTurn(1002.06, 1003.4, "throttled"),
        LinkTurn(1003.41, 1004.41, "alone", steps=10),
        LinkTurn(1004.41, 1005.0, "free"),
    ]
    assert link.step_ms(found, taken, "free") == 200
    assert link.step_ms(found, taken, "throttled") == 400
    assert link.step_ms(found, taken, "alone") == pytest.approx(100)


class Watched:
    """Notes what a rank of the trial is sent, what the link is set to and when ranks train alone, in their order."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def send_signal(self, number: int) -> None:
        self.seen.append(signal.Signals(number).name)

    def turn(self, seconds: float) -> tuple[float, float]:
        self.seen.append("alone")
        return seconds, 10.0


def test_the_trial_stands_still_while_ranks_train_alone_and_the_throttle_is_on_once_the_turns_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    watched: Any = Watched()
    taken = list(link.take_turns(watched.seen.append, 20, 1.0, [watched], watched))
    assert watched.seen == [link.FREE_MBIT, 20, "SIGSTOP", "alone", "SIGCONT"] * link.TURNS
    assert [turn.kind for turn in taken] == ["free", "throttled", "alone"] * link.TURNS


def test_a_rank_alone_is_one_of_the_trial_s_but_for_its_end_and_for_whom_it_is_joined_with() -> None:
    (planned,) = plan.plan(sweep_file.parse(link.sweep("x", 64), "x")).trials
    alone = link.alone_fields()
    differs = {name for name, value in vars(planned).items() if alone[name] != value}
    assert differs == {"gpus", "placement", "measured_steps", "explain", "isolation", "deadlines"}
    assert (alone["gpus"], alone["batch_size"], alone["data"]) == (1, BATCH, "synthetic")


@dataclasses.dataclass
class FakeProcess:
    words: list[str]
    above: FakeProcess | None = None

    def cmdline(self) -> list[str]:
        return self.words

    def parent(self) -> FakeProcess | None:
        return self.above


def test_the_ranks_of_a_host_are_the_forks_of_its_fork_server() -> None:
    supervisor = FakeProcess(["ray::Gang"])
    server = FakeProcess(["python", "-m", "workers.launch.fork_server", "sweep-1"], supervisor)
    rank = FakeProcess(server.words, server)
    asking = FakeProcess(["python", "-c", "pass"], server)
    machine: Any = SimpleNamespace(processes=lambda: [supervisor, server, rank, asking])
    assert link.ranks_on([machine, machine]) == [rank, rank]


@pytest.mark.parametrize("share", link.SHARES)
def test_a_window_outlasts_its_turns_on_a_machine_that_becomes_a_fifth_faster(share: float) -> None:
    free = free_trial(200)
    turns_s = 2 * link.TURNS * link.turn_s(free, share)
    mean_s = 2 / (1 / free.step_s + (1 - share) / free.step_s)  # half of the time at either rate
    assert link.steps(free, share) * mean_s / 1.2 > turns_s


def test_no_link_is_so_slow_that_a_cluster_falls_apart() -> None:
    assert link.throttle_mbit(free_trial(1e6), 0.5) == link.SLOWEST_MBIT


def test_its_sweep_can_be_planned_and_its_trials_are_long_enough_to_tell_shares() -> None:
    (planned,) = plan.plan(sweep_file.parse(link.sweep("x", 64), "x")).trials
    assert (planned.global_batch, planned.gpus, planned.explain) == (BATCH * RANKS, RANKS, True)
    assert planned.measured_steps >= 16
