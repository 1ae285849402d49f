"""What a mistyped name was meant to be, and that nobody else guesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.analysis import references
from sweeps.errors import InputError
from sweeps.run import reproduce
from sweeps.simulator import cluster
from workers.contract.spelling import did_you_mean

ROOT = Path(__file__).parents[2]


def test_the_nearest_name_is_named_behind_the_rule() -> None:
    assert did_you_mean("batchsize", ["batch_size", "gpus"]) == " (did you mean batch_size?)"


def test_where_nothing_is_near_it_says_what_else_there_is_or_nothing() -> None:
    assert did_you_mean("qqq", ["batch_size"], "there: demo") == " (there: demo)"
    assert did_you_mean("qqq", ["batch_size"]) == ""


def test_of_names_that_are_alike_several_are_named_each_once() -> None:
    known = ["demo-1", "demo-2", "demo-1", "other"]
    assert did_you_mean("demo-", known, most=3) in (
        " (did you mean demo-1 or demo-2?)",
        " (did you mean demo-2 or demo-1?)",
    )


@pytest.mark.parametrize(
    ("ask", "ends"),
    [
        (lambda: cluster.parse("nodes=2,lost=5%"), " (did you mean loss?), but got lost=5%"),
        (lambda: reproduce.find("a-tabel-5"), " (did you mean a-table-5?), but got a-tabel-5"),
        (lambda: references.system("V100-SXM2"), "?), but got V100-SXM2"),
    ],
)
def test_the_command_guesses_in_the_same_words(ask: object, ends: str) -> None:
    with pytest.raises(InputError) as caught:
        ask()  # type: ignore[operator]
    assert str(caught.value).endswith(ends)
    assert " (did you mean " in str(caught.value)


@pytest.mark.parametrize("plane", ["sweeps", "workers", "benchmarks", "scripts"])
def test_nobody_else_guesses(plane: str) -> None:
    asks = [path.name for path in (ROOT / plane).rglob("*.py") if "difflib" in path.read_text()]
    assert asks == (["spelling.py"] if plane == "workers" else [])
