"""Figures from planted trials whose answers are known."""

from __future__ import annotations

import dataclasses
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import analysis
from sweeps.analysis import overview
from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import plan
from sweeps.spec.sweep_file import parse
from tests.unit.records import config, converged, record, report
from workers.contract import messages
from workers.contract.messages import Measurement, Status, TrialOutcome


def frame(*records: TrialRecord) -> pd.DataFrame:
    return analysis.frame([rows.row(one) for one in records])


def test_a_cell_s_figure_is_the_mean_with_the_t_interval_of_its_repeats() -> None:
    table = analysis.cells(frame(*(record(config(repeat=n), rate) for n, rate in enumerate([98.0, 100.0, 102.0]))))
    (cell,) = table.to_dict("records")
    assert cell["images_per_s"] == pytest.approx(100)
    assert cell["images_per_s_ci"] == pytest.approx(4.302653 * 2 / math.sqrt(3), rel=1e-6)  # t(0.975, 2)
    assert (cell["n"], cell["outcomes"]) == (3, "completed")


def test_one_repeat_has_no_interval() -> None:
    assert math.isnan(analysis.cells(frame(record(config())))["images_per_s_ci"][0])


def test_efficiency_is_the_rate_over_n_times_the_rate_of_one() -> None:
    table = analysis.scaling(
        frame(
            *(record(config(gpus=1, repeat=n), rate) for n, rate in enumerate([99.0, 100.0, 101.0])),
            *(record(config(gpus=4, repeat=n), rate) for n, rate in enumerate([350.0, 360.0, 370.0])),
            record(config(gpus=4, batch_size=16), 10.0),  # nothing to compare it with
        )
    ).set_index(["batch_size", "gpus"])
    assert table.loc[(8, 1), "efficiency"] == 1
    assert table.loc[(8, 4), "efficiency"] == pytest.approx(0.9)
    one, four = 4.302653 * 1 / math.sqrt(3) / 100, 4.302653 * 10 / math.sqrt(3) / 360
    assert table.loc[(8, 4), "efficiency_ci"] == pytest.approx(0.9 * math.hypot(one, four), rel=1e-6)
    assert math.isnan(table.loc[(16, 4), "efficiency"])


def test_trials_without_a_figure_are_counted_and_not_averaged() -> None:
    failed = TrialOutcome(status="failed", kind="killed", message="killed by signal 9")
    table = analysis.cells(frame(record(config(), 50.0), record(config(repeat=1), outcome=failed)))
    (cell,) = table.to_dict("records")
    assert (cell["n"], cell["images_per_s"]) == (1, 50.0)
    assert cell["outcomes"] == "1 completed, 1 failed"
    assert cell["message"] == "killed by signal 9"


def test_a_sweep_in_which_nothing_was_measured_has_cells_without_figures() -> None:
    infeasible = TrialOutcome(status="infeasible", kind="device memory", message="out of memory")
    table = analysis.scaling(frame(record(config(), outcome=infeasible)))
    assert table["n"].tolist() == [0]
    assert table["images_per_s"].isna().all()
    with pytest.raises(ValueError, match="no trial measured"):
        analysis.best(frame(record(config(), outcome=infeasible)))


def test_the_best_cell_has_the_highest_mean() -> None:
    found = analysis.best(frame(record(config(batch_size=8), 90.0), record(config(batch_size=16), 110.0)))
    assert found["batch_size"] == 16


def test_the_longest_window_counts_and_steps_go_by_the_first_rank_s_clock() -> None:
    measured = Measurement(ranks=(report(0, 10, [100.0, 298.0]), report(1, 10, [100.0, 300.0])))
    planted = record(config(gpus=2), outcome=TrialOutcome(status="completed", measurement=measured))
    figures = rows.metrics(planted)
    assert rows.step_ms(measured) == [100.0, 298.0]
    assert figures["step_ms_mean"] == 199.0
    assert figures["images_per_s"] == pytest.approx(20 / 0.4)


@pytest.mark.parametrize(("percent", "value"), [(50, 2), (75, 3), (95, 4), (1, 1), (100, 4)])
def test_percentiles_are_values_that_were_seen(percent: float, value: float) -> None:
    assert rows.percentile([4.0, 1.0, 3.0, 2.0], percent) == value


def test_time_to_target_counts_only_the_trials_that_reached_it() -> None:
    table = analysis.cells(
        frame(
            converged([0.5, 0.96], repeat=0, reached_target=True),
            converged([0.5, 0.9, 0.9, 0.97], repeat=1, reached_target=True),
            converged([0.5] * 6, repeat=2),
        )
    )
    (cell,) = table.to_dict("records")
    assert (cell["n"], cell["reached"]) == (3, 2)
    assert cell["epochs_to_target"] == pytest.approx(3)
    assert cell["hours_to_target"] == pytest.approx(3 * 12 / 3600)
    assert cell["train_hours_to_target"] == pytest.approx(3 * 10 / 3600)
    assert cell["top1"] == pytest.approx((0.96 + 0.97 + 0.5) / 3)
    assert cell["images_per_s"] == pytest.approx(10)


