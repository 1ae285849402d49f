"""An asha search: simulated, by Tune with ranks whose epochs are planted, and with ranks that learn digits."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from sweeps.record import ledger
from sweeps.record.ledger import TrialRecord
from sweeps.run import tracker
from sweeps.spec import plan, sweep_file
from sweeps.store import query
from tests.integration import planted_ranks
from tests.integration.planted_ranks import GOOD, LOW, SLOW
from tests.integration.test_sweep import planted, sweep, told
from tests.unit import hopeless
from tests.unit.test_in_process import Store

ROOT = Path(__file__).parents[2]
WIDE, NARROW = "nodes=8,gpus=4,gpu=v100", "nodes=1,gpus=4,gpu=v100"
RATE = "0.01"
PLANTED = """
name: small
model: tiny
data: digits
device: cpu
protocol: convergence
epochs: 4
target: {top1: 0.7}
search: {method: asha, grace: 2, reduction: 3}
space: {gpus: [1, 2], batch_size: [8, 16, 32]}
repeats: 1
seed: SEED
probe_every_min: 0
deadlines: {step_s: 100}
"""


@pytest.fixture
def here(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return workplace


@pytest.fixture
def unstored(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it does not matter what comes to MLflow, which takes longer to load than a simulated sweep to run."""
    monkeypatch.setattr(tracker, "Tracker", Store)
    monkeypatch.setattr("sweeps.report.attach", lambda *_: None)
    return here


def test_a_simulated_search_by_the_command_comes_to_the_verdicts_of_one_without_it(
    here: Path, left_behind: Callable[[], list[str]]
) -> None:
    Path("hopeless.yaml").write_text(hopeless.FILE)
    ran = told("run", "hopeless.yaml", "--simulate", WIDE)
    assert ran.returncode == 0, ran.stderr
    record = ledger.read("hopeless-simulated")
    ended = hopeless.by_part(record)
    for gpus in (1, 4):
        statuses = [ended[gpus, part].outcome.status for part in (hopeless.GOOD, hopeless.LOW, hopeless.SLOW)]
        assert statuses == ["completed", "pruned", "pruned"]
        assert "the best 1 go on (reduction: 2)" in ended[gpus, hopeless.LOW].outcome.message
        assert "a trial may take 2 times (reduction)" in ended[gpus, hopeless.SLOW].outcome.message
    assert not left_behind()
    trials = query.trials("hopeless-simulated").set_index("trial")
    assert trials["outcome"].value_counts().to_dict() == {"pruned": 4, "completed": 2}
    assert hopeless.verdicts(record) == hopeless.verdicts(hopeless.run(hopeless.FILE, WIDE))


def test_a_simulated_search_whose_driver_was_killed_keeps_its_rungs(unstored: Path) -> None:
    """As far as the first two trials, one on each GPU count, that came to the target; then `sweep resume`."""
    whole = hopeless.run(hopeless.FILE, NARROW)
    name, expected = whole.facts.name, hopeless.verdicts(whole)
    keep_until(name, lambda done: {one.config.gpus for one in done if one.outcome.status == "completed"} == {1, 4})
    before = {one.config.trial for one in ledger.read(name).trials}
    ran = told("resume", name)
    assert ran.returncode == 0, ran.stderr
    after = [one for one in ledger.read(name).trials if one.config.trial not in before]
    assert {one.outcome.status for one in after} == {"pruned"}
    assert all(any(trial in one.outcome.message for trial in before) for one in after), "by rivals of before"
    assert hopeless.verdicts(ledger.read(name)) == expected


