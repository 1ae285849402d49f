"""What tests share: markers by folder, a place of their own for results, a look at what they leave behind."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

import tests.examples  # noqa: F401  (its profiles)
from sweeps.text import addresses

MARK = "SWEEP_TEST_MARK"
OF_A_CLUSTER = (addresses.JOB_SERVER, addresses.RAY)  # the variables that lead commands there

settings.load_profile("same")  # unless --hypothesis-profile names another


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's folder is its marker: `pytest -m unit`."""
    for item in items:
        item.add_marker(Path(item.path).parent.name)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What trials keep of sets of images does not go into the cache of whoever runs the tests."""
    os.environ["SWEEP_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def no_cluster() -> None:
    """What tests call means this machine, though the shell that they are run in leads to a real cluster."""
    for name in OF_A_CLUSTER:
        os.environ.pop(name, None)


@pytest.fixture(scope="module")
def left_behind() -> Iterator[Callable[[], list[str]]]:
    """The processes that this module's tests started and that live on; waits a little for them to go."""
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark

    def living() -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == mark and process.pid != os.getpid():
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
            except psutil.Error:
                continue
        return found

    def left(patience_s: float = 15) -> list[str]:
        until = time.monotonic() + patience_s
        while (found := living()) and time.monotonic() < until:
            time.sleep(0.2)
        return found

    yield left
    del os.environ[MARK]


@pytest.fixture(autouse=True)
def _variables_stay() -> Iterator[None]:
    """What a test leaves in the environment would change all that come after it."""
    before = {**os.environ}
    yield
    for name in os.environ.keys() - before.keys() - {MARK}:  # a module's mark, which may be set within a test
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder: results and the tracking store come to lie in it."""
    for name in ("MLFLOW_TRACKING_URI", "SWEEP_RESULTS", *OF_A_CLUSTER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path
