"""A table as a sweep file, and its rows against planted trials whose verdicts are known."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.analysis import publication, recipe, reproduction, setups
from sweeps.analysis.publication import PublishedTable
from sweeps.analysis.reproduction import Held
from sweeps.cli import main
from sweeps.errors import InputError
from sweeps.record import ledger, rows
from sweeps.record.ledger import TrialRecord
from sweeps.run import driver, earlier_table, reproduce
from sweeps.run.terms import Terms
from sweeps.simulator.cluster import parse
from sweeps.simulator.group import SimulatedGroup
from sweeps.spec import arrangements, keys, plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.examples import examples
from tests.unit.records import record
from workers.contract.messages import TrialConfig

NODES = (Node("n0", cpus=8, gpus=4), Node("n1", cpus=8, gpus=4))  # as a sweep that runs is planned for some
PUBLISHED = [one.name for one in publication.listed() if not one.why_not]
OWN = """\
system,model,device,batch_size,gpus,precision,images_per_s,images_per_s_ci,repeats
mine,tiny,cpu,8,1,fp32,1000,10,5
mine,tiny,cpu,8,2,fp32,1900,20,5
mine,tiny,cpu,16,1,fp32,1200,12,5
"""


def table(text: str = OWN) -> PublishedTable:
    return publication.parse(text, "own.csv", "own")


def sweep_of(found: PublishedTable, *overrides: str) -> keys.SweepSpec:
    return parsed(recipe.text(found, 3), overrides)


@functools.lru_cache(maxsize=1)  # a property asks for it again and again
def parsed(text: str, overrides: tuple[str, ...]) -> keys.SweepSpec:
    return sweep_file.parse(text, "recipe", overrides)


def planted(config: TrialConfig, rates: list[float], **columns: Any) -> list[dict[str, Any]]:
    made = [rows.row(record(dataclasses.replace(config, repeat=n), rate)) for n, rate in enumerate(rates)]
    return [{**row, **columns} for row in made]


def held(
    found: PublishedTable, factors: Mapping[int, float], tolerance: float = 0.05, noise: float = 0.01
) -> tuple[Held, ...]:
    """Each row of a table measured three times, at so many times its figure; those without a factor not at all."""
    asked = sweep_of(found)
    planned = {trial.cell for trial in plan.plan(asked, "own", NODES).trials}
    trials = []
    for row in found.rows:
        config = reproduction.cell_of(row.settings, asked, NODES)
        assert isinstance(config, TrialConfig)
        assert config.cell in planned
        if row.line in factors:
            rate = row.value * factors[row.line]
            trials += planted(config, [rate * (1 - noise), rate, rate * (1 + noise)])
    return reproduction.reproduce(found, asked, trials, {trial["cell"] for trial in trials}, tolerance, NODES)


def verdicts(found: tuple[Held, ...]) -> dict[int, tuple[str, str]]:
    return {
        one.row.line: (one.rate.verdict if one.rate else "", one.relative.verdict if one.relative else "")
        for one in found
    }


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


def test_what_is_off_differs_by_so_much_and_what_is_missing_says_why() -> None:
    found = held(table(), {2: 1.0, 3: 0.8})
    assert verdicts(found) == {2: ("holds", ""), 3: ("differs", "differs"), 4: ("not measured", "")}
    rate = found[1].rate
    assert rate
    assert rate.why == "-20.0%"
    assert rate.low < 0.8 < rate.high < 0.95
    assert found[2].rate
    assert found[2].rate.why == "needs 1 rank, for which there is no room here"


def test_a_speed_up_holds_on_a_machine_whose_rates_do_not() -> None:
    assert verdicts(held(table(), {2: 0.1, 3: 0.1, 4: 0.1})) == {
        2: ("differs", ""),
        3: ("differs", "holds"),
        4: ("differs", ""),
    }


def test_the_tolerance_and_the_print_s_rounding_are_allowed_and_no_more() -> None:
    text = "model,device,batch_size,gpus,images_per_s\ntiny,cpu,8,1,{}\n"
    for printed, factor, tolerance, verdict in [
        ("1000", 1.03, 0.05, "holds"),
        ("1000", 1.03, 0.02, "differs"),
        ("1e3", 1.3, 0.0, "holds"),  # 500 to 1500, as it is printed
        ("1000", 1.3, 0.0, "differs"),
        ("1000", 0.94, 0.05, "differs"),
        ("1000", 0.95, 0.05, "open"),
        ("1000", 1.0, 0.0, "open"),
    ]:
        (one,) = held(table(text.format(printed)), {2: factor}, tolerance, noise=0.001)
        assert one.rate
        assert one.rate.verdict == verdict, (printed, factor, tolerance)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.79, 0.953, "open"),  # 13% off, and only not refuted
        (0.79, 0.949, "differs"),
        (0.949, 1.0, "open"),
        (0.951, 1.049, "holds"),
        (0.951, 1.051, "open"),
        (1.051, 1.06, "differs"),
        (0.5, 2.0, "open"),
    ],
)
def test_a_row_holds_where_its_whole_interval_is_allowed_and_differs_where_none_of_it_is(
    low: float, high: float, verdict: str
) -> None:
    assert reproduction.judge(low, high, 0.05, 0.0) == verdict


def test_what_is_13_percent_off_is_open_and_says_what_would_tell() -> None:
    (one,) = held(table("model,device,batch_size,gpus,images_per_s\ntiny,cpu,8,1,1000\n"), {2: 0.87}, noise=0.0367)
    assert one.rate
    assert (one.rate.low, one.rate.high) == pytest.approx((0.794, 0.953), abs=0.001)
    assert one.rate.verdict == "open"
    assert one.rate.why == f"{one.rate.low - 1:+.1%} to {one.rate.high - 1:+.1%} reaches over ±5.05%: more repeats"


def test_a_quiet_print_does_not_make_noisy_repeats_sure() -> None:
    """Ten repeats that agree to a thousandth, and three here of 5%: the interval is that of the three."""
    text = "model,device,batch_size,gpus,images_per_s,images_per_s_ci,repeats\ntiny,cpu,8,1,1000,{},10\n"
    (own,), (beside,) = (held(table(text.format(ci)), {2: 1.0}, noise=0.05) for ci in ("0.001", "1"))
    assert own.rate
    assert beside.rate
    alone, both = (math.log(claim.high / claim.low) / 2 for claim in (own.rate, beside.rate))
    assert alone == pytest.approx(4.3027 * 0.05 / math.sqrt(3), rel=0.01)
    assert both == pytest.approx(math.hypot(alone, 0.001), rel=1e-6)


def test_an_interval_too_wide_to_tell_and_a_single_repeat_are_open() -> None:
    (one, *_) = held(table(), {2: 1.0, 3: 1.0, 4: 1.0}, noise=0.3)
    assert one.rate
    assert one.rate.verdict == "open"
    found, asked = table(), sweep_of(table())
    config = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(config, TrialConfig)
    (alone, *_) = reproduction.reproduce(found, asked, planted(config, [1000.0]), set(), 0.05)
    assert alone.rate
    assert (alone.rate.verdict, alone.rate.why) == ("open", "a single repeat has no interval")


@pytest.mark.parametrize("column", ["data_files", "arrangement"])
def test_repeats_on_other_files_or_arranged_otherwise_are_not_averaged(column: str) -> None:
    found, asked = table(), sweep_of(table())
    config = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(config, TrialConfig)
    trials = [*planted(config, [1000.0, 1010.0], **{column: "a"}), *planted(config, [2000.0, 2010.0], **{column: "b"})]
    (one, *_) = reproduction.reproduce(found, asked, trials, set(), 0.05)
    assert one.rate is None or one.rate.verdict != "holds"
    assert "not averaged" in one.why


def test_the_table_s_own_interval_counts_as_well() -> None:
    sure = held(table(), {2: 1.05, 3: 1.05, 4: 1.05}, 0.0, 0.001)[0].rate
    unsure = held(table(OWN.replace("1000,10,5", "1000,50,5")), {2: 1.05, 3: 1.05, 4: 1.05}, 0.0, 0.001)[0].rate
    assert sure
    assert unsure
    assert (sure.verdict, unsure.verdict) == ("differs", "open")
    assert unsure.high - unsure.low > 2 * (sure.high - sure.low)


def test_repeats_on_unlike_machines_are_not_averaged() -> None:
    found, asked = table(), sweep_of(table())
    config = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(config, TrialConfig)
    trials = planted(config, [1000.0, 1001.0], hardware="aaaa") + planted(config, [500.0], hardware="bbbb")
    (one, *_) = reproduction.reproduce(found, asked, trials, {config.cell}, 0.05)
    assert one.rate
    assert one.rate.verdict == "not measured"
    assert "2 hardware fingerprints" in one.rate.why


@pytest.mark.parametrize("column", ["hardware", "software", "data_files"])
def test_a_relative_figure_is_over_a_cell_that_was_measured_alike(column: str) -> None:
    found, asked = table(), sweep_of(table())

    def relatives(*made: str) -> list[str]:
        trials = []
        for row, what in zip(found.rows, made, strict=True):
            config = reproduction.cell_of(row.settings, asked)
            assert isinstance(config, TrialConfig)
            trials += planted(config, [1000.0, 1010.0], **{column: what})
        judged = reproduction.reproduce(found, asked, trials, set(), 0.05)
        return [one.relative.why for one in judged if one.relative]

    words = f"its base was measured with other {column.replace('_', ' ')}"
    assert words in relatives("old", "new", "new")
    assert words not in relatives("new", "new", "new")


def test_a_failed_or_infeasible_row_says_what_became_of_it() -> None:
    found, asked = table(), sweep_of(table())
    config = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(config, TrialConfig)
    trials = planted(config, [1.0], outcome="infeasible", kind="device memory", message="2 GiB are needed")
    (one, other, _) = reproduction.reproduce(found, asked, trials, {config.cell}, 0.05)
    assert one.rate
    assert one.rate.why == "infeasible: device memory: 2 GiB are needed"
    assert other.relative
    assert other.relative.verdict == "not measured"


def test_another_batch_stands_in_and_another_network_or_number_of_gpus_does_not() -> None:
    found = table()
    row = found.rows[0]
    batch = reproduction.cell_of(row.settings, sweep_of(found, "batch_size=4"))
    assert isinstance(batch, TrialConfig)
    assert batch.batch_size == 4
    assert reproduction.cell_of(row.settings, sweep_of(found, "model=resnet50")) == "the sweep leaves out model tiny"
    assert reproduction.cell_of(row.settings, sweep_of(found, "gpus=2")) == "the sweep leaves out gpus 1"


@given(st.floats(0.5, 2.0), st.floats(0.0, 0.2), st.floats(0.0, 0.3), st.floats(0.0, 0.01))
def test_a_wider_tolerance_never_makes_a_row_differ_nor_one_that_holds_open(
    ratio: float, half: float, tolerance: float, u: float
) -> None:
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    strict, loose = (reproduction.judge(low, high, one, u) for one in (tolerance, tolerance + 0.1))
    assert not (loose == "differs" and strict != "differs")
    assert not (strict == "holds" and loose != "holds")
    assert (strict == "differs") == (low > 1 + tolerance + u or high < 1 - tolerance - u)


def test_what_differs_is_one_line_each() -> None:
    found = publication.published("a-figure-26")
    asked = sweep_of(found, "device=cpu", "precision=fp32", "batch_size=8")
    cell = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(cell, TrialConfig)
    trials = planted(cell, [3.0, 3.1, 3.05], hardware="aaaa", software="ssss")
    judged = reproduction.reproduce(found, asked, trials, {cell.cell}, 0.05)
    node = {
        "node": "a",
        "hardware": {"cpu": {"model": "Some CPU"}},
        "software": {"packages": {"tensorflow": "2.18.1", "horovod": "0.28.1"}},
    }
    told = {one.what: one for one in setups.aspects(found, judged, asked, [node], None)}
    assert dataclasses.astuple(told["hardware"])[1:] == (
        "C4130-P100-PCIe-16GB",
        "1 node: no GPU, Some CPU (aaaa)",
        "by name only",
    )
    assert "TensorFlow 2.18.1, Horovod 0.28.1" in told["software"].here
    assert dataclasses.astuple(told["batch_size"])[1:] == ("128", "8", "differs")
    assert dataclasses.astuple(told["precision"])[1:] == ("fp16", "fp32", "differs")
    assert dataclasses.astuple(told["steps"])[1:] == ("10 + 100", "10 + 100", "same")
    assert told["device"].likeness == "differs"
    assert told["data"].likeness == "not stated"


SILENT = """\
model,device,batch_size,gpus,images_per_s,xla
tiny,cpu,8,1,1000,
tiny,cpu,8,2,1900,
tiny,cpu,16,2,1990,on
"""


def met(found: PublishedTable, *overrides: str, **facts: Any) -> tuple[keys.SweepSpec, tuple[Held, ...]]:
    """Each row measured at its figure, by a sweep with these overrides."""
    asked = sweep_of(found, *overrides)
    trials = []
    for row in found.rows:
        config = reproduction.cell_of(row.settings, asked, NODES)
        assert isinstance(config, TrialConfig), config
        trials += planted(config, [row.value * 0.999, row.value, row.value * 1.001], **facts)
    return asked, reproduction.reproduce(found, asked, trials, set(), 0.05, NODES)


def lines(found: PublishedTable, *overrides: str) -> dict[str, tuple[str, str, str]]:
    asked, judged = met(found, *overrides)
    told = [dataclasses.astuple(one) for one in setups.aspects(found, judged, asked, (), None)]
    assert len({what for what, *_ in told}) == len(told) or "xla" in {what for what, *_ in told}
    return {what: (published, here, likeness) for what, published, here, likeness in told}


@pytest.mark.parametrize(
    ("override", "what", "here"),
    [
        ("compression=fp16", "compression", "fp16"),
        ("reduction=grouped", "reduction", "grouped"),
        ("fusion_mib=0", "fusion_mib", "0"),
        ("optimizer=lars", "optimizer", "lars"),
        ("momentum=0.5", "momentum", "0.5"),
        ("emulate=true", "emulate", "on"),
        ("isolation=shared", "isolation", "shared"),
        ("cores_per_worker=2", "cores_per_worker", "2"),
        ("worker_memory_gib=1.5", "worker_memory_gib", "1.5"),
        ("classes=7", "classes", "7"),
        ("space.env.OMP_WAIT_POLICY=passive", "env.OMP_WAIT_POLICY", "passive"),
    ],
)
def test_what_a_table_does_not_state_and_was_set_here_has_a_line_of_its_own(
    override: str, what: str, here: str
) -> None:
    found = table(SILENT)
    assert what not in lines(found)
    told = lines(found, override)
    assert told[what] == ("not stated", here, "not stated")
    assert f"{what} " not in told[setups.ALL_ELSE][1]
    asked, judged = met(found, override)
    assert what in {name for one in judged for name in setups.unstated(found, one)}
    assert not any(setups.unlike(found, one, asked) for one in judged)


def test_what_is_as_where_nobody_sets_it_is_one_line_with_every_other_setting_of_a_trial() -> None:
    told = lines(table(SILENT))
    assert told[setups.ALL_ELSE][0] == "not stated"
    for words in ("emulate off", "compression none", "reduction overlapped", "isolation exclusive", "classes 1000"):
        assert words in told[setups.ALL_ELSE][1]
    assert "worker_memory_gib an equal part of the node's" in told[setups.ALL_ELSE][1]
    counted = {"warmup_steps", "measured_steps", "ci", "max_steps", "min_window"}  # in the line of the steps
    learnt = {
        "protocol",
        "epochs",
        "evaluate_every",
        "checkpoint_every",
        "target_top1",
        "target_top5",
    }  # to an accuracy
    no_part = {"explain", "deadlines", "seed", "repeat"}  # of the window's program
    no_effect = {"trust", "beta2", "decode_threads", "cache", "labels_from"}  # at these cells
    named = {*told, "gpus", "arrangement", "env", *(words.split()[0] for words in told[setups.ALL_ELSE][1].split(", "))}
    fields = {field.name for field in dataclasses.fields(TrialConfig)}
    assert fields - named == counted | learnt | no_part | no_effect


def test_an_axis_that_some_rows_state_is_told_of_the_others_too() -> None:
    found = table(SILENT)
    asked, judged = met(found)
    told = [dataclasses.astuple(one) for one in setups.aspects(found, judged, asked, (), None)]
    assert ("xla", "on", "on", "same") in told
    rest = next(here for what, _, here, _ in told if what == setups.ALL_ELSE)
    assert rest.startswith("emulate off, xla off, ")
    asked, judged = met(found, "xla=on", "where=[]")
    told = [dataclasses.astuple(one) for one in setups.aspects(found, judged, asked, (), None)]
    assert [line for line in told if line[0] == "xla"] == [
        ("xla", "on", "on", "same"),
        ("xla", "not stated", "on", "not stated"),
    ]
    assert [setups.unstated(found, one) for one in judged] == [{"xla": "on"}, {"xla": "on"}, {}]


def test_what_has_no_effect_is_neither_missing_nor_different() -> None:
    text = "model,batch_size,gpus,placement,compression,images_per_s\ntiny,8,1,spread,fp16,10\ntiny,8,2,2x1,fp16,19\n"
    found = table(text)
    told = lines(found)
    assert (told["compression"][2], told["placement"][2]) == ("same", "same")
    asked, judged = met(found)
    assert [setups.unlike(found, one, asked) for one in judged] == [[], []]


STATED = """\
model,device,batch_size,gpus,nodes,xla,emulate,cores_per_worker,image_size,warmup_steps,measured_steps,images_per_s
tiny,gpu,8,2,1,on,off,1,32,10,100,1900
"""


@pytest.mark.parametrize(
    ("overrides", "unlike"),
    [
        ([], []),
        (["batch_size=4"], ["batch_size"]),
        (["xla=off"], ["xla"]),
        (["device=cpu"], ["device"]),
        (["emulate=on"], ["emulate"]),
        (["cores_per_worker=2"], ["cores_per_worker"]),
        (["image_size=64"], ["image_size"]),
        (["steps.measured=50"], ["steps"]),
        (["placement=2x1"], ["placement", "nodes"]),
        (["xla=off", "steps.warmup=3"], ["xla", "steps"]),
    ],
)
def test_a_row_is_as_printed_only_if_all_that_its_table_states_was_so(overrides: list[str], unlike: list[str]) -> None:
    found = table(STATED)
    asked, (one,) = met(found, *overrides, nodes=2 if "placement=2x1" in overrides else 1)
    assert setups.unlike(found, one, asked) == unlike
    assert setups.unstated(found, one) == {}


def test_a_device_that_a_table_does_not_state_is_not_said_to_be_the_same() -> None:
    assert lines(table("model,batch_size,gpus,images_per_s\ntiny,8,1,1000\n"))["device"][::2] == ("not stated",) * 2
    assert lines(table(SILENT))["device"] == ("cpu", "cpu", "same")


@pytest.mark.parametrize(("override", "counts"), [("emulate=true", True), ("xla=on", False), ("batch_size=64", False)])
def test_how_far_the_simulator_misses_a_row_is_told_of_the_program_that_was_fitted_alone(
    override: str, counts: bool
) -> None:
    where, found = "nodes=2,gpu=v100-k", publication.published("a-table-5").system("C4140-K")
    asked, done = simulated(found, where, override)
    trials = [rows.row(one) for one in done]
    judged = reproduction.reproduce(found, asked, trials, {one.config.cell for one in done}, 0.05)
    departed = [reproduce._departures(found, one, asked) for one in judged]
    assert any(departed)
    assert any(error is not None for _, error in reproduce._fit(judged, departed, where)) is counts


def simulated(found: PublishedTable, where: str, *overrides: str) -> tuple[keys.SweepSpec, list[TrialRecord]]:
    """What there is room for, as the simulator answers."""
    asked, cluster = sweep_of(found, *overrides), parse(where)
    done = []
    for config in plan.plan(asked).trials:
        if seats := arrangements.place(config, cluster.nodes, arrangements.idle(cluster.nodes)):
            group = SimulatedGroup(cluster, seats)
            group.start(config, at=1_700_000_000.0)
            outcome = group.wait()
            assert outcome
            done.append(TrialRecord(config=config, outcome=outcome, started_at=0.0, ended_at=group.took_s))
    return asked, done


def test_a_simulated_run_says_so_and_that_the_simulator_was_fitted_to_these_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where, found = "nodes=2,gpu=v100-k", publication.published("a-table-5")
    asked, done = simulated(found, where)
    trials = [rows.row(one) for one in done]
    judged = reproduction.reproduce(found, asked, trials, {one.config.cell for one in done}, 0.05)
    departed = [reproduce._departures(found, one, asked) for one in judged]
    fit = list(reproduce._fit(judged, departed, where))
    assert [is_in for is_in, _ in fit] == [True] * 14
    known = {one.row.settings["model"]: error for one, (_, error) in zip(judged, fit, strict=True) if error is not None}
    assert known == {
        "inception_v4": -0.036, "vgg19": 0.021, "vgg16": -0.003, "inception_v3": 0.039, "resnet50": 0.012,
        "googlenet": -0.079, "alexnet": 0.010,
    }  # fmt: skip
    unlike = list(setups.aspects(found, judged, asked, (), parse(where)))
    reproduce._show(found, judged, unlike, fit, departed, "x-simulated", where, 0.05)
    out = capsys.readouterr().out
    assert out.startswith(f"a-table-5 against x-simulated SIMULATED on {where}: nothing was measured\n")
    assert "images/s: of 14, 6 hold, 1 open, 7 not measured" in out
    assert "the simulator was fitted to 14 of these 14 rows" in out
    assert "missed by 2.1% (median), 7.9% (worst): 6 of 7 within 5%" in out
    assert "SIMULATED: PowerEdge C4140-K" in out


def test_frameworks_that_the_simulator_was_not_fitted_to_are_not_claimed() -> None:
    where, found = "nodes=8,gpu=v100-pcie", publication.published("c-section-iv-a")
    asked, done = simulated(found, where)
    judged = reproduction.reproduce(found, asked, [rows.row(one) for one in done], set(), 0.05)
    fit = reproduce._fit(judged, [None] * len(judged), where)
    seen = {one.row.framework: is_in for one, (is_in, _) in zip(judged, fit, strict=True)}
    assert seen == {"mxnet": False, "tensorflow-horovod": True, "caffe2": False}
    assert {one.over for one in judged} == {"1 GPU"}
    assert not any(one.rate for one in judged), "print gives no rates there"


WRONG = OWN.replace("1000,", "1.000 img/s,").replace(",2,fp32", ",0,fp61").replace("cpu,16", "gpu,x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["must have a header and a row, but got an empty file"]),
        ("model,batch_size,gpus,images_per_s\n", ["must have a row under its header"]),
        (
            "modl,gpus,images_per_s,images_per_s\nx,1,2,3\n",
            [
                "line 1: must be a known column (did you mean model?), but got modl",
                "line 1: a column must be there once, but got images_per_s",
                "line 1: must have a column model, but got none",
                "line 1: must have a column batch_size, but got none",
            ],
        ),
        (
            WRONG,
            [
                "line 2, images_per_s: must be a number above 0, without a unit or separators, but got 1.000 img/s",
                "line 3, precision: must be one of fp32, tf32, fp16, bf16, but got fp61",
                "line 3, gpus: must be at least 1, but got 0",
                "line 4, batch_size: must be a whole number, but got x",
                "line 4, device: must be the same in every row (cpu further up): split the table, but got gpu",
            ],
        ),
        (OWN + "mine,tiny,cpu,8,1,fp32,999,10,5\n", ["line 5: must differ from line 2"]),
        (OWN + "mine,tiny,cpu\n", ["line 5: must have as many cells as the header, 9, but got 3"]),
        (OWN.replace("1000,10,5", "1000,10,1"), ["line 2, repeats: must be 2 or more beside images_per_s_ci"]),
        ("model,batch_size,gpus,nodes,images_per_s\ntiny,8,3,2,9\n", ["line 2, nodes: must divide gpus (3)"]),
        ('model,batch_size,gpus,images_per_s\ntiny,8,1,"9\n', ["must be CSV"]),
        ("model,batch_size,n,unit,speedup\ntiny,8,2,node,1.8\n", ["line 2, unit: must be gpu"]),
    ],
)  # fmt: skip
def test_a_bad_table_says_all_that_is_wrong_with_it(text: str, says: list[str]) -> None:
    with pytest.raises(InputError) as error:
        table(text)
    for words in says:
        assert words in str(error.value)
    assert all(line.startswith("own.csv: ") for line in str(error.value).splitlines())


HEAD = "model,batch_size,gpus,images_per_s"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"{HEAD},env.X\ntiny,8,1,10,1\ntiny,8,1,11,\n",
            "line 3, env.X: must be given, or another axis must tell this row from line 2, which gives it: split the"
            " table, or leave one out, but got nothing",
        ),
        (
            "model,batch_size,n,speedup,env.X\ntiny,8,1,1,\ntiny,8,2,1.9,1\n",
            "line 2, env.X: must be given, or another axis must tell this row from line 3",
        ),
        (f"{HEAD},env.A B\ntiny,8,1,10,1\n", "line 1: the name of a variable must be letters, digits and '_', but got"),
        (f"{HEAD},env.HOROVOD_CYCLE_TIME\ntiny,8,1,10,1\n", "line 2, env.HOROVOD_CYCLE_TIME: is set by the axis"),
        (HEAD.replace(",", ";"), "line 1: must separate its cells by commas: save it as CSV with commas, but got ;"),
        (HEAD.replace(",", "\t") + "\n", "line 1: must separate its cells by commas: save it as CSV with commas, but"),
        (f"{HEAD}\ntiny,{'1' * 5000},1,10\n", "line 2, batch_size: must be a whole number, but got 1111"),
        (f"{HEAD}\ntiny,8,1,1e-400\n", "line 2, images_per_s: must be from 1e-06 to 1e+15, but got 1e-400"),
        (f"{HEAD}\ntiny,8,1,1e300\n", "line 2, images_per_s: must be from 1e-06 to 1e+15, but got 1e300"),
        (f"{HEAD}\ntiny,8,1,1_000\n", "line 2, images_per_s: must be a number above 0, without a unit or separators"),
        (
            f"{HEAD},image_size\ntiny,8,1,10,32\ninception_v3,8,1,11,\n",
            "line 3, image_size: must be at least 75 for inception_v3, but got 32",
        ),
        (
            f"{HEAD},data,classes\ntiny,8,1,10,,5\ntiny,8,1,11,digits,\n",
            "line 3, classes: must be at least 10 for digits, but got 5",
        ),
        (
            f"{HEAD},warmup_steps,ci\ntiny,8,1,10,10,\ntiny,16,1,11,,1%\n",
            "line 3, ci: must be left out beside warmup_steps and measured_steps, which say how many steps there are,",
        ),
        (
            f"{HEAD},decode_threads\ntiny,8,1,10,4\ntiny,16,1,10,8\n",
            "line 3, decode_threads: has no effect where no JPEG is decoded: leave it empty, or give the folder",
        ),
        (
            f"{HEAD},device,env.HOROVOD_TORUS_ALLREDUCE\ntiny,8,1,10,cpu,\ntiny,8,2,11,,1\n",
            "line 3, env.HOROVOD_TORUS_ALLREDUCE: has no effect on device: cpu",
        ),
        (f"{HEAD}\ntiny,8,,10\n", "line 2, gpus: must be given, but got nothing"),
        (
            f"{HEAD},momentum,weight_decay,label_smoothing\n"
            + "".join(f"tiny,{n},1,10,0.{n},0.00{n},0.0{n}\n" for n in range(1, 60)),
            "its columns must have at most 300,000 combinations of their values: split it by one, but got 9,290,376",
        ),
        (
            f"{HEAD}\n" + "".join(f"{'tiny' if n < 400 else 'vgg16'},{n},1,10\n" for n in range(1, 800)),
            "its rows must be told apart in conditions of 1000 characters each: split it by a column, but got",
        ),
    ],
)  # fmt: skip
def test_what_can_t_be_a_sweep_is_told_of_the_user_s_file_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(text)
    assert main.main(["reproduce", "own.csv"]) == 2
    told = capsys.readouterr().err
    assert f"own.csv: {says}" in told
    assert all(line.startswith("own.csv: ") for line in told.splitlines() if line.strip() and "must" in line)
    assert "reproduce-own" not in told, "nobody has seen the sweep file"
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]


@given(st.text(max_size=200))
def test_no_text_makes_a_table_crash(text: str) -> None:
    try:
        table(text)
    except InputError:
        pass


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
    """Of two variables, each with a condition of its own."""
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


CONDITIONAL = """
name: small
model: tiny
device: cpu
space: {batch_size: [8, 16], gpus: 1, env: {X: {values: ["1", "2"], when: batch_size == 8}}}
repeats: 3
steps: {warmup: 2, measured: 5}
"""


def kept(text: str) -> ledger.SweepRecord:
    """A sweep in the results folder that was never run."""
    planned = plan.plan(sweep_file.parse(text, "small"))
    book = ledger.create(planned, text)
    for config in planned.trials:
        book.write(record(config, 1000.0 + config.batch_size + config.repeat, hardware="node"))
    book.end("complete")
    return ledger.read("small")


def test_an_earlier_sweep_whose_variable_had_a_condition_is_asked_again_cell_by_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = {trial.cell for trial in kept(CONDITIONAL).facts.trials}
    assert len(cells) == 3
    assert main.main(["reproduce", "small", "--export", "mine.csv"]) == 0
    for name in ("small", "mine.csv"):
        assert {trial.cell for trial in plan.plan(sweep_of(reproduce.find(name))).trials} == cells
    capsys.readouterr()
    assert main.main(["reproduce", "mine.csv", "--measured", "small", "--tolerance", "10%", "--format", "json"]) == 0
    assert {row["rate_verdict"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"holds"}


def test_a_sweep_that_set_a_variable_to_nothing_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    kept(CONDITIONAL.replace('["1", "2"]', '["", "2"]'))
    assert main.main(["reproduce", "small"]) == 2
    assert "reproduce: small: must set env.X to something or not at all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("factor", "tolerance", "verdict", "why"),
    [
        (1.05, "2%", "differs", "+5.0%"),
        (0.95, "2%", "differs", "-5.0%"),
        (1.005, "2%", "holds", ""),
        (0.995, "2%", "holds", ""),
        (1.005, "0%", "differs", "+0.5%"),
        (1.0, "0%", "open", "more repeats"),
        (1.05, "10%", "holds", ""),
    ],
)
def test_records_that_are_off_by_so_much_have_the_verdict_and_the_difference_that_was_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    factor: float, tolerance: str, verdict: str, why: str,
) -> None:  # fmt: skip
    """One cell of three is off; repeats of one cell are within 0.02% of each other."""
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(f"{HEAD},device\ntiny,8,1,1000.00,cpu\ntiny,8,2,1900.00,cpu\ntiny,16,2,1990.00,cpu\n")
    text = recipe.text(publication.load(Path("own.csv")), 3)
    planned = plan.plan(sweep_file.parse(text, "recipe"))
    book = ledger.create(planned, text)
    rates = {(8, 1): 1000.0, (8, 2): 1900.0 * factor, (16, 2): 1990.0}
    for config in planned.trials:
        rate = rates[config.batch_size, config.gpus] * (1 + (config.repeat - 1) / 5000)
        book.write(record(config, rate, hardware="node"))
    book.end("complete")
    asked = ["reproduce", "own.csv", "--measured", "reproduce-own", "--tolerance", tolerance]
    assert main.main([*asked, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    met = "open" if tolerance == "0%" else "holds"  # repeats differ by more than the print's rounding
    assert [row["rate_verdict"] for row in found] == [met, verdict, met]
    assert [row["relative_verdict"] for row in found][1] == verdict, "over its own row of one GPU"
    for told in (found[1]["rate_why"], found[1]["relative_why"]):
        assert (bool(told), told.endswith(why)) == (bool(why), True)
    assert found[1]["rate_ratio"] == pytest.approx(factor, abs=1e-6)
    assert found[1]["rate_low"] < factor < found[1]["rate_high"]
    assert found[1]["rate_high"] - found[1]["rate_low"] < 0.004
    assert main.main(asked) == 0
    out = capsys.readouterr().out
    assert "not measured" not in out
    assert (f"differs: {why}" in out) is (verdict == "differs")


def test_a_table_that_is_too_large_is_called_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text("x" * (2 << 20))
    assert main.main(["reproduce", "own.csv"]) == 2
    assert "own.csv: a table holds at most 1 MB, but got 2.1 MB" in capsys.readouterr().err


FILE = """
name: small
model: tiny
device: cpu
image_size: 32
space: {batch_size: [8, 16], gpus: [1, 2], precision: fp32, momentum: [0.9, 0.5]}
where: gpus == 2 or momentum == 0.9
repeats: 3
steps: {warmup: 2, measured: 5}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ledger.SweepRecord:
    """A sweep in the results folder that was never run: its rates are planted."""
    monkeypatch.chdir(tmp_path)
    planned = plan.plan(sweep_file.parse(FILE, "small"))
    book = ledger.create(planned, FILE)
    for config in planned.trials:
        rate = 1000.0 * config.gpus * config.batch_size**0.1 * config.momentum * (1 + config.repeat / 500)
        book.write(record(config, rate, hardware="node"))
    book.end("complete")
    return ledger.read("small")


