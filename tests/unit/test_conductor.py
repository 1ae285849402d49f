"""A simulated search from its first trial to its last: judged on the virtual clock, and gone on with."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import pytest

from sweeps.record import ledger
from sweeps.record.ledger import SweepRecord
from sweeps.report import machines
from sweeps.report.chart import Table
from sweeps.run.conductor import Conductor
from tests.unit import hopeless, studies
from tests.unit.hopeless import FILE, GOOD, LOW, SLOW
from tests.unit.records import config, record
from workers.contract.messages import Measurement

WIDE, NARROW = "nodes=8,gpus=4,gpu=v100", "nodes=1,gpus=4,gpu=v100"
LOSSY = "nodes=1,gpus=4,gpu=v100,loss=50%,seed=2"
MANY = FILE.replace("{method: asha, grace: 4, reduction: 2}", "grid").replace("epochs: 90", "epochs: 3")


@pytest.fixture(scope="module", autouse=True)
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("results")
        patch.setenv("SWEEP_RESULTS", str(folder))
        yield folder


@pytest.fixture(scope="module")
def wide() -> SweepRecord:
    """Every trial at once."""
    return hopeless.run(FILE, WIDE)


def test_both_kinds_of_stop_fire_among_equals_and_the_baseline_comes_to_its_target(wide: SweepRecord) -> None:
    ended = hopeless.by_part(wide)
    for gpus in (1, 4):
        low, slow, good = (ended[gpus, part] for part in (LOW, SLOW, GOOD))
        assert (good.outcome.status, low.outcome.status, slow.outcome.status) == ("completed", "pruned", "pruned")
        assert f"with gpus {gpus}, placement pack, the best 1 go on" in low.outcome.message
        assert f"with gpus {gpus}, placement pack, a trial may take 2 times" in slow.outcome.message
        assert good.config.trial in slow.outcome.message
    hours = [(ended[gpus, GOOD].ended_at - ended[gpus, GOOD].started_at) / 3600 for gpus in (1, 4)]
    assert hours[0] > 2 * hours[1], "compared with four GPUs, one would have been hopeless"


def test_a_trial_that_is_stopped_ends_at_the_virtual_time_of_the_epoch_that_decided(wide: SweepRecord) -> None:
    ended = hopeless.by_part(wide)
    good, slow = ended[1, GOOD], ended[1, SLOW]
    assert good.outcome.measurement
    to_target_s = sum(epoch.taken_s for epoch in good.outcome.measurement.epochs)
    assert 2 * to_target_s < slow.ended_at - slow.started_at < 2.2 * to_target_s
    assert slow.outcome.measurement is None


def test_verdicts_do_not_depend_on_the_order_in_which_trials_are_computed(wide: SweepRecord) -> None:
    back = hopeless.run(FILE, WIDE, order=lambda batch: batch[::-1])
    assert hopeless.verdicts(back) == hopeless.verdicts(wide)


@pytest.mark.parametrize(("text", "shape"), [(FILE, NARROW), (MANY, LOSSY)], ids=["rungs", "retries"])
def test_wherever_the_driver_is_killed_who_goes_on_comes_to_the_same_ends(text: str, shape: str) -> None:
    """One trial at a time: rungs, times to the target and attempts are all in the ledger, line by line."""
    whole = hopeless.run(text, shape)
    expected = hopeless.verdicts(whole)
    if shape == LOSSY:
        assert max(attempts for _, _, attempts in expected.values()) == 5, "one has used all its retries"
    else:
        assert [status for status, _, _ in expected.values()].count("pruned") == 4
    book = ledger.paths(whole.facts.name).ledger
    lines = book.read_text().splitlines(keepends=True)
    for cut in (int(part * len(lines)) for part in (0.3, 0.5, 0.7, 0.9)):
        book.write_text("".join(lines[:cut]))
        assert hopeless.verdicts(hopeless.go_on(whole.facts.name)) == expected, lines[cut - 1]


def test_the_base_of_what_a_search_has_kept_is_run_to_its_end_wherever_the_driver_is_killed() -> None:
    """On one GPU the low rate falls behind the good one; on four it has no rival, and is kept."""
    text = FILE.replace("where:", "where:\n  - gpus == 1 or batch_size == 128\n  - batch_size != 8")
    in_order = "seed: 6"  # the good one, the base, and then the cell that needs it
    whole = hopeless.run(text.replace("epochs: 90", "epochs: 12").replace("seed: 5", in_order), NARROW)
    ended = hopeless.by_part(whole)
    assert {part: one.outcome.status for part, one in ended.items()} == {
        (1, GOOD): "completed",
        (1, LOW): "completed",
        (4, LOW): "completed",
    }
    base = ended[1, LOW]
    assert base.outcome.measurement
    assert len(base.outcome.measurement.epochs) == 12
    assert base.attempts == 2
    lines = ledger.paths(whole.facts.name).ledger.read_text().splitlines(keepends=True)
    assert sum(f'{{"kind":"trial","trial":"{base.config.trial}"' in line for line in lines) == 2, "stopped, then run"
    expected = hopeless.verdicts(whole)
    for cut in [n for n, line in enumerate(lines, 1) if line.startswith('{"kind":"trial"')]:
        ledger.paths(whole.facts.name).ledger.write_text("".join(lines[:cut]))
        assert hopeless.verdicts(hopeless.go_on(whole.facts.name)) == expected, lines[cut - 1]


def test_an_attempt_that_is_tried_again_stands_in_the_ledger_with_the_nodes_to_blame() -> None:
    whole = hopeless.run(MANY, LOSSY)
    assert {attempt.blamed for attempt in whole.attempts} == {("node-1",)}
    assert {record.blamed for record in whole.trials} == {()}


def test_a_base_is_said_to_run_again_once_the_budget_holds_it_and_once() -> None:
    base, told = config(), list[str]()
    engine = types.SimpleNamespace(spared={base.trial: "many-0"}, beyond=[base])
    watching = types.SimpleNamespace(warned=told.append)
    conductor = Conductor(engine, None, [watching])  # type: ignore[arg-type, list-item]
    conductor._look_at_spared()
    assert not told
    engine.beyond = []
    for _ in range(2):
        conductor._look_at_spared()
    (line,) = told
    assert line.startswith(
        f"{base.trial} was stopped as hopeless, and runs again, to its end: it is the base on one rank"
    )


def test_how_fast_ranks_add_up_is_judged_by_what_joins_them() -> None:
    """DDP's slower sum is no fault of a node that Horovod's was faster on."""
    notes, told = list[dict[str, Any]](), list[str]()
    book = types.SimpleNamespace(note=lambda kind, facts: notes.append(dict(facts)))
    watching = types.SimpleNamespace(warned=told.append)
    conductor = Conductor(None, book, [watching])  # type: ignore[arg-type, list-item]
    for framework, speed in (("tensorflow", 1000.0), ("torch", 500.0), ("tensorflow", 990.0), ("torch", 300.0)):
        ended = record(dataclasses.replace(config(gpus=2), framework=framework))
        assert ended.outcome.measurement
        first, *others = ended.outcome.measurement.ranks
        ranks = (dataclasses.replace(first, allreduce_mib_per_s=speed), *others)
        outcome = dataclasses.replace(ended.outcome, measurement=Measurement(ranks=ranks))
        conductor._added_up(dataclasses.replace(ended, outcome=outcome))
    (line,) = told
    assert line.startswith("a ×2 ddp is slower: adding up over the ranks: 300 MiB/s, 40% below its one earlier test (")
    assert [one["node"] for one in notes] == ["a ×2", "a ×2 ddp"] * 2
    made = dataclasses.replace(studies.planted(MANY, lambda _: 1.0), probes=tuple(notes))
    (table,) = machines._probes(made)
    assert isinstance(table, Table)
    assert [row[:3] for row in table.rows] == [("a ×2", 2, "995"), ("a ×2 ddp", 2, "400")]
