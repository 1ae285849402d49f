"""What tests with real ranks share."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args
from unittest import mock

import pytest

from sweeps.store import access
from tests.integration.clusters import Cluster
from tests.integration.gangs import KEY
from tests.integration.input_sets import Elsewhere, Kind, Sources
from workers.contract.paths import fork_server_address

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tracking store without a run: MLflow takes seconds to make one."""
    folder = tmp_path_factory.mktemp("blank")
    with contextlib.chdir(folder), mock.patch.dict(os.environ):  # MLflow's patience is set there
        access.client("sqlite:///mlflow.db").search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def workplace(workplace: Path, blank: Path) -> Path:
    """A current folder that holds an empty tracking store and nothing else. A test that wants MLflow to make the store
    deletes it."""
    shutil.copy(blank, workplace)
    return workplace


@pytest.fixture
def store(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty tracking store in the current folder, which is the one in use."""
    uri = f"sqlite:///{workplace / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


@pytest.fixture(scope="module")
def fork_server(left_behind: Callable[[], list[str]]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "workers.launch.fork_server", fork_server_address(KEY)[1:]]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    yield process
    assert process.stdin
    process.stdin.close()
    assert process.wait(10) == 0
    assert not left_behind()


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Elsewhere]:
    """One for all files: it takes as long to import TensorFlow as most of them take with it."""
    process = Elsewhere()
    yield process
    process.close()


@pytest.fixture(scope="session", params=get_args(Kind))
def sources(request: pytest.FixtureRequest, elsewhere: Elsewhere) -> Sources:
    """What ranks of each framework are given."""
    return Sources(elsewhere, request.param)


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    """A cluster of a head on which no rank may run."""
    made = Cluster(cpus=0)
    yield made
    made.close()
