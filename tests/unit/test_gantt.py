"""A chart says who ran where, in lines of one width."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from sweeps.text.gantt import MOST_ROWS, Bar, gantt

BARS = st.lists(
    st.builds(
        lambda node, ranks, start, lasts: Bar("b256 fp16", ((f"n{node}", ranks),), start, start + lasts),
        st.integers(0, 9),
        st.integers(1, 4),
        st.floats(0, 1e4),
        st.floats(0, 1e3),
    ),
    max_size=100,
)


def test_a_few_slots_have_a_row_each_with_labels_where_there_is_room() -> None:
    bars = [
        Bar("b32 fp16", (("a", 2), ("b", 1)), 0, 60),
        Bar("b64", (("b", 1),), 0, 10),
        Bar("long label of a trial", (("a", 1),), 60, 80),
        Bar("b8", (("b", 1),), 70, 80),
    ]
    assert gantt(bars, {"a": 2, "b": 2}, width=34) == [
        "  0:00            0:40",
        "a │b32 fp16───────────────│1──────",
        "  │b32 fp16───────────────········",
        "b │b64························│b8─",
        "  │b32 fp16───────────────········",
        "4 trials in 1.33 min, 69% of the slots busy",
    ]


def test_many_slots_have_a_row_a_node_with_the_sizes_of_all_that_run_there() -> None:
    nodes = {f"n{n}": 4 for n in range(5)}
    bars = [
        Bar("x", tuple((name, 4) for name in nodes), 0, 3600),
        Bar("first of two", (("n0", 3),), 3600, 7200),
        Bar("second", (("n0", 1),), 3600, 7200),
    ]
    chart = gantt(bars, nodes, width=43)
    assert chart[1] == "n0 │x──────────────────│3+1────────────────"
    assert chart[2] == "n1 │x──────────────────····················"
    assert chart[-1] == "3 trials in 2 h, 60% of the slots busy"
    assert len(chart) == 7


@given(BARS, st.integers(1, 10), st.integers(60, 120))
def test_lines_fit_and_every_row_is_as_long(bars: list[Bar], nodes: int, width: int) -> None:
    chart = gantt(bars, {f"n{n}": 4 for n in range(nodes)}, width)
    assert len(chart) <= MOST_ROWS + 2 or nodes > MOST_ROWS
    rows = [line for line in chart[:-1] if re.search("[│─·]", line)]
    assert {len(row) for row in rows} <= {width}
    assert max((len(line) for line in chart), default=0) <= width


def test_150_trials_are_told_apart() -> None:
    nodes = {f"node{n}": 4 for n in range(8)}
    bars = [Bar(f"b{n}", ((f"node{n % 8}", 4),), n // 8 * 10.0, n // 8 * 10.0 + 10) for n in range(150)]
    chart = "\n".join(gantt(bars, nodes, width=100))
    assert chart.count("│") == 150
    assert all(re.search(rf"│b{n}[─│·\n]|│4[─│·\n]", chart) for n in range(150))


def test_nothing_to_draw_draws_nothing() -> None:
    assert gantt([], {"a": 4}) == []
    assert gantt([Bar("x", (("a", 1),), 5, 5)], {"a": 4}) == []
    assert gantt([Bar("x", (("a", 1),), 0, 5e-324)], {"a": 4}) == []  # a search found that its columns last no time