def test_hours_to_target_hold_the_checkpoints_on_the_way_and_training_hours_do_not() -> None:
    trial = converged([0.5, 0.9, 0.96], reached_target=True, checkpoint_s=3.0)  # before the second and the third epoch
    row = rows.row(trial)
    assert row["hours_to_target"] == pytest.approx((3 * 12 + 2 * 3) / 3600)
    assert row["train_hours_to_target"] == pytest.approx(3 * 10 / 3600)
    assert row["checkpoint_hours_to_target"] == pytest.approx(2 * 3 / 3600)


def test_an_epoch_of_before_checkpoints_were_timed_is_still_read() -> None:
    measured = converged([0.5, 0.96], reached_target=True).outcome.measurement
    assert measured
    told = messages.to_json(measured.ranks[0])
    for epoch in told["epochs"]:
        del epoch["checkpoint_s"]
    assert messages.rank_report(told).epochs == measured.epochs


def test_achieved_flops_are_three_forward_passes_an_image() -> None:
    row = rows.row(record(config(), 50.0))
    assert row["train_tflops"] == pytest.approx(3 * 20e6 * 50 / 1e12)


def test_unlike_machines_are_never_averaged() -> None:
    lost = TrialOutcome(status="lost", kind="node lost")
    table = analysis.cells(
        frame(
            record(config(), 100.0, hardware="old"),
            record(config(repeat=1), 200.0, hardware="new"),
            record(config(repeat=2), 202.0, hardware="new"),
            record(config(repeat=3), outcome=lost),
        )
    ).set_index("hardware")
    assert table["images_per_s"].to_dict() == {"old": 100.0, "new": pytest.approx(201.0)}
    assert table["n"].to_dict() == {"old": 1, "new": 2}
    assert table["outcomes"].to_dict() == {"old": "1 completed, 1 lost", "new": "completed"}


def test_efficiency_compares_like_machines_only() -> None:
    table = analysis.scaling(
        frame(record(config(gpus=1), 100.0, hardware="old"), record(config(gpus=4), 360.0, hardware="new"))
    )
    assert math.isnan(table.set_index("gpus").loc[4, "efficiency"])


def test_an_epoch_s_gpu_hours_are_those_of_all_its_gpus() -> None:
    row = rows.row(record(config(gpus=4), 1_281_167 / 3600))
    assert row["gpu_hours_per_epoch"] == pytest.approx(4)


def test_the_front_holds_what_nothing_beats_in_every_figure() -> None:
    table = pd.DataFrame(
        {
            "rate": [10, 20, 30, 20, 15, 30, math.nan],
            "cost": [1.0, 2.0, 4.0, 2.0, 3.0, 5.0, 0.5],
        }
    )
    front = analysis.pareto(table, ["rate"], ["cost"])
    assert front.index.tolist() == [2, 1, 3, 0], "equals stand beside each other"
    assert analysis.pareto(table, [], ["cost"]).index.tolist() == [6]
    assert analysis.pareto(table.iloc[:0], ["rate"], ["cost"]).empty


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), max_size=20))
def test_every_row_that_is_not_on_the_front_is_beaten_by_one_that_is(values: list[tuple[int, int, int]]) -> None:
    def beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        gains = (one[0] - other[0], one[1] - other[1], other[2] - one[2])
        return min(gains) >= 0 and max(gains) > 0

    table = pd.DataFrame(values, columns=["a", "b", "c"])
    on_it = set(analysis.pareto(table, ["a", "b"], ["c"]).index)
    front = [values[n] for n in on_it]
    for n, value in enumerate(values):
        assert (n in on_it) != any(beats(each, value) for each in front)


def study(**space: object) -> SweepSpec:
    return SweepSpec.model_validate({"name": "x", "model": "tiny", "device": "cpu", "space": space})


def test_the_front_in_words_needs_two_cells_that_do_not_beat_each_other() -> None:
    planned = plan(study(batch_size=[8, 16], gpus=[1, 4]))
    measured = [
        record(config(batch_size=8), 90.0),
        record(config(batch_size=16), 100.0),
        record(config(batch_size=8, gpus=4), 360.0),
    ]
    said = overview.front(frame(*measured), planned)
    assert "rank-hours" in said[0]
    assert [line.split(":")[0].strip() for line in said[1:]] == ["batch_size 8, gpus 4", "batch_size 16, gpus 1"]
    assert "360 images/s, 3.954 rank-hours" in said[1]
    assert overview.front(frame(*measured[:2]), planned) == []
    assert overview.front(frame(measured[0], record(config(batch_size=8, gpus=4), 1000.0)), planned) == []


