"""What a gang goes on from: a checkpoint of the same code, data, hardware and arrangement, and no other."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeps.analysis.findings import outcomes
from sweeps.run.conductor import Conductor
from tests.unit.records import converged
from workers.contract import messages
from workers.contract.messages import EpochRecord, Measurement
from workers.contract.ranks import Fault
from workers.launch import supervisor
from workers.strategies.ring import LONGEST_WORD, Solo, gathered
from workers.workloads.images import checkpoint
from workers.workloads.images.checkpoint import Kept, Made

MADE = {"software": "sw", "data_files": "ff", "hardware": "hw", "arrangement": "2x4"}


class Variable:
    """All of a network."""

    def __init__(self, value: float) -> None:
        self.value = np.array([value])

    def restore(self, state: Any) -> None:
        (self.value,) = state


def epochs(count: int) -> tuple[EpochRecord, ...]:
    return tuple(EpochRecord(epoch=n, images=1, loss=1.0, rate=0.1, train_s=1.0) for n in range(1, count + 1))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "trial.npz", [np.array([0.5])], epochs(3), MADE)
    return tmp_path / "trial.npz"


def test_what_is_made_alike_goes_on_with_the_epochs_and_the_variables(saved: Path) -> None:
    variable = Variable(9.0)
    assert checkpoint.load(saved, variable.restore, dict(reversed(MADE.items()))) == (epochs(3), "")
    assert variable.value == [0.5]
    assert checkpoint.load(saved.with_name("none.npz"), variable.restore, MADE) == ((), "")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("software", "other software or code in workers/ (then sw, now other)"),
        ("data_files", "other files of data (then ff, now other)"),
        ("hardware", "other hardware of the nodes (then hw, now other)"),
        ("arrangement", "other nodes x ranks (then 2x4, now other)"),
    ],
)
def test_where_anything_differs_the_trial_begins_anew_and_says_why(saved: Path, changed: str, words: str) -> None:
    variable = Variable(9.0)
    history, why = checkpoint.load(saved, variable.restore, MADE | {changed: "other"})
    assert (history, variable.value) == ((), [9.0])
    assert words in why
    assert "begins anew, and its 3 epochs there count in no figure" in why
    assert str(saved) in why


def test_a_checkpoint_of_an_earlier_version_says_nothing_of_its_code_and_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "old.npz"
    history = json.dumps([messages.to_json(epoch) for epoch in epochs(2)])
    np.savez(path, np.array(history), np.array([0.5]))
    taken, why = checkpoint.load(path, Variable(9.0).restore, MADE)
    assert taken == ()
    assert "was written by an earlier version" in why


def test_another_network_s_variables_are_refused_only_where_all_else_is_alike(saved: Path) -> None:
    checkpoint.save(saved, [np.array([1.0]), np.array([2.0])], epochs(3), MADE)
    with pytest.raises(Fault, match="must be this trial's checkpoint"):
        checkpoint.load(saved, Variable(1.0).restore, MADE)
    assert checkpoint.load(saved, Variable(1.0).restore, MADE | {"software": "edited"})[0] == ()


def test_what_is_no_checkpoint_is_refused_by_ranks_and_passed_over_by_who_only_looks(tmp_path: Path) -> None:
    path = tmp_path / "trial.npz"
    path.write_bytes(b"not this")
    with pytest.raises(Fault, match="remove it"):
        checkpoint.load(path, Variable(9.0).restore, MADE)
    assert checkpoint.peek(path) is None


def test_an_attempt_has_come_on_only_beyond_the_checkpoint_that_it_took(saved: Path) -> None:
    before = checkpoint.peek(saved)
    assert before == Kept(epochs(3), MADE)
    os.utime(saved)
    assert not dataclasses.replace(before).is_beyond(before), "a newer time alone is nothing"
    assert Kept(epochs(4), MADE).is_beyond(before)
    assert Kept(epochs(1), MADE).is_beyond(None)
    assert not Kept(epochs(2), MADE).is_beyond(before)


def test_an_attempt_that_began_anew_has_come_on_with_its_first_own_checkpoint_and_not_before(saved: Path) -> None:
    """Fewer epochs than the one that it did not take had, but its own."""
    before = checkpoint.peek(saved)
    assert before
    assert not before.is_beyond(before), "it was cut short before it left one"
    assert Kept(epochs(1), MADE | {"software": "edited"}).is_beyond(before)


class Gang:
    """A ring of threads."""

    def __init__(self, rank: int, told: list[Any], meeting: threading.Barrier) -> None:
        self.rank, self.size, self._told, self._meeting = rank, len(told), told, meeting

    def total(self, values: Any) -> Any:
        self._told[self.rank] = values
        self._meeting.wait(10)
        return sum(self._told)


def views(own: list[Made], local_ranks: list[int]) -> list[Made]:
    """What each rank of a gang takes it to measure with."""
    told, meeting = [None] * len(own), threading.Barrier(len(own))
    rings: list[Any] = [Gang(rank, told, meeting) for rank in range(len(own))]
    with ThreadPoolExecutor(len(own)) as pool:
        return [*pool.map(checkpoint.of_gang, rings, own, local_ranks)]


def test_every_rank_comes_to_the_same_view_of_the_gang_whichever_has_other_code() -> None:
    found = views([MADE, MADE | {"software": "edited"}, MADE | {"data_files": ""}], [0, 1, 0])
    assert found == [MADE | {"software": "edited*1x1+sw*2x1", "data_files": "unknown*1x1+ff*1x2"}] * 3
    assert checkpoint.unlike(Kept((), MADE), found[0]), "rank 0 has what it had, and the gang has not"
    assert checkpoint.of_gang(Solo(), MADE, 0) == MADE


def test_three_ranks_on_a_new_node_and_one_on_an_old_one_do_not_go_on_from_one_and_three() -> None:
    new, old = MADE | {"software": "new"}, MADE | {"software": "old"}
    three, one = (views([first, first, first, other], [0, 1, 2, 0])[0] for first, other in ((new, old), (old, new)))
    assert "(then new*1x3+old*1x1, now new*1x1+old*1x3)" in checkpoint.unlike(Kept((), three), one)
    assert checkpoint.joined((n, "hw") for n in range(4)) == "hw"
    assert checkpoint.joined([("a", "v100"), ("a", "v100"), ("b", "p100"), ("c", "p100")]) == "p100*2x1+v100*1x2"


def test_a_word_that_is_too_long_to_be_gathered_is_refused() -> None:
    assert gathered(Solo(), "é") == ["é"]
    with pytest.raises(ValueError, match="at most"):
        gathered(Solo(), "x" * (LONGEST_WORD + 1))


def test_a_note_is_heard_between_epochs_and_is_not_the_rank_s_last_word() -> None:
    lines = [
        {"say": "note", "words": "begins anew"},
        {"say": "epoch", "record": messages.to_json(epochs(1)[0])},
        {"say": "failed", "kind": "raised", "message": "no", "software": "sw", "data_files": "ff"},
    ]
    heard = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    finished, note, rest = supervisor._news(heard + b'{"say": "note"')
    assert (tuple(finished), note) == (epochs(1), "begins anew")
    assert rest.endswith(b'{"say": "note"')
    ended = supervisor._verdict(rest.removesuffix(b'{"say": "note"'), 1)
    assert ended == {"what": "failed", "kind": "raised", "message": "no", "software": "sw", "data_files": "ff"}


def test_a_trial_that_begins_anew_is_told_of_while_it_runs_and_once_and_in_the_findings() -> None:
    trial = converged([0.5])
    assert trial.outcome.measurement
    why = "a trial goes on from a checkpoint of …: the trial begins anew"
    ranks = tuple(dataclasses.replace(rank, begun_anew=why) for rank in trial.outcome.measurement.ranks)
    outcome = dataclasses.replace(trial.outcome, measurement=Measurement(ranks=ranks))
    ended = dataclasses.replace(trial, outcome=outcome)
    told = types.SimpleNamespace(lines=[], warned=lambda line: told.lines.append(line), progressed=lambda *_: None)
    conductor = Conductor(None, None, [told])  # type: ignore[arg-type, list-item]
    for _ in range(2):
        conductor.progressed(trial.config, messages.Progress("step", 1, note=why))
        conductor._look_at_beginning(ended.config, ranks[0].begun_anew)
    assert told.lines == [f"{trial.config.trial}: {why}"]
    (found,) = outcomes.begun_anew(types.SimpleNamespace(records=[ended, trial], trials=[1, 2]))  # type: ignore[arg-type]
    assert "1 of 2 trials began anew although a checkpoint was there" in found.plain
    assert not [*outcomes.begun_anew(types.SimpleNamespace(records=[trial], trials=[1]))]  # type: ignore[arg-type]
