"""Which comparisons are fair, and that whoever compares says where one is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd
import pytest

from sweeps import analysis
from sweeps.analysis import findings, overview, predict
from sweeps.analysis.alike import UnlikeWarning
from sweeps.analysis.comparison import compare
from sweeps.analysis.findings import best, doubts, next_steps
from sweeps.analysis.findings.next_steps import Situation
from sweeps.analysis.study import Study
from sweeps.cli import diff, next_cell
from sweeps.errors import InputError
from sweeps.record import rows
from sweeps.report import curves, learning
from sweeps.spec import plan, sweep_file
from sweeps.store import query
from tests.unit import studies
from tests.unit.planted import frame, repeats, trial
from workers.contract.messages import TrialConfig

SIDES = pytest.mark.parametrize("side", ["hardware", "software", "data_files"])
WORDS = {"hardware": "2 hardware fingerprints", "software": "2 software fingerprints", "data_files": "2 sets of files"}
IMAGES = {"data": "/images"}
SIZES = (8, 16, 32)
FILE = (
    "{name: words, model: tiny, device: cpu, repeats: 3, data: /images, space: {batch_size: [8, 16, 32], gpus: [1, 2]}}"
)


def steady(rate: float, **columns: Any) -> list[dict[str, Any]]:
    return repeats([rate * 0.999, rate, rate * 1.001], **{**IMAGES, **columns})


def split(side: str) -> pd.DataFrame:
    """Three batches, the largest measured with something else."""
    return frame(*(steady(100.0 * n, batch_size=n, **{side: "new" if n == 32 else "old"}) for n in SIZES))


def swept(side: str, new: tuple[int, ...] = (32,), rates: dict[int, float] | None = None) -> Study:
    """A sweep of which some batches were measured with something else."""
    made = studies.planted(FILE, lambda config: 1.0)

    def row(config: TrialConfig) -> dict[str, Any]:
        rate = (rates or {8: 100.0, 16: 150.0, 32: 200.0})[config.batch_size] * (1 + 0.001 * config.repeat)
        with_what = "new" if config.batch_size in new else "old"
        return trial(rate * config.gpus**0.8, **{**rows.params(config), side: with_what})

    return dataclasses.replace(made, records=(), stored=frame([row(config) for config in made.facts.trials]))


# the rule


@SIDES
def test_cells_that_were_measured_with_one_or_the_other_are_unlike(side: str) -> None:
    table = analysis.cells(split(side))
    assert analysis.apart(table) == analysis.unlike(table) == analysis.conditions(table) == [side]
    assert analysis.named(table, [side]).startswith(WORDS[side])
    assert not analysis.unlike(table[table["batch_size"] != 32])


@SIDES
def test_where_each_cell_was_measured_with_each_that_is_one_more_axis(side: str) -> None:
    both = frame(*(steady(100.0 * n, batch_size=n, **{side: of}) for n in SIZES for of in ("old", "new")))
    table = analysis.cells(both)
    assert analysis.apart(table) == [side]
    assert analysis.unlike(table) == []
    assert analysis.unlike(table.iloc[1:]) == [side], "one cell has only one"


def test_each_with_each_holds_for_what_goes_along_with_it() -> None:
    """Each cell has both machines and both programs, but not the same pairs."""
    pairs = {8: [("x", "s"), ("y", "t")], 16: [("x", "t"), ("y", "s")]}
    table = analysis.cells(
        frame(*(steady(1.0, batch_size=n, hardware=h, software=s) for n, both in pairs.items() for h, s in both))
    )
    assert analysis.unlike(table) == ["hardware", "software"]


def test_folders_on_a_data_axis_are_what_is_compared_but_not_two_states_of_one_folder() -> None:
    folders = frame(*(steady(100.0, data=f"/{name}", data_files=name) for name in "ab"), steady(1.0, data="synthetic"))
    assert analysis.apart(analysis.cells(folders)) == []
    states = frame(
        steady(1.0, data="/a", data_files="ff"),
        steady(1.0, data="/a", data_files="00", batch_size=16),
        steady(1.0, data="/b", data_files="11"),
    )
    table = analysis.cells(states)
    assert analysis.unlike(table) == ["data_files"]
    assert analysis.named(table, ["data_files"]) == "2 sets of files in /a (00, ff)"


def test_arrangements_of_other_gpu_counts_and_placements_are_what_is_compared() -> None:
    table = analysis.cells(
        frame(
            steady(1.0, gpus=1, arrangement="1x1"),
            steady(2.0, gpus=2, arrangement="1x2"),
            steady(2.0, gpus=2, arrangement="2x1", placement="spread"),
        )
    )
    assert analysis.apart(table) == []
    other = analysis.cells(frame(*(steady(1.0, gpus=2, batch_size=n, arrangement=f"{n}x1") for n in (1, 2))))
    assert analysis.unlike(other) == ["arrangement"]
    assert analysis.conditions(other) == []


def test_a_cell_that_measured_nothing_is_unlike_none() -> None:
    lost = trial(outcome="infeasible", batch_size=64, hardware="", software="", **IMAGES)
    assert analysis.apart(analysis.cells(frame(steady(1.0, data_files="ff", arrangement="1x1"), lost))) == []


# who compares


@SIDES
def test_the_fastest_cell_is_not_called_so_among_cells_that_were_not_measured_alike(side: str) -> None:
    study = swept(side)
    found = findings.find(study)
    assert "trains fastest" not in " ".join(found.lines())
    assert "leads cells that were not measured alike: 34" in found.answer.says
    assert found.answer.sureness == "open"
    (apart,) = [one for one in found.notes if one.rule == "told apart"]
    assert apart.says.startswith(f"Which cell is best is open: the cells have **{WORDS[side]}")
    assert apart.sureness == "open"
    assert WORDS[side] in next(one.says for one in found.doubts if one.rule == "pooled")
    again = {step.word: step for step in next_steps.suggest(study, found, Situation(file="x.yaml"))}
    assert ("next" in again) == (side != "hardware"), "the nodes would be as unlike again"
    assert found.best
    assert found.best.repeats == 0
    assert WORDS[side] in found.best.caption
    alike = findings.find(swept(side, ()))
    assert "trains fastest" in alike.answer.says
    assert not [one for one in alike.doubts if one.rule == "pooled"]


@SIDES
def test_a_curve_a_front_and_a_model_are_of_cells_that_were_measured_alike(side: str) -> None:
    trials = split(side)
    _, knees = analysis.batch_curve(trials)
    assert sorted(knees[side]) == ["new", "old"]
    assert analysis.costs(trials).groupby(side)["is_on_front"].sum().to_dict() == {"new": 1, "old": 1}
    many = frame(*(steady(90.0 * g, gpus=g, **{side: of}) for g in (1, 2, 4) for of in ("old", "new")))
    assert len(predict.fit(many)) == 2


@SIDES
def test_a_speed_up_is_over_a_gpu_that_was_measured_alike(side: str) -> None:
    table = analysis.scaling(frame(steady(100.0, **{side: "old"}), steady(390.0, gpus=4, **{side: "new"})))
    assert table.set_index("gpus")["speedup"].isna()[4]


@SIDES
def test_the_console_s_front_says_with_what_its_cells_were_measured(side: str) -> None:
    said = overview.front(swept(side).trials, swept(side).plan)
    assert f"of cells with the same {side.replace('_', ' ')}" in said[0]
    assert all(f"{side.replace('_', ' ')} {'new' if 'size 32' in line else 'old'}" in line for line in said[1:])


@SIDES
def test_the_highest_mean_of_unlike_cells_comes_with_a_warning(side: str) -> None:
    with pytest.warns(UnlikeWarning, match=WORDS[side]):
        assert analysis.best(split(side))["batch_size"] == 32


@SIDES
def test_what_to_measure_next_is_not_planned_from_unlike_trials(
    side: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("{name: x, model: tiny, device: cpu, data: /images, space: {batch_size: 8, gpus: [1, 2, 4]}}")
    trials = frame(*(steady(90.0 * g, gpus=g, **{side: of}) for g in (1, 2, 4) for of in ("old", "new")))
    monkeypatch.setattr(query, "trials", lambda name: trials)
    monkeypatch.setattr(query, "sweep", lambda name: {"nodes": ()})
    with pytest.raises(InputError, match=WORDS[side]):
        next_cell.show(file, (), "x", "table")


def test_learning_curves_average_no_repeats_that_were_not_measured_alike() -> None:
    text = (
        "{name: x, model: tiny, data: digits, device: cpu, protocol: convergence, epochs: 4, repeats: 2,"
        " target: {top1: 0.9}, space: {batch_size: 8, gpus: 1, lr_schedule: [0.1, 0.2]}}"
    )
    made = studies.planted(text, lambda config: 1.0, lambda config: "old" if config.repeat else "new")
    _, groups = learning._groups(made, made.records)
    assert all(len(records) == 1 for named in groups.values() for records in named.values())


# sweep diff


def test_cells_of_other_software_on_the_two_sides_are_not_compared_though_both_sides_have_both() -> None:
    a = split("software")
    b = frame(*(steady(90.0 * n, batch_size=n, software="old" if n == 8 else "new") for n in SIZES))
    found = compare(a, b)
    told = found.cells.set_index("batch_size")
    assert told["verdict"].to_dict() == {8: "slower", 16: "not comparable", 32: "slower"}
    assert told.loc[16, "why"] == "other software: old in A, new in B"
    assert "software" not in found.differs
    assert not found.unlike


def test_software_that_is_on_one_side_alone_is_what_is_compared_and_what_a_side_mixes_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    b = frame(*(steady((110.0 if n == 32 else 90.0) * n, batch_size=n, software="third") for n in SIZES))
    found = compare(split("software"), b)
    assert found.compared == 3
    assert found.differs["software"] == ("new, old", "third")
    assert found.unlike == {"A": "2 software fingerprints (new, old)"}
    assert not found.crossovers, "the larger batch has another program on A"
    diff.show(found, ("one", "other"), "table")
    assert "A's cells have 2 software fingerprints (new, old): differences among them" in capsys.readouterr().out
    whole = compare(frame(*(steady(100.0 * n, batch_size=n, software="old") for n in SIZES)), b)
    assert not whole.unlike
    assert len(whole.crossovers) == 1


def test_a_whole_fingerprint_names_it_though_that_of_unlike_nodes_begins_with_it() -> None:
    both = frame(trial(1.0, hardware="aaaa"), trial(2.0, gpus=2, hardware="aaaa*1x1+bbbb*1x1"))
    assert diff.on_machine(both, "aaaa", "x")["gpus"].tolist() == [1]
    with pytest.raises(InputError):
        diff.on_machine(both, "aa", "x")


# by means


def test_a_base_that_is_slower_by_its_mean_alone_is_said_to_be_no_more() -> None:
    def found(slow: list[float]) -> list[findings.Finding]:
        trials = frame(repeats(slow, batch_size=8), steady(110.0, batch_size=16, data="synthetic"),
                       repeats([390.0, 391.0], batch_size=8, gpus=4))  # fmt: skip
        return [one for one in doubts.of_throughput(trials) if one.rule == "untuned base"]

    (open_,) = found([90.0, 104.0, 112.0])
    assert open_.says.endswith("another one does up to 1.08 times as much (by means; not shown to differ)")
    assert open_.sureness == "estimated"
    (shown,) = found([99.0, 100.0, 101.0])
    assert shown.says.endswith("another one does up to 1.10 times as much")
    assert shown.sureness == "shown"
    (single,) = found([100.0])
    assert single.sureness == "estimated", "of a single repeat nothing is told"


def test_the_cheapest_cell_is_called_so_where_that_is_shown_and_else_by_means() -> None:
    def cheaper(*spread: float) -> findings.Finding:
        text = "{name: x, model: tiny, device: cpu, repeats: 3, space: {batch_size: [8, 16], gpus: [1, 2]}}"
        rates = {(8, 1): 100.0, (16, 1): 104.0, (8, 2): 150.0, (16, 2): 160.0}
        made = studies.planted(text, lambda one: rates[one.batch_size, one.gpus] * spread[one.repeat])
        (told,) = [one for one in findings.find(made).notes if one.rule == "cheaper"]
        return told

    shown = cheaper(0.999, 1.0, 1.001)
    assert shown.sureness == "shown"
    assert shown.says.startswith("An epoch of ImageNet is cheapest with batch size 16, 1 rank: ")
    assert "**23% less**" in shown.says
    assert "and at least 3." in shown.says
    open_ = cheaper(0.9, 1.0, 1.1)
    assert open_.sureness == "open"
    assert open_.says.startswith("By means an epoch of ImageNet is cheapest with batch size 16, 1 rank: ")
    assert "; not told from" in open_.says


def test_the_cheapest_of_unlike_cells_is_one_by_means() -> None:
    (told,) = [one for one in findings.find(swept("software")).notes if one.rule == "cheaper"]
    assert told.says.startswith("By means")
    assert "but the cells have 2 software fingerprints (new, old)" in told.says


@pytest.mark.parametrize(
    ("rates", "is_shown"), [({8: 100.0, 16: 150.0, 32: 200.0}, True), ({8: 1.0, 16: 1.0, 32: 1.0}, False)]
)
def test_captions_say_whether_a_lead_is_shown(rates: dict[int, float], is_shown: bool) -> None:
    from sweeps import report

    study = swept("software", (), rates)
    alts = {
        block.name: block for section in report.sections(study) for block in section.blocks if hasattr(block, "alt")
    }
    said = "by means; not shown to differ"
    assert (said not in alts["batch-curve"].alt) == is_shown
    assert (said not in alts["scaling-best"].title) == is_shown
    assert (said not in alts["cost-front"].alt) == is_shown
    assert said in alts["cost-front"].note, "a front is not tested"
    assert said in overview.front(study.trials, study.plan)[0]
    found = best.find(study)
    assert found
    assert bool(found.caption) != is_shown


def test_a_knee_s_interval_counts_that_of_the_best_too() -> None:
    """The knee's own rate is known well, the best one's is not."""
    line = [repeats([97.0, 97.1, 96.9], batch_size=8), repeats([90.0, 100.0, 110.0], batch_size=16)]
    _, knees = analysis.batch_curve(frame(*line))
    assert knees["knee"].tolist() == [8]
    assert not knees["is_sure"].any()
    sure = [repeats([97.0, 97.1, 96.9], batch_size=8), repeats([99.9, 100.0, 100.1], batch_size=16)]
    assert analysis.batch_curve(frame(*sure))[1]["is_sure"].all()


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (50.0, "it still rises at 2 decode threads, the most that was tried; auto does 1.20 times"),
        (99.0, "**1 decode thread** is enough for 95% of what the best number does; auto does 1.20 times"),
    ],
)
def test_where_auto_is_ahead_the_knee_is_that_of_the_numbers(one: float, says: str) -> None:
    text = (
        "{name: words, model: tiny, device: cpu, repeats: 3, data: /images,"
        " space: {batch_size: 8, gpus: 1, decode_threads: [1, 2, auto]}}"
    )
    made = studies.planted(text, lambda config: 1.0)
    rates = {"1": one, "2": 100.0, "auto": 120.0}
    measured = [
        trial(rates[str(config.decode_threads)] * (1 + 0.001 * config.repeat), **rows.params(config))
        for config in made.facts.trials
    ]
    found = curves.threads(dataclasses.replace(made, records=(), stored=frame(measured)))
    assert found
    assert says in found.lead


# a plan's nodes


def test_a_file_is_planned_for_the_nodes_that_the_sweep_was_planned_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sweeps.spec.arrangements import Node

    text = "{name: x, model: tiny, device: cpu, space: {batch_size: 8, gpus: [1, 2, 4, 8], placement: [pack, spread]}}"
    file = tmp_path / "x.yaml"
    file.write_text(text)
    nodes = [Node("a", 4, 0), Node("b", 4, 0)]
    planned = plan.plan(sweep_file.parse(text, "x"), "x", nodes).trials
    measured = [
        trial(90.0 * one.gpus, **rows.params(one), nodes=float(len(one.arrangement))) | {"cell": one.cell}
        for one in planned
    ]
    monkeypatch.setattr(query, "trials", lambda name: frame(measured))
    monkeypatch.setattr(query, "sweep", lambda name: {"nodes": tuple(nodes)})
    assert next_cell.show(file, (), "x", "table") == 0
    told = capsys.readouterr()
    assert "x has measured every cell" in told.out
    assert not told.err
    monkeypatch.setattr(query, "sweep", lambda name: {"nodes": ()})
    next_cell.show(file, (), "x", "csv")
    assert "an earlier version stored x without its nodes" in capsys.readouterr().err
