"""A plan holds each cell `repeats` times, under ids that depend on content alone."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.errors import InputError
from sweeps.spec import keys, plan, sweep_file
from workers.contract import messages
from workers.contract.messages import TrialConfig

axis = st.lists(st.integers(1, 32), min_size=1, max_size=4, unique=True)


def planned(batch_size: object, gpus: object, repeats: int = 1, **more: object) -> plan.Plan:
    content = {"name": "x", "model": "tiny", "device": "cpu", "repeats": repeats, **more}
    return plan.plan(keys.SweepSpec.model_validate(content | {"space": {"batch_size": batch_size, "gpus": gpus}}))


@given(axis, axis, st.integers(1, 4))
def test_every_combination_is_a_cell_and_every_cell_is_repeated(
    sizes: list[int], gpus: list[int], repeats: int
) -> None:
    made = planned(sizes, gpus, repeats)
    points = {(trial.batch_size, trial.gpus, trial.repeat) for trial in made.trials}
    assert points == {(b, g, r) for b in sizes for g in gpus for r in range(repeats)}
    assert len(made.trials) == len(points) == len({trial.trial for trial in made.trials})
    assert len(made.cells) == len(sizes) * len(gpus)


@given(axis, axis)
def test_a_round_measures_every_cell_before_one_is_measured_again(sizes: list[int], gpus: list[int]) -> None:
    repeats = [trial.repeat for trial in planned(sizes, gpus, 3).trials]
    assert repeats == sorted(repeats)


def test_a_cell_is_named_by_its_content() -> None:
    (one,) = planned(8, 1).trials
    (same,) = planned([8], [1]).trials
    assert one.cell == same.cell
    assert dataclasses.replace(one, repeat=5).cell == one.cell
    assert dataclasses.replace(one, deadlines=messages.Deadlines(step_s=1)).cell == one.cell
    for field, value in [("batch_size", 9), ("precision", "bf16"), ("seed", 1), ("measured_steps", 7)]:
        assert dataclasses.replace(one, **{field: value}).cell != one.cell


def test_a_sweep_too_large_is_refused_before_it_is_made() -> None:
    with pytest.raises(InputError, match="at most 100000 trials, but got 6400000"):
        planned({"range": [1, 2000]}, {"range": [1, 32]}, repeats=100)


def test_a_config_survives_its_json_form() -> None:
    (one,) = planned(8, 2, deadlines={"step_s": 3}).trials
    assert isinstance(one, TrialConfig)
    assert messages.trial_config(messages.to_json(one)) == one
    assert one.deadlines.for_phase("step") == 3


def test_what_has_no_effect_on_a_cell_does_not_multiply_it() -> None:
    space = {"batch_size": 8, "gpus": 1, "optimizer": ["sgd", "lars"], "trust": [0.01, 0.001]}
    content = {"name": "x", "model": "tiny", "device": "cpu", "repeats": 1, "space": space}
    cells = plan.plan(keys.SweepSpec.model_validate(content)).cells.values()
    found = [(trial.optimizer, trial.trust) for trial in cells]
    assert found == [("sgd", 0.001), ("lars", 0.01), ("lars", 0.001)]


def test_labels_from_goes_to_the_trials_that_read_a_folder() -> None:
    text = "{name: x, model: tiny, device: cpu, data: [digits, /data], labels_from: 0, space: {batch_size: 8, gpus: 1}}"
    by_data = {trial.data: trial.labels_from for trial in plan.plan(sweep_file.parse(text, "x")).trials}
    assert by_data == {"digits": 1, "/data": 0}
    default = plan.plan(sweep_file.parse(text.replace("labels_from: 0, ", ""), "x")).trials
    assert {trial.labels_from for trial in default} == {1}
    assert {trial.cell for trial in default} & {
        trial.cell for trial in plan.plan(sweep_file.parse(text, "x")).trials
    } == {trial.cell for trial in default if trial.data == "digits"}


def test_models_data_and_variables_are_axes_too() -> None:
    space = {"batch_size": 8, "gpus": 1, "env": {"NCCL_ALGO": ["Ring", "Tree"]}}
    content = {"name": "x", "model": ["tiny", "inception_v3"], "data": ["synthetic", "digits"], "device": "cpu"}
    made = plan.plan(keys.SweepSpec.model_validate(content | {"repeats": 1, "space": space}))
    assert len(made.cells) == 8
    assert {trial.env["NCCL_ALGO"] for trial in made.trials} == {"Ring", "Tree"}
    sizes = {(trial.model, trial.data): (trial.image_size, trial.classes) for trial in made.trials}
    assert sizes == {
        ("tiny", "synthetic"): (32, 1000),
        ("tiny", "digits"): (32, 10),
        ("inception_v3", "synthetic"): (299, 1000),
        ("inception_v3", "digits"): (75, 10),
    }
    name = plan.namer(made.spec)
    assert name(next(iter(made.cells.values()))) == "b8 ×1 fp32 tiny synthetic Ring"
    assert len({name(trial) for trial in made.trials}) == 8


def test_a_schedule_is_drawn_for_each_global_batch_that_scales_it() -> None:
    text = """