def test_an_earlier_sweep_against_its_own_trials_holds_in_every_row(
    small: ledger.SweepRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["reproduce", "small", "--measured", "small", "--tolerance", "10%", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 6
    assert {row["rate_verdict"] for row in found["rows"]} == {"holds"}
    assert {row["relative_verdict"] for row in found["rows"]} == {"holds", None}
    assert all(row["rate_ratio"] == pytest.approx(1, abs=1e-5) for row in found["rows"])
    assert not [one for one in found["setup"] if one["likeness"] == "differs"]


def test_an_earlier_sweep_is_asked_again_cell_by_cell(small: ledger.SweepRecord) -> None:
    again = plan.plan(sweep_of(earlier_table.table("small")))
    assert {trial.cell for trial in again.trials} == {trial.cell for trial in small.facts.trials}
    assert again.spec.name == "reproduce-small"


def test_an_earlier_sweep_whose_repeats_are_equal_is_a_table_too(small: ledger.SweepRecord) -> None:
    planned = plan.plan(sweep_file.parse(FILE.replace("name: small", "name: equal"), "equal"))
    with contextlib.closing(ledger.create(planned, FILE.replace("name: small", "name: equal"))) as book:
        for config in planned.trials:
            book.write(record(config, 1000.0))
    assert {row.half_width for row in earlier_table.table("equal").rows} == {publication.LEAST}


def test_an_earlier_sweep_takes_from_its_nodes_what_it_took_and_says_so(
    small: ledger.SweepRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "{name: taking, model: tiny, device: cpu, repeats: 2, env_from: [MY_KEY], space: {batch_size: 8, gpus: 1}}"
    book = ledger.create(plan.plan(sweep_file.parse(text, "taking")), text)
    for trial in book.facts.trials:
        book.write(record(trial))
    book.close()
    found = earlier_table.table("taking")
    again = sweep_of(found)
    assert again.env_from == ("MY_KEY",)
    judged = reproduction.reproduce(found, again, [], {trial.cell for trial in plan.plan(again).trials}, 0.05)
    told = {one.what: (one.published, one.here, one.likeness) for one in setups.aspects(found, judged, again, [], None)}
    assert told["env_from"] == ("MY_KEY", "MY_KEY", "same")
    assert main.main(["reproduce", "taking", "--export", "mine.csv"]) == 0
    assert "run it with --set env_from=[MY_KEY]" in capsys.readouterr().err


def test_a_table_that_was_exported_is_the_same_table(
    small: ledger.SweepRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["reproduce", "small", "--export", "mine.csv"]) == 0
    mine = publication.load(Path("mine.csv"))
    assert mine.rows == earlier_table.table("small").rows
    assert mine.settings == {"device": "cpu", "image_size": 32, "steps.warmup": 2, "steps.measured": 5}
    assert {row.hardware for row in mine.rows} == {"node"}
    capsys.readouterr()
    assert main.main(["reproduce", "mine.csv", "--plan"]) == 0
    out = capsys.readouterr().out
    Path("again.yaml").write_text(out)
    assert {trial.cell for trial in plan.plan(sweep_file.load(Path("again.yaml"))).trials} == {
        trial.cell for trial in small.facts.trials
    }


def test_the_list_and_the_plan_start_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main.main(["reproduce", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {one["table"] for one in listed} >= {*PUBLISHED, "c-table-iii"}
    assert all(one["fit here"].startswith("no: ") for one in listed if one["table"] not in PUBLISHED)
    assert (
        main.main(["reproduce", "A table 5", "--system", "C4140-K", "--plan", "--simulate", "nodes=2,gpu=v100-k"]) == 0
    )
    printed = capsys.readouterr()
    assert sweep_file.parse(printed.out, "printed").space.placement.points() == ["2x4"]
    assert "7 cells × 3 repeats = 21 trials" in printed.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a-tabel-5"], "must be a table that sweep reproduce lists, a CSV file, or a sweep in"),
        (["a-tabel-5"], "did you mean a-table-5?"),
        (["c-table-iii"], "must be one that a sweep can answer: accuracy of inference"),
        (["a-table-5", "--system", "C41"], None),
        (["a-table-5", "--system", "P100"], "must begin the name of one system of the table"),
        (["none.csv"], "must be a file that exists"),
        (["a-table-5", "--tolerance", "x"], "must be at least 0% and less than 100%"),
        (["a-table-5", "--repeats", "0", "--plan"], "--repeats: must be at least 1, but got 0"),
        (["a-table-5", "--set", "precision=fp61"], "a-table-5 with --set precision=fp61: precision: must be one of"),
        (["a-table-5", "--set", "precision"], "--set: must be written key=value, but got precision"),
        (["a-table-5", "--set", "gpus=3"], "a-table-5 with --set gpus=3: "),
        (["a-table-5", "--simulate", "nodes=x"], "nodes: must be a whole number"),
        (["a-table-5", "--export", "x.csv"], "must be a sweep that was measured here"),
        (["a-table-5", "--measured", "nothing"], "must hold the sweep named"),
    ],
)
def test_what_is_wrong_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str], arguments: list[str],
                                        says: str | None) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if says is None:
        assert main.main(["reproduce", *arguments, "--plan"]) == 0
        return
    assert main.main(["reproduce", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_cells_measured_on_two_machines_are_two_systems_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = plan.plan(sweep_file.parse(FILE, "small"))
    book = ledger.create(planned, FILE)
    for config in planned.trials:
        book.write(record(config, 100.0 + config.repeat, hardware="aaaa" if config.repeat else "bbbb"))
    book.end("complete")
    found = earlier_table.table("small")
    assert found.systems == ["bbbb", "aaaa"]
    assert [row.repeats for row in found.system("aaaa").rows] == [2] * 6
    assert len(plan.plan(sweep_of(found)).cells) == 6, "both are answered by the same cells"


def test_a_run_is_a_sweep_measured_anew_whose_exit_code_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is run is replaced; the file, the terms, the streams and the comparison are the command's own."""
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(OWN)
    asked: list[Terms] = []

    def drive(file: Path, overrides: tuple[str, ...], terms: Terms, begun: Callable[[str], object]) -> int:
        asked.append(terms)
        text = file.read_text()
        planned = plan.plan(sweep_file.parse(text, str(file), overrides))
        book = ledger.create(planned, text, overrides)
        begun(book.facts.name)
        for config in planned.trials:
            book.write(record(config, 1000.0 * config.gpus * (1 + config.repeat / 1000), hardware="node"))
        book.end("complete")
        print("what was found")
        return 1

    monkeypatch.setattr(driver, "drive", drive)
    assert main.main(["reproduce", "own.csv", "--format", "json"]) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert "what was found" in printed.err
    assert (found["table"], found["sweep"], found["tolerance"]) == ("own", "reproduce-own", 0.05)
    assert [row["rate_verdict"] for row in found["rows"]] == ["holds", "open", "differs"]
    assert found["rows"][1]["rate_ratio"] == pytest.approx(2.002 / 1.9), "5.4% off, but both sides have intervals"
    assert [row["rate_published"] for row in found["rows"]] == [1000, 1900, 1200]
    assert [(terms.is_fresh, terms.skips_impossible) for terms in asked] == [(True, True)]
    assert ledger.read("reproduce-own").facts.file == Path("results/reproduce-own.yaml").read_text()
