"""What a sweep says of its axes: no more than its repeats show, and the same in the report as on the console."""

from __future__ import annotations

import importlib
import json
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sweeps import analysis, report
from sweeps.analysis import findings, joint, noise
from sweeps.analysis.findings import Finding, axes
from sweeps.analysis.study import Study
from sweeps.report.page import rich
from tests.unit import studies
from workers.contract.messages import TrialConfig

GRID = "{name: axes, model: tiny, device: cpu, repeats: 3, space: {batch_size: [8, 16], gpus: [1, 2], precision: fp32}}"
FORMATS = (
    "{name: axes, model: tiny, device: cpu, emulate: true, repeats: 3,"
    " space: {batch_size: [8, 16, 32], gpus: 1, precision: [fp32, fp16]}}"
)
effects = importlib.import_module("sweeps.analysis.effects")  # the module, whose name a function of its own takes
NOISE = {0: 0.99, 1: 1.0, 2: 1.01}


def study(rate: Callable[[TrialConfig], float], text: str = GRID) -> Study:
    """1% of noise in the repeats."""
    return studies.planted(text, lambda config: rate(config) * NOISE[config.repeat])


def told(made: Study, rule: str) -> list[Finding]:
    return [one for one in findings.find(made).notes if one.rule == rule]


def test_differences_that_repeats_could_make_are_nobody_s() -> None:
    """Means of 100, 101, 100 and 101, each of repeats that differ by more."""
    (found,) = told(study(lambda config: 100.0 if config.batch_size == 8 else 101.0), "what matters")
    assert found.sureness == "open"
    assert found.says == "Which axis matters is open: the cells differ in throughput by no more than their repeats do."


def test_the_axis_that_explains_the_most_is_named_with_what_it_explains_at_least_and_at_most() -> None:
    made = study(lambda config: config.batch_size**0.9 * config.gpus**0.3)
    (found,) = told(made, "what matters")
    assert found.sureness == "shown"
    assert found.says.startswith(
        "Of the differences in throughput between the cells, **batch size** explains the most by itself: batch size 90%"
    )
    low, share, high = (found.evidence[f"batch_size_share{end}"] for end in ("_low", "", "_high"))
    assert found.evidence["gpus_share_high"] < low < share < high < 1
    assert f"batch size {share:.0%} ({low:.0%} to {high:.0%})" in found.says


def test_of_two_axes_that_explain_as_much_none_is_said_to_explain_the_most() -> None:
    (found,) = told(study(lambda config: config.batch_size**0.9 * config.gpus**0.88), "what matters")
    assert found.sureness == "open"
    assert found.says.startswith("Which axis explains most of the differences in throughput is open: batch size 51% (")


def test_of_single_repeats_shares_are_by_means() -> None:
    made = study(lambda config: float(config.batch_size * config.gpus), GRID.replace("repeats: 3", "repeats: 1"))
    (found,) = told(made, "what matters")
    assert found.sureness == "estimated"
    assert found.says.startswith("By means, ")
    assert " to " not in found.says
    assert math.isnan(found.evidence["gpus_share_low"])


def test_of_axes_whose_every_value_was_tried_once_nothing_is_said() -> None:
    """What one explains, the other does as well."""
    text = GRID.replace("[8, 16], gpus: [1, 2]", "[8, 16, 32, 64], gpus: [1, 2, 4, 8]").replace(
        "repeats: 3", "where: batch_size == 8 * gpus, repeats: 3"
    )
    assert not told(study(lambda config: float(config.batch_size), text), "what matters")


def test_what_two_axes_explain_together_is_named_where_it_is_shown() -> None:
    def rate(config: TrialConfig) -> float:
        return config.batch_size * (2.0 if config.batch_size == 16 and config.gpus == 2 else 1.0)

    (found,) = told(study(rate), "what matters")
    assert "Together, beyond each by itself: ranks with batch size " in found.says
    (none,) = told(study(lambda config: float(config.batch_size * config.gpus)), "what matters")
    assert "Together" not in none.says


