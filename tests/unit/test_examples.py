"""`make test` tries the same examples everywhere, and a search leaves out no property test."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings

from tests.examples import FEW, TIMES, examples

TESTS = Path(__file__).parents[1]


def test_the_examples_are_the_same_everywhere_and_those_of_a_search_are_not() -> None:
    same, search = settings.get_profile("same"), settings.get_profile("search")
    assert same.derandomize
    assert same.database is None  # what failed here before is not tried first either
    assert not search.derandomize


def test_a_search_tries_a_hundred_times_as_many() -> None:
    same, search = settings.get_profile("same"), settings.get_profile("search")
    assert search.max_examples == TIMES * same.max_examples
    assert examples(12).max_examples == 12 * settings.default.max_examples // FEW  # type: ignore[union-attr]


def test_no_test_says_how_many_in_a_way_that_a_search_does_not_know() -> None:
    own = [path.name for path in TESTS.rglob("*.py") if "max_examples" in path.read_text()]
    assert sorted(own) == ["examples.py", "test_examples.py"]
