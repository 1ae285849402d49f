"""A cell says how many of its trials have no interval of their own: in the frame, on the console and in the report."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from sweeps import analysis
from sweeps.analysis import overview
from sweeps.analysis.findings import outcomes
from sweeps.analysis.study import Study
from sweeps.record import rows
from sweeps.report import answer, trials
from sweeps.report.chart import Table
from tests.unit import planted, studies
from tests.unit.records import config, record
from workers.contract.messages import TrialConfig, Window

FILE = """
name: x
model: tiny
device: cpu
repeats: 3
space: {batch_size: [8, 16], gpus: [1]}
"""
SURE = {"steps_taken": 40.0, "images_per_s_within": 1.0, "is_steady": 1.0}


def window(half_width_ms: float | None = 1.0, withheld: str = "") -> Window:
    return Window(warmup_steps=10, stopped_by="steps", half_width_ms=half_width_ms, withheld=withheld)


def row(made: Window | None, **fields: object) -> dict[str, object]:
    """Make the row of a trial whose ranks had this window."""
    told = record(config(**fields))
    measured = told.outcome.measurement
    assert measured
    ranks = tuple(dataclasses.replace(rank, window=made) for rank in measured.ranks)
    outcome = dataclasses.replace(told.outcome, measurement=dataclasses.replace(measured, ranks=ranks))
    return rows.row(dataclasses.replace(told, outcome=outcome))


@pytest.mark.parametrize(
    ("windows", "withheld"),
    [
        ([window(), window()], 0),
        ([window(), window(withheld="drift")], 1),
        ([window(None, "too few steps"), window(withheld="two levels")], 2),
        ([None, None], 0),  # epochs have no window
    ],
)
def test_a_cell_counts_the_windows_whose_interval_is_withheld(windows: list[Window | None], withheld: int) -> None:
    frame = planted.frame([row(made, repeat=n) for n, made in enumerate(windows)])
    (found,) = analysis.cells(frame)["withheld"]
    assert found == withheld


def test_trials_that_measured_nothing_are_not_counted() -> None:
    frame = planted.frame(
        planted.trial(100.0, **SURE), planted.trial(repeat=1, steps_taken=5.0) | {"outcome": "failed"}
    )
    assert list(analysis.cells(frame)["withheld"]) == [0]


def frame(unsteady: int) -> pd.DataFrame:
    """Two cells of three repeats; so many of the second were not steady."""
    told = [planted.trial(100.0 + n, repeat=n, batch_size=8, **SURE) for n in range(3)]
    told += [
        planted.trial(200.0 + n, repeat=n, batch_size=16, **SURE | {"is_steady": float(n >= unsteady)})
        for n in range(3)
    ]
    return planted.frame(told)


def test_the_console_has_a_column_only_where_one_is_withheld() -> None:
    planned = studies.planted(FILE, lambda _: 1.0).plan
    assert "withheld" not in overview.table(frame(0), planned)
    assert list(overview.table(frame(2), planned)["withheld"]) == [0, 2]


def test_where_all_are_withheld_a_sentence_says_so_and_why() -> None:
    planned = studies.planted(FILE, lambda _: 1.0).plan
    short = frame(0).assign(is_steady=0.0, why_withheld="too short to know")
    assert "withheld" not in overview.table(short, planned)
    (said,) = outcomes.withheld(short)
    assert said.plain == (
        "Withheld: 6 of 6 trials have no interval of their own (6 too short to know): a cell's comes from its repeats."
    )
    assert not [*outcomes.withheld(frame(0).assign(why_withheld=""))]


def study(unsteady: int) -> Study:
    def of(config: TrialConfig) -> float:
        return 100.0 * config.batch_size

    made = studies.planted(FILE, of)
    records = tuple(
        dataclasses.replace(
            one,
            outcome=dataclasses.replace(
                one.outcome,
                measurement=dataclasses.replace(
                    one.outcome.measurement,
                    ranks=tuple(
                        dataclasses.replace(
                            rank,
                            window=window(withheld="drift" * (one.config.batch_size == 16 and n < unsteady)),
                        )
                        for rank in one.outcome.measurement.ranks
                    ),
                ),
            ),
        )
        for one in made.records
        for n in [one.config.repeat]
        if one.outcome.measurement
    )
    return dataclasses.replace(made, records=records)


def test_the_report_names_the_cells_and_says_how_many_in_all() -> None:
    assert not [care for care in answer.find(study(0)).cares if "interval of their own" in care]
    found = study(2)
    says = "**Withheld**: 2 of 6 trials have no interval of their own (2 drift)"
    assert any(care.startswith(says) for care in answer.find(found).cares)
    ends = trials.ends(found)
    assert ends
    (table,) = (block for block in ends.blocks if block.name == "ends-withheld")
    assert isinstance(table, Table)
    assert table.rows == (("batch size 16", 2, 3),)
