"""What limits a trial, on planted step times with known shares."""

from __future__ import annotations

import dataclasses

import pytest

from sweeps import limits, rows
from sweeps.limits import Share, Shares
from tests.unit.records import config, record, report
from workers.contract import Measurement, TrialConfig, Without


def trial(**fields: object) -> TrialConfig:
    return dataclasses.replace(config(gpus=2), **{"data": "images", "explain": True} | fields)  # type: ignore[arg-type]


def measured(whole: list[list[float]], **without: list[list[float]]) -> Measurement:
    """A measurement with these step times of each rank, in the window and without a part."""
    names: dict[str, Without] = {"input": "input", "comm": "comm", "both": "both"}
    ranks = (
        dataclasses.replace(
            report(n, 10, steps), without_ms={names[part]: tuple(times[n]) for part, times in without.items()}
        )
        for n, steps in enumerate(whole)
    )
    return Measurement(ranks=tuple(ranks))


def test_a_share_is_what_a_step_loses_when_the_part_is_taken_away() -> None:
    found = limits.shares(
        measured([[10, 10, 10]] * 2, input=[[6, 6]] * 2, comm=[[9, 9]] * 2, both=[[5, 5]] * 2), trial()
    )
    assert found
    assert (found.input.value, found.comm.value, found.compute.value) == pytest.approx((0.4, 0.1, 0.5))
    assert found.overlap == pytest.approx(0)
    assert found.input.half_width == pytest.approx(0)


def test_time_that_two_parts_hide_behind_each_other_is_overlap() -> None:
    """Input of 10 ms beside 4 ms of computing and 2 of reduction: taking the reduction away saves nothing."""
    found = limits.shares(
        measured([[10, 10, 10]] * 2, input=[[6, 6]] * 2, comm=[[10, 10]] * 2, both=[[4, 4]] * 2), trial()
    )
    assert found
    assert (found.input.value, found.comm.value, found.compute.value) == pytest.approx((0.4, 0.0, 0.4))
    assert found.overlap == pytest.approx(0.2)


def test_the_slowest_rank_counts() -> None:
    found = limits.shares(measured([[8, 8], [10, 10]], comm=[[2, 2], [5, 5]]), trial(data="synthetic"))
    assert found
    assert found.comm.value == pytest.approx(0.5)


def test_the_interval_is_what_blocks_of_the_window_differ_by() -> None:
    """Blocks of two steps with means 9, 10 and 11: a block of two without communication is as unsure."""
    found = limits.shares(measured([[9, 9, 10, 10, 11, 11]] * 2, comm=[[5, 5]] * 2), trial(data="synthetic"))
    assert found
    assert found.compute.half_width == pytest.approx(0.5 * 4.302653 * (1 / 10) * (1 + 1 / 3) ** 0.5)
    assert found.comm.half_width == found.compute.half_width


def test_a_block_that_is_noisier_than_the_window_says_so_itself() -> None:
    found = limits.shares(measured([[10.0] * 6] * 2, comm=[[4, 6]] * 2), trial(data="synthetic"))
    assert found
    assert found.compute.half_width == pytest.approx(0.5 * 4.302653 * (1 / 5) * (1 + 1 / 3) ** 0.5)


def test_a_rank_alone_on_synthetic_data_only_computes() -> None:
    found = limits.shares(measured([[10, 10]]), trial(gpus=1, data="synthetic"))
    assert found == Shares(input=Share(0, 0), comm=Share(0, 0), compute=Share(1, 0))


def test_nothing_is_said_of_what_was_not_looked_for() -> None:
    assert limits.shares(measured([[10, 10]] * 2), trial()) is None
    assert limits.shares(measured([[10, 10]]), trial(gpus=1, data="synthetic", explain=False)) is None
    assert rows.limited_by(record(trial(explain=False))) == ""


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((0.41, 0.05, 0.54), "input-bound: 41% ± 3% of a step waits for 4 decode threads; 7 would do"),
        ((0.2, 0.35, 0.45), "communication-bound: 35% ± 3% of a step is reduction over 8 ranks"),
        ((0.02, 0.04, 0.94), "compute-bound: 94% ± 3% of a step is computing"),
        ((-0.01, -0.02, 1.03), "compute-bound: 103% ± 3% of a step is computing"),
    ],
)
def test_the_verdict_names_the_largest_wait_or_the_computing(shares: tuple[float, ...], words: str) -> None:
    found = Shares(**dict(zip(("input", "comm", "compute"), (Share(s, 0.03) for s in shares), strict=True)))
    assert limits.verdict(found, gpus=8, decode_threads=4) == words


def test_input_that_nothing_decodes_is_called_input() -> None:
    found = Shares(input=Share(0.5, 0.01), comm=Share(0, 0), compute=Share(0.5, 0.01))
    assert limits.verdict(found, gpus=1, decode_threads=0) == "input-bound: 50% ± 1% of a step waits for its input"
