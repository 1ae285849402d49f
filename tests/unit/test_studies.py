"""What each kind of study comes to, on planted figures whose answers are known and on published ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pandas as pd
import pytest

from sweeps import analysis
from sweeps.analysis import comparison, references
from sweeps.errors import InputError
from tests.unit.planted import frame, repeats, trial


def only(table: pd.DataFrame, **at: object) -> pd.Series:
    for name, value in at.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


# What print says: A, sections 7.2.1 and 7.2.4; "across the nodes" is against one GPU.
@pytest.mark.parametrize(("system", "inside", "across"), [("C4130-P100", 97, 92), ("C4140-K", 97, 90)])
def test_the_published_efficiencies_come_out_of_the_published_rates(system: str, inside: int, across: int) -> None:
    table = analysis.scaling(references.trials(system))
    one_node = only(table, model="resnet50", gpus=4)
    two_nodes = only(table, model="resnet50", gpus=8)
    assert round(100 * one_node["intra"]) == inside
    assert round(100 * two_nodes["intra"]) == inside
    assert round(100 * two_nodes["efficiency"]) == across
    assert two_nodes["intra"] * two_nodes["inter"] == pytest.approx(two_nodes["efficiency"])


def ratio(system: str, against: str, model: str, gpus: int) -> float:
    """As `sweep diff` has it: the rate of the other over that of the first."""
    sides = [references.trials(name).query(f"gpus == {gpus}") for name in (system, against)]
    return float(only(comparison.compare(*sides).cells, model=model)["ratio"])


@pytest.mark.parametrize("row", references.table("differences").to_dict("records"), ids=lambda row: row["system"])
def test_a_printed_difference_is_that_of_sweep_diff(row: dict[str, Any]) -> None:
    """To a tenth of a point, or to the last digit that is printed. Either way round, print's base is its own system."""
    ahead = 100 * (ratio(row["system"], row["against"], row["model"], row["gpus"]) - 1)
    found = {"against over system": ahead, "system over against": -ahead}[row["means"]]
    assert found == pytest.approx(row["percent"], abs=max(0.1, 0.5 * 10.0 ** -row["decimals"]))


def test_print_s_at_least_eighteen_percent_is_a_little_less() -> None:
    assert 17.8 < 100 * (1 - ratio("C4140-M", "other-8x", "resnet50", 8)) < 17.9


# C prints two digits; the reference guide of the same vendor's "Ready Solutions for AI" (section 3.1) one, of the same
# trials: 29.4, 25.8, 22.0 and 23.7 for 32 GPUs.
SPEEDUPS = {("mxnet", "fp32"): 29.4, ("mxnet", "fp16"): 25.8, ("tensorflow-horovod", "fp32"): 22.0,
            ("tensorflow-horovod", "fp16"): 23.7}  # fmt: skip


def test_every_published_speedup_comes_out_of_rates_that_have_it_and_agrees_with_its_second_print() -> None:
    printed = references.table("speedups")
    said = {at + 1: row for at, row in enumerate(printed.itertuples())}  # each at a batch size of its own
    told = []
    for at, row in said.items():
        alike = {"batch_size": at, "precision": row.precision, "nodes": float("nan")}
        told += [trial(100.0, gpus=1, **alike), trial(100.0 * row.speedup, gpus=row.n, **alike)]
    table = analysis.scaling(frame(told)).set_index(["batch_size", "gpus"])
    for at, row in said.items():
        assert table["speedup"][at, row.n] == pytest.approx(row.speedup)
        assert 100 * table["efficiency"][at, row.n] == pytest.approx(100 * row.speedup / row.n, abs=0.1)
    whole = printed.query("unit == 'gpu' and n == 32").set_index(["framework", "precision"])["speedup"].to_dict()
    assert whole == pytest.approx(SPEEDUPS, abs=0.0501)


def test_no_file_of_published_figures_states_a_difference_that_is_not_checked() -> None:
    """The gains of `precision` come without the rates they are of, and stand for themselves; those of `differences` are
    checked above; the others are rates."""
    stated = {name: {*references.table(name)} for name in ("throughput", "speedups", "convergence", "int8_accuracy")}
    words = ("diff", "gain", "efficiency", "ratio", "speedup", "%")
    told = {(name, column) for name, columns in stated.items() for column in columns if any(w in column for w in words)}
    assert told == {("speedups", "speedup")}