def test_a_frontier_is_the_largest_batch_that_fits_and_the_smallest_that_does_not() -> None:
    def short(inferred_from: str = "", **at: object) -> TrialRecord:
        outcome = TrialOutcome(status="infeasible", kind="device memory", inferred_from=inferred_from)
        return record(config(**at), outcome=outcome)

    planned = plan(study(batch_size=[8, 16, 32, 64], gpus=[2, 1], precision=["fp32", "fp16"]))
    trials = frame(
        record(config(batch_size=8), 80.0),
        record(config(batch_size=16), 90.0),
        short(batch_size=64),
        short(batch_size=32),
        record(config(batch_size=64, precision="fp16"), 100.0),
        short("b32", gpus=2),
        record(config(gpus=2, precision="fp16"), outcome=TrialOutcome(status="lost", kind="node lost")),
    )
    table = overview.frontier(trials, planned).set_index(["gpus", "precision"])
    assert table.index.tolist() == [("2", "fp32"), ("2", "fp16"), ("1", "fp32"), ("1", "fp16")]
    assert table["largest batch"].tolist() == ["none", "none", "16", "64"]
    assert table["images/s"].tolist() == ["–", "–", "90", "100"]
    assert table["too large"].tolist() == ["8: device memory (inferred)", "–", "32: device memory", "–"]


def test_what_one_code_has_no_memory_for_says_nothing_of_another() -> None:
    def ran(code: str, status: Status, **at: object) -> TrialRecord:
        made = record(config(**at), 100.0)
        granted = tuple(dataclasses.replace(place, software=code) for place in made.outcome.granted)
        ended = TrialOutcome(status=status, kind="device memory", granted=granted)
        outcome = dataclasses.replace(made.outcome, granted=granted) if status == "completed" else ended
        return dataclasses.replace(made, outcome=outcome)

    old = ran("old", "infeasible", batch_size=32)
    inferred = TrialOutcome(status="infeasible", kind="device memory", inferred_from=old.config.trial)
    trials = frame(
        ran("old", "completed", batch_size=8),
        old,
        record(config(batch_size=64), outcome=inferred),
        ran("new", "completed", batch_size=16),
        ran("new", "failed", batch_size=32, repeat=1),
    )
    found = analysis.frontier(trials).set_index("software")
    assert found["batch_size"].to_dict() == {"old": 8, "new": 16}
    assert found["too_large"].fillna(0).to_dict() == {"old": 32, "new": 0}


def test_a_frontier_over_the_batch_alone_is_one_row() -> None:
    table = analysis.frontier(frame(record(config(batch_size=8), 80.0), record(config(batch_size=16), 90.0)))
    assert table["batch_size"].tolist() == [16]


def test_strong_scaling_compares_with_one_gpu_at_the_same_global_batch() -> None:
    trials = frame(
        record(config(gpus=1, batch_size=32), 100.0),
        record(config(gpus=4, batch_size=8), 300.0),
        record(config(gpus=4, batch_size=32), 390.0),
    )
    strong = analysis.scaling(trials, is_strong=True).set_index(["gpus", "batch_size"])["efficiency"]
    assert strong[4, 8] == pytest.approx(0.75)
    assert math.isnan(strong[4, 32])
    weak = analysis.scaling(trials).set_index(["gpus", "batch_size"])["efficiency"]
    assert weak[4, 32] == pytest.approx(0.975)
    assert math.isnan(weak[4, 8])


def test_one_gpu_is_the_base_of_every_placement() -> None:
    trials = frame(
        record(config(gpus=1), 100.0),
        record(config(gpus=4, placement="pack"), 380.0),
        record(config(gpus=4, placement="spread"), 340.0),
    )
    found = analysis.scaling(trials).set_index(["gpus", "placement"])["efficiency"].to_dict()
    assert found == {(1, "pack"): 1.0, (4, "pack"): pytest.approx(0.95), (4, "spread"): pytest.approx(0.85)}


def test_a_table_of_strong_scaling_shows_the_global_batch_and_its_efficiency() -> None:
    text = "{name: x, model: tiny, device: cpu, repeats: 1, space: {global_batch: [16, 32], gpus: [1, 2]}}"
    planned = plan(parse(text, "x"))
    rates = [50.0 * (1 + trial.gpus) - trial.batch_size * trial.gpus / 1000 for trial in planned.trials]
    trials = frame(*(record(trial, rate) for trial, rate in zip(planned.trials, rates, strict=True)))
    table = overview.table(trials, planned)
    assert table[["global_batch", "gpus", "efficiency"]].to_numpy().tolist() == [
        ["16", "1", "100%"],
        ["16", "2", "75%"],
        ["32", "1", "100%"],
        ["32", "2", "75%"],
    ]
