"""docs/axes.md names every axis and every key of a sweep file, and tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sweeps.spec.keys import Space, SweepSpec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/axes.md").read_text()
ROWS = [line.split("|")[1:4] for line in PAGE.splitlines() if line.startswith("| `")]
NAMED = {name for key, _, _ in ROWS for name in re.findall(r"`(\w+)`", key)}
TESTS: dict[str, str] = {}
for path in (ROOT / "tests").rglob("test_*.py"):  # a unit and an integration test may share a name
    TESTS[path.stem] = TESTS.get(path.stem, "") + path.read_text()


def test_every_axis_and_every_key_of_a_sweep_file_has_a_line_and_nothing_else_has() -> None:
    keys = {*Space.model_fields, *SweepSpec.model_fields} - {"name", "space"}
    assert keys == NAMED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip(" `"))
def test_what_shows_an_effect_is_a_test_that_there_is(row: list[str]) -> None:
    file = ""
    shown = re.findall(r"`(?:(test_\w+)::)?(test_\w+)`", row[2])
    assert shown
    for module, name in shown:
        if not module and name in TESTS:  # all of it
            continue
        file = module or file
        assert f"def {name}(" in TESTS[file], name
