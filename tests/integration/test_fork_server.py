"""What a node's fork server loads, and what it leaves out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path

import psutil
import pytest

from tests.integration.clusters import eventually
from tests.integration.gangs import KEY
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


def test_a_node_has_the_fork_servers_that_its_trials_want_each_once_and_again_where_one_has_died(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In place of a fork server: a process that notes its start and ends when its input closes, as one does."""
    key, started, dismissed = f"tended-{os.getpid()}", tmp_path / "started", threading.Event()
    code = NOTES_ITS_START.format(started=str(started))
    monkeypatch.setattr(gang, "fork_server_key", lambda: key)
    monkeypatch.setattr(gang, "_fork_server", lambda _, framework, how: [sys.executable, "-c", code, framework])
    monkeypatch.setattr(gang.ray, "get_runtime_context", lambda: types.SimpleNamespace(is_canceled=dismissed.is_set))

    def found() -> list[tuple[str, int]]:
        lines = started.read_text().splitlines() if started.exists() else []
        return [(name, int(pid)) for name, pid in map(str.split, lines)]

    def has(*names: str) -> bool:
        return eventually(lambda: [name for name, _ in found()] == [*names])

    tending = threading.Thread(target=gang.NodeActor().tend, args=(str(tmp_path / "log"), "", 0.0, "tensorflow"))
    tending.start()
    try:
        assert has("tensorflow")
        for framework in ("torch", "torch", "another"):
            supervisor.ask_for(key, framework)  # type: ignore[arg-type]
        assert has("tensorflow", "torch")
        os.kill(found()[-1][1], signal.SIGKILL)
        assert has("tensorflow", "torch", "torch")
    finally:
        dismissed.set()
        tending.join(30)
    assert not tending.is_alive()
    assert not [pid for _, pid in found() if Path(f"/proc/{pid}").exists()]
    assert [name for name, _ in found()] == ["tensorflow", "torch", "torch"]
