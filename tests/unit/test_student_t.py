"""Student's t against printed tables, and that no other quantile of it is left."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr

from tests.unit import sources
from workers.measure import student_t

ROOT = Path(__file__).parents[2]
TABLE = {1: 12.706205, 2: 4.302653, 3: 3.182446, 5: 2.570582, 10: 2.228139, 30: 2.042272, 100: 1.983972}


@pytest.mark.parametrize(("freedom", "t"), TABLE.items())
def test_the_quantile_is_that_of_the_tables(freedom: float, t: float) -> None:
    assert student_t.quantile(freedom) == pytest.approx(t, abs=1e-6)


def test_a_column_has_a_quantile_a_row_and_a_number_a_plain_one() -> None:
    assert student_t.quantile(np.array(list(TABLE))) == pytest.approx(list(TABLE.values()), abs=1e-6)
    assert type(student_t.quantile(10)) is float


def test_other_confidences_have_quantiles_of_their_own() -> None:
    assert student_t.quantile(10, 0.90) == pytest.approx(1.812461, abs=1e-6)
    assert student_t.quantile(10, 0.99) == pytest.approx(3.169273, abs=1e-6)


def test_many_values_are_as_good_as_normal() -> None:
    assert student_t.quantile(math.inf) == pytest.approx(1.959964, abs=1e-6)


@given(st.floats(1, 1e6), st.floats(0.01, 0.999))
def test_beyond_the_quantile_lies_what_the_confidence_leaves(freedom: float, confidence: float) -> None:
    t = student_t.quantile(freedom, confidence)
    assert 2 * stdtr(freedom, -t) == pytest.approx(1 - confidence, rel=1e-6)


@pytest.mark.parametrize("room", ["sweeps", "workers", "benchmarks"])
def test_nobody_else_asks_for_a_quantile_of_student_s(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        if path.name == "student_t.py":
            continue
        for node in sources.nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module == "scipy.stats":
                assert "t" not in [name.name for name in node.names], path
            assert not (isinstance(node, ast.Import) and "scipy.stats" in [name.name for name in node.names]), path
            assert not (isinstance(node, ast.alias) and node.name in ("stdtr", "stdtrit")), path


def test_scipy_is_not_imported_before_an_interval_is_asked_for() -> None:
    modules = "sweeps.record.bottleneck, sweeps.analysis.comparison, sweeps.analysis.predict, sweeps.analysis.means"
    code = f"import sys, {modules}; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"
