"""What a user's script says that it came to: its reports, its columns, what a search makes of them."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps import analysis, report
from sweeps.analysis import findings
from sweeps.analysis.study import Study
from sweeps.errors import InputError
from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.report import answer
from sweeps.run import progress
from sweeps.scheduling import search
from sweeps.scheduling.asha import Rungs, arrival, equals
from sweeps.scheduling.cache import NodeContents
from sweeps.spec import plan, sweep_file
from sweeps.store import selection
from tests.unit import records, studies
from tests.unit.mistakes import refused_with
from workers.contract import messages
from workers.contract.messages import EpochRecord, Measurement, TrialConfig, TrialOutcome, Window
from workers.contract.ranks import Fault, Infeasible, Seat
from workers.workloads.script import code, ends, keras_fit, loop
from workers.workloads.script.loop import Measured, OwnLoop
from workers.workloads.script.reports import MOST, Reports

FILE: dict[str, Any] = {
    "name": "mine",
    "run": "python train.py --batch {batch_size} --lr {lr}",
    "items": "batch_size * gpus",
    "unit": "tokens",
    "device": "cpu",
    "space": {"batch_size": [32], "gpus": [1, 2], "lr": [0.1, 0.2, 0.3]},
    "repeats": 1,
}
LEARNING = {"protocol": "convergence", "epochs": 9}
NODES = {"a": NodeContents("v100", "sw")}


def trials(**changed: Any) -> tuple[TrialConfig, ...]:
    return plan.plan(sweep_file.parse(yaml.safe_dump({**FILE, **changed}), "mine.yaml")).trials


def told(*epochs: dict[str, float], config: TrialConfig | None = None, **fields: Any) -> TrialRecord:
    """A trial whose script has reported these figures, epoch by epoch."""
    heard = Reports(is_first=True)
    for figures in epochs:
        heard.add(None, dict(figures))
    made = records.record(config or trials()[0], 500.0)
    assert made.outcome.measurement
    window = fields.pop("window", None)
    ranks = [
        dataclasses.replace(
            rank,
            steps=tuple(dataclasses.replace(step, loss=math.nan) for step in rank.steps),
            epochs=() if rank.rank else fields.get("epochs", tuple(heard.records)),
            measured_by="sweeps.steps",
            window=None if rank.rank else window,
        )
        for rank in made.outcome.measurement.ranks
    ]
    fields.pop("epochs", None)
    ranks = [dataclasses.replace(rank, **fields) for rank in ranks]
    measured = dataclasses.replace(made.outcome, measurement=Measurement(ranks=tuple(ranks)))
    return dataclasses.replace(made, outcome=measured)


@pytest.mark.parametrize(
    ("epoch", "figures", "said"),
    [
        (None, {}, "must be told a figure"),
        (None, {"loss": "low"}, "must be told numbers, but got loss='low'"),
        (None, {"loss": [1, 2]}, "must be told numbers"),
        (None, {"top1": 76.5}, "top1 as a share from 0 to 1, but got 76.5"),
        (None, {"val/loss": 1.0}, "names of letters, digits and '_', but got 'val/loss'"),
        (2.5, {"loss": 1.0}, "epoch as a whole number of at least 0, but got 2.5"),
        (-1, {"loss": 1.0}, "whole number of at least 0, but got -1"),
        (3, {"loss": 1.0}, "epochs in their order, but got 3 after 3"),
    ],
)
def test_a_report_that_can_t_be_one_is_refused_in_words(epoch: Any, figures: dict[str, Any], said: str) -> None:
    reports = Reports(is_first=True)
    reports.add(3, {"loss": 2.0})
    with pytest.raises(Fault, match=r"sweeps\.report") as refused:
        reports.add(epoch, figures)
    assert said in str(refused.value)


def test_the_first_rank_s_reports_count_and_are_told_as_they_come() -> None:
    heard: list[EpochRecord] = []
    first, second = Reports(True, heard.append), Reports(False, heard.append)
    for reports in (first, second):
        reports.add(None, {"loss": 2.0, "auc": 0.5})
        reports.add(4, {"loss": math.nan, "top1": 0.25})
    assert [(one.epoch, one.figures) for one in heard] == [
        (1, {"loss": 2.0, "reported.auc": 0.5}),
        (4, {"loss": math.inf, "top1": 0.25}),
    ]
    assert (first.records, second.records) == (heard, [])
    first.is_open = False  # steps from which a part was taken away
    first.add(5, {"loss": 9.0})
    assert len(first.records) == 2


def test_no_more_reports_are_kept_than_so_many_and_the_last_is() -> None:
    reports = Reports(is_first=True)
    for n in range(MOST + 10):
        reports.add(n, {"loss": float(n)})
    assert (len(reports.records), reports.records[-1].loss) == (MOST, float(MOST + 9))


def test_what_fit_says_of_an_epoch_is_a_report_once_the_next_begins() -> None:
    """By names that a column can have; what can't be a report is passed over, since nobody has chosen it for us."""
    heard: list[EpochRecord] = []
    reports = Reports(True, heard.append)
    logs: dict[str, Any] = {"loss": 2.0, "accuracy": 0.5, "val loss": 2.5, "top1": 76.0, "what": "x", "_": 1.0}
    reports.said_by_fit(1, logs)
    assert heard == []
    logs["loss"] = 1.5  # as a callback does that averages over ranks
    reports.settle()
    reports.said_by_fit(2, {"loss": math.nan})
    reports.settle()
    reports.settle()
    assert [(one.epoch, one.figures) for one in heard] == [
        (1, {"loss": 1.5, "reported.accuracy": 0.5, "reported.val_loss": 2.5}),
        (2, {"loss": math.inf}),
    ]


