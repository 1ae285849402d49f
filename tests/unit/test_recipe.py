"""A table as a sweep file, which plans its rows and nothing else."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.analysis import publication, recipe, reproduction
from sweeps.errors import InputError
from sweeps.run import reproduce
from sweeps.spec import keys, plan
from tests.examples import examples
from tests.unit.planted_tables import HEAD, PUBLISHED, held, sweep_of, table, verdicts
from workers.contract.messages import TrialConfig


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_table_is_a_sweep_of_its_rows_and_of_nothing_else(name: str) -> None:
    found = publication.published(name)
    asked = sweep_of(found)
    cells = {trial.cell for trial in plan.plan(asked).trials}
    rows_cells = [reproduction.cell_of(row.settings, asked) for row in found.rows]
    bases = [reproduction.cell_of(row.alone, asked) for row in found.rows if row.figure == "speedup"]
    assert all(isinstance(cell, TrialConfig) for cell in (*rows_cells, *bases))
    assert cells == {cell.cell for cell in (*rows_cells, *bases) if isinstance(cell, TrialConfig)}
    assert asked.steps == keys.Steps(warmup=10, measured=100)
    for row, cell in zip(found.rows, rows_cells, strict=True):
        assert isinstance(cell, TrialConfig)
        for axis in ("model", "batch_size", "gpus", "precision"):
            assert plan.value(cell, axis) == row.settings[axis]
        if row.nodes and row.nodes > 1:
            assert cell.placement == f"{row.nodes}x{cell.gpus // row.nodes}"


points = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["tiny", "resnet50", "vgg16"]),
        "batch_size": st.sampled_from([8, 16, 32]),
        "gpus": st.sampled_from([1, 2, 4, 8]),
        "nodes": st.sampled_from([1, 2]),
        "precision": st.sampled_from(["fp32", "fp16"]),
        "xla": st.booleans(),
        "momentum": st.sampled_from([0.9, 0.5]),
        "lr_schedule": st.sampled_from(["0.10", "cosine: 0.4 warmup=5", "0.4;10;0.04"]),
    }
)


def as_csv(written: list[dict[str, Any]]) -> str:
    lines = [",".join(written[0]), *(",".join(str(one[name]) for name in written[0]) for one in written)]
    return "\n".join(lines)


def distinct(drawn: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One GPU is on one node, and a combination is there once."""
    placed = [{**one, "nodes": 1 if one["gpus"] == 1 else one["nodes"]} for one in drawn]
    return list({str(sorted(one.items(), key=str)): one for one in placed}.values())


@examples(15)
@given(st.lists(points, min_size=1, max_size=8), st.data())
def test_any_table_is_a_file_that_plans_its_rows_alone_and_met_exactly_all_hold(
    drawn: list[dict[str, Any]], data: st.DataObject
) -> None:
    rates = st.floats(0.5, 1e6).map(lambda rate: f"{rate:.6g}")
    written = [{**one, "images_per_s": data.draw(rates)} for one in distinct(drawn)]
    found = table(as_csv(written))
    asked = sweep_of(found)
    cells = [reproduction.cell_of(row.settings, asked) for row in found.rows]
    assert {trial.cell for trial in plan.plan(asked).trials} == {getattr(cell, "cell", cell) for cell in cells}
    judged = held(found, {row.line: 1.0 for row in found.rows}, noise=0.002)
    assert {one.rate.verdict for one in judged if one.rate} == {"holds"}
    assert {one.relative.verdict for one in judged if one.relative} <= {"holds"}


def test_another_batch_stands_in_and_another_network_or_number_of_gpus_does_not() -> None:
    found = table()
    row = found.rows[0]
    batch = reproduction.cell_of(row.settings, sweep_of(found, "batch_size=4"))
    assert isinstance(batch, TrialConfig)
    assert batch.batch_size == 4
    assert reproduction.cell_of(row.settings, sweep_of(found, "model=resnet50")) == "the sweep leaves out model tiny"
    assert reproduction.cell_of(row.settings, sweep_of(found, "gpus=2")) == "the sweep leaves out gpus 1"


COLUMNS = st.lists(st.sampled_from([*publication.COLUMNS[5:], "env.X", "env.Y"]), max_size=4, unique=True)
CELLS = st.sampled_from(
    ["", "1", "2", "0", "-1", "0.5", "on", "fp16", "tiny", "pack", "2x1", "1%", "nan", "1e9", "a'\\\"b"]
)


@examples(150)
@given(COLUMNS, st.data())
def test_a_table_is_refused_line_by_line_or_it_is_a_sweep(columns: list[str], data: st.DataObject) -> None:
    header = list(dict.fromkeys([*HEAD.split(","), *columns]))
    usual = {"model": "tiny", "batch_size": "8", "gpus": "2", "images_per_s": "10"}
    cells = [[data.draw(st.just(usual[name]) | CELLS if name in usual else CELLS) for name in header] for _ in range(3)]
    made = io.StringIO()
    csv.writer(made).writerows([header, *cells])
    refused: list[str] = []
    try:
        found = table(made.getvalue())
    except InputError as error:
        refused = [mistake.key for mistake in error.mistakes]
    assert all(key.startswith("line ") for key in refused), made.getvalue()
    if refused:
        return
    text = recipe.text(found, 3)
    reproduce._require_plan(found, text, reproduce.Ask(table="own"))
    asked = sweep_of(found)
    wanted = [reproduction.cell_of(row.settings, asked) for row in found.rows]
    wanted += [reproduction.cell_of(row.alone, asked) for row in found.rows if row.figure == "speedup"]
    assert {trial.cell for trial in plan.plan(asked).trials} == {getattr(cell, "cell", cell) for cell in wanted}


def test_a_variable_that_some_rows_set_is_set_in_these_and_in_no_other(tmp_path: Path) -> None:
    """There are two variables, each with a condition of its own."""
    text = f"{HEAD},env.X,env.Y\ntiny,8,1,10,1,\ntiny,16,1,11,,a\ntiny,32,2,9,2,b\ntiny,32,1,9,1,b\ntiny,8,4,9,,\n"
    found = table(text)
    asked = sweep_of(found)
    made = {(one.batch_size, one.gpus): dict(one.env) for one in plan.plan(asked).cells.values()}
    assert made == {
        (8, 1): {"X": "1"},
        (8, 4): {},
        (16, 1): {"Y": "a"},
        (32, 1): {"X": "1", "Y": "b"},
        (32, 2): {"X": "2", "Y": "b"},
    }
    assert [verdict for verdict, _ in verdicts(held(found, dict.fromkeys(range(2, 7), 1.0))).values()] == ["holds"] * 5
