"""However a driver ends, what has held a GPU stays, and MLflow comes to hold what the ledger does."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from sweeps.cli import main
from sweeps.cluster.site import Simulated
from sweeps.errors import RefusedError
from sweeps.record import ledger, ownership
from sweeps.record.ledger import SweepFacts
from sweeps.run import driver, executor, terms, tracker
from sweeps.run.terms import Terms
from sweeps.scheduling.observer import Observer
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.store import query, tracking
from tests.integration.test_sweep import told
from tests.unit.records import record
from tests.unit.test_in_process import Store

NAME = "small"
TEXT = f"{{name: {NAME}, model: tiny, device: cpu, repeats: 1, space: {{batch_size: [8, 16, 32], gpus: 1}}}}"
WIDE = "nodes=1,gpus=4,gpu=v100"


@pytest.fixture(autouse=True)
def file(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep on a cluster of one node, on which nothing is run but what a test puts in the place of it; what is to be
    simulated is, on its own."""

    @contextlib.contextmanager
    def site(asked: Terms, *_: object) -> Iterator[Simulated]:
        yield Simulated(asked.machine.nodes if asked.machine else [Node("here", 8, 0)])

    monkeypatch.setattr(terms, "open_site", site)
    (workplace / "small.yaml").write_text(TEXT)
    return workplace / "small.yaml"