def test_a_script_s_own_report_wins_over_fit_s_of_the_same_epoch_and_name() -> None:
    reports = Reports(is_first=True)
    for epoch in (1, 2, 3):
        reports.said_by_fit(epoch, {"loss": float(epoch), "accuracy": 0.5})
        if epoch != 1:
            reports.add(None, {"loss": 0.25, "auc": 0.75})
        reports.settle()
    assert [(one.epoch, one.figures) for one in reports.records] == [
        (1, {"reported.accuracy": 0.5}),  # whose loss is another one than the script's
        (2, {"loss": 0.25, "reported.accuracy": 0.5, "reported.auc": 0.75}),
        (3, {"loss": 0.25, "reported.accuracy": 0.5, "reported.auc": 0.75}),
    ]


def test_no_report_of_a_script_is_refused_for_what_fit_has_said() -> None:
    """That counts epochs from 1: a script that counts from 0, and reports some of them, has its own numbers."""
    reports = Reports(is_first=True)
    for epoch in range(6):
        reports.said_by_fit(epoch + 1, {"loss": 1.0})
        if epoch in (3, 5):
            reports.add(epoch, {"auc": float(epoch)})
        reports.settle()
    own = {one.epoch: one.own["auc"] for one in reports.records if one.own}
    assert own == {3: 3.0, 5: 5.0}
    assert [one.epoch for one in reports.records] == sorted({one.epoch for one in reports.records})
    with pytest.raises(Fault, match="epochs in their order, but got 5 after 5"):
        reports.add(5, {"auc": 1.0})


def test_a_second_fit_counts_on() -> None:
    reports = Reports(is_first=True)
    for epoch in (1, 2, 1, 2):
        reports.said_by_fit(epoch, {"loss": 1.0})
        reports.settle()
    assert [one.epoch for one in reports.records] == [1, 2, 3, 4]


class _FakeModel:
    """That calls callbacks as Keras does: its own behind those that it is given."""

    steps_per_execution = 1

    def fit(self, x: int, epochs: int = 1, callbacks: Any = None) -> None:
        for callback in callbacks:
            callback.model = self
        for epoch in range(epochs):
            for callback in callbacks:
                callback.on_epoch_begin(epoch)
            for batch in range(x):
                for callback in callbacks:
                    callback.on_train_batch_end(batch)
            logs = {"loss": 1.0 / (epoch + 1), "val_loss": 2.0}
            for callback in callbacks:
                callback.on_epoch_end(epoch, logs)


