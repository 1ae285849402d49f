"""What a node's fork server loads, and what it leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.clusters import eventually
from tests.integration.gangs import KEY
from workers.launch import preload
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
from workers.launch import preload

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
