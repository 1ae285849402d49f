"""What is told of the cores that a trial's ranks had."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.run.conductor import Conductor
from sweeps.scheduling.observer import Observer
from tests.unit.records import config, record
from workers.contract.messages import Measurement, rank_report, to_json

NOTE = "2 ranks need 4 physical cores of their own, but the node has 2"


def with_pins(*pins: tuple[str, str]) -> TrialRecord:
    """A trial whose ranks say these words, and these notes."""
    made = record(config(gpus=len(pins)))
    assert made.outcome.measurement
    ranks = tuple(
        dataclasses.replace(rank, pinned=pinned, pinning_note=note)
        for rank, (pinned, note) in zip(made.outcome.measurement.ranks, pins, strict=True)
    )
    outcome = dataclasses.replace(made.outcome, measurement=Measurement(ranks=ranks))
    return dataclasses.replace(made, outcome=outcome)


def test_each_rank_s_cores_are_told_and_those_of_ranks_alike_once() -> None:
    assert rows.pinned(with_pins(("compute 0", ""), ("compute 1", ""))) == "rank 0: compute 0; rank 1: compute 1"
    on_two_nodes = with_pins(("compute 0", ""), ("compute 1", ""), ("compute 0", ""))
    assert rows.pinned(on_two_nodes) == "rank 0, 2: compute 0; rank 1: compute 1"


def test_why_nothing_was_pinned_is_told() -> None:
    loose = with_pins(("", NOTE), ("", NOTE))
    assert (rows.pinned(loose), rows.why_not_pinned(loose)) == ("", NOTE)
    assert rows.metrics(loose)["is_pinned"] == 0


def test_of_ranks_unlike_each_is_told_where_it_belongs() -> None:
    mixed = with_pins(("compute 0", ""), ("", NOTE), ("", NOTE))
    assert rows.pinned(mixed) == "rank 0: compute 0"
    assert rows.why_not_pinned(mixed) == f"rank 1, 2: {NOTE}"
    assert rows.metrics(mixed)["is_pinned"] == 0


def test_what_was_not_known_of_the_cores_is_told_with_them() -> None:
    assert rows.pinned(with_pins(("compute 0", "no siblings"))) == "compute 0 (no siblings)"
    assert rows.metrics(with_pins(("compute 0", "no siblings")))["is_pinned"] == 1


def test_a_trial_that_says_nothing_of_its_cores_counts_as_neither() -> None:
    assert rows.pinned(record(config())) == rows.why_not_pinned(record(config())) == ""
    assert "is_pinned" not in rows.metrics(record(config()))


def test_a_report_comes_back_from_json_with_its_note() -> None:
    made = with_pins(("", NOTE)).outcome.measurement
    assert made
    assert rank_report(to_json(made.ranks[0])) == made.ranks[0]


class Listener(Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def warned(self, message: str) -> None:
        self.heard.append(message)


def test_each_reason_is_warned_of_once() -> None:
    listener = Listener()
    conductor = Conductor(cast(Any, None), cast(Any, None), [listener])
    for made in (with_pins(("", NOTE), ("", NOTE)), with_pins(("compute 0", "")), with_pins(("", NOTE))):
        conductor._look_at_pins(made)
    conductor._look_at_pins(with_pins(("compute 0", "no siblings")))
    assert listener.heard == [f"ranks are not pinned: {NOTE}", "ranks are pinned: no siblings"]
