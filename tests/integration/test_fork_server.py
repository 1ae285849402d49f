"""What a node's fork server loads, and what it leaves out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil
import pytest

from sweeps.run import ray_tune
from tests.integration.clusters import eventually
from tests.integration.gangs import KEY
from tests.unit.records import config
from workers.contract import messages
from workers.contract.messages import Progress, TrialConfig, TrialOutcome
from workers.launch import gang, preload, supervisor
from workers.launch.supervisor import is_answering


@pytest.mark.usefixtures("left_behind")
def test_a_fork_server_loads_nothing_that_no_rank_uses(fork_server: subprocess.Popen[bytes]) -> None:
    """Keras would import all of it where it is installed, as it is here."""
    assert eventually(lambda: is_answering(KEY))
    mapped = {one.path for one in psutil.Process(fork_server.pid).memory_maps()}
    assert any("tensorflow" in Path(path).parts for path in mapped)
    assert not [path for path in mapped if preload.UNUSED & {*Path(path).parts}]


def test_a_rank_of_its_own_imports_later_what_was_left_out() -> None:
    code = """
import sys
from workers.launch import gang, preload, supervisor

with preload.without_unused():
    import keras.src.wrappers.fixes as fixes

    assert fixes.sklearn is None
    assert not preload.UNUSED & {name for name, module in sys.modules.items() if module}
    with preload.without_unused():
        pass
    assert sys.modules["pandas"] is None
import pandas

print(pandas.Series([1, 2]).sum())
"""
    ran = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=False)
    assert ran.stdout == "3\n", ran.stderr


NOTES_ITS_START = """
import os, sys
with open({started!r}, "a") as file:
    file.write(f"{{sys.argv[1]}} {{os.getpid()}}\\n")
sys.stdin.read()
"""


class Tended:
    """A node actor that tends its node in a thread, with a stand-in for each fork server: a process that notes its
    start and ends when its input closes, as one does."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, *frameworks: str, packages: Sequence[str]) -> None:
        self.key, self._started, self.dismissed = f"tended-{os.getpid()}", folder / "started", threading.Event()
        code = NOTES_ITS_START.format(started=str(self._started))
        called_off = types.SimpleNamespace(is_canceled=self.dismissed.is_set)
        patch.setattr(gang, "fork_server_key", lambda: self.key)
        patch.setattr(gang, "_fork_server", lambda _, framework, how: [sys.executable, "-c", code, framework])
        patch.setattr(gang.ray, "get_runtime_context", lambda: called_off)
        patch.setattr(gang, "is_installed", lambda framework: framework in packages)
        self._thread = threading.Thread(target=gang.NodeActor().tend, args=(str(folder / "log"), "", 0.0, frameworks))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.dismissed.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert not [pid for _, pid in self.found() if Path(f"/proc/{pid}").exists()]

    def found(self) -> list[tuple[str, int]]:
        lines = self._started.read_text().splitlines() if self._started.exists() else []
        return [(name, int(pid)) for name, pid in map(str.split, lines)]

    def has(self, *names: str) -> bool:
        return eventually(lambda: [name for name, _ in self.found()] == [*names])


def test_a_node_has_the_fork_servers_that_its_trials_want_each_once_and_again_where_one_has_died(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Tended(monkeypatch, tmp_path, "tensorflow", packages=("tensorflow", "torch")) as node:
        assert node.has("tensorflow")
        for framework in ("torch", "torch", "another"):
            supervisor.ask_for(node.key, framework)  # type: ignore[arg-type]
        assert node.has("tensorflow", "torch")
        os.kill(node.found()[-1][1], signal.SIGKILL)
        assert node.has("tensorflow", "torch", "torch")
    assert [name for name, _ in node.found()] == ["tensorflow", "torch", "torch"]


def test_a_node_without_torch_starts_no_fork_server_of_it_whoever_wants_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that dies at its import would be started again each second, beside those who measure."""
    with Tended(monkeypatch, tmp_path, "torch", "tensorflow", packages=("tensorflow",)) as node:
        assert node.has("tensorflow")
        supervisor.ask_for(node.key, "torch")
        time.sleep(2.5)
        assert node.has("tensorflow")


@pytest.mark.parametrize(("frameworks", "waits"), [(["tensorflow", "torch"], 1), (["torch"], 0)])
def test_the_first_trial_of_a_gang_waits_for_each_fork_server_of_its_sweep_whether_or_not_nodes_are_tested(
    monkeypatch: pytest.MonkeyPatch, frameworks: list[str], waits: int
) -> None:
    """One that has its own alone waits for it as it starts."""
    did = list[str]()

    class Group:
        seats, progress, epochs = (1,), Progress("start", 0), ()

        def __init__(self, *_: object) -> None: ...
        def stop(self) -> None: ...

        def await_fork_servers(self, config: TrialConfig, those: list[str]) -> None:
            did.append(" ".join(those))

        def start(self, *_: object, **more: object) -> None:
            did.append("start")

        def wait(self, timeout_s: float) -> TrialOutcome | None:
            return TrialOutcome(status="failed", kind="raised") if did.count("look") else did.append("look")

        def has_come_on(self) -> bool:
            return False

    monkeypatch.setattr(ray_tune, "Group", Group)
    monkeypatch.setattr(ray_tune, "get_current_placement_group", lambda: None)
    order = {"simulated": "", "seats": [["a", 1]], "node_ids": ["a"], "trial": messages.to_json(config())}
    order |= {"sweep": "x", "root": "/", "entry": "", "folder": "", "probe_every_s": 0.0, "is_judged": False}
    order |= {"frameworks": frameworks, "at": 0.0, "attempt": 0}
    made = ray_tune.Gang.__new__(ray_tune.Gang)
    made.setup({"order": json.dumps(order)})
    made.step()
    made.step()
    made.follow({"order": json.dumps(order)})
    assert did == [*["tensorflow torch"] * waits, "start", "look", "start"]
