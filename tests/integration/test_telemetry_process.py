"""The sampler and the self-test as processes of their own, on this machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from workers.checks import self_test
from workers.measure import usage

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def sampler(path: Path, every_s: float) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "workers.node.telemetry", str(path), "--every", str(every_s)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def samples(path: Path) -> list[usage.Sample]:
    return list(usage.samples(path.read_bytes().splitlines())) if path.exists() else []


def until(is_true: Callable[[], bool], patience_s: float = 20.0) -> None:
    give_up = time.monotonic() + patience_s
    while not is_true():
        assert time.monotonic() < give_up, "it took too long"
        time.sleep(0.02)


def test_samples_arrive_until_standard_input_closes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "telemetry.jsonl"
    with sampler(path, 0.1) as process:
        until(lambda: len(samples(path)) >= 8)
        assert process.stdin
        process.stdin.close()
        began = time.monotonic()
        assert process.wait(10) == 0
        assert time.monotonic() - began < 1
    known = samples(path)
    steps = [after.monotonic - before.monotonic for before, after in itertools.pairwise(known)]
    assert sorted(steps)[len(steps) // 2] == pytest.approx(0.1, abs=0.05)
    told = usage.summary(path, known[0].at, known[-1].at)
    assert told["samples"] == len(known)
    assert 0 <= told["cpu_percent"] <= 105
    assert told["memory_used_gib"] > 0


def test_it_sleeps_however_long_its_interval_and_ends_at_once(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    with sampler(path, 3600) as process:
        until(lambda: len(samples(path)) == 1)
        assert process.stdin
        process.stdin.close()
        assert process.wait(1) == 0


def test_a_new_sampler_goes_on_in_the_file_of_one_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    path.write_text('{"at": 1, "monotonic": 0, "every_s": 1, "x": {}}\n{"at": 2, "mono')
    with sampler(path, 0.1):
        until(lambda: len(samples(path)) >= 4)
    assert samples(path)[0].at == 1


def test_a_sampler_goes_with_its_parent(tmp_path: Path) -> None:
    """Even where somebody else still holds the other end of its standard input."""
    path = tmp_path / "telemetry.jsonl"
    reader, writer = os.pipe()
    start = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'workers.node.telemetry', {str(path)!r}], stdin={reader})\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", start]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, pass_fds=[reader]) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        until(lambda: len(samples(path)) >= 1)
        parent.send_signal(signal.SIGKILL)
        until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 5)
    os.close(reader)
    os.close(writer)


def test_sampling_costs_next_to_nothing(tmp_path: Path) -> None:
    """0.05% of a core at 1 Hz where it was measured; here four times a second, and with room for a busy machine."""
    path = tmp_path / "telemetry.jsonl"
    with sampler(path, 0.25):
        until(lambda: len(samples(path)) >= 20)
    known = samples(path)
    told = usage.summary(known, known[1].at, known[-1].at)
    assert told["sampler_cpu_percent"] < 3


def test_the_self_test_measures_every_figure_in_about_its_time() -> None:
    began = time.monotonic()
    found = self_test.probe(2.0)
    assert time.monotonic() - began < 12
    assert found.keys() == self_test.FIGURES.keys() - {self_test.OF_A_GANG}
    assert all(value > 0 for value in found.values())
    assert found["node_gflops"] > 0.3 * found["core_gflops"]
