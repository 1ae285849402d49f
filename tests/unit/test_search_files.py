"""Which cells a sweep file asks for: conditions, drawn axes, global batches, nodes × ranks, and how they are searched."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.errors import InputError
from sweeps.spec import plan, space
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import Plan
from sweeps.spec.sweep_file import parse
from workers.contract import messages
from workers.contract.messages import TrialConfig

CONVERGENCE = {"protocol": "convergence", "data": "digits", "epochs": 9}


def content(**keys: Any) -> dict[str, Any]:
    axes = {} if "global_batch" in keys.get("space", {}) else {"batch_size": 8}
    known = {"name": "x", "model": "tiny", "device": "gpu", "repeats": 1}
    if "search" in keys:
        del known["repeats"]
    return known | keys | {"space": {**axes, "gpus": 1} | keys.get("space", {})}


def spec(**keys: Any) -> SweepSpec:
    return parse(repr(content(**keys)), "x.yaml")  # what repr writes is YAML


def planned(**keys: Any) -> Plan:
    return plan.plan(spec(**keys), "x.yaml")


def mistakes(**keys: Any) -> list[str]:
    with pytest.raises(InputError) as refused:
        planned(**keys)
    return [line.removeprefix("x.yaml: ") for line in str(refused.value).splitlines()]


def points(made: Plan, *axes: str) -> set[tuple[Any, ...]]:
    return {tuple(plan.value(trial, axis) for axis in axes) for trial in made.trials}


# ruff: noqa: E501
@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        ({"where": "batchsize > 3"}, ["where: must be a known name (did you mean batch_size?), but got batchsize", "  batchsize > 3", "  ^"]),
        ({"where": ["gpus > 0", "gpus > "]}, ["where[1]: must be a condition such as batch_size * gpus <= 8192, but got gpus >", "  gpus >", "  ^"]),
        ({"where": 3}, ["where: must be a condition such as batch_size * gpus <= 8192, or a list of them, but got 3"]),
        ({"where": "gpus > 3"}, ["where: must hold for some of the axes' points, but got gpus > 3"]),
        ({"where": ["batch_size > 8", "batch_size < 32"], "space": {"batch_size": [8, 32]}}, ["where: must leave a cell; left out are 1 cells: where batch_size > 8; 1 cells: where batch_size < 32, but got batch_size > 8; batch_size < 32"]),
        ({"where": "precision > 16"}, ["where: must be a number, but got fp32", "  precision > 16", "  ^"]),
        ({"space": {"xla": {"values": [False, True], "when": "gbus > 1"}}}, ["space.xla.when: must be a known name (did you mean gpus?), but got gbus", "  gbus > 1", "  ^"]),
        ({"space": {"xla": {"values": [False, True], "when": "not xla"}}}, ["space.xla.when: must be a condition on other axes, not on its own, but got not xla"]),
        ({"space": {"xla": {"values": True, "when": "momentum > 0"}, "momentum": {"values": 0.5, "when": "beta2 > 0 or xla"}}}, ["space.xla.when: must not come back to itself, but got xla → momentum → xla"]),
        ({"space": {"gpus": {"values": [1, 2], "when": "xla"}}}, ["space.gpus.when: has no default and can't have a condition; `where` leaves cells out, but got xla"]),
        ({"model": {"values": ["tiny"], "when": "xla"}}, ["model.when: has no default and can't have a condition; `where` leaves cells out, but got xla"]),
        ({"space": {"xla": {"values": [True], "when": "gpus > 1"}}}, ["space.xla.when: must hold for some of the axes' points, but got gpus > 1"]),
        ({"space": {"xla": {"values": True, "when": True}}}, ["space.xla: when must be a condition such as \"optimizer == 'lars'\", but got true"]),
        ({"space": {"momentum": {"uniform": [0, 0.5]}}}, ["space.momentum: must be a list with search: grid: random and tpe alone draw from an interval, but got 0.0 to 0.5"]),
        ({"space": {"precision": {"uniform": [0, 1]}}}, ["space.precision: must be a list: uniform is for numbers, but got {'uniform': [0, 1]}"]),
        ({"space": {"batch_size": {"uniform": [1, 2.5]}}}, ["space.batch_size: uniform must hold 2 whole numbers, but got [1, 2.5]"]),
        ({"space": {"momentum": {"uniform": [0.5, 0.1]}}}, ["space.momentum: uniform must hold low < high, but got [0.5, 0.1]"]),
        ({"space": {"momentum": {"loguniform": [0, 0.1]}}}, ["space.momentum: loguniform must hold 0 < low < high, but got [0, 0.1]"]),
        ({"space": {"momentum": {"uniform": [0.5, 1.0]}}}, ["space.momentum: must be less than 1, but got 1.0"]),
        ({"space": {"momentum": {"uniforn": [0, 1]}}}, ["space.momentum: must be a value, a list, or one of {values: …}, {log2: [low, high]}, {range: [low, high, step]}, {uniform: [low, high]}, {loguniform: [low, high]}, but got {'uniforn': [0, 1]}"]),
        ({"space": {"global_batch": 8, "batch_size": 8}}, ["space.global_batch: must be left out beside batch_size: one follows from the other, but got 8"]),
        ({"space": {"global_batch": [6, 7], "gpus": [2, 3]}}, ["space.global_batch: must be a multiple of gpus: one of 2, 3, but got 7"]),
        ({"space": {"placement": "2by4"}}, ["space.placement: must be pack, spread or nodes × ranks on each, such as 2x4, at most 1024 in all, but got 2by4"]),
        ({"space": {"placement": "128x9"}}, ["space.placement: must be pack, spread or nodes × ranks on each, such as 2x4, at most 1024 in all, but got 128x9"]),
        ({"space": {"placement": ["pack", "2x4"], "gpus": [1, 4]}}, ["space.placement: must hold as many ranks as gpus: one of 1, 4, but got 2x4"]),
        ({"search": "gird"}, ["search: must be one of grid, random, tpe, asha, frontier, but got gird"]),
        ({"search": {"method": "random", "trails": 3}}, ["search.trails: must be a known key (did you mean trials?), but got trails"]),
        ({"search": "tpe"}, ["search.trials: must be given with method: tpe: how many cells to measure, but got nothing"]),
        ({"search": {"trials": 3, "goal": "top1", "grace": 2}}, ["search.trials: belongs to method: random, tpe, asha, this sweep's is grid, but got 3", "search.goal: belongs to method: tpe, asha, this sweep's is grid, but got ('top1',)", "search.grace: belongs to method: asha, this sweep's is grid, but got 2", "search.goal: top1 must have protocol: convergence, but got throughput"]),
        ({"search": {"method": "tpe", "trials": 3, "goal": ["top1", "top5"]}}, ["search.goal: must be one or two of images_per_s, gpu_hours_per_epoch, top1, hours_to_target, or of `run` `min NAME` or `max NAME`, but got ['top1', 'top5']"]),
        ({"search": {"method": "tpe", "trials": 3, "goal": "hours_to_target"}, **CONVERGENCE}, ["search.goal: hours_to_target must have a target, but got none"]),
        ({"search": "asha"}, ["search: asha must have protocol: convergence: it stops trials between their epochs, but got throughput"]),
        ({"search": {"method": "asha", "grace": 9}, **CONVERGENCE}, ["search.grace: must be fewer epochs than the run of 9, but got 9"]),
        ({"search": "frontier"}, ["search: frontier must have several points of batch_size: it looks for the largest that fits, but got 8"]),
        ({"search": "frontier", "repeats": 3, "space": {"batch_size": [1, 2]}}, ["repeats: must be 1 with search: frontier: what does not fit once does not fit, but got 3"]),
        ({"budget": {"gpu_hours": 0}}, ["budget.gpu_hours: must be more than 0, but got 0"]),
        ({"wait_for_nodes_min": -1}, ["wait_for_nodes_min: must be at least 0, but got -1"]),
        ({"priority": 0, "max_nodes": 0}, ["priority: must be at least 0.01, but got 0", "max_nodes: must be at least 1, but got 0"]),
        ({"where": "gpus >", "space": {"gpus": 9999, "trust": 0.1}, "search": "tpe"}, ["space.gpus: must be at most 1024, but got 9999", "search.trials: must be given with method: tpe: how many cells to measure, but got nothing", "where: must be a condition such as batch_size * gpus <= 8192, but got gpus >", "  gpus >", "  ^", "space.trust: has no effect without optimizer: lars, but got sgd"]),
        ({"where": "optimizer == 'lars'", "space": {"optimizer": ["sgd", "lar"]}}, ["space.optimizer[1]: must be one of sgd, lars, adamw, but got lar"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_key_rule_and_value(keys: dict[str, Any], lines: list[str]) -> None:
    assert mistakes(**keys) == lines


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 32), min_size=1, max_size=4, unique=True),
    st.integers(1, 2048),
)
def test_where_keeps_the_cells_that_it_holds_for_and_counts_the_others(
    batches: list[int], gpus: list[int], most: int
) -> None:
    kept = {(b, n) for b, n in itertools.product(batches, gpus) if b * n <= most and b != 3}
    keys = {
        "where": ["global_batch <= " + str(most), "batch_size != 3"],
        "space": {"batch_size": batches, "gpus": gpus},
    }
    if not kept:
        assert mistakes(**keys)[0].startswith("where")
        return
    made = planned(**keys)
    assert points(made, "batch_size", "gpus") == kept
    assert sum(made.left_out.values()) == len(batches) * len(gpus) - len(kept)


def test_where_its_condition_does_not_hold_an_axis_has_its_default_and_multiplies_nothing() -> None:
    axes = {
        "gpus": [1, 2],
        "compression": {"values": ["none", "fp16"], "when": "gpus > 1"},
        "fusion_mib": {"values": [1, 2], "when": "compression == 'fp16'"},  # a condition on one that has a condition
        "env": {"NCCL_ALGO": {"values": ["Ring", "Tree"], "when": "fusion_mib == 2"}},
    }
    assert points(planned(space=axes), "gpus", "compression", "fusion_mib", "env.NCCL_ALGO") == {
        (1, "none", 128.0, ""),
        (2, "none", 128.0, ""),
        (2, "fp16", 1.0, ""),
        (2, "fp16", 2.0, "Ring"),
        (2, "fp16", 2.0, "Tree"),
    }
    assert all("NCCL_ALGO" in trial.env or trial.fusion_mib != 2 for trial in planned(space=axes).trials)


def test_an_empty_variable_is_set_and_an_absent_one_is_not() -> None:
    (trial,) = planned(space={"env": {"A": ""}}).trials
    assert trial.env == {"A": ""}


def test_a_global_batch_is_split_over_the_ranks_and_left_out_where_it_does_not_divide() -> None:
    made = planned(space={"global_batch": [12, 32], "gpus": {"range": [1, 4]}}, where="batch_size > 3")
    assert points(made, "gpus", "batch_size", "global_batch") == {
        (1, 12, 12), (2, 6, 12), (3, 4, 12), (1, 32, 32), (2, 16, 32), (4, 8, 32),
    }  # fmt: skip
    assert dict(made.left_out) == {"where batch_size > 3": 1, "global_batch is not a multiple of gpus": 1}
    assert "global_batch" in made.axes
    assert "batch_size" not in made.axes


def test_a_placement_of_nodes_and_ranks_is_for_as_many_gpus() -> None:
    made = planned(space={"gpus": [1, 4, 8], "placement": ["pack", "spread", "2x4", "4X2", "2×2", "1x1"]})
    assert points(made, "gpus", "placement") == {
        (1, "pack"), (4, "pack"), (4, "spread"), (4, "2x2"), (8, "pack"), (8, "spread"), (8, "2x4"), (8, "4x2"),
    }  # fmt: skip
    assert sum(made.left_out.values()) == 3 * 6 - 8 - 2  # one GPU spread, and as 1x1, is one GPU packed
    assert messages.nodes_by_ranks("4x8") == (4, 8)
    assert messages.nodes_by_ranks("128x8") == (128, 8)
    assert messages.nodes_by_ranks("1024x1") == (1024, 1)
    for none in ("pack", "spread", "128x9", "0x4", "1025x1", "10000x1", "2x", "2x4x1", " 2x4"):
        assert messages.nodes_by_ranks(none) is None


def test_a_random_search_measures_so_many_distinct_cells_of_the_grid() -> None:
    axes = {"batch_size": {"range": [1, 20]}, "gpus": {"range": [1, 20]}}
    search = {"method": "random", "trials": 30}
    made = planned(search=search, repeats=2, space=axes, where="batch_size != gpus")
    cells = points(made, "batch_size", "gpus")
    assert len(cells) == 30
    assert len(made.trials) == 60 == made.most
    assert all(batch != gpus for batch, gpus in cells)
    assert made == planned(search=search, repeats=2, space=axes, where="batch_size != gpus")
    assert cells != points(
        planned(search=search, repeats=2, space=axes, where="batch_size != gpus", seed=1), "batch_size", "gpus"
    )
    few = planned(search=search, space=axes, where="batch_size * gpus < 4")
    assert points(few, "batch_size", "gpus") == {(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)}


def test_continuous_axes_are_drawn_where_their_condition_holds() -> None:
    axes = {
        "batch_size": {"loguniform": [1, 1024]},
        "optimizer": ["sgd", "lars"],
        "trust": {"loguniform": [0.0001, 0.1], "when": "optimizer == 'lars'"},
        "weight_decay": {"uniform": [0, 1.0e-3]},
    }
    made = planned(search={"method": "random", "trials": 300}, repeats=1, space=axes, where="batch_size % 2 == 0")
    assert len(made.cells) == 300
    assert {trial.batch_size % 2 for trial in made.trials} == {0}
    assert {trial.trust for trial in made.trials if trial.optimizer == "sgd"} == {0.001}
    trusts = [trial.trust for trial in made.trials if trial.optimizer == "lars"]
    assert 100 < len(trusts) < 200
    assert 0.25 < sum(trust < 0.003 for trust in trusts) / len(trusts) < 0.75  # half by its logarithm
    decays = [trial.weight_decay for trial in made.trials]
    assert 0 <= min(decays) < 5e-5 < 95e-5 < max(decays) <= 1e-3
    assert all(float(f"{decay:.4g}") == decay for decay in decays)
    name = plan.namer(made.spec)
    assert len({name(trial) for trial in made.trials}) == 300


@given(st.integers(1, 1000), st.integers(1, 1000), st.booleans(), st.booleans(), st.integers(0, 99))
def test_what_is_drawn_lies_between_the_ends_and_stays_what_it_is(
    low: int, width: int, is_log: bool, is_whole: bool, seed: int
) -> None:
    axis = space.Uniform(low, low + width, is_log, is_whole)
    drawn = axis.draw(random.Random(seed))
    assert low <= drawn <= low + width
    assert axis.settled(drawn) == drawn
    assert isinstance(drawn, int) is is_whole
    assert axis.settled(-math.inf) == low


def test_the_ends_of_whole_numbers_are_drawn_as_often_as_the_rest() -> None:
    drawn = random.Random(0)
    counts = [0, 0, 0, 0]
    for _ in range(4000):
        counts[space.Uniform(1, 4, is_whole=True).draw(drawn) - 1] += 1
    assert all(900 < count < 1100 for count in counts)


def test_a_search_that_goes_by_what_it_has_seen_plans_no_trials_but_says_how_many() -> None:
    axes = {"batch_size": {"log2": [1, 64]}, "gpus": [1, 2, 3]}
    tpe = planned(search={"method": "tpe", "trials": 10}, space=axes)
    assert (tpe.trials, tpe.most, tpe.spec.repeats) == ((), 10, 1)
    assert planned(search={"method": "tpe", "trials": 50}, repeats=2, space=axes).most == 42  # there are 21 cells
    frontier = planned(search="frontier", space=axes, where="batch_size * gpus <= 64")
    assert frontier.trials == ()
    assert [[cell.batch_size for cell in cells] for cells in plan.ladders(frontier.spec)] == [
        [1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16],
    ]  # fmt: skip
    assert frontier.most == 3 + 3 + 3  # bisection of 7, 6 and 5 points
    assert mistakes(search={"method": "tpe", "trials": 9}, space=axes, where=["batch_size > 32", "batch_size < 64"])
    wide = {"batch_size": {"uniform": [1, 999]}, "gpus": {"range": [1, 32]}}
    assert planned(search={"method": "tpe", "trials": 7}, space=wide, where="batch_size % gpus == 0").most == 7
    assert mistakes(search={"method": "tpe", "trials": 7}, space=wide, where="batch_size + 0.5 == gpus")[0].startswith(
        "where: must leave a cell"
    )


def test_asha_takes_the_grid_or_some_of_it() -> None:
    axes = {"batch_size": [1, 2, 4, 8], "gpus": [1, 2]}
    assert planned(search="asha", space=axes, **CONVERGENCE).most == 24
    some = planned(search={"method": "asha", "trials": 3}, space=axes, repeats=1, **CONVERGENCE)
    assert len(some.trials) == 3
    assert points(some, "batch_size", "gpus") < {(b, n) for b in (1, 2, 4, 8) for n in (1, 2)}


def test_repeats_and_goals_have_defaults_by_search_and_protocol() -> None:
    assert spec(search="grid").repeats == 3
    assert spec(search={"method": "tpe", "trials": 3}).repeats == 1
    assert spec(search={"method": "tpe", "trials": 3}, repeats=2).repeats == 2
    assert spec().goals == ("images_per_s",)
    assert spec(**CONVERGENCE).goals == ("top1",)
    assert spec(search={"method": "tpe", "trials": 3, "goal": ["images_per_s", "gpu_hours_per_epoch"]}).goals == (
        "images_per_s",
        "gpu_hours_per_epoch",
    )


def test_a_point_is_a_cell_or_a_reason() -> None:
    made = spec(
        space={
            "batch_size": [8, 64],
            "gpus": [1, 4],
            "placement": ["pack", "2x2"],
            "momentum": {"values": 0.5, "when": "gpus > 1"},
        },
        where="batch_size * gpus <= 128",
    )
    point = {name: axis.points()[0] for name, axis in made.axes.items()}
    cell = plan.cell_at(made, point)
    assert isinstance(cell, TrialConfig)
    assert (cell, cell.momentum) == (next(plan.grid(made)), 0.9)
    assert plan.cell_at(made, {name: at for name, at in point.items() if name != "momentum"}) == cell
    assert plan.cell_at(made, point | {"gpus": 4}) == dataclasses.replace(cell, gpus=4, momentum=0.5)
    assert plan.cell_at(made, point | {"placement": "2x2"}) == "placement is for another number of gpus"
    assert plan.cell_at(made, point | {"gpus": 4, "batch_size": 64}) == "where batch_size * gpus <= 128"
    assert [trial.repeat for trial in plan.repeats_of(made, cell)] == [0]


def test_a_draw_asks_for_no_axis_that_does_not_apply() -> None:
    made = spec(space={"trust": {"values": [0.1, 0.2], "when": "optimizer == 'lars'"}, "optimizer": ["sgd", "lars"]})
    asked: list[str] = []

    def pick(name: str, axis: space.Axis) -> Any:
        asked.append(name)
        return axis.points()[0]

    assert plan.draw(made, pick)["trust"] == 0.001
    assert "trust" not in asked
    assert len(asked) == len(made.axes) - 1


def test_the_summary_says_the_search_and_what_was_left_out() -> None:
    axes = {"batch_size": [1, 2], "gpus": [1, 2, 3]}
    assert plan.summary(planned(space=axes, where="batch_size * gpus < 4")) == (
        "4 cells × 1 repeats = 4 trials: batch_size 1, 2 × gpus 1, 2, 3\nleft out: 2 cells: where batch_size * gpus < 4"
    )
    assert plan.summary(planned(search={"method": "random", "trials": 2}, space=axes)) == (
        "random, 2 cells × 3 repeats = 6 trials: batch_size 1, 2 × gpus 1, 2, 3"
    )
    assert plan.summary(planned(search={"method": "tpe", "trials": 2}, space=axes)) == (
        "tpe for images_per_s, at most 2 cells × 1 repeats = 2 trials: batch_size 1, 2 × gpus 1, 2, 3"
    )
    assert plan.summary(planned(search="frontier", space=axes)) == (
        "the largest batch_size of 3 by bisection, at most 6 trials: batch_size 1, 2 × gpus 1, 2, 3"
    )
    drawn = {"momentum": {"uniform": [0.5, 0.9], "when": "batch_size > 1"}, "batch_size": [1, 2]}
    assert plan.summary(planned(search={"method": "tpe", "trials": 2}, space=drawn)).endswith(
        "batch_size 1, 2 × momentum 0.5 to 0.9 when batch_size > 1"
    )


def test_an_override_opens_the_short_form_of_a_search() -> None:
    made = parse(repr(content(search="random")), "x", ["search.trials=5"])
    assert (made.search.method, made.search.trials) == ("random", 5)
    assert parse(repr(content()), "x", ["where=gpus < 2", "batch_size={values: [1, 2]}"]).where == ("gpus < 2",)


def test_names_tell_the_cells_of_every_search_apart() -> None:
    axes = {"gpus": [1, 4], "placement": ["pack", "2x2"], "env": {"A": {"values": ["x"], "when": "placement == '2x2'"}}}
    made = planned(space=axes)
    name = plan.namer(made.spec)
    assert [name(cell) for cell in made.cells.values()] == [
        "b8 ×1 fp32 pack no A",
        "b8 ×4 fp32 pack no A",
        "b8 ×4 fp32 2x2 x",
    ]
