"""Who is hopeless in an asha search, on planted curves: by rung, by time, among equals alone."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.scheduling.asha import Arrival, Equals, Rungs, arrival, equals
from sweeps.scheduling.cache import NodeContents
from tests.unit.simulations import learning
from workers.contract import messages
from workers.contract.messages import EpochRecord, TrialConfig

IMAGES = "data/imagenet"  # what these trials learn
NEW = NodeContents("v100", "sw", {IMAGES: "ff", "elsewhere": "ee"})
NODES = {"a": NEW, "b": NEW, "old": dataclasses.replace(NEW, hardware="p100")}
ACCURACIES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@functools.cache  # properties ask for it again and again
def cell(batch_size: int = 8, gpus: int = 1, repeat: int = 0, **fields: object) -> TrialConfig:
    """A trial of 27 epochs; its batch size names its cell."""
    return learning(**{"batch_size": batch_size, "gpus": gpus, "repeat": repeat, "epochs": 27} | fields)  # type: ignore[arg-type]


def epoch(number: int, top1: float | None, train_s: float = 10.0) -> EpochRecord:
    top5 = None if top1 is None else min(1.0, top1 + 0.1)
    return EpochRecord(epoch=number, images=1, loss=1.0, rate=0.1, train_s=train_s, top1=top1, top5=top5)


def rungs() -> Rungs:
    return Rungs(grace=1, reduction=3, epochs=27)


def among(config: TrialConfig, **made: object) -> Equals:
    """On a node that is made as node a is, but for this."""
    return equals(config, (("here", config.gpus),), {"here": dataclasses.replace(NEW, **made)})  # type: ignore[arg-type]


def judged(made: Rungs, config: TrialConfig, number: int, top1: float | None, train_s: float = 10.0) -> str:
    return made.judge(config, among(config), [epoch(number, top1, train_s)]).why


def course(made: Rungs, config: TrialConfig, tops: Sequence[float], train_s: float = 10.0) -> tuple[int, str]:
    """A trial epoch by epoch: after how many it was over, and why it was stopped."""
    for n, top1 in enumerate(tops, 1):
        if why := judged(made, config, n, top1, train_s):
            return n, why
    return len(tops), ""


def test_rungs_lie_at_the_grace_and_at_so_many_times_as_many_epochs_each() -> None:
    assert rungs().epochs == {1, 3, 9}  # not 27: there a trial ends by itself
    assert Rungs(grace=2, reduction=2, epochs=20).epochs == {2, 4, 8, 16}
    assert Rungs(grace=1, reduction=3, epochs=20, evaluate_every=2).epochs == {2, 4, 10}  # validated there
    assert Rungs(grace=1, reduction=3, epochs=20, evaluate_every=20).epochs == set()


def test_one_in_three_goes_on_from_a_rung_and_the_words_say_rule_values_and_rival() -> None:
    made = rungs()
    first, second, third = cell(8), cell(16), cell(32)
    assert judged(made, first, 1, 0.50) == ""
    why = judged(made, second, 1, 0.40)
    assert why == (
        "of the 2 cells that have come to epoch 1 with gpus 1, placement pack, the best 1 go on (reduction: 3), but "
        f"its top-1 of 40.00% is number 2, behind 50.00% of {first.trial}"
    )
    assert judged(made, third, 1, 0.60) == ""
    assert judged(made, cell(64), 1, 0.55) == ""  # of four the best two


def test_equal_accuracies_are_not_worse() -> None:
    made = rungs()
    assert [judged(made, cell(size), 1, 0.5) for size in (8, 16, 32)] == ["", "", ""]


def test_between_rungs_nobody_is_judged_by_accuracy() -> None:
    made = rungs()
    assert course(made, cell(8), [0.5] * 8) == (8, "")
    assert [judged(made, cell(16), n, top1) for n, top1 in enumerate([0.6, 0.1], 1)] == ["", ""]
    assert "number 2" in judged(made, cell(16), 3, 0.1)


@given(ACCURACIES)
def test_the_best_so_far_always_goes_on_and_never_more_than_asked_in_the_worst_order(tops: list[float]) -> None:
    made, best = rungs(), -1.0
    for n, top1 in enumerate(tops, 1):
        why = judged(made, cell(n), 1, top1)
        assert not (why and top1 >= best)
        best = max(best, top1)
    falling, made = sorted(set(tops), reverse=True), rungs()
    assert [bool(judged(made, cell(n), 1, top1)) for n, top1 in enumerate(falling, 1)] == [
        n >= math.ceil((n + 1) / 3) for n in range(len(falling))
    ]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.floats(0, 1), st.floats(1, 100)), max_size=40))
def test_who_is_no_equal_changes_nothing(arrivals: list[tuple[int, float, float]]) -> None:
    """Verdicts are those of each GPU count by itself, however they come between each other."""
    mixed, apart = rungs(), {1: rungs(), 2: rungs(), 4: rungs()}
    for n, (gpus, top1, train_s) in enumerate(arrivals, 1):
        config = cell(n, gpus, target_top1=0.9)
        for number in (1, 2, 3):
            told = (config, number, top1, train_s)
            assert judged(mixed, *told) == judged(apart[gpus], *told)


def test_a_baseline_is_not_lost_to_a_quicker_and_better_gpu_count() -> None:
    made = rungs()
    for size in (8, 16, 32):
        assert course(made, cell(size, gpus=8, target_top1=0.7), [0.5, 0.6, 0.8], train_s=1.0) == (3, "")
    assert course(made, cell(8, gpus=1, target_top1=0.7), [0.1] * 26 + [0.2], train_s=100.0) == (27, "")


def test_another_batch_size_on_as_many_gpus_is_a_rival_and_another_place_or_kind_is_none() -> None:
    here = cell(8, 4)
    assert among(here) == among(cell(16, 4, lr_schedule="0.3", precision="fp32"))
    assert among(here) != among(cell(8, 2))
    assert among(here) != among(cell(8, 4, placement="2x2"))
    assert among(here) != among(cell(8, 4, data="elsewhere"))
    assert among(here) != among(here, hardware="p100")
    assert among(here) != equals(here, (("a", 2), ("b", 2)), NODES)
    assert among(here) != equals(here, (("old", 4),), NODES)
    assert among(here) == equals(here, (("b", 4),), NODES)
    assert equals(here, (("a", 3), ("b", 1)), NODES) == equals(here, (("a", 1), ("b", 3)), NODES)


@pytest.mark.parametrize("unlike", [{"software": "edited"}, {"hardware": "a new kernel"}, {"data": {IMAGES: "00"}}])
def test_other_code_another_node_or_other_files_make_no_rivals(unlike: dict[str, object]) -> None:
    made, first, second = rungs(), cell(8, target_top1=0.7), cell(16, target_top1=0.7)
    course(made, first, [0.75], train_s=1.0)  # at a rung and at the target
    for number in (1, 2):
        assert made.judge(second, among(second, **unlike), [epoch(number, 0.1, 1000.0)]).why == ""
        assert made.judge(second, among(second), [epoch(number, 0.1, 1000.0)]).why


@pytest.mark.parametrize("unknown", [{"software": ""}, {"hardware": ""}, {"data": {}}])
def test_a_trial_on_a_node_that_has_not_said_what_it_is_made_of_is_judged_by_none_and_judges_none(
    unknown: dict[str, object],
) -> None:
    made = rungs()
    assert made.judge(cell(8), among(cell(8), **unknown), [epoch(1, 0.9)]) == ("", ())
    assert made.judge(cell(16), among(cell(16), **unknown), [epoch(1, 0.1)]) == ("", ())
    assert judged(made, cell(32), 1, 0.1) == ""


def test_an_arrival_of_an_earlier_version_which_did_not_tell_the_code_decides_about_nobody() -> None:
    made = rungs()
    (one,) = rungs().judge(cell(8), among(cell(8)), [epoch(1, 0.9)]).arrivals
    old = {**messages.to_json(one), "equals": ["device gpu", "gpus 1", "1 on v100 8 CPUs 4 GPUs"]}
    made.resumed([arrival(json.loads(json.dumps(old)))])
    assert judged(made, cell(16), 1, 0.1) == ""


def test_a_cell_that_is_spared_is_not_stopped_and_still_stands_at_its_rungs() -> None:
    made, spared = rungs(), cell(16)
    judged(made, cell(8), 1, 0.5)
    (stood,) = made.judge(spared, among(spared), [epoch(1, 0.4)], is_spared=True).arrivals
    assert stood.why == ""
    assert "of the 3 cells" in judged(made, cell(32), 1, 0.3)
    stopped = cell(64)
    assert judged(made, stopped, 1, 0.2)
    assert made.judge(stopped, among(stopped), [epoch(1, 0.2)], is_spared=True).why == "", "also if it was before"


def test_who_takes_longer_than_three_times_the_best_to_the_target_is_stopped() -> None:
    made = rungs()
    quick, slow = cell(8, target_top1=0.7), cell(16, target_top1=0.7)
    assert course(made, quick, [0.5, 0.75]) == (2, "")  # 20 s
    ended, why = course(made, slow, [0.6] * 27, train_s=12.0)
    assert ended == 6  # the first after which 60 s are over
    assert why == (
        "with gpus 1, placement pack, a trial may take 3 times (reduction) the 20.0 s that "
        f"{quick.trial} took to the target, but its epochs took 72.0 s and it is not there"
    )


def test_time_stops_between_validations_too_and_counts_validations_and_checkpoints() -> None:
    made = rungs()
    course(made, cell(8, target_top1=0.7), [0.75])  # 10 s
    slow, whole = cell(16, target_top1=0.7), dataclasses.replace(epoch(1, None), evaluate_s=8.0, checkpoint_s=12.0)
    assert made.judge(slow, among(slow), [whole]).why == ""  # 30 s
    assert "31.0 s" in judged(made, slow, 2, None, train_s=1.0)


def test_who_comes_to_its_target_or_its_last_epoch_is_not_stopped_any_more() -> None:
    made = rungs()
    course(made, cell(8, target_top1=0.7), [0.9], train_s=1.0)
    assert judged(made, cell(16, target_top1=0.7), 1, 0.71, train_s=1000.0) == ""
    assert course(made, cell(32, target_top1=0.7, epochs=1), [0.1], train_s=1000.0) == (1, "")


def test_without_a_target_nobody_is_stopped_by_time() -> None:
    made = rungs()
    assert course(made, cell(8), [0.5] * 27) == (27, "")
    assert course(made, cell(16), [0.6] * 27, train_s=1e6) == (27, "")


def test_repeats_share_the_verdict_of_their_cell() -> None:
    """A mean over lucky repeats would be wrong: none is pruned where one went on, nor goes on where one was pruned."""
    made = rungs()
    assert judged(made, cell(8), 1, 0.5) == ""
    assert [judged(made, cell(8, repeat=n), 1, 0.1) for n in (1, 2)] == ["", ""]
    assert judged(made, cell(16), 1, 0.4)
    why = judged(made, cell(16, repeat=1), 1, 0.9)
    assert why.startswith(f"as its repeat {cell(16).trial}: of the 2 cells")
    assert "of the 3 cells" in judged(made, cell(32), 1, 0.3)  # repeats are no cells


def test_a_cell_with_a_repeat_at_the_target_is_not_stopped_by_time() -> None:
    made = rungs()
    course(made, cell(8, target_top1=0.7), [0.75], train_s=1.0)
    course(made, cell(16, target_top1=0.7), [0.75], train_s=2.9)
    assert course(made, cell(16, target_top1=0.7, repeat=1), [0.5] * 27)[0] == 27
    assert course(made, cell(32, target_top1=0.7), [0.75 - 0.1] * 27)[1]


def test_an_attempt_from_a_checkpoint_is_neither_judged_nor_counted_twice() -> None:
    made = rungs()
    first, second = cell(8), cell(16)
    assert course(made, first, [0.5, 0.6, 0.6]) == (3, "")
    assert course(made, second, [0.6, 0.6, 0.7]) == (3, "")
    made.forget(first.trial)
    assert course(made, first, [0.5, 0.6, 0.1, 0.1]) == (4, "")  # among two it would be the worse now
    assert "of the 3 cells that have come to epoch 3" in course(made, cell(32), [0.9, 0.9, 0.1])[1]


def test_the_time_of_an_attempt_is_that_of_the_epochs_in_its_figures() -> None:
    """What an attempt did behind its checkpoint is lost: the epochs told anew replace it."""
    made = rungs()
    course(made, cell(8, target_top1=0.7), [0.5, 0.75], train_s=5.0)
    slow = cell(16, target_top1=0.7)
    assert course(made, slow, [0.6, 0.6], train_s=15.0) == (2, "")
    assert judged(made, slow, 2, 0.6, train_s=14.0) == ""
    assert judged(made, slow, 3, 0.6, train_s=0.5) == ""  # 29.5 s, and not 44.5
    assert "30.5 s" in judged(made, slow, 4, 0.6, train_s=1.0)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.floats(0, 1), st.floats(1, 50)), min_size=1, max_size=25),
    st.integers(0, 25),
)
def test_who_goes_on_with_a_sweep_judges_as_if_it_had_never_stopped(
    told: list[tuple[int, float, float]], cut: int
) -> None:
    """At whatever arrival the driver is killed, the ledger's lines rebuild the rungs."""
    whole, ledger = rungs(), []
    second: Rungs | None = None
    for n, (size, top1, train_s) in enumerate(told):
        if n == cut:
            second = rungs()
            lines = [json.loads(json.dumps(messages.to_json(one))) for one in ledger]
            second.resumed(arrival(line) for line in lines)
        config = cell(size, repeat=n, target_top1=0.8)
        epochs = [epoch(number, top1, train_s) for number in (1, 2, 3)]
        verdict = whole.judge(config, among(config), epochs)
        ledger += verdict.arrivals
        if second:
            assert second.judge(config, among(config), epochs) == verdict


def test_only_news_goes_to_the_ledger() -> None:
    made, config = rungs(), cell(8, target_top1=0.7)

    def news(number: int, top1: float | None) -> Sequence[Arrival]:
        return made.judge(config, among(config), [epoch(number, top1)]).arrivals

    assert [len(news(number, 0.5)) for number in (1, 1, 2, 3, 4)] == [1, 0, 0, 1, 0]
    assert [(one.is_at_rung, one.is_at_target, one.taken_s) for one in news(5, 0.8)] == [(False, True, 50.0)]
    assert not news(5, 0.8)


@pytest.mark.parametrize("epochs", [[], [epoch(1, None)]])
def test_epochs_that_were_not_validated_stand_at_no_rung(epochs: list[EpochRecord]) -> None:
    made = rungs()
    assert made.judge(cell(8), among(cell(8)), epochs) == ("", [] if epochs else ())
