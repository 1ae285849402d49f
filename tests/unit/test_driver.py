"""A sweep whose name was handed out can be found by it, however its driver ended; any other leaves nothing."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sweeps import errors
from sweeps.cli import main
from sweeps.cluster import driver_log, ray_jobs
from sweeps.errors import InputError, RefusedError
from sweeps.record import discarded, ledger
from sweeps.run import driver, executor, preflight, status, terms, tracker
from sweeps.run.terms import Setting, Terms
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.unit.records import record
from workers.contract.messages import TrialOutcome

TEXT = "{name: mine, model: tiny, device: cpu, repeats: 1, space: {batch_size: [8, 16], gpus: [1, 2]}}"
WAITS = TEXT.replace("repeats", "wait_for_nodes_min: 0.001, repeats")
FAILED = TrialOutcome(status="failed", kind="killed")


class Place:
    """A cluster of one node with one core, for as long as a test says."""

    def __init__(self, cpus: int = 1) -> None:
        self.nodes = [Node("here", cpus, 0)]
        self.lacking: dict[str, list[str]] = {}
        self.asked: Callable[[], None] = lambda: None

    def ask_for(self, _: object) -> None:
        self.asked()

    def without(self, _: object) -> dict[str, list[str]]:
        return self.lacking

    def guarded(self, _: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@pytest.fixture
def there(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place()

    @contextlib.contextmanager
    def site(*_: object) -> Iterator[Place]:
        yield place

    monkeypatch.setattr(terms, "at", site)
    monkeypatch.setattr(Setting, "executor", lambda *_: None)  # of a real cluster it loads Ray
    monkeypatch.setattr("sweeps.store.query.finished", lambda _: [])
    (workplace / "mine.yaml").write_text(WAITS)
    return place


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ledger.JOB, "sweep-mine-1")


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What MLflow is told of the sweep's own run."""
    told: list[str] = []

    class Tracker:
        refusal, is_closed, leaves_run = "", True, False

        def __init__(self, _: object) -> None: ...

        def close(self, is_complete: bool, is_discarded: bool = False) -> int:
            told.append("discarded" if is_discarded else "FINISHED" if is_complete else "KILLED")
            return 0

    monkeypatch.setattr(tracker, "Tracker", Tracker)
    return told


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The cells that the store was asked for: it has every trial of this study."""
    asked: list[set[str]] = []
    where = dict.fromkeys(("arrangement", "hardware", "software", "data_files"), "")

    def finished(cells: Collection[str]) -> list[dict[str, Any]]:
        asked.extend([{*cells}] if cells else [])
        return [{"trial": f"{cell}-0", **where} for cell in cells]

    monkeypatch.setattr("sweeps.store.query.finished", finished)
    return asked


@pytest.fixture
def went_on(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is given to whoever runs the trials, in place of running them."""
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(driver, "_conduct", lambda *given: told.append(given) or errors.DONE)
    return told


