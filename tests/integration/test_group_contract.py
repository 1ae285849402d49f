"""What a group promises, whether its ranks are real or simulated: one suite over both."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from sweeps.cluster import cleanup, ray_cluster
from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.simulator.cluster import parse
from sweeps.simulator.group import SimulatedGroup
from tests.unit.records import config
from workers.contract import messages
from workers.contract.messages import ROUNDS, Measurement, TrialConfig, TrialOutcome
from workers.contract.paths import SweepPaths
from workers.launch.gang import Group, NodeActors

pytestmark = pytest.mark.alone

RANKS = 2
Start = Callable[[TrialConfig], None]


@dataclasses.dataclass
class Subject:
    """A group of two ranks on one node, and how it is told to start."""

    group: Group | SimulatedGroup
    start: Start


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    return SweepPaths("contract", tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def real(paths: SweepPaths, left_behind: Callable[[], list[str]]) -> Iterator[Group]:
    os.environ.update(ray_cluster.QUIET)
    with cleanup.swept() as folder:
        ray.init("local", num_cpus=RANKS, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        node_actors = NodeActors(paths)
        node_actors.cover()
        placement = placement_group([{"CPU": RANKS}])
        ray.get(placement.ready())
        group = Group(placement, [RANKS])
        yield group
        group.close()
        remove_placement_group(placement)
        node_actors.dismiss()
        ray.shutdown()
    assert not left_behind()


@pytest.fixture(params=["real", "simulated"])
def subject(request: pytest.FixtureRequest, paths: SweepPaths) -> Subject:
    if request.param == "real":
        group: Group | SimulatedGroup = request.getfixturevalue("real")
        return Subject(group, lambda trial: group.start(trial, paths))
    made = SimulatedGroup(parse("nodes=1,gpu=none,cpus=2"), (("node-1", RANKS),))
    return Subject(made, lambda trial: made.start(trial, paths, at=time.time()))


def trial(**fields: Any) -> TrialConfig:
    given = {"image_size": 32, "classes": 10, "warmup_steps": 3, "measured_steps": 40} | fields
    return dataclasses.replace(config(gpus=RANKS), **given)


def converging(**fields: Any) -> TrialConfig:
    given = {"data": "digits", "epochs": 3, "evaluate_every": 2, "batch_size": 64, "lr_schedule": "0.1"} | fields
    return trial(protocol="convergence", measured_steps=0, warmup_steps=0, explain=False, **given)


def ended(subject: Subject, config: TrialConfig) -> TrialOutcome:
    subject.start(config)
    until = time.monotonic() + 120
    while (outcome := subject.group.wait(1.0)) is None:
        assert time.monotonic() < until
    return outcome


def measured(subject: Subject, config: TrialConfig) -> Measurement:
    outcome = ended(subject, config)
    assert outcome.status == "completed", outcome
    assert outcome.measurement
    return outcome.measurement


@pytest.fixture(scope="module")
def run_once() -> dict[type, tuple[float, TrialOutcome]]:
    """By kind of group, when a trial of `trial()` was started and how it ended."""
    return {}


@pytest.fixture
def plain(subject: Subject, run_once: dict[type, tuple[float, TrialOutcome]]) -> tuple[float, TrialOutcome]:
    """One for all tests that only read what it says."""
    kind = type(subject.group)
    if kind not in run_once:
        run_once[kind] = time.time(), ended(subject, trial())
    return run_once[kind]


def measured_once(plain: tuple[float, TrialOutcome]) -> Measurement:
    _, outcome = plain
    assert outcome.measurement, outcome
    return outcome.measurement


def test_every_rank_reports_and_is_granted_a_place(plain: tuple[float, TrialOutcome]) -> None:
    before, outcome = plain
    assert outcome.measurement
    assert [report.rank for report in outcome.measurement.ranks] == [0, 1]
    assert [place.rank for place in outcome.granted] == [0, 1]
    assert len({(place.node, place.hardware, place.software) for place in outcome.granted}) == 1
    for report in outcome.measurement.ranks:
        assert report.images == 8 * len(report.steps)
        began_at, ended_at = report.window_at
        assert report.window_s == pytest.approx(ended_at - began_at, abs=1e-5)
        assert before <= report.entered_at < report.window_at[0] < report.window_at[1]
        assert report.build_s > 0
        assert report.peak_memory_mib > 100
        assert report.allreduce_mib_per_s > 0


def test_an_outcome_survives_its_json_and_becomes_a_row(plain: tuple[float, TrialOutcome]) -> None:
    _, outcome = plain
    text = json.dumps(messages.to_json(outcome))
    assert messages.trial_outcome(json.loads(text)) == outcome
    record = TrialRecord(config=trial(), outcome=outcome, started_at=time.time() - 60, ended_at=time.time())
    row = rows.row(record)
    for figure in ("images_per_s", "step_ms_p95", "is_steady", "straggler_ratio", "loss", "comm_share"):
        assert isinstance(row[figure], float), figure


def test_a_trial_of_given_steps_takes_just_those(plain: tuple[float, TrialOutcome]) -> None:
    found = measured_once(plain)
    assert [[step.step for step in report.steps] for report in found.ranks] == [list(range(40))] * RANKS
    report = found.ranks[0]
    assert report.window
    assert (report.window.warmup_steps, report.window.stopped_by) == (3, "steps")


def test_a_trial_that_stops_by_itself_takes_no_more_steps_than_it_may(subject: Subject) -> None:
    config = trial(measured_steps=0, warmup_steps=10, max_steps=70, min_window=40, ci=0.5)
    first, second = measured(subject, config).ranks
    assert first.window
    assert first.window.stopped_by in ("interval", "max_steps")
    assert 40 <= len(first.steps) == len(second.steps) <= 70 - first.window.warmup_steps


def test_reduction_is_taken_away_after_the_window_if_that_is_asked_for(
    subject: Subject, plain: tuple[float, TrialOutcome]
) -> None:
    assert trial().explain
    not_asked = measured(subject, trial(explain=False)).ranks[0].without_ms
    asked = measured_once(plain).ranks[0].without_ms
    assert set(asked) == {"nothing", "comm", "compute"}
    for rounds in asked.values():
        assert [len(times) for times in rounds] == [2] * ROUNDS
    assert not not_asked


def test_it_knows_what_the_network_costs(plain: tuple[float, TrialOutcome]) -> None:
    report = measured_once(plain).ranks[0]
    assert report.parameters == pytest.approx(98_962, rel=0.01)
    assert report.flops == pytest.approx(5_171_200, rel=0.01)


def test_training_tells_its_epochs_and_validates_when_asked(subject: Subject) -> None:
    epochs = measured(subject, converging()).epochs
    assert [epoch.epoch for epoch in epochs] == [1, 2, 3]
    assert [epoch.top1 is not None for epoch in epochs] == [False, True, True]
    assert [epoch.images for epoch in epochs] == [1437] * 3
    assert all(epoch.train_s > 0 for epoch in epochs)
    assert epochs[-1].loss < epochs[0].loss


def test_training_stops_at_its_target(subject: Subject) -> None:
    found = measured(subject, converging(epochs=50, evaluate_every=1, target_top1=0.2))
    assert found.ranks[0].reached_target
    assert len(found.epochs) < 50
    assert (found.epochs[-1].top1 or 0) >= 0.2


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (trial(precision="tf32"), "precision not supported here"),
        (trial(batch_size=4096, worker_memory_gib=0.45, image_size=64), "host memory"),
        (converging(batch_size=1024), "batch larger than the data"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_run_is_infeasible(subject: Subject, config: TrialConfig, kind: str) -> None:
    outcome = ended(subject, config)
    assert (outcome.status, outcome.kind) == ("infeasible", kind)
    assert outcome.message
    assert outcome.rank is not None
    assert outcome.measurement is None
    assert len(outcome.granted) == RANKS


def test_a_trial_that_is_stopped_is_cancelled_and_the_next_one_runs(subject: Subject) -> None:
    subject.start(trial(measured_steps=10_000))
    subject.group.stop()
    stopped = subject.group.wait(1.0)
    assert stopped
    assert (stopped.status, stopped.measurement) == ("cancelled", None)
    following = ended(subject, trial())
    assert following.status == "completed", following


def test_a_closed_group_starts_again(subject: Subject) -> None:
    subject.group.close()
    assert ended(subject, trial()).status == "completed"
