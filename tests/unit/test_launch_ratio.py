"""How benchmarks/launch.py lets the ways take turns, and what it makes of their seconds."""

from __future__ import annotations

import pytest

import launch
import verdicts


def a_round(ours: float, executor: float, trainer: float) -> dict[str, list[float]]:
    """The median is the second of three."""
    ways = {"sweep": ours, "ray_executor": executor, "horovod_trainer": trainer}
    return {way: [0.9 * seconds, seconds, 2 * seconds] for way, seconds in ways.items()}


def test_a_ratio_is_of_one_round_so_that_a_machine_that_slows_down_moves_none() -> None:
    found = launch.figures([a_round(0.2, 4.0, 5.0), a_round(0.4, 8.0, 10.0), a_round(0.3, 6.0, 7.5)])
    for end in ("", "_least", "_most"):
        assert found[f"speedup_over_ray_executor{end}"] == pytest.approx(20)
        assert found[f"speedup_over_horovod_trainer{end}"] == pytest.approx(25)
    assert found["median_s"] == pytest.approx(0.36)
    assert (found["rounds"], found["trials"]) == (3, 9)


def test_the_spread_of_the_ratio_is_kept_and_the_least_of_it_is_bounded_over_the_faster_peer() -> None:
    found = launch.figures([a_round(0.2, 4.0, 5.0), a_round(0.2, 6.0, 3.0), a_round(0.2, 2.2, 5.0)])
    assert found["speedup_over_faster_peer"] == pytest.approx(15)
    assert found["speedup_over_faster_peer_least"] == pytest.approx(11)
    assert found["speedup_over_faster_peer_most"] == pytest.approx(20)
    assert verdicts.unmet(found, launch.BOUNDS) == ["speedup_over_faster_peer_least"]


def test_every_way_has_its_turn_in_each_round_and_each_round_begins_with_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took: list[str] = []

    def turn(way: str) -> list[float]:
        took.append(way)
        return [100.0, 1.0, 2.0, 3.0]

    monkeypatch.setattr(launch, "turn", turn)
    rounds = launch.taken_in_turns(3)
    assert [{*took[n : n + 3]} for n in (0, 3, 6)] == [{*launch.WAYS}] * 3
    assert {took[n] for n in (0, 3, 6)} == {*launch.WAYS}
    assert rounds[0]["sweep"] == [1.0, 2.0, 3.0], "the first of a turn does not count"


def test_a_way_that_does_not_run_ends_it_with_what_it_said() -> None:
    with pytest.raises(SystemExit, match=r"nobody did not run:(.|\n)*no attribute 'nobody'"):
        launch.turn("nobody")
