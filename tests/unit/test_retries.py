"""Retries by cause, on other nodes; nodes that keep failing."""

from __future__ import annotations

import pytest

from sweeps.scheduling.retries import Faults
from tests.unit.records import config, record
from workers.contract.messages import TrialOutcome

LOST = TrialOutcome(status="lost", kind="node lost")
KILLED = TrialOutcome(status="failed", kind="killed", rank=1)
RAISED = TrialOutcome(status="failed", kind="raised", rank=0)
NO_TORCH = TrialOutcome(status="failed", kind="no torch", rank=0)
NO_MEMORY = TrialOutcome(status="infeasible", kind="device memory")


@pytest.mark.parametrize(("outcome", "retries"), [(LOST, 3), (NO_TORCH, 3), (KILLED, 1), (RAISED, 0), (NO_MEMORY, 0)])
def test_a_trial_is_tried_again_as_often_as_its_cause_allows(outcome: TrialOutcome, retries: int) -> None:
    faults = Faults()
    ended = record(config(gpus=2), outcome=outcome)
    assert [faults.tell(ended, {"a"}) for _ in range(retries + 2)] == [True] * retries + [False] * 2


def test_each_cause_has_a_budget_of_its_own() -> None:
    faults = Faults()
    trial = config(gpus=2)
    ends = [LOST, KILLED, LOST, LOST, KILLED]
    assert [faults.tell(record(trial, outcome=end), {"a"}) for end in ends] == [True, True, True, True, False]


def test_a_trial_avoids_the_nodes_that_it_ended_badly_on() -> None:
    faults = Faults()
    trial = config(gpus=2)
    faults.tell(record(trial, outcome=LOST), {"a"})
    faults.tell(record(trial, outcome=LOST), {"b"})
    assert faults.avoid == {trial.trial: {"a", "b"}}


def test_a_node_is_bad_after_three_trials_in_a_row() -> None:
    faults = Faults()
    trials = [config(batch_size=size) for size in (1, 2, 3)]
    for trial in trials[:2]:
        faults.tell(record(trial, outcome=KILLED), {"a"})
    assert not faults.bad_nodes
    faults.tell(record(trials[2], outcome=RAISED), {"a"})
    assert faults.bad_nodes == {"a": ", ".join(trial.trial for trial in trials)}


def test_a_node_that_completes_a_trial_is_not_bad() -> None:
    faults = Faults()
    for size in range(1, 9):
        faults.tell(record(config(batch_size=size), outcome=None if size % 3 == 0 else KILLED), {"a"})
    assert not faults.bad_nodes


def test_a_trial_that_always_fails_says_nothing_against_a_node() -> None:
    faults = Faults()
    for _ in range(5):
        faults.tell(record(config(), outcome=LOST), {"a"})
    assert not faults.bad_nodes


def test_retries_that_were_used_before_the_driver_stopped_are_used() -> None:
    trial, faults = config(gpus=2), Faults()
    for node in ("a", "b"):
        faults.resumed(trial.trial, LOST, {node})
    assert faults.avoid == {trial.trial: {"a", "b"}}
    assert [faults.tell(record(trial, outcome=LOST), {"c"}) for _ in range(2)] == [True, False]
    assert faults.tell(record(trial, outcome=KILLED), {"c"}), "of another cause it had used none"


def test_nodes_start_anew_when_a_sweep_goes_on() -> None:
    faults = Faults()
    for size in (1, 2, 3):
        faults.resumed(config(batch_size=size).trial, LOST, {"a"})
    assert not faults.bad_nodes