def test_efficiency_is_that_inside_a_node_times_that_between_nodes() -> None:
    table = analysis.scaling(
        frame(
            repeats([99.0, 100.0, 101.0], gpus=1),
            repeats([380.0, 384.0, 388.0], gpus=4),
            repeats([690.0, 691.2, 692.4], gpus=8),
            trial(760.0, gpus=8, placement="spread", nodes=8.0),
            trial(300.0, gpus=6, nodes=4.0),
        )
    )
    two = only(table, gpus=8, placement="pack")
    assert (two["speedup"], two["intra"], two["inter"]) == pytest.approx((6.912, 0.96, 0.9))
    assert two["inter_ci"] == pytest.approx(
        0.9 * math.hypot(analysis.half_width(1.2, 3) / 691.2, analysis.half_width(4.0, 3) / 384)
    )
    alone = only(table, gpus=8, placement="spread")
    assert (alone["intra"], alone["inter"]) == pytest.approx((1.0, 0.95)), "one GPU a node has nothing inside it"
    assert math.isnan(only(table, gpus=6)["inter"]), "six ranks on four nodes are no whole number a node"


def test_inside_a_node_is_unknown_where_one_node_was_not_measured() -> None:
    table = analysis.scaling(frame(trial(100.0, gpus=1), trial(700.0, gpus=8)))
    two = only(table, gpus=8)
    assert two["efficiency"] == pytest.approx(0.875)
    assert math.isnan(two["intra"])
    assert math.isnan(two["inter"])


def test_a_cell_whose_repeats_ran_on_unlike_numbers_of_nodes_is_not_split() -> None:
    one, four = trial(100.0, gpus=1), trial(380.0, gpus=4)
    table = analysis.scaling(frame(one, four, trial(700.0, gpus=8), trial(650.0, gpus=8, repeat=1, nodes=3.0)))
    assert math.isnan(only(table, gpus=8)["inter"])


def test_the_knee_of_a_batch_curve_is_the_least_batch_that_is_about_enough() -> None:
    batches = [8, 16, 32, 64, 128, 256]
    rate = {b: 1000 * b / (b + 12) for b in batches}
    curve, found = analysis.batch_curve(frame(*(trial(rate[b], batch_size=b) for b in batches)))
    knee = found.iloc[0]
    assert knee["knee"] == 128, "914 of 955 is 95.7%, 842 at 64 is not enough"
    assert knee["best"] == 256
    assert knee["is_reached"]
    assert knee["image_ms"] == pytest.approx(1.0)
    assert knee["fixed_ms"] == pytest.approx(12.0)
    assert curve.set_index("batch_size")["of_best"][64] == pytest.approx(rate[64] / rate[256])


def test_a_curve_that_still_rises_has_reached_no_knee() -> None:
    _, found = analysis.batch_curve(frame(*(trial(10.0 * b, batch_size=b) for b in (8, 16, 32))))
    assert found["knee"].tolist() == [32]
    assert not found["is_reached"].any()
    _, one = analysis.batch_curve(frame(trial(10.0)))
    assert math.isnan(one["fixed_ms"][0])


def test_decode_threads_saturate_where_the_gpu_does() -> None:
    rows = [
        trial(min(250.0 * threads, 1000.0) * gpus, decode_threads=threads, gpus=gpus, data="/data")
        for threads in (1, 2, 4, 8, 16)
        for gpus in (1, 4)
    ]
    curve, found = analysis.decode_curve(frame(*rows, trial(990.0, decode_threads="auto", data="/data")))
    one, four = only(found, gpus=1), only(found, gpus=4)
    assert (one["knee"], four["knee"]) == (4, 4)
    assert one["auto_of_best"] == pytest.approx(0.99)
    assert math.isnan(four["auto_of_best"])
    assert curve[curve["gpus"] == 1]["decode_threads"].tolist() == [1, 2, 4, 8, 16], "in order as numbers"