def test_a_retry_of_a_large_trial_brings_its_stopped_base_back(unstored: Path) -> None:
    """On one GPU the low rate falls behind the good one; on four it was lost, and is measured only now."""
    text = hopeless.FILE.replace("where:", "where:\n  - gpus == 1 or batch_size == 128\n  - batch_size != 8")
    whole = hopeless.run(text.replace("epochs: 90", "epochs: 12").replace("seed: 5", "seed: 6"), NARROW)
    name, book = whole.facts.name, ledger.paths(whole.facts.name).ledger
    keep_until(name, lambda done: done[-1].config.gpus == 4)
    *before, last = book.read_text().splitlines()
    lost = json.loads(last) | {"outcome": {"status": "lost", "kind": "node lost"}}
    book.write_text("".join(f"{line}\n" for line in [*before, json.dumps(lost, separators=(",", ":"))]))
    ended = hopeless.by_part(ledger.read(name))
    assert [ended[of].outcome.status for of in ((1, hopeless.LOW), (4, hopeless.LOW))] == ["pruned", "lost"]
    ran = told("retry", name)
    assert ran.returncode == 0, ran.stderr
    record = ledger.read(name)
    assert {one.outcome.status for one in record.trials} == {"completed"}
    assert record.is_complete
    assert hopeless.by_part(record)[1, hopeless.LOW].attempts == 2
    assert "it is the base on one rank of" in ran.stderr


def test_a_trial_that_is_tried_again_is_judged_by_those_of_before_and_one_that_was_stopped_comes_to_its_end(
    unstored: Path,
) -> None:
    whole = hopeless.run(hopeless.FILE, NARROW)
    name, book = whole.facts.name, ledger.paths(whole.facts.name).ledger
    low, good = (hopeless.by_part(whole)[4, part].config.trial for part in (hopeless.LOW, hopeless.GOOD))
    assert hopeless.verdicts(whole)[low][0] == "pruned"
    lines = [json.loads(line) for line in book.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "trial" and line["trial"] == low:
            line["outcome"] = {"status": "lost", "kind": "node lost"}
    book.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))

    def after(*arguments: str) -> TrialRecord:
        ran = told("retry", name, *arguments)
        assert ran.returncode == 0, ran.stderr
        (found,) = (one for one in ledger.read(name).trials if one.config.trial == low)
        return found

    judged = after()
    assert judged.outcome.status == "pruned"
    assert good in judged.outcome.message
    assert after("--status", "pruned").outcome.status == "completed", "whoever asks for it wants its figures"


def keep_until(name: str, is_enough: Callable[[list[TrialRecord]], bool]) -> None:
    """Cut a ledger behind the trial with which that is so, as if its driver had been killed there."""
    book = ledger.paths(name).ledger
    lines = book.read_text().splitlines(keepends=True)
    ends = [n for n, line in enumerate(lines, 1) if line.startswith('{"kind":"trial"')]
    for end in ends:
        book.write_text("".join(lines[:end]))
        if is_enough(list(ledger.read(name).trials)):
            return
    raise AssertionError("never")


def driven(
    command: Literal["run", "resume"] = "run", entry: str = f"{planted_ranks.__name__}:run"
) -> subprocess.CompletedProcess[str]:
    """A sweep with other ranks than the real ones."""
    return subprocess.run(planted(command, entry), capture_output=True, text=True, check=False)


