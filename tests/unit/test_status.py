"""A sweep while it runs and after: what its driver says of it, and what its ledger does."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweeps.record import ledger, ownership
from sweeps.run import status
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.packing import Start
from sweeps.scheduling.search import Listed
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.unit.records import record

pytestmark = pytest.mark.unit

TEXT = "name: x\nmodel: tiny\ndevice: cpu\nspace: {batch_size: 8, gpus: [1, 2]}\nrepeats: 1\n"


def _drawn(told: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(status.drawn(told))
    return console.file.getvalue()  # type: ignore[attr-defined]


TRIAL = {"trial": "b8 #0", "nodes": ["n1"], "stage": "step 2/9", "images_per_s": None, "since_s": 1.0, "ends_at": 5.0}
NEIGHBOURS = {"node": "n2", "cpus": 8, "gpus": 4, "kind": "V100", "ranks": 0, "others_until": 1020.0}


def test_the_bulletin_of_a_running_sweep_shows_nodes_trials_queue_and_cost() -> None:
    now = 1000.0
    told = {
        "sweep": "x",
        "state": "running",
        "at": now,
        "trials": 5,
        "ended": {"completed": 2},
        "waiting": 2,
        "spent": 0.5,
        "expected": 2.0,
        "unit": "GPU-hours",
        "left_s": 90.0,
        "nodes": [{"node": "n1", "cpus": 8, "gpus": 4, "kind": "V100", "ranks": 4, "others_until": None}, NEIGHBOURS],
        "running": [
            {
                "trial": "b32 ×4 #0",
                "nodes": ["n1"],
                "stage": "step 20/100",
                "images_per_s": 1234.0,
                "since_s": 61.0,
                "ends_at": now + 30,
            }
        ],
        "queue": [{"trial": "b64 ×4 #0", "gpus": 4, "starts_at": now + 30}],
        "best": "b32 ×4 #0  1,234 images/s",
    }
    shown = _drawn(told)
    for words in ("2 completed, 1 running, 2 waiting", "0.5 of about 2 GPU-hours, 1:30 left", "4 V100", "step 20/100"):
        assert words in shown
    assert "1,234" in shown
    assert "1:01" in shown
    assert shown.count("0:30") == 2
    assert "another sweep's for 0:20" in shown


def test_a_sweep_without_a_driver_is_told_from_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    monkeypatch.setenv(ledger.JOB, "sweep-x-1")
    book = ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)
    assert status.look("x")["state"] == "starting"
    assert ownership.driver("x")["job"] == "sweep-x-1"
    book.end("stopped")
    book.close()
    told = status.look("x")
    assert (told["state"], told["waiting"]) == ("stopped", 2)
    assert "to go on: sweep resume x" in _drawn(told)
    (tmp_path / "x/status.json").write_text(f'{{"at": {time.time() - 100}}}')
    assert status.look("x")["silent_s"] > 90  # a driver that was killed leaves its last words
    with contextlib.closing(ownership.reopen("x")) as again:
        again.end("complete")
    told = status.look("x")
    assert (told["state"], told.get("silent_s")) == ("complete", None)


@pytest.mark.parametrize("again", [False, True])
def test_a_driver_that_goes_on_counts_what_the_earlier_ones_have_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """With `again` three of them are tried once more, and five stand."""
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    text = TEXT.replace("batch_size: 8, gpus: [1, 2]", "batch_size: [1, 2, 3, 4, 5, 6, 7, 8], gpus: 1")
    book = ownership.create(plan.plan(sweep_file.parse(text, "x")), text)
    trials = book.facts.trials
    done = [record(config) for config in trials[:5]]
    engine = Engine(lambda _: Listed(trials[5:] if again else trials), Durations(lambda _: 1.0), Feasibility(), Cache())
    engine.nodes_are([Node("a", 1, 0)], {})
    engine.resumed([] if again else done)
    status_writer = status.StatusWriter(book.facts, book.paths, engine, *(((), done) if again else (done,)))
    start = engine.next(0.0)
    assert isinstance(start, Start)
    status_writer.started(start.trial)
    status_writer.spent(engine.spent())
    status_writer.passed()
    told = status.look("x")
    assert (told["ended"], told["trials"], len(told["running"]), told["waiting"]) == ({"completed": 5}, 8, 1, 2)


def test_a_sweep_that_is_followed_off_a_terminal_is_a_line_whenever_its_counts_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each bulletin says how many have completed, and how many run."""
    now, heard = [0.0], list[str]()
    monkeypatch.setattr("sweeps.run.status.time.monotonic", lambda: now[0])

    def bulletins(*counts: tuple[int, int]) -> Iterator[dict[str, Any]]:
        for done, running in counts:
            told = {"sweep": "x", "state": "running" if running else "complete", "ended": {"completed": done}}
            cost = {"spent": done / 10, "unit": "rank-hours", "at": 0.0}
            yield told | cost | {"running": [TRIAL] * running, "waiting": 9 - done}
            heard.append(capsys.readouterr().out)
            now[0] += 1.0

    changes = [(0, 1), (0, 1), (1, 1), (2, 1), (2, 2), (3, 1), (3, 1), (3, 1), (3, 1), (3, 1), (3, 1), (9, 0)]
    status.render(bulletins(*changes), is_followed=True)
    told = [at for at, words in enumerate(heard) if words]
    assert told == [0, 5], "at once, and no sooner than five seconds later"
    assert not any(ord(letter) < 32 for letter in "".join(heard).replace("\n", "")), "no control characters"
    assert "".join(heard).splitlines() == [
        "x  running: 0 completed, 1 running, 9 waiting  0 rank-hours",
        "x  running: 3 completed, 1 running, 6 waiting  0.3 rank-hours",
    ]
    assert "x  complete: 9 completed, 0 running, 0 waiting" in capsys.readouterr().out
    heard.clear()
    status.render(bulletins((3, 1)))
    assert heard == [""], "who only asks how it stands is told once"
    assert capsys.readouterr().out.count("3 completed") == 1


def test_a_sweep_that_has_ended_is_told_once_though_it_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    ended = {"sweep": "x", "state": "stopped", "ended": {}, "waiting": 2, "spent": 0.0, "unit": "rank-hours"}
    status.render(iter([ended]), is_followed=True)
    shown = capsys.readouterr().out
    assert shown.count("x  stopped") == 1
    assert shown.isprintable() or "\x1b" not in shown