class _FakeCallback:
    model: Any = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None: ...
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> type[_FakeModel]:
    fake = types.ModuleType("keras")
    fake.Model = type("Model", (_FakeModel,), {"fit": _FakeModel.fit})  # type: ignore[attr-defined]
    fake.callbacks = types.SimpleNamespace(Callback=_FakeCallback)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keras", fake)
    return fake.Model  # type: ignore[attr-defined, no-any-return]


def test_a_script_that_trains_by_fit_reports_without_a_line(keras: type[_FakeModel]) -> None:
    """A callback of its own that reports comes between the two of ours."""
    reports = Reports(is_first=True)
    keras_fit.watch(None, reports)

    class Telling(_FakeCallback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["accuracy"] = 0.5
            if epoch == 1:
                reports.add(None, {"loss": 9.0})

    keras().fit(2, epochs=2, callbacks=Telling())
    reports.settle()
    assert [one.figures for one in reports.records] == [
        {"reported.accuracy": 0.5, "reported.val_loss": 2.0},
        {"loss": 9.0, "reported.accuracy": 0.5, "reported.val_loss": 2.0},
    ]


def test_a_validation_of_fit_belongs_to_no_step(
    keras: type[_FakeModel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It comes before the end of its epoch."""
    clock = [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    (config, *_) = trials(space={**FILE["space"], "gpus": [1]}, steps={"warmup": 2, "measured": 8})
    seat = Seat(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1, host="")
    own = OwnLoop(config, lambda phase, step: None, seat, folder=str(tmp_path))
    keras_fit.watch(own, Reports(is_first=True))

    class Slow(_FakeCallback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            clock[0] += 1.0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            clock[0] += 100.0

    with pytest.raises(Measured):
        keras().fit(3, epochs=9, callbacks=[Slow()])
    assert own.report
    assert [step.step_ms for step in own.report.steps] == [1000.0] * 8
    assert own.report.window_s == 8.0


def test_a_report_comes_back_from_a_ledger_as_it_was() -> None:
    made = told({"loss": 1.5, "auc": 0.75}, {"loss": math.nan})
    text = json.dumps(messages.to_json(made.outcome))
    back = messages.trial_outcome(json.loads(text))
    assert json.dumps(messages.to_json(back)) == text, "as text: what was not told is not a number, and equals nothing"
    assert back.measurement
    assert back.measurement.epochs[1].figures == {"loss": math.inf}
    ended = TrialOutcome(status="failed", kind="exited", message="x", exit_code=3, last_lines=("a", "b"))
    assert messages.trial_outcome(json.loads(json.dumps(messages.to_json(ended)))) == ended


def test_what_a_script_reports_is_columns_and_its_last_word_counts() -> None:
    found = rows.row(told({"loss": 2.0, "auc": 0.5}, {"loss": 1.0, "top1": 0.5}, {"auc": 0.75}))
    assert (found["loss"], found["top1"], found["reported.auc"]) == (1.0, 0.5, 0.75)
    assert found["measured_by"] == "sweeps.steps"
    diverged = rows.row(told({"loss": 2.0}, {"loss": math.nan}))
    assert "loss" not in diverged, "its last word is no number"


def test_a_rate_is_a_column_by_its_unit_too_in_every_table() -> None:
    found = [told({"loss": 1.0}, config=one) for one in trials()]
    frame = analysis.frame([rows.row(one) for one in found])
    assert (frame["tokens_per_s"] == frame["images_per_s"]).all()
    assert frame["tokens_per_s"].notna().all()
    assert frame["parameters"].isna().all(), "nobody knows them of a user's program"
    assert frame["train_tflops"].isna().all()
    for table in (analysis.cells(frame), analysis.scaling(frame)):
        assert (table["tokens_per_s"] == table["images_per_s"]).all()
        assert "tokens_per_s_ci" in table
        assert table["loss"].notna().all()
    assert selection.headline(frame)[:2] == ["tokens_per_s", "loss"]
    assert "images_per_s" not in selection.headline(frame)
    built_in = analysis.frame([rows.row(records.record(records.config()))])
    assert "images_per_s" in selection.headline(built_in)
    assert not [name for name in built_in if rows.is_of_script(name)]


def test_a_condition_knows_own_axes_figures_and_rates() -> None:
    found = [told({"auc": one.own["lr"]}, config=one) for one in trials()]  # type: ignore[dict-item]
    frame = analysis.frame([rows.row(one) for one in found])
    for text in ("own.lr > 0.25", "reported.auc > 0.25", "tokens_per_s > 0 and own.lr > 0.25"):
        assert len(selection.Condition(text).held(frame)) == 2, text
    with pytest.raises(InputError):
        selection.Condition("words_per_s > 0").held(frame)


def test_a_program_of_two_lengths_has_a_mean_step_and_no_interval_of_its_own() -> None:
    (config, *_) = trials(
        measure={"lengths": [60, 120]}, run="python train.py {batch_size} {lr} {steps}", items="batch_size * gpus"
    )
    window = Window(warmup_steps=60, stopped_by="lengths", half_width_ms=None, withheld="two lengths")
    found = rows.row(told(config=config, steps=(), window=window, window_s=3.0, images=60 * 32 * 2 // config.gpus))
    assert found["step_ms_mean"] == pytest.approx(50.0)
    assert found["tokens_per_s"] == pytest.approx(60 * 32 * 2 / 3.0)
    assert found["why_withheld"]
    assert not {"step_ms_p50", "step_ms_p99", "images_per_s_within", "input_share"} & found.keys()
    assert messages.trial_config(json.loads(json.dumps(messages.to_json(config)))) == config


def test_a_cell_keeps_its_name_though_scripts_may_have_lengths_now() -> None:
    assert trials()[0].cell == "c4d07f1b28"


def test_a_script_that_tells_no_steps_has_no_rate() -> None:
    (config, *_) = trials(**LEARNING)
    found = rows.row(told({"loss": 1.0}, config=config, steps=(), images=0, window_s=9.0))
    assert found["loss"] == 1.0
    assert not {"images_per_s", "tokens_per_s", "images_per_s_per_gpu"} & found.keys()


def rungs(goal: str) -> Rungs:
    return Rungs(grace=1, reduction=3, epochs=9, goal=goal)


@pytest.mark.parametrize(("goal", "name", "worse"), [("min loss", "loss", 2.0), ("max auc", "auc", 0.5)])
def test_asha_stops_a_script_by_the_figure_that_is_its_goal(goal: str, name: str, worse: float) -> None:
    space = {"batch_size": [32], "gpus": [1], "lr": [0.1, 0.2, 0.3, 0.4]}
    search_of = {"method": "asha", "goal": goal}
    configs = trials(**LEARNING, space=space, search=search_of)
    made, verdicts, arrivals = rungs(goal), [], []
    for config, figure in zip(configs, (1.0, worse, math.nan, 1.0), strict=True):
        (epoch,) = told({name: figure}).outcome.measurement.epochs  # type: ignore[union-attr]
        said = made.judge(config, equals(config, [("a", 1)], NODES), [epoch])
        verdicts.append(said.why)
        arrivals += said.arrivals
    assert [bool(why) for why in verdicts] == [False, True, True, False]
    assert f"but its {name} of {worse:.4g} is number 2, behind 1 of {configs[0].trial}" in verdicts[1]
    again = rungs(goal)
    again.resumed(arrival(json.loads(json.dumps(messages.to_json(one)))) for one in arrivals)
    assert again._arrived == made._arrived


def test_who_stood_at_a_rung_with_other_code_of_its_user_s_stops_nobody() -> None:
    space = {"batch_size": [32], "gpus": [1], "lr": [0.1, 0.2, 0.3, 0.4]}
    configs = trials(**LEARNING, space=space, search={"method": "asha", "goal": "min loss"})
    made, arrivals = rungs("min loss"), []

    def judged(by: Rungs, nth: int, loss: float, edition: str) -> str:
        heard = Reports(is_first=True, made_by=edition)
        heard.add(1, {"loss": loss})
        said = by.judge(configs[nth], equals(configs[nth], [("a", 1)], NODES), heard.records)
        arrivals.extend(said.arrivals)
        return said.why

    assert not judged(made, 0, 1.0, "before")
    assert judged(made, 1, 2.0, "before")
    again = rungs("min loss")
    again.resumed(arrival(json.loads(json.dumps(messages.to_json(one)))) for one in arrivals)
    assert not judged(again, 2, 3.0, "edited")
    assert judged(again, 3, 4.0, "edited"), "it stands behind the one of its own code"


def test_code_of_cells_is_the_same_for_all_of_them_until_it_is_edited(tmp_path: Path) -> None:
    """Though each is given another file."""
    for name in ("train.py", "layers.py", "a.yaml", "b.yaml"):
        (tmp_path / name).write_text(name)
    run = "python train.py --batch {batch_size} --lr {lr} {file}"
    space = {"batch_size": [32], "gpus": [1], "lr": [0.1], "file": ["a.yaml", "b.yaml"]}
    first, second = trials(run=run, space=space)
    before = code.of_cells(first, tmp_path)
    assert before
    assert code.of_cells(second, tmp_path) == before
    (tmp_path / "layers.py").write_text("edited")
    assert code.of_cells(first, tmp_path) != before
    assert not code.of_cells(records.config(), tmp_path), "nothing of it is the user's"
    function = dataclasses.replace(records.config(), model="layers:wide")
    edited = code.of_cells(function, tmp_path)
    (tmp_path / "layers.py").write_text("edited again")
    assert code.of_cells(function, tmp_path) != edited


def test_epochs_of_which_some_are_not_told_add_up() -> None:
    config, made = trials(**LEARNING)[0], Rungs(grace=2, reduction=2, epochs=9, evaluate_every=2, goal="min loss")
    heard = Reports(is_first=True)
    for epoch in (2, 4):
        heard.add(epoch, {"loss": 1.0})
    timed = [dataclasses.replace(one, train_s=5.0) for one in heard.records]
    said = made.judge(config, equals(config, [("a", 1)], NODES), timed)
    assert [(one.epoch, one.taken_s) for one in said.arrivals] == [(2, 5.0), (4, 10.0)]


def reaching(*losses: float, **fields: Any) -> dict[str, Any]:
    """The figures of a trial that is to come to a loss of 0.5, with an auc of 0.9; each report takes 10 s."""
    (config, *_) = trials(**LEARNING, target={"loss": "<= 0.5", "auc": ">= 0.9"})
    heard = Reports(is_first=True)
    for loss in losses:
        heard.add(None, {"loss": loss, "auc": 1 - loss / 10})
    epochs = tuple(dataclasses.replace(one, train_s=10.0) for one in heard.records)
    is_there = any(messages.reaches_target(one, config) for one in epochs)
    return rows.row(told(config=config, epochs=epochs, reached_target=is_there, steps=(), **fields))


def test_a_target_is_what_a_script_is_to_report_and_its_time_ends_there() -> None:
    """Though the script goes on."""
    found = reaching(2.0, 0.5, 0.25)
    assert (found["epochs_to_target"], found["hours_to_target"]) == (2.0, pytest.approx(20 / 3600))
    assert found["loss"] == 0.25
    assert "epochs_to_target" not in reaching(2.0, 0.75)


def test_the_time_to_a_target_of_which_an_earlier_attempt_had_a_part_is_withheld() -> None:
    found = reaching(2.0, 0.5, gone_on_from=3)
    assert found["epochs_to_target"] == 2.0
    assert "hours_to_target" not in found


def test_cells_of_another_target_are_others_and_of_none_keep_their_names() -> None:
    def cell(**changed: Any) -> str:
        return trials(**LEARNING, **changed)[0].cell

    assert cell(target={"loss": "<= 0.5"}) == cell(target={"loss": "<=.5"}) != cell(target={"loss": "<= 0.25"})
    assert cell(target={}) == cell()


def test_a_search_draws_towards_what_a_script_reports() -> None:
    space = {"gpus": [1], "batch_size": [32], "lr": {"uniform": [0.0, 1.0]}}
    text = yaml.safe_dump({**FILE, "space": space, "search": {"method": "tpe", "trials": 40, "goal": "min loss"}})
    going = search.strategy(plan.plan(sweep_file.parse(text, "x")), lambda _: False)
    drawn: list[float] = []
    while proposed := going.propose():
        for config in proposed:
            lr = float(config.own["lr"])
            drawn.append(lr)
            going.tell(told({"loss": (lr - 0.8) ** 2}, config=config))
    late = drawn[20:]
    assert sum(abs(lr - 0.8) < 0.2 for lr in late) > len(late) / 2


@pytest.mark.parametrize(
    ("changed", "key", "rule"),
    [
        ({"search": {"method": "asha"}, **LEARNING}, "search.goal", "must be given with `run`"),
        ({"search": {"method": "asha", "goal": "min loss"}}, "search", "asha must have protocol: convergence"),
        ({"search": {"method": "asha", "goal": "images_per_s"}, **LEARNING}, "search.goal", "one figure that each"),
        ({"search": {"method": "tpe", "trials": 2, "goal": "top1"}}, "search.goal", "a figure that it reports"),
        ({"search": {"method": "tpe", "trials": 2, "goal": "least loss"}}, "search.goal", "`min NAME` or `max NAME`"),
        ({"target": {"loss": 0.5}, **LEARNING}, "target.loss", "must be `<=` or `>=` and a number"),
        ({"target": {"loss": "< low"}, **LEARNING}, "target.loss", "must be `<=` or `>=` and a number"),
        ({"target": {"top1": 76.0}, **LEARNING}, "target.top1", "must be less than 1"),
        ({"target": {"val loss": "<= 1"}, **LEARNING}, "target.val loss", "must be the name of a figure"),
        ({"target": {"loss": "<= 1"}}, "target", "belongs to protocol: convergence"),
        ({"search": {"method": "tpe", "trials": 2, "goal": "hours_to_target"}, **LEARNING}, "search.goal", "a target"),
        ({"measure": {"lengths": [60, 120]}}, "run", "must have {steps}"),
        ({"measure": {"lengths": [120, 60]}}, "measure.lengths", "the smaller one first"),
        ({"measure": {"lengths": [60]}}, "measure.lengths", "must be two whole numbers"),
        ({"run": "python train.py {batch_size} {lr} {steps}"}, "run", "measure.lengths must be given"),
        ({"run": "python train.py {batch_size} {lr} {epochs}"}, "run", "epochs must be given"),
        ({"measure": {"lengths": [6, 12], "lines": "x"}}, "measure", "lines or lengths, not both"),
        ({"measure": {"lengths": [6, 12]}, "items": None}, "items", "must be given with measure.lengths"),
        ({"measure": {"lengths": [6, 12]}, "stop": {"ci": 0.01}}, "stop", "has no effect with measure.lengths"),
        ({"measure": {"lengths": [6, 12]}, **LEARNING}, "measure.lengths", "belongs to protocol: throughput"),
    ],
)
def test_what_can_t_be_is_said_at_once(changed: dict[str, Any], key: str, rule: str) -> None:
    refused_with(lambda: trials(**changed), key, rule)


def test_a_target_by_what_a_script_reports_belongs_to_a_script() -> None:
    text = "{name: x, model: tiny, data: digits, device: cpu, protocol: convergence, epochs: 3, space: {batch_size: 8, "
    with pytest.raises(InputError) as refused:
        sweep_file.parse(text + "gpus: 1}, target: {loss: <= 0.5}}", "x")
    (mistake,) = refused.value.mistakes
    assert (mistake.key, mistake.got) == ("target.loss", "loss")
    assert "must be top1 or top5" in mistake.rule


def test_a_goal_of_a_script_belongs_to_a_script() -> None:
    text = "{name: x, model: tiny, device: cpu, space: {batch_size: [8, 16], gpus: 1}, "
    with pytest.raises(InputError, match="that a program of `run` reports"):
        sweep_file.parse(text + "search: {method: tpe, trials: 2, goal: min loss}}", "x")


@pytest.mark.parametrize(
    ("exit_code", "last", "killed", "kind"),
    [
        (1, "MemoryError", False, "host memory"),
        (1, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7 TiB for an array", False, "host memory"),
        (134, "terminate called after throwing an instance of 'std::bad_alloc'", False, "host memory"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", False, "device memory"),
        (-9, "step 12", True, "host memory"),
    ],
)
def test_memory_that_ran_out_is_a_finding_whoever_s_program_it_was(
    exit_code: int, last: str, killed: bool, kind: str
) -> None:
    found = ends.why(exit_code, ["step 1", last, "goodbye"], killed)
    assert isinstance(found, Infeasible)
    assert found.kind == kind


@pytest.mark.parametrize(
    ("exit_code", "last", "said"),
    [
        (3, "ValueError: a MemoryError is what I fear", "exit code 3"),
        (-9, "step 12", "signal 9 (SIGKILL)"),
    ],
)
def test_any_other_bad_end_is_a_fault_with_its_exit_code(exit_code: int, last: str, said: str) -> None:
    found = ends.why(exit_code, [last], was_killed_for_memory=False)
    assert isinstance(found, Fault)
    assert (found.kind, found.exit_code) == ("exited", exit_code)
    assert said in str(found)


def test_an_edit_of_a_script_or_beside_it_is_another_version(tmp_path: Path) -> None:
    script, beside = tmp_path / "train.py", tmp_path / "layers.py"
    found = []
    for text, module in (("a", "b"), ("a", "b"), ("A", "b"), ("a", "B")):
        script.write_text(text)
        beside.write_text(module)
        found.append(code.version(["python", str(script), "--lr", "0.1"], tmp_path))
    assert found[0] == found[1]
    assert len({*found}) == 3


def learnt(**changed: Any) -> Study:
    """A convergence sweep of a script that reports its loss alone."""
    text = yaml.safe_dump({**FILE, **LEARNING, "search": "grid", **changed})
    study = studies.planted(text, lambda config: 100.0)
    ended = tuple(
        told({"loss": 2.0}, {"loss": float(config.own["lr"])}, config=config, steps=(), images=0)
        for config in study.facts.trials
    )
    return dataclasses.replace(study, records=ended)


def test_a_sweep_whose_script_reports_a_loss_alone_has_a_report() -> None:
    study = learnt(search={"method": "random", "trials": 6})
    assert findings.find(study).answer.plain
    html = report.html(study)
    assert "What each came to" in html
    assert "Learning rate by epoch" not in html, "a program's own rate is its own affair"
    assert "Top-1" not in html
    for stale in ("nan", "ImageNet"):
        assert stale not in answer.markdown(answer.find(study))


def test_the_answer_goes_by_the_figure_that_is_the_goal() -> None:
    study = learnt(space={**FILE["space"], "gpus": [1]}, search={"method": "asha", "goal": "min loss"}, repeats=3)
    best = findings.find(study).best
    assert best
    assert (best.figure, best.top["own.lr"]) == ("loss", 0.1)
    assert "lr 0.1 has the best loss: loss 0.1" in findings.find(study).answer.plain.replace("Lr", "lr")


def test_the_console_tells_what_a_script_reported() -> None:
    (one, *_) = learnt().records
    assert progress.figure(one) == f"loss {one.config.own['lr']:.4g}"
    failed = TrialOutcome(status="failed", kind="exited", message="exit code 3", last_lines=("no such layer: 7",))
    assert "no such layer: 7" in progress.explained(dataclasses.replace(one, outcome=failed))
