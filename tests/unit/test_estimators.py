"""Figures that are estimated from a trial's times are never pooled with those that another version has estimated."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

import pytest

from sweeps import analysis
from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.cache import Cache
from sweeps.store import access, query, tabular, tracking
from tests.unit.records import config, record
from workers.contract.messages import Cached, Measurement, TrialOutcome, Without

if TYPE_CHECKING:
    import pyarrow as pa

MS: dict[Without, float] = {"nothing": 100.0, "input": 80.0, "comm": 90.0, "both": 68.0, "compute": 20.0}
# What the version of now comes to for the planted trial.
VERSION = "1"
ESTIMATED = {
    "input_share": 0.20053229920293028,
    "input_share_ci": 0.0052007181840084665,
    "comm_share": 0.09507098946743946,
    "comm_share_ci": 0.007228673653276393,
    "compute_share": 0.679857972191817,
    "compute_share_ci": 0.00440511224507137,
    "overlap_share": 0.09018147098292217,
    "overlap_share_ci": 0.006235545539793491,
    "straggler_ratio": 1.0000912734781249,
}
LIMITED_BY = "input-bound: 20% ± 1% of a step waits for 4 decode threads; 5 to 6 would do"


def explained(repeat: int = 0) -> TrialRecord:
    """A trial of three ranks that differ by less than their rounds scatter."""
    drawn = random.Random(f"rounds {repeat}")
    made = record(dataclasses.replace(config(gpus=3, repeat=repeat), data="/images", explain=True))
    assert made.outcome.measurement
    ranks = [
        dataclasses.replace(
            one,
            without_ms={
                part: tuple(
                    tuple(ms * (1 + one.rank / 500) * drawn.uniform(0.97, 1.03) for _ in range(4)) for _ in range(6)
                )
                for part, ms in MS.items()
            },
            decode_threads=4,
        )
        for one in made.outcome.measurement.ranks
    ]
    outcome = dataclasses.replace(made.outcome, measurement=Measurement(ranks=tuple(ranks)))
    return dataclasses.replace(made, outcome=outcome)


def estimated(figures: dict[str, float]) -> dict[str, float]:
    return {name: figure for name, figure in figures.items() if name.removesuffix("_ci") in rows.ESTIMATED}


def test_an_estimator_that_comes_to_something_else_has_another_version() -> None:
    """If this fails since an estimator has changed: raise `rows.ESTIMATORS`, and pin here what it comes to now."""
    assert estimated(rows.metrics(explained())) == pytest.approx(ESTIMATED, rel=1e-9)
    assert rows.limited_by(explained()) == LIMITED_BY
    assert rows.ESTIMATORS == VERSION


def used_again(made: TrialRecord, version: str, **figures: float) -> TrialRecord:
    """The trial, as the cache gives it from a store that a version has written."""
    row = {"trial": made.config.trial, **rows.where(made), "software": "sw", "hardware": "hw", "data_files": "ff"}
    row |= {"arrangement": "", "sweep": "old", "started_at": 1.7e9, "limited_by": "words of then"}
    row |= {"figures": rows.metrics(made) | figures} | ({"estimators": version} if version else {})
    outcome = Cache([row]).outcome(made.config, [(("hw", "sw", "ff"), 3)])
    assert outcome
    return dataclasses.replace(made, outcome=outcome)


@pytest.mark.parametrize("version", ["", "0"])
def test_what_another_version_has_estimated_is_not_used_again(version: str) -> None:
    trial = explained()
    cached = used_again(trial, version)
    assert estimated(rows.metrics(cached)) == {}
    assert rows.metrics(cached) == {
        name: figure for name, figure in rows.metrics(trial).items() if name not in estimated(rows.metrics(trial))
    }
    assert rows.limited_by(cached) == ""
    assert "its shares of a step, which another version has estimated, are left out" in cached.outcome.message


def test_what_this_version_has_estimated_is_used_again() -> None:
    trial = explained()
    cached = used_again(trial, rows.ESTIMATORS)
    assert rows.metrics(cached) == rows.metrics(trial)
    assert rows.limited_by(cached) == "words of then"
    assert "left out" not in cached.outcome.message


def test_what_follows_from_a_rate_is_worked_out_anew_whoever_measured_it() -> None:
    figures = rows.metrics(explained())
    wrong = {name: 2 * figures[name] for name in ("train_tflops", "gpu_hours_per_epoch", "images_per_s_per_gpu")}
    cached = rows.metrics(used_again(explained(), rows.ESTIMATORS, **wrong))
    assert {name: cached[name] for name in wrong} == pytest.approx({name: figures[name] for name in wrong})


def test_a_cell_s_share_is_the_mean_over_those_that_were_estimated_alike() -> None:
    old = [used_again(explained(n), "0", comm_share=0.9) for n in range(3)]
    new = [used_again(explained(n), rows.ESTIMATORS) for n in (3, 4)]
    cell = analysis.cells(analysis.frame([rows.row(each) for each in [*old, *new]])).iloc[0]
    shares = [rows.metrics(each)["comm_share"] for each in new]
    assert cell["n"] == 5
    assert cell["comm_share"] == pytest.approx(sum(shares) / 2)


def held(made: TrialRecord) -> pa.Table:
    """What a tracking store holds of a trial, as it is written to it and read from it."""
    store = object.__new__(tracking.Store)
    vars(store).update(_parent="", _name=lambda config: "x", _axes=(), _common={"sweep.id": "i", "sweep.name": "old"})
    entry = store.entry(made)
    columns = tabular.Columns([tabular.Run("run", "old", entry.status, entry.started_ms, entry.ended_ms)])
    columns.texts("tag", [("run", name, text) for name, text in entry.tags.items() if name in tabular.TAGS])
    columns.texts("param", [("run", name, text) for name, text in entry.params.items()])
    columns.figures(("run", name, value) for name, value, _ in entry.metrics if name in tabular.METRICS)
    return columns.table()


def test_a_store_says_which_version_has_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "store_name", lambda: "http://nowhere")
    made = explained()
    monkeypatch.setattr("sweeps.store.query._ask", lambda *_: held(made))
    (now,) = query.finished({made.config.cell})
    with monkeypatch.context() as earlier:
        earlier.setattr(rows, "ESTIMATORS", "0")
        (before,) = query.finished({made.config.cell})
    assert (now["estimators"], before["estimators"]) == (rows.ESTIMATORS, "0")
    assert now["figures"] == pytest.approx(rows.metrics(made))


def test_a_ledger_of_an_earlier_version_is_read_and_its_estimates_are_left_out() -> None:
    told = {"sweep": "old", "measured_at": 1.0, "hardware": "hw", "software": "sw", "limited_by": "words of then"}
    figures = {"images_per_s": 9.0, "comm_share": 0.09507098946743946, "comm_share_ci": 0.01}
    cached = Cached(**told, figures=figures)  # type: ignore[arg-type]
    made = dataclasses.replace(record(config()), outcome=TrialOutcome(status="completed", cached=cached))
    assert rows.metrics(made) == {"images_per_s": 9.0}
    assert rows.limited_by(made) == ""
