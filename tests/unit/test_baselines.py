"""Which one-GPU cells a search may not lose."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.baselines import HOPELESS, OWN, SAME, Bases
from tests.unit.records import config, record
from workers.contract.messages import TrialConfig, TrialOutcome

ONE = config(batch_size=8)
PRUNED = TrialOutcome(status="pruned", kind=HOPELESS)


def on(gpus: int, batch_size: int = 8, repeat: int = 0, **fields: Any) -> TrialConfig:
    return dataclasses.replace(ONE, gpus=gpus, batch_size=batch_size, repeat=repeat, **fields)


def stopped(trial: TrialConfig) -> TrialRecord:
    return record(trial, outcome=PRUNED)


def told(*records: TrialRecord, is_strong: bool = False) -> Bases:
    bases = Bases(is_strong)
    for one in records:
        bases.tell(one)
    return bases


def test_the_base_of_a_cell_that_came_to_its_end_is_needed_and_every_repeat_of_it_that_was_stopped_runs_again() -> None:
    repeats = [on(1, repeat=n) for n in range(2)]
    bases = told(*map(stopped, repeats), record(on(4, placement="spread", arrangement=(2, 2))))
    assert bases.needed_for(on(1, repeat=5)) == on(4, placement="spread", arrangement=(2, 2)).trial
    assert bases.again() == repeats
    assert bases.again() == [], "each once"


@pytest.mark.parametrize("end", [PRUNED, TrialOutcome(status="failed"), TrialOutcome(status="infeasible")])
def test_a_cell_that_did_not_come_to_its_end_needs_no_base(end: TrialOutcome) -> None:
    bases = told(stopped(on(1)), record(on(4), outcome=end))
    assert not bases.needed_for(on(1))
    assert bases.again() == []


@pytest.mark.parametrize(
    "unlike", [{"batch_size": 16}, {"lr_schedule": "0.3"}, {"precision": "fp16"}, {"env": {"A": "1"}}]
)
def test_another_cell_on_one_gpu_is_no_base(unlike: dict[str, Any]) -> None:
    bases = told(record(on(4)))
    assert bases.needed_for(on(1))
    assert not bases.needed_for(on(1, **unlike))


def test_more_gpus_are_never_a_base() -> None:
    assert not told(record(on(4))).needed_for(on(2))


def test_with_strong_scaling_the_base_has_the_batch_of_all_gpus() -> None:
    bases = told(record(on(4, batch_size=8)), is_strong=True)
    assert bases.needed_for(on(1, batch_size=32))
    assert not bases.needed_for(on(1, batch_size=8))


def test_a_base_that_ended_in_another_way_is_not_run_again() -> None:
    for end in (TrialOutcome(status="failed"), TrialOutcome(status="infeasible"), TrialOutcome(status="completed")):
        assert told(record(on(1), outcome=end), record(on(4))).again() == []
    assert told(stopped(on(1)), record(on(1)), record(on(4))).again() == [], "the last word counts"


def test_every_field_tells_cells_apart_or_is_looked_at_by_itself() -> None:
    assert {*SAME} | OWN == {field.name for field in dataclasses.fields(TrialConfig)}


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 5), st.booleans()), unique_by=lambda one: one[:2]))
def test_in_whatever_order_the_news_comes_no_more_cells_run_again_than_have_come_to_their_end(
    ends: list[tuple[int, int, bool]],
) -> None:
    records = [record(on(gpus, batch)) if is_done else stopped(on(gpus, batch)) for gpus, batch, is_done in ends]
    bases, again = Bases(), []
    for one in records:
        bases.tell(one)
        again += bases.again()
    done = {batch for gpus, batch, is_done in ends if is_done and gpus > 1}
    assert sorted(one.batch_size for one in again) == sorted(
        batch for gpus, batch, is_done in ends if gpus == 1 and not is_done and batch in done
    )
    assert {one.trial for one in again} == {one.trial for one in told(*records).again()}
