"""The benchmarks of the tracking store, made short: they run, and what they check of rows and values holds.

How quick it is they say on a quiet machine, not here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.alone, pytest.mark.integration]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("name", "options", "figure"),
    [
        ("tracking", ["--trials", "4", "--slow", "1", "--local"], "local_ratio"),
        ("query", ["--sizes", "200"], "same_200"),
    ],
)
def test_it_runs_to_its_verdict(name: str, options: list[str], figure: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines(), ran.stderr
    verdict = json.loads(ran.stdout.splitlines()[-1])
    assert verdict["figures"][figure] > 0, ran.stderr


def test_a_driver_of_hundreds_of_trials_stays_as_large_as_it_was_and_the_store_has_them_all(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "instant.py"), "ours", "600", "200"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines(), ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    first, *_, last = told["held_kb"]
    assert last < 1.03 * first, told["held_kb"]
    assert len(told["ends"]) == 600
    assert 0 < told["waited_s"] < 30
