"""Sparklines: a block a value, linear from zero or logarithmic where the values lie far apart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.text.sparkline import BLOCKS, sparkline

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([5], "▄"),
        ([0.1, 0.1, 0.1], "▄▄▄"),
        ([0, 0], "▄▄"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇██"),
        ([0.4, 0.04, 0.004], "█▅▁"),
        ([1, 20], "▁█"),
        ([10, 20], "▅█"),
        ([0, 1, 1000], "▁▁█"),
        ([-1, 1, 2], "▁▅█"),
        ([-2, -1], "▁▁"),
        ([1, math.nan, 2, math.inf], "▅ █ "),
        ([math.nan], " "),
    ],
)
def test_values_become_blocks(values: list[float], line: str) -> None:
    assert sparkline(values) == line


@pytest.mark.parametrize(("largest", "line"), [(20, "▁▃█"), (21, "▁▆█")])
def test_the_scale_is_logarithmic_above_twenty_times_the_smallest(largest: float, line: str) -> None:
    assert sparkline([1, 7, largest]) == line


@given(st.lists(finite))
def test_every_value_has_one_block(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == len(values)
    assert set(line) <= set(BLOCKS)


@given(st.lists(finite, min_size=2))
def test_a_larger_value_is_never_drawn_lower(values: list[float]) -> None:
    values.sort()
    heights = [BLOCKS.index(block) for block in sparkline(values)]
    assert heights == sorted(heights)


@given(st.lists(st.floats(1e-3, 1e3), min_size=2), st.sampled_from([0.5, 2, 1024]))
def test_a_line_on_the_linear_scale_does_not_know_its_unit(values: list[float], unit: float) -> None:
    values = [max(value, max(values) / 10) for value in values]
    assert sparkline([value * unit for value in values]) == sparkline(values)
