"""Decode threads: as many as were asked for, of a node, on the cores that they may use."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.input_sets import Sources, open_source
from workers.inputs.source import Cores

pytestmark = pytest.mark.alone


def busy_threads(folder: Path, decode_threads: int, kept: frozenset[int]) -> Any:
    """The threads that do the work of a stream, each with its cores; the decoders' cores as they tell them, and those
    of this thread."""
    if not folder.exists():
        from workers.inputs import dataset

        dataset.make(folder, dataset.Recipe(images=64, shards=2, width_px=500, height_px=375, classes=10, seed=0))
    source = open_source(folder, cores=Cores(decode_threads, kept), image_size=224, batch_size=16, classes=10)
    batches = source.stream()
    for _ in range(3):
        next(batches)
    before = cpu_s()
    until = time.monotonic() + 2
    while time.monotonic() < until:
        next(batches)
    spent = {thread: at - before.get(thread, 0) for thread, at in cpu_s().items()}
    busy = [thread for thread, seconds in spent.items() if seconds > 0.2 * max(spent.values())]
    decoding = sum(spent[thread] for thread in busy) / sum(spent.values())
    cores = [os.sched_getaffinity(thread) for thread in busy]
    return cores, decoding, source.decoders.affinity(), os.sched_getaffinity(0)


def cpu_s() -> dict[int, float]:
    found = {}
    for thread in os.listdir("/proc/self/task"):
        found[int(thread)] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    return found


@pytest.mark.parametrize("decode_threads", [1, 2, 3])
def test_a_pipeline_has_the_decode_threads_that_were_asked_for(
    sources: Sources, tmp_path_factory: pytest.TempPathFactory, decode_threads: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "photographs"
    cores, decoding, told, own = sources(busy_threads, folder, decode_threads, frozenset())
    assert cores == [own] * decode_threads
    assert told == own == os.sched_getaffinity(0)
    assert decoding > 0.8


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("decode_threads", [1, 3])
def test_decode_threads_run_on_the_cores_that_are_kept_for_them_and_nobody_else_does(
    sources: Sources, tmp_path_factory: pytest.TempPathFactory, decode_threads: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "photographs"
    kept = frozenset([max(os.sched_getaffinity(0))])
    cores, decoding, told, own = sources(busy_threads, folder, decode_threads, kept)
    assert cores == [kept] * decode_threads
    assert told == kept
    assert own == os.sched_getaffinity(0)
    assert decoding > 0.8
