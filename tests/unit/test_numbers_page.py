"""docs/read-the-numbers.md holds no result that somebody copied: what a run has measured stands in README's table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import claims
import intervals
from sweeps.spec.keys import Stop
from workers.contract.messages import CALM_STEPS

PAGE = Path(__file__).parents[2] / "docs" / "read-the-numbers.md"
LOOKS_MEASURED = re.compile(r"\d+(?:\.\d+)?%|\d+ times in 100|\d+ times(?!\.)|(?:\d+ to )?\d+ of \d+|\d+ points")


def missed(steps: int, one_in: int) -> float:
    """The chance that a stall of one step in so many shows in none of these."""
    return (1 - 1 / one_in) ** steps


FOLLOWING = (  # from the code
    f"narrower than `stop: {{ci: {Stop().ci:.0%}}}`",
    f"{CALM_STEPS} steps miss a stall that hits 1 step in 50 in {missed(CALM_STEPS, 50):.0%} of cases, "
    f"{Stop().min_window} steps in {missed(Stop().min_window, 50):.0%}",
    f"misses a stall of 1 in 50 steps that has just begun {100 * missed(48, 50):.0f} times in 100, "
    f"one of 1 in 20 {100 * missed(48, 20):.0f} times",
    f"a first window misses one of 1 in 200 steps in {10 * missed(CALM_STEPS, 200):.0f} of 10 trials",
)
SAID = (  # a confidence, a limit, or an example of what the product prints
    "95% interval", "half of the 95% t-interval", "Intervals are 95%", "less often than in 95 of 100 trials",
    "together at 95%", "1 − 5%/k times", "in 5% of sweeps at most", "no better than ±10%",
    '"97% within the node, 92% across"', "`open: input 11% ± 11%, communication 8% ± 9%; more repeats",
    "`--fail-if slower:3%`", "by 3% at best estimate",
)  # fmt: skip

HELD = (  # by other tests: of shares' planted worlds, of real decoding, of the benchmark's own bounds
    "where eight leave a cell ± 10%, three leave it ± 30%", "waited for its input by more than 2%",
    "would hide a wait of 3% for 66 steps", "planted waits of 3% to 14.5%", "are told within 0.2 points",
    "single trials were off by up to 5 points", "a test holds them together within 10 points",
)  # fmt: skip


def test_whatever_looks_measured_follows_from_the_code_or_is_a_limit_or_an_example() -> None:
    text = " ".join(PAGE.read_text().split())
    for phrase in (*FOLLOWING, *SAID, *HELD):
        assert phrase in text
        text = text.replace(phrase, "")
    assert not LOOKS_MEASURED.findall(text), "quote a result in benchmarks/claims.py, or derive it here"


@pytest.mark.parametrize("copied", ["in 12% to 14% of the trials", "in 3 to 4 of 10", "0.05% of a core", "1.8 points"])
def test_a_copied_result_looks_measured(copied: str) -> None:
    assert LOOKS_MEASURED.search(copied)


def test_of_trials_behind_a_change_nothing_is_claimed_that_has_no_bound() -> None:
    (claim,) = (one for one in claims.CLAIMS if one.benchmark == "intervals")
    quoted = {name for name in claim.quoted() if "calm_then" in name}
    assert quoted
    trial = intervals.TraceTrial(steps=258, why_not="", is_right=True, is_naively_right=True)
    trials = [trial, intervals.TraceTrial(**vars(trial) | {"since": 1})]
    for name in quoted:
        _, bounds = intervals.judged("calm_then_" + name.partition("calm_then_")[2], trials)
        assert name in bounds
