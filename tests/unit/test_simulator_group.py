"""A simulated trial: what it reports, what befalls it, and that it goes the way of a real one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics

import pytest

from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.simulator import group, trial_time
from sweeps.simulator.cluster import parse
from sweeps.simulator.group import SimulatedGroup, ended
from sweeps.simulator.measuring import Measuring
from sweeps.simulator.model import KINDS, step
from tests.unit.simulations import FOUR_BY_FOUR, learning, outcome, seats, trial
from workers.contract import messages
from workers.contract.messages import Measurement, TrialConfig, TrialOutcome

LARGE = parse("nodes=8,gpus=4,gpu=v100")


def measured(config: TrialConfig, **fields: int) -> Measurement:
    found = outcome(config, **fields).measurement
    assert found
    return found


def row(config: TrialConfig, found: TrialOutcome, took_s: float = 30.0) -> dict[str, object]:
    return rows.row(TrialRecord(config=config, outcome=found, started_at=0.0, ended_at=took_s))


def test_a_trial_comes_out_the_same_each_time_and_its_repeats_do_not() -> None:
    assert measured(trial()) == measured(trial())
    assert measured(trial()).images_per_s != measured(trial(repeat=1)).images_per_s


def test_what_earlier_repeats_have_shown_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And comes to the same, whichever repeat asks first."""
    learnt, asked = Measuring.learnt, []
    monkeypatch.setattr(Measuring, "learnt", lambda self, known: asked.append(1) or learnt(self, known))
    monkeypatch.setattr(group, "_shown", {})
    upwards = [measured(trial(repeat=n)) for n in range(7)]
    assert len(asked) == 6
    monkeypatch.setattr(group, "_shown", {})
    assert [measured(trial(repeat=n)) for n in reversed(range(7))] == upwards[::-1]


def test_another_seed_of_the_cluster_gives_other_noise() -> None:
    other = dataclasses.replace(FOUR_BY_FOUR, seed=1)
    assert outcome(trial(), other) != outcome(trial())


def test_its_rate_is_the_model_s_but_for_the_noise() -> None:
    config = trial(gpus=8)
    expected = 1e3 * config.global_batch / step(config, KINDS["v100"], [4, 4]).step_ms
    rates = [measured(dataclasses.replace(config, repeat=n)).images_per_s for n in range(20)]
    assert statistics.fmean(rates) == pytest.approx(expected, rel=0.005)
    assert 0.002 < statistics.stdev(rates) / expected < 0.01


def test_without_noise_it_is_the_model_s_once_it_has_settled() -> None:
    config = trial(gpus=4, warmup_steps=40, measured_steps=10)
    quiet = dataclasses.replace(FOUR_BY_FOUR, noise=0.0)
    found = outcome(config, quiet).measurement
    assert found
    assert found.images_per_s == pytest.approx(1e3 * 512 / step(config, KINDS["v100"], [4]).step_ms, rel=1e-4)


def test_a_trial_measures_until_its_interval_is_narrow_enough() -> None:
    quiet, noisy = (dataclasses.replace(FOUR_BY_FOUR, noise=noise) for noise in (0.005, 0.06))
    second = dataclasses.replace(trial(), repeat=1)
    found = [outcome(*one).measurement for one in ((trial(), quiet), (second, quiet), (second, noisy))]
    windows = [one.ranks[0].window for one in found if one]
    assert [window.stopped_by for window in windows if window] == ["interval"] * 3
    calm, later, wild = (len(one.ranks[0].steps) for one in found if one)
    assert later < 60 < 80 < wild
    assert 228 <= calm < 260


def test_a_trial_of_given_steps_takes_just_those() -> None:
    (report,) = measured(trial(warmup_steps=10, measured_steps=100)).ranks
    assert report.window
    assert (report.window.warmup_steps, report.window.stopped_by, len(report.steps)) == (10, "steps", 100)
    assert report.images == 12_800


def test_shares_come_out_as_the_model_has_them() -> None:
    config = trial("vgg16", 32, 8, data="data/imagenet", decode_threads=8)
    found = row(config, outcome(config))
    of_step = step(config, KINDS["v100"], [4, 4], 40)
    assert found["comm_share"] == pytest.approx(1 - of_step.without("comm") / of_step.step_ms, abs=0.03)
    assert found["input_share"] == pytest.approx(1 - of_step.without("input") / of_step.step_ms, abs=0.03)
    hidden_ms = of_step.reduction_ms - of_step.exposed_ms
    assert hidden_ms > 0.1 * of_step.step_ms
    assert found["overlap_share"] == pytest.approx(hidden_ms / of_step.step_ms, abs=0.03)
    assert str(found["limited_by"])


def test_times_follow_one_another_on_the_clock_given() -> None:
    config = trial(gpus=4)
    group = SimulatedGroup(FOUR_BY_FOUR, seats(config, FOUR_BY_FOUR))
    group.start(config, at=1000.0)
    found = group.wait()
    assert found
    assert found.measurement
    report = found.measurement.ranks[0]
    begin, end = report.window_at
    assert 1000 < report.entered_at < report.entered_at + report.build_s < begin < end < 1000 + group.took_s
    assert end - begin == pytest.approx(report.window_s)
    assert group.took_s == pytest.approx(trial_time.expected_s(config, FOUR_BY_FOUR), rel=0.1)


