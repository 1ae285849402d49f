"""How a sweep begins, and goes on: when it has its name, what it uses again, and what refuses it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeps import errors
from sweeps.cli import main
from sweeps.cluster import driver_log, marked_output
from sweeps.errors import InputError, RefusedError
from sweeps.record import ledger, ownership
from sweeps.run import driver, preflight
from sweeps.run.terms import Terms
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.text import caller
from tests.unit.driving import FAILED, TEXT, WAITS, Place, ended, interrupted
from tests.unit.records import record
from workers.contract.messages import TrialOutcome


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


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("words", [["plan"], ["run"], ["run", "--skip-impossible"]])
def test_before_a_node_has_joined_its_user_is_told_to_wait_and_not_to_leave_trials_out(
    words: list[str], there: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    there.nodes = []
    Path("soon.yaml").write_text(TEXT)
    assert main.main([words[0], "soon.yaml", "--address", "auto", *words[1:]]) == errors.REFUSED
    assert capsys.readouterr().err.endswith(
        "soon.yaml: a cluster must have nodes that run trials, but none has joined this one yet\n"
        "  wait: after `ray up` it takes minutes, and `sweep doctor --cluster --address auto` says who is missing;"
        " or have the sweep wait for them: wait_for_nodes_min: 10 in its file\n"
    )
    assert ledger.names() == []


@pytest.mark.usefixtures("submitted")
def test_a_plan_of_a_sweep_that_waits_for_its_first_nodes_is_shown_without_its_cost(
    there: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    there.nodes = []
    assert main.main(["plan", "mine.yaml", "--address", "auto"]) == errors.DONE
    told = capsys.readouterr().out
    assert "4 trials" in told
    assert "no node has joined this cluster yet: the sweep waits 0.001 min for what it needs" in told
    assert "or --address" not in told
    assert main.main(["run", "mine.yaml", "--address", "auto"]) == errors.REFUSED
    told = capsys.readouterr().err
    assert "none has joined this one in the 0.001 min of its wait_for_nodes_min" in told
    assert told.endswith("says who is missing; or have the sweep wait longer\n")


@pytest.mark.parametrize("skips", [True, False])
def test_a_search_goes_on_without_what_its_cluster_can_never_hold_if_it_was_asked_to_at_first(
    skips: bool, there: Place, went_on: list[tuple[Any, ...]]
) -> None:
    text = TEXT.replace("repeats", "search: {method: tpe, trials: 4}, repeats")
    planned = plan.plan(sweep_file.parse(text, "x"), nodes=there.nodes)
    with contextlib.closing(ownership.create(planned, text, skips_impossible=skips)) as book:
        book.write(record(plan.plan(sweep_file.parse(TEXT, "x")).trials[0]))
        book.end("stopped")
    assert main.main(["resume", "mine"]) == (errors.DONE if skips else errors.WRONG_INPUT)
    assert len(went_on) == skips


def test_a_sweep_that_skipped_what_no_node_could_hold_waits_for_a_node_that_has_gone_since(
    there: Place, went_on: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    planned = plan.plan(sweep_file.parse(TEXT, "x"), nodes=[Node("here", 2, 0)])
    with contextlib.closing(ownership.create(planned, TEXT, skips_impossible=True)) as book:
        book.end("stopped")
    assert driver.resume("mine", Terms()) == errors.DONE
    assert len(went_on[0][0].trials) == 4
    assert "2 trials wait for nodes to come back" in capsys.readouterr().err


@pytest.mark.usefixtures("there", "submitted")
def test_a_sweep_with_a_budget_that_is_none_does_not_begin() -> None:
    with pytest.raises(InputError, match="must be rank-hours, more than 0"):
        driver.drive(Path("mine.yaml"), ("gpus=1",), Terms(budget=-1.0))
    assert not ledger.names()


@pytest.fixture
def redirected(workplace: Path) -> Iterator[Path]:
    """Standard input, from a sweep file that lies on the disk."""
    before = os.dup(0)
    with (workplace / "mine.yaml").open() as file:
        os.dup2(file.fileno(), 0)
    yield Path("/dev/stdin")
    os.dup2(before, 0)
    os.close(before)


def test_no_command_is_suggested_that_names_what_a_sweep_file_was_redirected_through(
    there: Place, redirected: Path, went_on: list[tuple[Any, ...]]
) -> None:
    there.nodes = [Node("here", 2, 0)]
    assert redirected.is_file(), "it is a link to one"
    for file in (redirected, Path("mine.yaml")):
        assert driver.drive(file, (), Terms()) == errors.DONE
    assert [setting.file for _, _, setting, _ in went_on] == ["", "mine.yaml"]


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
    with driver_log.kept(), pytest.raises(InputError):
        again(Terms(budget=-1.0 if refused == "budget" else None))
    assert not marked_output.named(capsys.readouterr().out)


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
        said.append(capsys.readouterr().out)
        there.nodes = [Node("here", 2, 0)]

    there.asked = come
    monkeypatch.setattr(driver, "_conduct", lambda *_: errors.DONE)
    with driver_log.kept():
        assert again(Terms()) == errors.DONE
    said.append(capsys.readouterr().out)
    mine = marked_output.Named("mine", is_over=False)
    assert [marked_output.named(part) for part in said] == ([mine, None] if waits else [mine])


IMAGES = TEXT.replace("repeats", "data: /images, repeats")


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_sweep_has_its_name_though_nodes_take_their_time_to_say_what_they_hold(
    is_submitted: bool,
    is_late: bool,
    there: Place,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if is_submitted:
        monkeypatch.setenv(ledger.JOB, "sweep-mine-1")
    (workplace / "mine.yaml").write_text(IMAGES)
    there.nodes, there.is_late = [Node("here", 2, 0)], is_late
    there.lacking = {"here": ["/images/train-*-of-*"]}
    said: list[str] = []
    there.asked = lambda: said.append(capsys.readouterr().err)
    with pytest.raises(InputError, match="on every node, but not on here"):
        driver.drive(Path("mine.yaml"), (), Terms(address="auto"))
    assert [part.count("results in ") for part in said] == [is_late], "as soon as they are late, and once"
    assert ledger.names() == ["mine"] * (is_late and is_submitted)
    assert not (is_late and is_submitted) or ledger.read("mine").has_ended


@pytest.mark.parametrize("again", AGAIN)
def test_a_resume_or_retry_is_named_though_nodes_take_their_time(
    again: Callable[[Terms], int],
    there: Place,
    went_on: list[tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended([FAILED] * 3, IMAGES, why="stopped")
    there.nodes, there.is_late = [Node("here", 2, 0)], True
    said: list[str] = []
    there.asked = lambda: said.append(capsys.readouterr().err)
    assert again(Terms()) == errors.DONE
    said.append(capsys.readouterr().err)
    assert [part.count("results in ") for part in said] == [1, 0]
    assert went_on


def test_a_sweep_has_its_name_though_the_store_takes_its_time(
    there: Place, went_on: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_named = threading.Event()

    def finished(cells: Collection[str]) -> list[dict[str, Any]]:
        if cells and not is_named.wait(10):
            raise RefusedError("the sweep has no name yet")
        return []

    there.nodes = [Node("here", 2, 0)]
    monkeypatch.setattr(driver, "SOON_S", 0.05)
    monkeypatch.setattr("sweeps.store.query.finished", finished)
    assert driver.drive(Path("mine.yaml"), (), Terms(), lambda _: is_named.set()) == errors.DONE
    assert went_on


@pytest.mark.usefixtures("there", "submitted")
def test_why_a_resume_was_refused_is_in_its_sweeps_log(capsys: pytest.CaptureFixture[str]) -> None:
    ended([FAILED], why="stopped")
    assert main.main(["resume", "mine", "--address", "auto", "--budget", "-1"]) == errors.WRONG_INPUT
    assert "must be rank-hours, more than 0" in driver_log.read(ledger.paths("mine").logs)


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
    with contextlib.closing(ownership.create(planned, text)) as book:
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
    assert (driver.NOTHING_TO_RUN in told.err) == (outcome is None)
    assert ("what was found" in told.out) == (outcome is None)


def test_nodes_are_asked_for_anew_as_they_come(
    there: Place, went_on: list[tuple[Any, ...]], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gang that needs several nodes may get one on which all its ranks would fit."""
    text = WAITS.replace("gpus: [1, 2]", "gpus: 2, placement: 2x1").replace("0.001", "1")
    (workplace / "mine.yaml").write_text(text)
    there.nodes = []
    there.asked = lambda: there.nodes.append(Node(f"n{len(there.nodes)}", 4, 0))
    monkeypatch.setattr(preflight.time, "sleep", lambda _: None)
    assert driver.drive(Path("mine.yaml"), (), Terms(address="auto")) == errors.DONE
    assert there.wanted == [[{"CPU": 1.0}] * 2, [{"CPU": 4.0}] * 2]
    assert went_on


@pytest.mark.usefixtures("submitted")
def test_a_sweep_of_one_s_own_code_that_is_stopped_while_it_waits_for_nodes_has_kept_that_code(
    there: Place, went_on: list[tuple[Any, ...]], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent along goes with the job, and whoever goes on is another."""
    (workplace / "mine.yaml").write_text(WAITS.replace("model: tiny", "model: nets:small"))
    (workplace / "nets.py").write_text("def small(): ...\n")
    monkeypatch.setenv(caller.CALLED, json.dumps({"kind": "ssh"}))
    there.asked = interrupted
    named: list[bool] = []

    def kept() -> Path:
        return ledger.paths("mine").code / "nets.py"

    with pytest.raises(KeyboardInterrupt):
        driver.drive(Path("mine.yaml"), (), Terms(address="auto"), lambda _: named.append(kept().is_file()))
    assert named == [True], "before the name is told"
    (workplace / "nets.py").unlink()
    there.asked, there.nodes = lambda: None, [Node("here", 2, 0)]
    assert driver.resume("mine", Terms(address="auto")) == errors.DONE
    assert went_on
    assert kept().read_text() == "def small(): ...\n"