@pytest.fixture
def unstored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not matter what comes to MLflow, which takes seconds to load."""
    monkeypatch.setattr(tracker, "Tracker", Store)


def runs() -> Counter[str]:
    """The status of each run in MLflow."""
    client = MlflowClient()
    experiments = [one.experiment_id for one in client.search_experiments()]
    return Counter(run.info.status for run in client.search_runs(experiments))


def test_a_sweep_that_was_stopped_and_then_killed_at_its_very_end_is_finished_in_mlflow() -> None:
    book = ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)
    ended = [record(config, 100.0) for config in book.facts.trials]
    for one in ended:
        book.write(one)
    book.close()
    store = tracking.Store(book.facts)
    store.log(ended)
    store.close("KILLED")
    assert driver.resume(NAME, Terms()) == 0
    assert runs() == {"FINISHED": 4}


@pytest.mark.parametrize("has_said_so", [True, False])
def test_what_a_driver_that_was_killed_had_not_brought_to_mlflow_comes_with_the_next_one(has_said_so: bool) -> None:
    book = ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)
    first, *others = [record(config, 100.0) for config in book.facts.trials]
    for one in (first, *others):
        book.write(one)
    if has_said_so:
        book.end("complete")
    book.close()
    tracking.Store(book.facts).log([first])  # and here its tracker was killed
    assert runs() == {"FINISHED": 1, "RUNNING": 1}
    assert driver.resume(NAME, Terms()) == 0
    assert runs() == {"FINISHED": 4}
    assert len(query.trials(NAME)) == 3
    assert ledger.read(NAME).is_complete


def interrupted(does_begin: bool) -> Callable[..., bool]:
    """In place of running: a trial gets its GPUs, or none does, and the user presses Ctrl-C."""

    def run(_: object, book: ledger.Ledger, *more: object, **named: object) -> bool:
        if does_begin:
            book.start(book.facts.trials[0], at=1.0)
        raise KeyboardInterrupt

    return run


@pytest.mark.parametrize("does_begin", [True, False])
def test_a_sweep_that_has_held_a_gpu_is_kept_though_no_trial_of_it_has_ended(
    does_begin: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "carry_out", interrupted(does_begin))
    with pytest.raises(KeyboardInterrupt):
        driver.drive(file, (), Terms())
    assert ledger.names() == [NAME] * does_begin
    assert runs() == ({"KILLED": 1} if does_begin else {})
    if does_begin:
        assert ledger.read(NAME).spent > 0


def test_a_run_that_nobody_was_left_to_close_when_its_sweep_was_discarded_goes_with_gc_and_no_other_does(
    file: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*given: Any, **_: object) -> bool:
        (told,) = [one for one in given[3] if isinstance(one, tracker.Tracker)]
        told.ready()
        assert runs() == {"RUNNING": 1}
        told._process.kill()
        raise KeyboardInterrupt

    monkeypatch.setattr(executor, "carry_out", run)
    with pytest.raises(KeyboardInterrupt):
        driver.drive(file, (), Terms())
    assert not ledger.names()
    client = MlflowClient()
    study = client.get_experiment_by_name(NAME).experiment_id
    client.create_run(study, run_name=NAME, tags={"sweep.id": "another machine's", "sweep.name": NAME})
    assert runs() == {"RUNNING": 2}
    assert main.main(["gc"]) == 0
    assert runs() == {"RUNNING": 2}
    assert main.main(["gc", "--yes"]) == 0
    (left,) = client.search_runs([study])
    assert (left.data.tags["sweep.id"], left.info.status) == ("another machine's", "RUNNING")
    assert [*(workplace / "results").glob(".small.*")] == []


def test_a_store_that_was_never_open_is_owed_nothing_by_a_sweep_that_was_discarded(
    file: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*given: Any, **_: object) -> bool:
        for observer in given[3]:
            observer.ready()
        return True

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/none/mlflow.db")
    monkeypatch.setattr(executor, "carry_out", run)
    with pytest.raises(RefusedError, match="tracking store must be writable"):
        driver.drive(file, (), Terms())
    assert [*(workplace / "results").iterdir()] == []


def test_a_disk_that_fills_before_the_first_trial_has_ended_leaves_what_was_begun(
    unstored: None, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object, book: ledger.Ledger, *more: object, **named: object) -> bool:
        book.start(book.facts.trials[0], at=1.0)
        book._file = open("/dev/full", "w")  # noqa: SIM115
        book.note("rung", {})
        return True

    monkeypatch.setattr(executor, "carry_out", run)
    with pytest.raises(RefusedError, match="then sweep resume small"):
        driver.drive(file, (), Terms())
    assert ledger.names() == [NAME]


@pytest.mark.parametrize(("answers_after_s", "is_named_first"), [(0.0, False), (1.0, True)])
def test_a_sweep_has_its_name_though_the_store_takes_its_time(
    answers_after_s: float, is_named_first: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def finished(cells: Any) -> list[dict[str, Any]]:
        if cells:
            time.sleep(answers_after_s)
            told.append("the store")
            raise RefusedError("the tracking store must answer")
        return []

    monkeypatch.setattr(driver, "SOON_S", 0.1)
    monkeypatch.setattr(query, "finished", finished)
    with pytest.raises(RefusedError, match="the tracking store must answer"):
        driver.drive(file, (), Terms(), told.append)
    assert told == ([NAME, "the store"] if is_named_first else ["the store"])
    assert not ledger.names(), "it is refused, and leaves nothing"


def test_nodes_that_did_not_come_in_time_are_wanted_no_more(
    unstored: None, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[dict[str, float]]] = []

    class Growing(Simulated):
        def ask_for(self, bundles: Any) -> None:
            asked.append(bundles)

    @contextlib.contextmanager
    def site(*_: object) -> Iterator[Simulated]:
        yield Growing([Node("here", 2, 0)])

    monkeypatch.setattr(terms, "open_site", site)
    monkeypatch.setattr(executor, "carry_out", lambda *_, **__: True)
    file.write_text(TEXT.replace("gpus: 1", "gpus: [1, 2, 16]").replace("repeats", "wait_for_nodes_min: 0.01, repeats"))
    assert driver.drive(file, (), Terms(skips_impossible=True)) == 0
    assert asked[0] == [{"CPU": 1.0}] * 16
    assert asked[-1] == [{"CPU": 2.0}], "the node that both ranks are planned on"


def test_a_retry_leaves_a_sweep_unfinished_that_others_of_its_trials_have_not_run_in(
    unstored: None, workplace: Path
) -> None:
    Path("many.yaml").write_text(
        "{name: many, model: resnet50_v1.5, device: gpu, repeats: 1, space: {batch_size: [8, 16, 32, 64], gpus: 1}}"
    )
    assert told("run", "many.yaml", "--simulate", WIDE).returncode == 0
    name = "many-simulated"
    book = ledger.paths(name).ledger
    lines = [json.loads(line) for line in book.read_text().splitlines()]
    first, *others = [n for n, line in enumerate(lines) if line["kind"] == "trial"]
    lines[first]["outcome"] = {"status": "failed", "kind": "killed"}
    kept = [line for n, line in enumerate(lines) if n not in others[1:] and line["kind"] != "end"]
    book.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in kept))
    ran = told("retry", name)
    assert ran.returncode == 0, ran.stderr
    assert "others of its trials have not run yet" in ran.stderr
    assert not ledger.read(name).is_complete
    assert len(ledger.read(name).trials) == 2
    assert told("resume", name).returncode == 0
    assert ledger.read(name).is_complete
    assert len(ledger.read(name).trials) == 4


@pytest.mark.parametrize("ended", ["KILLED", "FINISHED"])
def test_a_sweep_that_goes_on_runs_in_mlflow_until_it_has_ended_again(
    ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)
    first, *others = [record(config, 100.0) for config in book.facts.trials]
    book.write(first)
    book.close()
    store = tracking.Store(book.facts)
    store.log([first])
    store.close(ended)
    seen: list[Counter[str]] = []

    def run(*given: Any, **_: Any) -> bool:
        again: ledger.Ledger = given[1]
        observers: Sequence[Observer] = given[3]
        for observer in observers:
            observer.ready()
        seen.append(runs())
        for one in others:
            again.write(one)
            for observer in observers:
                observer.ended(one)
        return True

    monkeypatch.setattr(executor, "carry_out", run)
    before = runs()
    assert driver.resume(NAME, Terms()) == 0
    assert before == Counter([ended, "FINISHED"])
    assert seen == [{"RUNNING": 1, "FINISHED": 1}], "the sweep's own; a trial that has ended is as it was"
    assert runs() == {"FINISHED": 4}


def test_a_report_is_logged_before_another_driver_can_begin(
    unstored: None, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object, book: ledger.Ledger, *more: object, **named: object) -> bool:
        for config in book.facts.trials:
            book.write(record(config, 100.0))
        return True

    logged: list[str] = []

    def attach(facts: SweepFacts, *what: object) -> None:
        with pytest.raises(RefusedError, match="a sweep is one command's at a time"):
            driver.resume(facts.name, Terms())
        logged.append(facts.name)

    monkeypatch.setattr(executor, "carry_out", run)
    monkeypatch.setattr(tracking, "attach", attach)
    driver.drive(file, (), Terms())
    assert logged == [NAME]
    assert not ownership.is_driven(NAME)


def test_a_report_that_is_asked_for_while_a_driver_has_the_sweep_is_left_to_that_to_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)
    for config in book.facts.trials:
        book.write(record(config, 100.0))
    logged: list[str] = []
    monkeypatch.setattr(tracking, "attach", lambda facts, *_: logged.append(facts.name))
    assert main.main(["report", NAME]) == 0
    assert "small is running: its driver logs the report to MLflow at its end" in capsys.readouterr().err
    assert not logged
    book.close()
    assert main.main(["report", NAME]) == 0
    assert logged == [NAME]
