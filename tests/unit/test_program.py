"""A program of the user's own in a sweep file: what it is told, what its items come to, and what can be wrong."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import yaml

from sweeps import analysis
from sweeps.analysis import overview
from sweeps.errors import InputError
from sweeps.record import rows
from sweeps.scheduling import search
from sweeps.spec import plan, program, sweep_file
from tests.unit import records
from tests.unit.mistakes import refused_with
from workers.contract import messages
from workers.contract.messages import TrialOutcome
from workers.workloads.script import run as script_run

FILE: dict[str, Any] = {
    "name": "mine",
    "run": "python train.py --batch {batch_size} --lr {lr}",
    "items": "batch_size * gpus",
    "unit": "samples",
    "device": "cpu",
    "space": {"batch_size": [32, 64], "gpus": [1, 2], "lr": {"loguniform": [0.01, 1.0]}},
    "search": {"method": "random", "trials": 3},
    "repeats": 2,
}


FRONTIER = {"search": "frontier", "repeats": 1}
OF_LR = {"method": "frontier", "axis": "lr"}
LR = {"run": "python train.py {lr}", "items": 8}


def planned(**changed: Any) -> plan.Plan:
    return plan.plan(sweep_file.parse(yaml.safe_dump({**FILE, **changed}), "mine.yaml"))


def test_a_cell_has_the_program_s_own_axes_and_its_items() -> None:
    made = planned(space={"batch_size": [32], "gpus": [2], "lr": [0.1, 1], "name": ["a b", "c"]}, search="grid",
                   run="python train.py {batch_size} {lr:.2f} --name={name}")  # fmt: skip
    assert len(made.cells) == 4
    first = made.trials[0]
    assert first.script
    assert (first.script.items, first.items, first.model) == (64, 64, "train.py")
    words = {tuple(script_run.command(first.script, one)) for one in made.trials if one.script}
    assert ("python", "train.py", "32", "1.00", "--name=a b") in words, "a value with a blank stays one word"
    assert len({one.cell for one in made.trials}) == 4
    assert messages.trial_config(messages.to_json(first)) == first


def test_own_axes_are_columns_by_a_name_of_their_own() -> None:
    one = planned(space={"gpus": [1], "lr": [0.1]}, run="python train.py {lr}", search="grid", items=8).trials[0]
    assert rows.params(one)["own.lr"] == 0.1
    assert rows.typed("own.lr", str(rows.params(one)["own.lr"])) == 0.1
    assert rows.typed("own.name", "resnet") == "resnet"


@pytest.mark.parametrize("axis", ["batch_size", "length"])
def test_a_frontier_of_a_program_finds_the_largest_value_that_fits(axis: str) -> None:
    """Of its batch size, on which its items depend too, or of another axis of whole numbers that it names."""
    sizes = [8, 16, 32, 64, 128, 256]
    other = "length" if axis == "batch_size" else "batch_size"
    made = planned(
        run="python train.py {batch_size} {length}",
        space={"gpus": [1, 2], axis: sizes, other: [4]},
        search={"method": "frontier", "axis": axis},
        repeats=1,
    )
    assert plan.summary(made).startswith(f"the largest {axis} of 2 by bisection, at most 6 trials")
    going, ended, limits = search.strategy(made, lambda _: False), [], {1: 64, 2: 32}
    while proposed := going.propose():
        for one in proposed:
            size = plan.value(one, made.spec.frontier_axis)
            short = TrialOutcome(status="infeasible", kind="host memory", message="no memory")
            ended.append(records.record(one, 100.0, outcome=short if size > limits[one.gpus] else None))
            going.tell(ended[-1])
    assert going.is_over
    assert len(ended) <= 6
    table = overview.frontier(analysis.frame([rows.row(one) for one in ended]), made).set_index("gpus")
    word = "batch" if axis == "batch_size" else axis
    assert table[f"largest {word}"].to_dict() == {"1": "64", "2": "32"}
    assert table["too large"].to_dict() == {"1": "128: host memory", "2": "64: host memory"}


def test_conditions_and_overrides_know_own_axes_by_their_plain_names() -> None:
    text = yaml.safe_dump(
        {**FILE, "search": "grid", "space": {**FILE["space"], "lr": [0.1, 0.2]}, "where": "lr < 0.15"}
    )
    assert {one.own["lr"] for one in plan.plan(sweep_file.parse(text, "x")).trials} == {0.1}
    spec = sweep_file.parse(text, "x", ["lr=[0.05, 0.1]"])
    assert {one.own["lr"] for one in plan.plan(spec).trials} == {0.05, 0.1}


def test_random_search_draws_from_an_interval_of_an_own_axis() -> None:
    found = {one.own["lr"] for one in planned().trials}
    assert len(found) == 3
    assert all(0.01 <= lr <= 1 for lr in found)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("changed", "key", "rule"),
    [
        ({"run": "python train.py --lr {lr}"}, "space.batch_size", "has no effect"),
        ({"run": "python train.py {batch_size} {rate}"}, "run", "must name axes in its braces"),
        ({"run": "python train.py {batch_size} '{lr}"}, "run", "must be a command line"),
        ({"model": "tiny"}, "model", "belongs to the built-in training"),
        ({"data": "synthetic"}, "data", "belongs to the built-in training"),
        ({"items": "batch_size *"}, "items", ""),
        ({"items": "batch_size * width"}, "items", "must"),
        ({"measure": {"lines": "step ("}}, "measure.lines", "must be a regular expression"),
        ({"items": None, "measure": {"lines": "step"}}, "items", "must be given with measure.lines"),
        ({**FRONTIER, "space": {"gpus": [1], "batch_size": [8], "lr": [1, 2]}}, "search", "must name another (lr)"),
        ({**FRONTIER, **LR, "space": {"gpus": [1], "lr": [1, 2]}}, "search", "several points of batch_size"),
        ({**FRONTIER, "search": OF_LR, "space": {"gpus": [1], "lr": [1]}, **LR}, "search", "several points of lr"),
        ({**FRONTIER, "search": OF_LR, "space": {"gpus": [1], "lr": [1, 2.5]}, **LR}, "search.axis", "whole numbers"),
        ({"search": {"method": "frontier", "axis": "lrr"}, "repeats": 1}, "search.axis", "did you mean lr?"),
        ({"search": {"method": "grid", "axis": "lr"}}, "search.axis", "belongs to method: frontier"),
        ({"space": {**FILE["space"], "seed": [1, 2]}}, "space.seed", "can't be an axis of its own"),
        ({"space": {**FILE["space"], "when": [1, 2]}}, "space.when", "has no effect"),
        ({"space": {**FILE["space"], "lr": [[1, 2]]}}, "space.lr", "must hold text, numbers"),
        ({"space": {**FILE["space"], "lr": {"values": [1, 2], "when": "gpus > 1"}}}, "space.lr.when", "has no default"),
    ],
)
def test_what_can_t_be_is_said_at_once(changed: dict[str, Any], key: str, rule: str) -> None:
    refused_with(lambda: planned(**changed), key, rule)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"items": "batch_size > 3"}, "items batch_size > 3 is True, and no whole number of at least 1"),
        ({"items": "batch_size / 3"}, "and no whole number of at least 1"),
        ({"items": 33}, "items 33 is 33, of which 2 ranks can't have the same number each"),
        ({"items": 32, "run": "python train.py {batch_size} {lr:06d}"}, "run python train.py {batch_size} {lr:06d}: "),
    ],
)
def test_a_cell_whose_items_or_command_can_t_be_says_why_before_anything_starts(
    changed: dict[str, Any], why: str
) -> None:
    space = {"batch_size": [32], "gpus": [2], "lr": [0.5]}
    with pytest.raises(InputError) as refused:
        planned(**{"search": "grid", "space": space, **changed})
    assert why in str(refused.value)


def test_without_run_an_unknown_axis_is_a_mistake_as_ever() -> None:
    text = "{name: x, model: tiny, device: cpu, space: {batch_size: 8, gpus: 1, precison: fp32}, unit: tokens}"
    found = refused_with(lambda: sweep_file.parse(text, "x"), "unit", "belongs to `run`")
    assert found["space.precison"] == "must be a known key (did you mean precision?)"


@pytest.mark.parametrize(
    ("run", "name", "file"),
    [
        ("python train.py --x", "train.py", "train.py"),
        ("python3 -u jobs/train.py {lr}", "train.py", "jobs/train.py"),
        ("python -m jobs.train", "jobs.train", ""),
        ("./train.sh {lr}", "train.sh", ""),
        ("python {file}.py", "{file}.py", ""),
    ],
)
def test_a_program_has_a_short_name(run: str, name: str, file: str) -> None:
    assert (program.name_of(run), program.script_of(run)) == (name, file)


def test_a_line_without_end_is_taken_in_pieces_and_counts_once_at_most(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Who prints a gigabyte in one line does not fill the memory of its rank."""
    printed = b"step 1\n" + b"x" * 3 * script_run.LONGEST_LINE + b" step 2\nno\nstep 3" + b"x" * script_run.LONGEST_LINE

    class Asked(io.BytesIO):
        most = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            piece = super().readline(size)
            self.most = max(self.most, len(piece))
            return piece

    source = Asked(printed)
    assert sum(script_run._matches(source, re.compile(rb"step \d"))) == 2
    assert source.most == script_run.LONGEST_LINE
    assert capsysbinary.readouterr().out == printed
