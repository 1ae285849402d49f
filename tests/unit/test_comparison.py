"""One sweep against another, on planted figures whose verdicts are known."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.analysis import comparison, noise, references
from sweeps.analysis.comparison import Comparison, compare
from sweeps.cli import diff
from sweeps.errors import InputError
from tests.examples import examples
from tests.unit.planted import frame, repeats, trial


def noisy(rate: float, spread: float = 0.005, n: int = 3, seed: str = "", **columns: Any) -> list[dict[str, Any]]:
    drawn = random.Random(f"{seed}{sorted(columns.items())}")
    return repeats([rate * math.exp(drawn.gauss(0, spread)) for _ in range(n)], **columns)


def grid(factor: dict[int, float], seed: str = "", **columns: Any) -> pd.DataFrame:
    """Ten batch sizes, each slower or faster than usual by its factor."""
    sizes = [2**n for n in range(10)]
    return frame(*(noisy(100.0 * b * factor.get(b, 1.0), seed=seed, batch_size=b, **columns) for b in sizes))


def verdicts(found: Comparison) -> dict[Any, str]:
    return dict(zip(found.cells["batch_size"], found.cells["verdict"], strict=True))


def test_what_is_slower_is_found_and_the_rest_is_left_alone() -> None:
    found = compare(grid({}, "a"), grid({8: 0.95, 64: 1.04}, "b"))
    assert {b: v for b, v in verdicts(found).items() if v != "no difference seen"} == {8: "slower", 64: "faster"}
    row = found.cells.set_index("batch_size").loc[8]
    assert row["ratio_low"] < 0.95 < row["ratio_high"]
    assert row["ratio_high"] < 1
    assert (row["n_a"], row["n_b"]) == (3, 3)


def test_many_comparisons_of_the_same_thing_show_a_difference_as_seldom_as_promised() -> None:
    """In one sweep of twenty at most, however many cells it has."""
    alarms = sum(compare(grid({}, f"a{n}"), grid({}, f"b{n}")).count("no difference seen") < 10 for n in range(8))
    assert alarms <= 1, "two or more of 8 come up once in 17; test_joint has 1,000 such sweeps without their tables"


def test_the_sides_may_differ_in_a_parameter_that_each_holds_to_one_value() -> None:
    found = compare(grid({}, "a", xla=False), grid({}, "b", xla=True, hardware="bbbb"))
    assert found.differs == {"xla": ("false", "true"), "hardware": ("aaaa", "bbbb")}
    assert found.compared == 10


def test_a_variable_that_one_side_never_sets_is_part_of_the_difference() -> None:
    found = compare(grid({}, "a"), grid({}, "b", **{"env.NCCL_ALGO": "Tree"}))
    assert found.differs == {"env.NCCL_ALGO": ("none", "Tree")}
    assert found.compared == 10


def test_an_axis_that_varies_on_one_side_matches_where_the_other_stands() -> None:
    a = frame(*(noisy(100.0 * g, gpus=g) for g in (1, 2, 4)))
    found = compare(a, frame(noisy(420.0, seed="b", gpus=4)))
    assert dict(zip(found.cells["gpus"], found.cells["why"], strict=True)) == {1: "only in A", 2: "only in A", 4: ""}


@pytest.mark.parametrize(
    ("b", "why"),
    [
        ([trial(outcome="failed", kind="killed")], "B: 1 failed (killed), no figure"),
        ([trial(99.0)], "a single repeat in B has no interval"),
        ([trial(99.0), trial(98.0, repeat=1, hardware="cccc")], "B has 2 hardware fingerprints: choose with @aaaa"),
        ([trial(100.0, kind="cached"), trial(101.0, repeat=1, kind="cached")], "the same measurement on both sides"),
    ],
)
def test_what_can_not_be_compared_says_why(b: list[dict[str, Any]], why: str) -> None:
    found = compare(frame(repeats([100.0, 101.0, 99.5])), frame(b))
    (row,) = found.cells.to_dict("records")
    assert row["verdict"] == "not comparable"
    assert row["why"].startswith(why)
    assert found.lost == ("failed" in why)


def test_less_time_is_faster() -> None:
    a, b = (frame([trial(100.0, repeat=n, step_ms_p50=ms + n / 10) for n in range(3)]) for ms in (80.0, 100.0))
    (row,) = compare(a, b, "step_ms_p50").cells.to_dict("records")
    assert row["verdict"] == "slower"
    assert row["ratio"] == pytest.approx(1.25, rel=1e-3)
    with pytest.raises(InputError, match="images_per_s"):
        compare(a, b, "loss")


def test_a_crossover_is_named_with_where_it_is() -> None:
    factor = {1: 0.8, 2: 0.8, 4: 0.9, 16: 1.1, 32: 1.2}
    found = compare(
        pd.concat([grid({}, "a", gpus=1), grid({}, "a", gpus=2)]),
        pd.concat([grid(factor, "b", gpus=1), grid({}, "b", gpus=2)]),
    )
    assert [str(one) for one in found.crossovers] == ["B is slower up to batch_size 4, faster from 16 at gpus 1"]


def test_a_published_figure_stands_as_it_is_on_either_side() -> None:
    ours = frame(
        noisy(5500.0, model="resnet50", precision="fp16", batch_size=128, gpus=8),
        [
            trial(5300.0 + n, repeat=n, model="resnet50", precision="fp16", batch_size=128, gpus=8, nodes=8.0,
                  placement="spread")
            for n in range(3)
        ],
    )  # fmt: skip
    published = references.trials("C4140-M")
    for swapped in (False, True):
        found = compare(published, ours) if swapped else compare(ours, published)
        known = found.cells[found.cells["verdict"] != "not comparable"]
        assert known["placement"].tolist() == ["pack"], "published on two nodes"
        assert known["ratio"].iloc[0] == pytest.approx(5500 / 5904 if swapped else 5904 / 5500, rel=0.01)
        assert known["verdict"].tolist() == ["slower" if swapped else "faster"]


def test_two_published_systems_have_ratios_and_no_verdicts() -> None:
    found = compare(references.trials("C4140-K"), references.trials("C4140-M"))
    assert found.compared == 0
    ratios = found.cells.query("gpus == 8").set_index("model")["ratio"]
    assert ratios["resnet50"] == pytest.approx(5904 / 4500)


def test_a_gate_fails_for_what_is_surely_slower_by_so_much() -> None:
    found = compare(grid({}, "a"), grid({8: 0.95}, "b"))
    assert diff.exit_code(found, diff.gate("slower:3%")) == 1
    assert diff.failure(found, diff.gate("slower:3%")) == "1 of 10 cells slower by 3% or more"
    assert diff.exit_code(found, diff.gate("slower:10%")) == 0
    assert diff.exit_code(found, diff.gate("faster:3%")) == 0
    assert diff.exit_code(found, None) == 0


def test_a_gate_that_could_judge_nothing_fails_and_so_does_one_whose_cells_are_gone() -> None:
    nothing = compare(grid({}, "a"), grid({}, "b", hardware="bbbb").query("batch_size > 1000"))
    assert diff.failure(nothing, diff.gate("slower:3%")) == "no cell could be compared"
    gone = pd.concat([grid({}, "b").query("batch_size > 1"), frame(trial(batch_size=1, outcome="failed"))])
    assert "1 cells of A have no figure in B" in diff.failure(compare(grid({}, "a"), gone), diff.gate("slower:3%"))


@pytest.mark.parametrize("text", ["slower", "slower:3%", "faster:0.5%"])
def test_a_gate_reads(text: str) -> None:
    assert diff.gate(text).verdict == text.split(":")[0]


@pytest.mark.parametrize("text", ["", "slower:3", "slow:3%", "slower:-3%", "slower:%"])
def test_a_gate_that_makes_no_sense_is_a_mistake(text: str) -> None:
    with pytest.raises(InputError, match="slower:3%"):
        diff.gate(text)


def test_a_machine_is_chosen_by_the_beginning_of_its_fingerprint() -> None:
    both = frame(
        trial(1.0, hardware="abc1"), trial(2.0, hardware="abd1", repeat=1), trial(repeat=2, outcome="lost", hardware="")
    )
    assert diff.on_machine(both, "abd", "x")["images_per_s"].dropna().tolist() == [2.0]
    for digest in ("ab", "zz", ""):
        with pytest.raises(InputError, match="abc1, abd1"):
            diff.on_machine(both, digest, "x")


def test_variances_of_like_cells_are_shared_and_those_of_unlike_ones_are_not() -> None:
    drawn = np.random.default_rng(1)
    alike = drawn.chisquare(4, 200) / 4
    shared, _ = noise.moderated(alike, np.full(200, 4))
    assert shared.std() < 0.15 * alike.std()
    assert shared.mean() == pytest.approx(1, rel=0.1)
    unlike = alike * 10 ** drawn.uniform(-4, 4, 200)
    own, few = noise.moderated(unlike, np.full(200, 4))
    assert few.max() < 5
    assert np.median(np.abs(np.log(own / unlike))) < 0.2
    assert np.isnan(noise.moderated([np.nan], [0])[0]).all()


rates = st.lists(st.floats(50, 200), min_size=2, max_size=4)


@examples(12)  # tables take long, cells don't: six in each, on average
@given(st.lists(st.tuples(rates, rates), min_size=1, max_size=12), st.sampled_from(["images_per_s", "step_ms_mean"]))
def test_a_verdict_never_stands_beside_an_interval_that_says_otherwise(
    cells: list[tuple[list[float], list[float]]], figure: str
) -> None:
    """Nor beside its p, nor beside the interval as it is written."""
    sides_ = [frame(*(repeats(pair[n], batch_size=2**at) for at, pair in enumerate(cells))) for n in (0, 1)]
    found = compare(*sides_, figure)
    assert found.compared == len(cells)
    up = "faster" if comparison.FIGURES[figure] else "slower"
    down = {"faster": "slower", "slower": "faster"}[up]
    written = diff._written(found.cells, found.axes)["B ÷ A"]
    for row, words in zip(found.cells.to_dict("records"), written, strict=True):
        low, high = (float(end) for end in words.split("(")[1].rstrip(")").split(" to "))
        for least, most in ((row["ratio_low"], row["ratio_high"]), (low, high)):
            assert row["verdict"] == (up if least > 1 else down if most < 1 else "no difference seen")
        assert (row["p"] < 0.05) == (row["verdict"] != "no difference seen") or row["p"] == pytest.approx(0.05)


def test_an_interval_that_nearly_holds_1_is_written_with_digits_enough() -> None:
    row = {"ratio": 1.001, "ratio_low": 1.00004, "ratio_high": 1.002}
    assert diff._interval(row) == "1.00100 (1.00004 to 1.00200)"
    assert diff._interval(row | {"ratio_low": 0.9999}) == "1.001 (1.000 to 1.002)"


def test_the_figures_that_can_be_compared_are_known() -> None:
    assert len(comparison.FIGURES) == 8
