"""A child process that runs a framework, for tests of networks: tests beside them fork, and need a parent without it.

It is asked for a part of what there is to find of a network, and finds no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Child:
    """What the child finds of a network: each part of it is asked for once, by the first test that wants it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._found: dict[tuple[str, str], Any] = {}

    def __call__(self, part: str, name: str) -> Any:
        if (part, name) not in self._found:
            assert self._process.stdin
            assert self._process.stdout
            self._process.stdin.write(f"{part} {name}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            assert line, f"the child ended with exit code {self._process.wait()}"
            self._found[part, name] = json.loads(line)
        return self._found[part, name]


@contextlib.contextmanager
def started(module: str) -> Iterator[Child]:
    """Have a module answer as a program of its own."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", module], cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True
    ) as process:
        yield Child(process)
        process.kill()


def answer(parts: Mapping[str, Callable[[Any], Any]], after: Callable[[], None]) -> None:
    """In the child: answer each line, a part and a network, by what the tests assert on."""
    for line in sys.stdin:
        part, name = line.split()
        print(json.dumps(parts[part](name)), flush=True)
        after()