def interrupted(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def terminated(*_: object, **__: object) -> Any:
    sys.exit(15)  # as Ray has SIGTERM end a driver, by which it stops a job


def store_away(*_: object, **__: object) -> Any:
    raise RefusedError("the tracking store must be writable")


def ended(outcomes: Sequence[TrialOutcome | None], text: str = TEXT, why: str = "complete") -> None:
    """A sweep whose first trials have ended so."""
    planned = plan.plan(sweep_file.parse(text, "x"), nodes=[Node("here", 2, 0)])
    with contextlib.closing(ledger.create(planned, text)) as book:
        for config, outcome in zip(planned.trials, outcomes, strict=False):
            book.write(record(config, outcome=outcome) if outcome else record(config))
        book.end(why)


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("ends", ["nodes do not come", "stopped"])
def test_a_submitted_sweep_that_ends_while_it_waits_is_there_to_be_asked_for_and_to_go_on(
    ends: str, there: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there.asked = interrupted if ends == "stopped" else there.asked
    code, reason = (
        (errors.INTERRUPTED, "interrupted") if ends == "stopped" else (errors.WRONG_INPUT, "--skip-impossible")
    )
    assert main.main(["run", "mine.yaml", "--address", "auto"]) == code
    assert ledger.names() == ["mine"]
    assert ledger.read("mine").has_ended
    assert status.look("mine")["state"] == "stopped"
    capsys.readouterr()
    assert ray_jobs.logs("mine", False) == errors.DONE
    log = capsys.readouterr().out
    assert reason in log
    assert "mine ends before its first trial; to go on: sweep resume mine" in log
    there.asked, there.nodes = lambda: None, [Node("here", 2, 0)]
    went_on: list[plan.Plan] = []
    monkeypatch.setattr(driver, "_conduct", lambda planned, *_: went_on.append(planned) or errors.DONE)
    assert main.main(["resume", "mine", "--address", "auto"]) == errors.DONE
    assert len(went_on[0].trials) == 4
    assert ledger.read("mine").facts.nodes == (there.nodes[0],)


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("options", [[], ["--skip-impossible"], ["--fresh"], ["--skip-impossible", "--fresh"]])
def test_what_was_asked_of_a_sweep_that_was_stopped_while_it_waited_holds_when_it_goes_on(
    options: list[str], there: Place, measured: list[set[str]], went_on: list[tuple[Any, ...]]
) -> None:
    there.asked = interrupted
    assert main.main(["run", "mine.yaml", "--address", "auto", *options]) == errors.INTERRUPTED
    there.asked = lambda: None
    code = main.main(["resume", "mine", "--address", "auto"])
    if "--skip-impossible" not in options:
        assert code == errors.WRONG_INPUT
        there.nodes = [Node("here", 2, 0)]
        code = main.main(["resume", "mine", "--address", "auto"])
    assert code == errors.DONE
    ((planned, _, _, before),) = went_on
    assert {trial.gpus for trial in planned.trials} == ({1} if "--skip-impossible" in options else {1, 2})
    assert ledger.read("mine").facts.trials == planned.trials
    assert [before.known.has(trial) for trial in planned.trials] == ["--fresh" not in options] * len(planned.trials)
    assert bool(measured) == ("--fresh" not in options)


@pytest.mark.parametrize("is_fresh", [True, False])
def test_what_others_have_measured_is_used_unless_the_sweep_is_to_measure_all(
    is_fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Terms] = []
    monkeypatch.setattr(driver, "drive", lambda *them: given.append(them[-1]) or errors.DONE)
    assert main.main(["run", "x.yaml", *(["--fresh"] if is_fresh else [])]) == errors.DONE
    monkeypatch.setattr("sweeps.store.query.finished", lambda cells: [{"cell": cell} for cell in cells])
    assert driver._earlier(*given)(["one"]).result() == ([] if is_fresh else [{"cell": "one"}])


@pytest.mark.parametrize("is_fresh", [True, False, None])
def test_a_resume_uses_what_others_have_measured_unless_the_sweep_was_to_measure_all_or_does_not_tell(
    is_fresh: bool | None, there: Place, measured: list[set[str]], went_on: list[tuple[Any, ...]]
) -> None:
    there.nodes = [Node("here", 2, 0)]
    ended([None, FAILED], why="stopped")
    at = ledger.paths("mine").ledger
    told = "" if is_fresh is None else f'"is_fresh":{str(is_fresh).lower()},'
    at.write_text(at.read_text().replace('"is_fresh":false,', told))
    assert driver.resume("mine", Terms()) == errors.DONE
    ((planned, _, _, before),) = went_on
    assert before.known.has(planned.trials[-1]) == (is_fresh is False)
    assert len(measured) == (is_fresh is False)


@pytest.mark.parametrize("skips", [True, False])
def test_a_search_goes_on_without_what_its_cluster_can_never_hold_if_it_was_asked_to_at_first(
    skips: bool, there: Place, went_on: list[tuple[Any, ...]]
) -> None:
    text = TEXT.replace("repeats", "search: {method: tpe, trials: 4}, repeats")
    planned = plan.plan(sweep_file.parse(text, "x"), nodes=there.nodes)
    with contextlib.closing(ledger.create(planned, text, skips_impossible=skips)) as book:
        book.write(record(plan.plan(sweep_file.parse(TEXT, "x")).trials[0]))
        book.end("stopped")
    assert main.main(["resume", "mine"]) == (errors.DONE if skips else errors.WRONG_INPUT)
    assert len(went_on) == skips


def test_a_sweep_that_skipped_what_no_node_could_hold_waits_for_a_node_that_has_gone_since(
    there: Place, went_on: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    planned = plan.plan(sweep_file.parse(TEXT, "x"), nodes=[Node("here", 2, 0)])
    with contextlib.closing(ledger.create(planned, TEXT, skips_impossible=True)) as book:
        book.end("stopped")
    assert driver.resume("mine", Terms()) == errors.DONE
    assert len(went_on[0][0].trials) == 4
    assert "2 trials wait for nodes to come back" in capsys.readouterr().err


@pytest.mark.parametrize("end", [interrupted, terminated, store_away])
@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_sweep_that_ends_before_its_first_trial_stays_if_it_was_submitted(
    is_submitted: bool,
    end: Callable[..., Any],
    there: Place,
    mlflow: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there.nodes = [Node("here", 2, 0)]
    if is_submitted:
        monkeypatch.setenv(ledger.JOB, "sweep-mine-1")
    monkeypatch.setattr(executor, "carry_out", end)
    with pytest.raises((KeyboardInterrupt, SystemExit, RefusedError)):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert ledger.names() == ["mine"] * is_submitted
    assert mlflow == (["KILLED"] if is_submitted else ["discarded"])
    if is_submitted:
        assert ledger.read("mine").has_ended


@pytest.mark.parametrize("is_impatient", [True, False])
def test_a_discarded_sweep_that_the_store_was_not_told_of_leaves_what_gc_needs_to_delete_its_run(
    is_impatient: bool,
    there: Place,
    workplace: Path,
    mlflow: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def close(*_: object) -> int:
        if is_impatient:  # Ctrl-C, while the store does not answer
            raise KeyboardInterrupt
        return 0

    there.nodes = [Node("here", 2, 0)]
    monkeypatch.setattr(tracker.Tracker, "leaves_run", True)
    monkeypatch.setattr(tracker.Tracker, "close", close)
    monkeypatch.setattr(executor, "carry_out", interrupted)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hush@head:5000")
    with pytest.raises(KeyboardInterrupt):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert not ledger.names()
    (folder,) = (workplace / "results").iterdir()
    assert folder.name.startswith(".mine.")
    run = discarded.open_run(folder)
    assert run
    assert run.store == "http://me:***@head:5000"
    assert run.sweep == json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])["id"]
    told = capsys.readouterr().err
    assert "mine leaves nothing, but its run may be open in the tracking store" in told
    assert "http://me:***@head:5000\n  once that answers: sweep gc --yes" in told


@pytest.mark.usefixtures("mlflow")
def test_a_sweep_stays_where_what_gc_would_need_to_delete_its_run_cannot_be_written(
    there: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    there.nodes = [Node("here", 2, 0)]
    monkeypatch.setattr(tracker.Tracker, "leaves_run", True)
    monkeypatch.setattr(discarded, "note", full)
    monkeypatch.setattr(executor, "carry_out", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert ledger.read("mine").has_ended
    assert "mine ends before its first trial; to go on: sweep resume mine" in capsys.readouterr().err


@pytest.mark.parametrize("end", [interrupted, terminated, lambda: None])
def test_a_sweep_in_a_terminal_that_ends_while_it_waits_leaves_nothing(
    end: Callable[[], Any], there: Place, workplace: Path
) -> None:
    there.asked = end
    with pytest.raises((KeyboardInterrupt, SystemExit, InputError)):
        driver.drive(Path("mine.yaml"), (), Terms())
    assert [*(workplace / "results").iterdir()] == []


@pytest.mark.usefixtures("there", "submitted")
def test_a_sweep_with_a_budget_that_is_none_does_not_begin() -> None:
    with pytest.raises(InputError, match="must be GPU-hours, more than 0"):
        driver.drive(Path("mine.yaml"), ("gpus=1",), Terms(budget=-1.0))
    assert not ledger.names()


def test_to_stop_a_sweep_in_a_terminal_of_which_nothing_has_begun_is_to_end_it(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = ledger.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)
    monkeypatch.setattr(ray_jobs.os, "kill", lambda *_: book.discard())
    monkeypatch.setattr(ledger, "_has_gone", lambda _: False)
    assert ray_jobs.stop("mine") == errors.DONE
    assert capsys.readouterr().out.startswith("mine is stopped; nothing of it had been measured")


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("end", [interrupted, store_away])
@pytest.mark.parametrize(("before", "why"), [("FINISHED", "complete"), ("KILLED", "stopped")])
def test_a_retry_that_ends_before_its_first_trial_leaves_the_sweep_as_it_was(
    before: str,
    why: str,
    end: Callable[..., Any],
    there: Place,
    mlflow: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(_: object, book: ledger.Ledger, *__: object) -> Any:
        book.note("node", {"node": "here"})
        end()

    there.nodes = [Node("here", 2, 0)]
    ended([FAILED, None, None, None], why=why)
    monkeypatch.setattr(executor, "carry_out", run)
    with pytest.raises((KeyboardInterrupt, RefusedError)):
        driver.retry("mine", (), Terms())
    assert mlflow == [before]
    assert ledger.read("mine").is_complete == (why == "complete")


@pytest.mark.usefixtures("there")
def test_a_retry_of_a_complete_sweep_that_is_stopped_halfway_is_no_longer_complete(
    there: Place, mlflow: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object, book: ledger.Ledger, *__: object) -> Any:
        book.start(book.facts.trials[0], at=1.0)
        raise KeyboardInterrupt

    there.nodes = [Node("here", 2, 0)]
    ended([FAILED, None, None, None])
    monkeypatch.setattr(executor, "carry_out", run)
    with pytest.raises(KeyboardInterrupt):
        driver.retry("mine", (), Terms())
    assert mlflow == ["KILLED"]
    assert not ledger.read("mine").is_complete


AGAIN = [lambda terms: driver.resume("mine", terms), lambda terms: driver.retry("mine", (), terms)]


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("refused", ["budget", "nodes", "images"])
def test_a_resume_or_retry_that_is_refused_has_not_begun_for_who_submitted_it(
    refused: str,
    again: Callable[[Terms], int],
    there: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there.nodes = [Node("here", 1 if refused == "nodes" else 2, 0)]
    there.lacking = {"here": ["/images/train-*-of-*"]} if refused == "images" else {}
    text = TEXT.replace("repeats", "data: /images, repeats") if refused == "images" else TEXT
    ended([FAILED] * 3, text, why="stopped")
    monkeypatch.setattr(preflight, "_held", lambda *_: False)
    with pytest.raises(InputError):
        again(Terms(budget=-1.0 if refused == "budget" else None))
    assert not ray_jobs.NAMED.search(capsys.readouterr().err)


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("waits", [True, False])
def test_a_resume_or_retry_that_goes_on_is_named_and_one_that_waits_before_that(
    waits: bool,
    again: Callable[[Terms], int],
    there: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended([FAILED] * 3, WAITS, why="stopped")
    there.nodes = [Node("here", 1 if waits else 2, 0)]
    said: list[str] = []

    def come() -> None:
        said.append(capsys.readouterr().err)
        there.nodes = [Node("here", 2, 0)]

    there.asked = come
    monkeypatch.setattr(driver, "_conduct", lambda *_: errors.DONE)
    assert again(Terms()) == errors.DONE
    said.append(capsys.readouterr().err)
    assert [len(ray_jobs.NAMED.findall(part)) for part in said] == ([1, 0] if waits else [1])


@pytest.mark.usefixtures("there", "submitted")
def test_why_a_resume_was_refused_is_in_its_sweeps_log(capsys: pytest.CaptureFixture[str]) -> None:
    ended([FAILED], why="stopped")
    assert main.main(["resume", "mine", "--address", "auto", "--budget", "-1"]) == errors.WRONG_INPUT
    assert "must be GPU-hours, more than 0" in driver_log.read(ledger.paths("mine").logs)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("search", ["tpe, trials: 2", "frontier"])
@pytest.mark.parametrize("outcome", [None, TrialOutcome(status="lost", kind="node lost")])
def test_a_complete_search_that_is_resumed_shows_what_was_found_unless_a_trial_was_lost(
    search: str,
    outcome: TrialOutcome | None,
    there: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there.nodes = [Node("here", 2, 0)]
    text = TEXT.replace("repeats", f"search: {{method: {search}}}, repeats")
    planned = plan.plan(sweep_file.parse(text, "x"), nodes=there.nodes)
    assert not planned.trials, "it proposes its own"
    configs = plan.plan(sweep_file.parse(TEXT, "x")).trials
    with contextlib.closing(ledger.create(planned, text)) as book:
        book.write(record(configs[0]))
        book.write(record(configs[1], outcome=outcome) if outcome else record(configs[1]))
        book.end("complete")
    synced, went_on = [], list[object]()
    monkeypatch.setattr("sweeps.store.tracking.sync", lambda *_, **__: synced.append("mine"))
    monkeypatch.setattr("sweeps.report.attach", lambda *_: None)
    monkeypatch.setattr(driver, "_conduct", lambda *_: went_on.append("mine") or errors.DONE)
    assert driver.resume("mine", Terms()) == errors.DONE
    told = capsys.readouterr()
    assert (synced, went_on) == (([], ["mine"]) if outcome else (["mine"], []))
    assert (driver_log.NOTHING_TO_RUN in told.err) == (outcome is None)
    assert ("what was found" in told.out) == (outcome is None)