def test_precisions_are_compared_at_the_same_cell() -> None:
    table = analysis.precision_ratios(
        frame(
            repeats([99.0, 100.0, 101.0], precision="fp32"),
            repeats([178.0, 180.0, 182.0], precision="fp16"),
            trial(300.0, precision="fp16", batch_size=16),
        )
    ).set_index("batch_size")
    assert table["ratio"][8] == pytest.approx(1.8)
    relative = math.hypot(analysis.half_width(1.0, 3) / 100, analysis.half_width(2.0, 3) / 180)
    assert table["ratio_ci"][8] == pytest.approx(1.8 * relative)
    assert math.isnan(table["ratio"][16])


def to_target(gpus: int, epochs: float, rate: float, hours: float, **columns: object) -> dict[str, object]:
    figures = {"epochs_to_target": epochs, "hours_to_target": 1.1 * hours, "train_hours_to_target": hours}
    return trial(rate, protocol="convergence", gpus=gpus, **figures, **columns)


def test_time_to_target_is_throughput_times_statistical_efficiency() -> None:
    """The published epochs at 1, 2, 4 and 8 nodes of 4 GPUs, with the published speed-up to the accuracy."""
    epochs = references.table("convergence").query("source == 'B overview'").set_index("gpus")["epochs"].to_dict()
    faster = references.table("speedups").query("unit == 'node'").set_index("n")["speedup"].to_dict() | {1: 1.0}
    assert epochs == {4: 61, 8: 62, 16: 65, 32: 81}
    rows = [
        to_target(gpus, count, 1000 * faster[gpus // 4] * count / 61, 10 / faster[gpus // 4])
        for gpus, count in epochs.items()
    ]
    table = analysis.convergence(frame(*rows)).set_index("gpus")
    assert table["speedup"].to_dict() == pytest.approx({4: 1.0, 8: 1.8, 16: 3.3, 32: 4.9})
    assert table["statistical"].to_dict() == pytest.approx({4: 1.0, 8: 61 / 62, 16: 61 / 65, 32: 61 / 81})
    assert table["throughput"][32] == pytest.approx(4.9 * 81 / 61)
    assert table["unexplained"].tolist() == pytest.approx([1.0] * 4)


def test_schedules_are_lines_of_their_own_and_those_that_missed_are_left_out() -> None:
    missed = trial(900.0, protocol="convergence", gpus=4, lr_schedule="1.0")
    rows = [
        to_target(g, e, 100.0 * g, 1.0 / g, lr_schedule=s) for g, e, s in [(1, 10, "a"), (4, 20, "a"), (4, 30, "b")]
    ]
    table = analysis.convergence(frame(*rows, missed)).set_index(["lr_schedule", "gpus"])
    assert table["statistical"].to_dict() == {("a", 1): 1.0, ("a", 4): 0.5, ("b", 4): 1.0}


def test_an_epoch_costs_gpu_hours_and_joules() -> None:
    table = analysis.costs(
        frame(trial(1_281_167 / 3600, joules_per_image=0.5), trial(1_281_167 / 1800, gpus=4), trial(100.0, gpus=8))
    ).set_index("gpus")
    assert table["gpu_hours_per_epoch"].to_dict() == pytest.approx({1: 1.0, 4: 2.0, 8: 28.47038}, rel=1e-4)
    assert table["joules_per_epoch"][1] == pytest.approx(640_583.5)
    assert table["is_on_front"].to_dict() == {1: True, 4: True, 8: False}


def test_effects_are_factors_and_independent_axes_do_not_interact() -> None:
    grid = itertools.product([1, 2, 4], ["fp32", "fp16"], [8, 16])
    rows = [trial(100.0 * g * (2 if p == "fp16" else 1), gpus=g, precision=p, batch_size=b) for g, p, b in grid]
    found = analysis.effects(frame(*rows))
    factors = found.set_index(["axis", "value"])["factor"]
    assert factors["precision", "fp16"] / factors["precision", "fp32"] == pytest.approx(2)
    assert factors["gpus", 4] / factors["gpus", 1] == pytest.approx(4)
    assert factors["batch_size", 16] == pytest.approx(1)
    assert found.drop_duplicates("axis")["share"].sum() == pytest.approx(1)
    assert analysis.interactions(frame(*rows))["share"].max() == pytest.approx(0, abs=1e-9)


def test_an_interaction_is_found_between_the_axes_that_have_it() -> None:
    """fp16 helps large batches only."""
    grid = itertools.product([1, 2, 4], ["fp32", "fp16"], [8, 16])
    rows = [trial(g * (2.0 if p == "fp16" and b == 16 else 1.0), gpus=g, precision=p, batch_size=b) for g, p, b in grid]
    found = analysis.interactions(frame(*rows))
    assert {found["axis"][0], found["other"][0]} == {"precision", "batch_size"}
    assert found["share"][0] > 0.05
    assert found["share"][1:].max() == pytest.approx(0, abs=1e-9)
    assert found["rest"][0] == pytest.approx(0, abs=1e-9)


def test_a_hole_in_the_grid_does_not_bias_an_effect() -> None:
    """The largest batch does not fit in fp32: averages over what is left would make fp32 look slow."""
    grid = [(p, b) for p, b in itertools.product(["fp32", "fp16"], [8, 16, 32]) if (p, b) != ("fp32", 32)]
    found = analysis.effects(
        frame(*(trial(b * (1.5 if p == "fp16" else 1.0), precision=p, batch_size=b) for p, b in grid))
    )
    factors = found.set_index(["axis", "value"])["factor"]
    assert factors["precision", "fp16"] / factors["precision", "fp32"] == pytest.approx(1.5)


def test_a_repeat_that_does_not_agree_is_an_outlier() -> None:
    quiet = [repeats([100.0 * b, 100.2 * b, 99.9 * b], batch_size=b) for b in range(8, 16)]
    found = analysis.outliers(frame(*quiet, repeats([100.0, 100.2, 80.0], batch_size=16)))
    assert found["repeat"].tolist() == [2]
    assert found["ratio"][0] == pytest.approx(80 / 100.1, rel=1e-3)
    assert analysis.outliers(frame(*quiet)).empty


def test_of_two_repeats_nobody_knows_which_is_wrong() -> None:
    quiet = [repeats([100.0 * b, 100.2 * b], batch_size=b) for b in range(8, 16)]
    found = analysis.outliers(frame(*quiet, repeats([100.0, 80.0], batch_size=16)))
    assert sorted(found["repeat"]) == [0, 1]
    assert found["of_two"].all()
    assert analysis.outliers(frame(trial(100.0))).empty


def test_a_gang_that_one_rank_holds_up_is_a_straggler() -> None:
    found = analysis.stragglers(
        frame(trial(90.0, gpus=4, straggler_ratio=1.3), trial(100.0, gpus=2, straggler_ratio=1.02))
    )
    assert found["gpus"].tolist() == [4]


def test_the_map_of_what_fits_tells_tried_from_inferred_and_failed_from_infeasible() -> None:
    short = {"outcome": "infeasible", "kind": "device memory"}
    table = analysis.feasible(
        frame(
            trial(100.0, batch_size=8, peak_memory_mib=700.0),
            trial(batch_size=16, **short),
            trial(batch_size=32, inferred_from="b16", **short),
            trial(batch_size=64, outcome="failed", kind="killed"),
        )
    ).set_index("batch_size")
    assert table["fits"].tolist()[:3] == [True, False, False]
    assert table["fits"].isna().tolist() == [False, False, False, True]
    assert table["kind"].tolist() == ["", "device memory", "device memory", ""]
    assert table["is_inferred"].tolist() == [False, False, True, False]
    assert table["peak_memory_mib"][8] == 700


def test_studies_of_nothing_are_empty() -> None:
    nothing = frame(trial(outcome="failed", kind="killed"))
    assert analysis.batch_curve(nothing)[1].empty
    assert analysis.decode_curve(nothing)[1].empty
    assert analysis.convergence(nothing).empty
    assert analysis.effects(nothing).empty
    assert analysis.interactions(nothing).empty
    assert analysis.outliers(nothing).empty
    assert analysis.costs(nothing).empty
    assert analysis.precision_ratios(nothing).empty
    assert analysis.scaling(nothing)["intra"].isna().all()


def test_a_published_system_is_named_by_the_beginning_of_its_name() -> None:
    assert references.system("C4140-M") == "C4140-M-V100-SXM2-Xeon6148"
    for name in ("C4140", "C4140-X", ""):
        with pytest.raises(InputError, match="C4140-M-V100-SXM2-Xeon6148"):
            references.system(name)