def test_the_true_shares_lie_within_all_of_their_intervals_in_at_least_95_of_100_sweeps() -> None:
    """Each of two by three cells, with its own truth, noise and number of repeats; of both axes and of their pair."""
    drawn = np.random.default_rng(7)
    gpus, batches = np.repeat([0.0, 1.0], 3)[:, None], np.tile(np.eye(3)[:, 1:], (2, 1))
    pair = gpus * batches
    alone, of_all = [gpus, batches], [gpus, batches, pair]

    def shares(logs: Any) -> list[float]:
        total, left = effects._left_over(logs, []), effects._left_over(logs, alone)
        of_axes = [effects._left_over(logs, [other]) - left for other in (batches, gpus)]
        return [share / total for share in (*of_axes, left - effects._left_over(logs, of_all))]

    sweeps, wrong, widths = 500, 0, []
    for _ in range(sweeps):
        n, noise_of_all = int(drawn.choice([2, 3, 5])), drawn.uniform(0.005, 0.05)
        slope, both = drawn.uniform(0.0, 0.2), drawn.uniform(0.0, 0.1)
        true = slope * gpus[:, 0] + both * drawn.standard_normal(6)
        measured = true[:, None] + noise_of_all * drawn.standard_normal((6, n))
        variances, freedom = noise.moderated(measured.var(axis=1, ddof=1), np.full(6, n - 1))
        error = float(joint.half_width(variances / n, freedom, analysis.CONFIDENCE))
        means = measured.mean(axis=1)
        total = effects._left_over(means, [])
        ends = [effects._ends(share, total, error) for share in shares(means)]
        wrong += not all(low <= share <= high for share, (low, high) in zip(shares(true), ends, strict=True))
        widths += [high - low for low, high in ends]
    assert wrong <= 0.05 * sweeps
    assert sorted(widths)[len(widths) // 4] < 0.5, "they say something"


def test_each_number_format_is_given_from_its_least_to_its_largest_ratio_with_intervals_that_hold_together() -> None:
    def rate(config: TrialConfig) -> float:
        gain = {8: 1.0, 16: 1.2, 32: 2.0}[config.batch_size]
        return 100.0 * config.batch_size * (gain if config.precision == "fp16" else 1.0)

    made = study(rate, FORMATS)
    (found,) = told(made, "precision")
    assert found.sureness == "open"
    low, high = (found.evidence[name] for name in ("lowest_low", "lowest_high"))
    assert low < 1 < high
    assert found.says.startswith(f"All else equal, fp16 trains **1.00×** ({low:.2f} to {high:.2f}) to **2.00×** (1.9")
    assert found.says.endswith("as fast as fp32: faster in 2, slower in 0 and not told apart in 1 of 3 settings.")
    (alone,) = told(study(rate, FORMATS.replace("[8, 16, 32]", "32")), "precision")
    assert alone.sureness == "shown"
    widths = [one.evidence["highest_high"] - one.evidence["highest_low"] for one in (found, alone)]
    assert all(0 < width < 0.2 for width in widths)


def test_a_ratio_is_held_in_a_wider_interval_beside_more_ratios() -> None:
    def width(batches: str) -> float:
        made = study(lambda config: 100.0 * config.batch_size, FORMATS.replace("[8, 16, 32]", batches))
        return max(gain.high - gain.low for gain in axes.gains(made, "precision"))

    assert width("[8, 16, 32]") < width("[8, 16, 32, 64, 128, 256]")


def test_equal_formats_are_not_called_faster_by_the_highest_of_many_ratios() -> None:
    drawn = random.Random(3)
    text = FORMATS.replace("[8, 16, 32]", "{log2: [1, 512]}")
    made = studies.planted(text, lambda config: 100.0 * math.exp(drawn.gauss(0, 0.02)))
    (found,) = told(made, "precision")
    assert found.evidence["highest"] > 1.01
    assert "faster in 0, slower in 0 and not told apart in 10 of 10 settings" in found.says


def test_formats_of_single_repeats_are_by_means() -> None:
    made = study(lambda config: 100.0 * config.batch_size, FORMATS.replace("repeats: 3", "repeats: 1"))
    (found,) = told(made, "precision")
    assert found.sureness == "estimated"
    assert found.says == (
        "All else equal, fp16 trains **1.00×** to **1.00×** as fast as fp32; by means, as 3 of 3 ratios rest on single"
        " repeats."
    )


@pytest.mark.parametrize(
    ("text", "rule", "section"), [(GRID, "what matters", "effects"), (FORMATS, "precision", "precision")]
)
def test_the_report_s_section_says_what_console_and_mlflow_say_and_nothing_else_of_it(
    text: str, rule: str, section: str
) -> None:
    made = study(lambda config: float(config.batch_size * config.gpus), text)
    (found,) = told(made, rule)
    (lead,) = [one.lead for one in report.sections(made) if one.name == section]
    assert lead.endswith(found.says)
    if section == "effects":
        assert lead == found.says
    assert found.plain in findings.find(made).lines()
    assert report.html(made).count(rich(found.says)) == 2, "on the first screen, and in its section"
    assert found.plain in [row["says"] for row in json.loads(report.concluded(made).findings)]