def test_what_it_ran_on_is_marked_and_where_it_was_asked_to() -> None:
    config = trial(gpus=6)
    found = outcome(config)
    assert [place.node for place in found.granted] == ["node-1"] * 4 + ["node-2"] * 2
    assert [place.gpu for place in found.granted] == ["0", "1", "2", "3", "0", "1"]
    told = row(config, found)
    assert (told["hardware"], told["software"]) == ("simulated:v100", "simulated")


def test_an_outcome_survives_its_json() -> None:
    found = outcome(trial(gpus=8))
    assert messages.trial_outcome(json.loads(json.dumps(messages.to_json(found)))) == found


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (trial(batch_size=512, precision="fp32"), "device memory"),
        (trial(precision="bf16"), "precision not supported here"),
        (learning(data="digits", batch_size=512, gpus=4, image_size=32), "batch larger than the data"),
    ],
)
def test_what_can_not_run_is_infeasible_in_a_rank_s_own_words(config: TrialConfig, kind: str) -> None:
    found = outcome(config)
    assert (found.status, found.kind, found.rank) == ("infeasible", kind, 0)
    assert found.message
    assert found.granted[0].hardware == "simulated:v100"


def test_more_memory_holds_a_larger_batch() -> None:
    config = trial(batch_size=512)
    assert outcome(config).kind == "device memory"
    assert outcome(config, parse("nodes=1,memory=32")).status == "completed"


def test_a_p100_computes_no_half_precision_unless_it_is_to_emulate_it() -> None:
    p100 = parse("nodes=1,gpu=p100")
    assert outcome(trial(), p100).kind == "precision not supported here"
    assert outcome(trial(emulate=True), p100).status == "completed"


def test_a_rank_on_a_cpu_runs_out_of_the_memory_that_it_may_have() -> None:
    cluster = parse("nodes=1,gpu=none")
    config = dataclasses.replace(trial("tiny", precision="fp32"), device="cpu")
    assert outcome(config, cluster).status == "completed"
    assert outcome(dataclasses.replace(config, worker_memory_gib=0.5), cluster).kind == "host memory"


def test_so_many_trials_are_lost_as_asked_and_another_attempt_has_its_own_fate() -> None:
    cluster = parse("nodes=1,loss=20%")
    trials = [trial(repeat=n, measured_steps=20) for n in range(150)]  # how they stop has no part in it
    found = [outcome(config, cluster) for config in trials]
    lost = [one for one in found if one.status != "completed"]
    assert 20 <= len(lost) <= 40
    assert {(one.status, one.kind) for one in lost} == {("lost", "node lost"), ("failed", "killed")}
    again = [outcome(config, cluster, attempt=1).status for config in trials]
    assert sum(status != "completed" for status in again) <= 40
    assert again != [one.status for one in found]


def test_a_lost_trial_takes_less_time_than_a_whole_one() -> None:
    cluster = parse("nodes=1,loss=50%")
    safe = dataclasses.replace(cluster, loss=0.0)
    for n in range(20):
        found, whole = (ended(trial(repeat=n, measured_steps=20), one, (("node-1", 1),)) for one in (cluster, safe))
        assert (found.after_s < whole.after_s) == (found.outcome.status != "completed")


def test_training_stops_at_its_target_and_tells_what_it_took() -> None:
    config = learning(target_top1=0.749)
    told = row(config, outcome(config))
    assert told["epochs_to_target"] == pytest.approx(61, abs=4)
    assert told["top1"] == pytest.approx(0.749, abs=0.005)
    assert float(str(told["train_hours_to_target"])) == pytest.approx(61 * 1_281_167 / 810 / 3600, rel=0.1)


def test_without_a_target_every_epoch_is_trained_and_accuracy_grows() -> None:
    epochs = measured(learning(gpus=16, epochs=30)).epochs
    assert [epoch.epoch for epoch in epochs] == list(range(1, 31))
    assert epochs[-1].top1
    assert epochs[0].top1 < 0.2 < 0.6 < epochs[-1].top1
    assert epochs[0].loss > epochs[-1].loss


def test_a_rate_far_from_its_best_learns_slower_and_far_above_it_diverges() -> None:
    def reached(rate: str) -> float:
        return measured(learning(epochs=20, lr_schedule=rate)).epochs[-1].top1 or 0.0

    assert reached("0.1") > reached("0.01") > reached("0.001")
    assert outcome(learning(lr_schedule="10")).kind == "diverged"


def test_a_group_knows_when_each_epoch_was_over_and_one_that_was_stopped_has_none() -> None:
    config = learning(epochs=10)
    group = SimulatedGroup(FOUR_BY_FOUR, seats(config, FOUR_BY_FOUR))
    group.start(config)
    found = group.wait().measurement
    assert found
    assert tuple(epoch for _, epoch in group.timeline) == found.epochs
    ends = [after_s for after_s, _ in group.timeline]
    assert sorted(ends) == ends
    assert [later - earlier for earlier, later in itertools.pairwise(ends)] == pytest.approx(
        [epoch.taken_s for epoch in found.epochs[1:]]
    )
    assert group.took_s > ends[-1]

    group.stop()
    stopped = group.wait()
    assert (stopped.status, stopped.kind) == ("cancelled", "stopped")
    assert not group.timeline
