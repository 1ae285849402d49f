"""How the benchmark of overlapped reduction judges trials, and that it says so where there can be none."""

from __future__ import annotations

import json
from typing import Any

import pytest

import link
import overlap
import verdicts
from sweeps.spec import plan, sweep_file
from tests.cluster import hosts


def row(how: str, images_per_s: float, overlap_share: float, comm_share: float = 0.5) -> dict[str, Any]:
    return {
        "reduction": how,
        "images_per_s": images_per_s,
        "overlap_share": overlap_share,
        "comm_share": comm_share,
    }


GROUPED = [row("grouped", rate, share) for rate, share in ((20.0, 0.01), (20.2, -0.01), (19.8, 0.0), (20.1, 0.0))]


def unmet(*overlapped: tuple[float, float], grouped: list[dict[str, Any]] = GROUPED) -> list[str]:
    rows = [*(row("overlapped", rate, share) for rate, share in overlapped), *grouped]
    return verdicts.unmet(overlap.figures(rows), overlap.BOUNDS)


def test_overlapped_trials_that_are_faster_and_hide_more_meet_every_bound() -> None:
    assert unmet((24.0, 0.2), (24.3, 0.22), (23.8, 0.18), (24.1, 0.2)) == []


def test_a_gain_that_may_be_chance_is_not_met() -> None:
    assert "gain_low" in unmet((20.0, 0.2), (21.0, 0.22), (19.5, 0.18), (20.6, 0.2))


def test_hiding_nothing_for_sure_is_not_met() -> None:
    assert {"overlap_share_low", "more_hidden_low"} <= {*unmet((24.0, 0.2), (24.3, -0.2), (23.8, 0.1), (24.1, 0.0))}


RATES, SHARES = (24.0, 24.3, 23.8, 24.1), (0.2, 0.22, 0.18, 0.2)


@pytest.mark.parametrize(
    ("factor", "found"),
    [
        (2.0, ["hidden_over_gain_high"]),
        (1.0, []),
        (0.5, ["hidden_over_gain_low"]),
        (0.2, ["hidden_over_gain_low"]),
    ],
)
def test_a_share_that_is_not_what_the_step_gains_is_not_met(factor: float, found: list[str]) -> None:
    shares = zip(RATES, (factor * share for share in SHARES), strict=True)
    assert unmet(*shares) == found


def test_a_reduction_that_is_timed_too_long_shows_where_nothing_hides() -> None:
    """Alone it takes 0.2 of an overlapped step more than it does, so both ways seem to hide that."""
    grouped = [one | {"overlap_share": one["overlap_share"] + 0.2 * one["images_per_s"] / 24.05} for one in GROUPED]
    shares = zip(RATES, (share + 0.2 for share in SHARES), strict=True)
    assert unmet(*shares, grouped=grouped) == ["grouped_overlap_share"]


def test_what_hides_over_what_is_gained_is_one_where_the_shares_are_true() -> None:
    """Steps of 1 s, grouped 1.25: a quarter of an overlapped step hides, and nothing of a grouped one."""
    rows = [row("overlapped", 10.0, 0.25), row("overlapped", 10.0, 0.25), row("grouped", 8.0, 0.0)]
    assert overlap.hidden_over_gain([*rows, row("grouped", 8.0, 0.0)]) == pytest.approx((1.0, 0.0))


def test_a_link_at_which_reducing_takes_little_of_a_step_shows_nothing() -> None:
    quick = [one | {"comm_share": 0.1} for one in GROUPED]
    found = unmet((24.0, 0.2), (24.3, 0.22), (23.8, 0.18), (24.1, 0.2), grouped=quick)
    assert found == ["grouped_comm_share"]


def test_equal_trials_are_no_gain() -> None:
    assert overlap.low_of_difference([1.0, 1.0], [1.0, 1.0]) == 0


def test_its_sweep_holds_the_two_ways_of_reducing() -> None:
    planned = plan.plan(sweep_file.parse(overlap.SWEEP.replace("REPEATS", "2"), "x")).trials
    assert sorted(trial.reduction for trial in planned) == sorted([*overlap.HOWS] * 2)


@pytest.mark.parametrize("ask", [lambda: link.main(1), lambda: overlap.main(2500, 2)], ids=["link", "overlap"])
def test_where_there_can_be_no_hosts_it_is_skipped_with_the_reason(
    ask: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "lacking", lambda: "hosts need root")
    assert ask() == 0
    assert json.loads(capsys.readouterr().out) == {"skipped": "hosts need root"}
