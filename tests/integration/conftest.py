"""What tests with real ranks share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.clusters import Cluster
from tests.integration.gangs import KEY
from tests.integration.input_sets import Elsewhere
from workers.contract.paths import fork_server_address

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fork_server(left_behind: Callable[[], list[str]]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "workers.launch.fork_server", fork_server_address(KEY)[1:]]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    yield process
    assert process.stdin
    process.stdin.close()
    assert process.wait(10) == 0
    assert not left_behind()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    process = Elsewhere()
    yield process
    process.close()


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    """A cluster of a head on which no rank may run."""
    made = Cluster(cpus=0)
    yield made
    made.close()