name: x
model: tiny
data: digits
device: cpu
protocol: convergence
epochs: 90
space: {batch_size: [256, 512], gpus: 1, lr_schedule: ["0.4;10;0.04;60;0.004", "0.1 scale=linear"]}
"""
    lines = plan.schedules_drawn(plan.plan(sweep_file.parse(text, "x")))
    assert lines[0] == "learning rate over 90 epochs"
    assert len(lines) == 5
    assert "0.4 to 0.004 at a global batch of 256" in lines[1]
    assert "0.2 to 0.2 at a global batch of 512" in lines[4]


def test_the_order_of_a_round_is_random_on_every_axis_and_the_seed_decides_it() -> None:
    made = planned([1, 2, 4, 8, 16], [1, 2, 3], repeats=4)
    orders = [[trial.cell for trial in made.trials if trial.repeat == repeat] for repeat in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    assert made.trials == planned([1, 2, 4, 8, 16], [1, 2, 3], repeats=4).trials
    assert made.trials != planned([1, 2, 4, 8, 16], [1, 2, 3], repeats=4, seed=1).trials
    shown = [(trial.batch_size, trial.gpus) for trial in made.cells.values()]
    assert shown == sorted(shown)  # a reader's order
    pairs = [planned([1, 2, 4, 8, 16], [1, 2, 3], seed=seed).trials[:2] for seed in range(600)]
    firsts = Counter((first.batch_size, first.gpus) for first, _ in pairs)
    assert len(firsts) == 15
    assert max(firsts.values()) < 2 * 600 / 15
    alike = sum(one.gpus == other.gpus for one, other in pairs) / 600
    assert abs(alike - 4 / 14) < 0.08  # no blocks of one size


def test_one_rank_reduces_nothing_so_its_settings_make_no_cells() -> None:
    axes = {"batch_size": 8, "gpus": [1, 2], "reduction": ["overlapped", "grouped"], "fusion_mib": [1, 128]}
    content = {"name": "x", "model": "tiny", "device": "cpu", "repeats": 1, "space": axes}
    made = plan.plan(keys.SweepSpec.model_validate(content)).trials
    assert sorted(trial.gpus for trial in made) == [1, 2, 2, 2, 2]


def test_what_xla_compiles_is_reduced_in_one_way_so_reduction_makes_no_cells() -> None:
    axes = {"batch_size": 8, "gpus": 2, "xla": [False, True], "reduction": ["overlapped", "grouped"]}
    content = {"name": "x", "model": "tiny", "device": "cpu", "repeats": 1, "space": axes}
    made = plan.plan(keys.SweepSpec.model_validate(content)).trials
    found = sorted((trial.xla, trial.reduction) for trial in made)
    assert found == [(False, "grouped"), (False, "overlapped"), (True, "overlapped")]