def ordered(text: str, *wanted: tuple[object, ...]) -> str:
    """The search with a seed that puts trials of such a GPU count, batch size and rate into such an order."""
    for seed in range(2000):
        seeded = text.replace("SEED", str(seed))
        trials = plan.plan(sweep_file.parse(seeded, "small.yaml"), "small.yaml").trials
        if tuple((trial.gpus, trial.batch_size, trial.lr_schedule) for trial in trials) == wanted:
            return seeded
    raise AssertionError("no seed has that order")


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_tune_stops_real_ranks_by_rung_and_by_time_also_by_those_of_before_and_one_rank_is_not_judged_by_two(
    here: Path, left_behind: Callable[[], list[str]]
) -> None:
    good_first = [(gpus, size, RATE) for size in (GOOD, LOW, SLOW) for gpus in (2, 1)]
    Path("small.yaml").write_text(ordered(PLANTED, *good_first))
    ran = driven()
    assert ran.returncode == 0, ran.stderr
    assert not left_behind()
    record = ledger.read("small")
    ended = {(one.config.gpus, one.config.batch_size): one for one in record.trials}
    for gpus, to_target, taken in ((1, "30.0 s", "93.0 s"), (2, "0.3 s", "0.9 s")):
        good, low, slow = (ended[gpus, size] for size in (GOOD, LOW, SLOW))
        assert good.outcome.status == "completed", "on one rank it took a hundred times as long as on two"
        assert [one.outcome.kind for one in (low, slow)] == ["hopeless"] * 2
        assert low.outcome.message == (
            f"of the 2 cells that have come to epoch 2 with gpus {gpus}, placement pack, the best 1 go on (reduction: "
            f"3), but its top-1 of 10.00% is number 2, behind 40.00% of {good.config.trial}"
        )
        assert slow.outcome.message == (
            f"with gpus {gpus}, placement pack, a trial may take 3 times (reduction) the {to_target} that "
            f"{good.config.trial} took to the target, but its epochs took {taken} and it is not there"
        )
        assert all(one.ended_at - one.started_at < planted_ranks.WAITS_S / 2 for one in (low, slow))
    assert {one.outcome.status for one in record.trials} == {"completed", "pruned"}
    noted = [(one["trial"], one["epoch"]) for one in record.rungs if one["is_at_rung"]]
    assert sorted(noted) == sorted((one.config.trial, 2) for one in record.trials), "told in bursts, none is missed"

    # As if the driver had been killed when the good ones had ended.
    keep_until("small", lambda done: len(done) == 2)
    before = {one.config.gpus: one for one in ledger.read("small").trials}
    assert {one.config.batch_size for one in before.values()} == {GOOD}
    ran = driven("resume")
    assert ran.returncode == 0, ran.stderr
    again = {(one.config.gpus, one.config.batch_size): one for one in ledger.read("small").trials}
    assert again.keys() == ended.keys()
    for (gpus, size), one in again.items():
        if size == GOOD:
            assert one == before[gpus], "it is not measured again"
        else:
            assert one.outcome.kind == "hopeless"
            assert before[gpus].config.trial in one.outcome.message
    assert not left_behind()


DIGITS = """
name: small
model: tiny
data: digits
device: cpu
protocol: convergence
epochs: 400
target: {top1: 0.8}
search: {method: asha, grace: 2, reduction: 2}
space: {gpus: 1, batch_size: 64, lr_schedule: [0.1, 1e-6, 0.05]}
repeats: 1
seed: SEED
probe_every_min: 0
"""


@pytest.mark.alone
def test_ranks_that_learn_digits_lose_the_rate_that_learns_nothing(
    here: Path, left_behind: Callable[[], list[str]]
) -> None:
    learns, nothing, last = ((1, 64, rate) for rate in ("0.1", "1e-06", "0.05"))
    Path("small.yaml").write_text(ordered(DIGITS, learns, nothing, last))
    ran = sweep("run", "small.yaml")
    assert ran.returncode == 0, ran.stderr
    assert not left_behind()
    good, low, other = ledger.read("small").trials
    assert good.outcome.measurement
    assert good.outcome.measurement.ranks[0].reached_target
    assert (low.outcome.status, low.outcome.kind) == ("pruned", "hopeless")
    assert f"of {good.config.trial}" in low.outcome.message
    assert other.outcome.status in ("completed", "pruned"), "the gang goes on where one was stopped"


@pytest.mark.alone
def test_a_trial_that_goes_on_from_its_checkpoint_stands_at_each_rung_once_and_its_time_is_that_of_its_figures(
    here: Path,
) -> None:
    text = DIGITS.replace("[0.1, 1e-6, 0.05]", "0.1").replace("400", "5").replace("top1: 0.8", "top1: 0.999")
    text = text.replace("grace: 2", "grace: 1").replace("SEED", "0")
    Path("small.yaml").write_text(f"{text}checkpoint_every: 1\n")
    ran = driven(entry="tests.integration.learning:dies_in_the_second_epoch")
    assert ran.returncode == 0, ran.stderr
    record = ledger.read("small")
    (trial,) = record.trials
    assert trial.outcome.status == "completed"
    assert trial.outcome.measurement
    taken = [epoch.taken_s for epoch in trial.outcome.measurement.epochs]
    assert len(taken) == 5
    noted = [(one["epoch"], one["taken_s"]) for one in record.rungs]
    assert noted == [(epoch, pytest.approx(sum(taken[:epoch]))) for epoch in (1, 2, 4)]
