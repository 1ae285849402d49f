"""What the benchmark of parity starts, what it holds to which cores, and which plain loop it takes for the best."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import parity
from sweeps.spec import plan, sweep_file
from tests.unit import sources
from workers.workloads.script import run

FILE = Path("parity.yaml")


@dataclasses.dataclass
class FakeProcess:
    """A process that has a name and does nothing."""

    called: str = "python"
    pid: int = 1

    def name(self) -> str:
        return self.called

    def children(self, recursive: bool) -> list[FakeProcess]:
        return []

    def cmdline(self) -> list[str]:
        return [self.called]


@dataclasses.dataclass
class Started:
    command: list[str]
    env: dict[str, str]
    cwd: Path
    pid: int = 1


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[parity.Ours, Started]:
    """A side of ours whose process was not started, and what would have been."""
    found: list[Started] = []

    def start(command: list[str], env: dict[str, str], cwd: Path, **_: Any) -> Started:
        found.append(Started(command, env, cwd))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    side = parity.Ours(tmp_path / "ours", parity.APART, FILE)
    return side, found[0]


def test_our_side_is_the_command_with_a_store_and_a_table_of_its_own(ours: tuple[parity.Ours, Started]) -> None:
    _, started = ours
    assert [Path(started.command[0]).name, *started.command[1:]] == [
        *("sweep", "run", str(FILE), "--fresh"),
        *("--address", "local"),
    ]
    assert started.env["MLFLOW_TRACKING_URI"] == f"sqlite:///{started.cwd}/mlflow.db"
    assert started.env["SWEEP_RESULTS"] == str(started.cwd)


def test_the_driver_draws_its_table_though_what_it_says_goes_to_a_file(tmp_path: Path) -> None:
    asks = "from sweeps.text import screen; c = screen.beside(); print(c.is_terminal and not c.is_dumb_terminal)"
    bare = {name: value for name, value in os.environ.items() if name not in (*parity.A_TERMINAL, "TTY_COMPATIBLE")}
    with (tmp_path / "log").open("w") as log:
        for environment, is_drawn in ((bare, "False"), (bare | parity.A_TERMINAL, "True")):
            told = subprocess.run(
                [sys.executable, "-c", asks], env=environment, stdout=subprocess.PIPE, stderr=log, text=True, check=True
            )
            assert told.stdout.strip() == is_drawn


def test_nothing_of_ours_is_held_to_a_core_before_ray_has_counted_them(
    ours: tuple[parity.Ours, Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    side, _ = ours
    held: list[tuple[str, set[int]]] = []
    processes = [FakeProcess("sweep"), FakeProcess("workers.launch.fork_server")]
    monkeypatch.setattr(parity, "hold", lambda process, cores: held.append((process.name(), cores)))
    monkeypatch.setattr(os, "kill", lambda *_: None)
    monkeypatch.setattr(parity.psutil, "Process", lambda pid: processes[0])
    monkeypatch.setattr(FakeProcess, "children", lambda self, recursive: processes[1:])
    side.stop()
    assert held == []
    processes.append(FakeProcess("raylet"))
    side.stop()
    beside, ranks = parity.APART.beside, parity.APART.ranks
    assert held == [("sweep", beside), ("workers.launch.fork_server", ranks), ("raylet", beside)]


def test_the_plain_loop_knows_each_way_of_reducing_that_is_tried() -> None:
    """It can't be imported here: it trains."""
    (reduced,) = (
        node.value
        for node in sources.nodes(Path(parity.__file__).parent / "plain.py")
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and "REDUCED" in ast.dump(node.target)
    )
    assert [ast.literal_eval(key) for key in reduced.keys if key] == [*parity.HOWS]


def test_the_best_plain_loop_is_the_quickest_by_turns_and_not_the_one_of_a_quick_minute() -> None:
    """The machine was twice as quick in the second round, for all of its gangs."""
    paces = [{"each": 100.0, "grouped": 120.0, "tape": 90.0}, {"each": 200.0, "grouped": 190.0, "tape": 230.0}]
    assert parity.best_of(paces) == "grouped"
    assert parity.best_of(paces[1:]) == "tape"
    assert parity.best_of([dict.fromkeys(parity.HOWS, 1.0) | {"each": 1.1}]) == "each"


def test_the_plain_loop_is_started_in_the_way_that_was_found_to_be_the_best(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    monkeypatch.setattr(parity.Plain, "warm", lambda self: None)
    monkeypatch.setattr(parity.Plain, "close", lambda self: None)
    series = parity.TrialSeries(tmp_path / "series", 1, parity.TRYING, "tape")
    for how in ("", "grouped"):
        with series.plain(f"plain-{how}", how):
            pass
    assert [command[-1] for command in commands] == ["tape", "grouped"]


def test_the_script_that_a_sweep_runs_is_the_plain_loop_by_the_same_command(tmp_path: Path) -> None:
    """But for the folder in which it notes its steps."""
    series = parity.TrialSeries(tmp_path / "series", 1, parity.ARRANGEMENTS["script"], "tape")
    trial = plan.plan(sweep_file.parse(series.file.read_text(), "parity")).trials[0]
    assert trial.script
    words = [str(word) for word in parity.command(series.config, tmp_path / "series" / "ours", "tape")]
    assert run.command(trial.script, trial) == ["python", *words]
    assert (trial.gpus, trial.items) == (parity.RANKS, series.batch)


def test_there_are_trials_until_their_interval_is_narrow() -> None:
    def pairs(spread: float, n: int) -> list[parity.Pair]:
        return [parity.Pair(100 * (1 + spread * (-1) ** at), 100.0, beside=0.0) for at in range(n)]

    assert not parity.is_narrow(pairs(0.001, parity.FEWEST - 1)), "too few to know"
    assert parity.is_narrow(pairs(0.001, parity.FEWEST))
    assert not parity.is_narrow(pairs(0.03, parity.FEWEST))
    assert not parity.is_narrow([parity.Pair(100.0, 100.0, beside=0.0)])
