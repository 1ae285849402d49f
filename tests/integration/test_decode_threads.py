"""Decode threads: as many as were asked for, of a node, on the cores that they may use."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.input_sets import (
    Elsewhere,
    Ring,
    open_source,
)
from workers import pinning
from workers.inputs import threads


@pytest.mark.parametrize(
    ("wanted", "physical_cores", "local_size", "threads_of_rank", "cores"),
    [
        (8, 64, 1, 8, None),
        (8, 64, 4, 2, None),
        (6, 64, 4, 2, {0, 1, 2, 3, 4, 5}),  # 8 threads on 6 cores
        (2, 64, 4, 1, {0, 1}),
        (1, 64, 1, 1, None),
        (15, 8, 4, 4, None),  # there are no 15 cores to keep to
        ("auto", 64, 8, 4, None),
        ("auto", 64, 1, 60, None),
        ("auto", 4, 2, 1, {0}),  # at least one, for both
        ("auto", 16, 3, 2, {0, 1, 2, 3}),  # 4 threads for 3 ranks
    ],
)  # fmt: skip
def test_decode_threads_are_shared_by_the_ranks_of_a_node(
    wanted: Any, physical_cores: int, local_size: int, threads_of_rank: int, cores: set[int] | None
) -> None:
    of_node = pinning.decode_threads(wanted, physical_cores, local_size)
    share = threads.share(of_node, local_size, range(8 if wanted == 15 else 64))
    assert share == (threads_of_rank, cores)


def busy_threads(folder: Path, decode_threads: int, local_size: int) -> Any:
    """The threads that do the work of a stream, each with its cores, and those of this thread."""
    if not folder.exists():
        from workers import dataset

        dataset.make(folder, dataset.Recipe(images=64, shards=2, width_px=500, height_px=375, classes=10, seed=0))
    ring = Ring(0, local_size)
    ring.local_size = local_size
    ring.size = 1
    source = open_source(folder, ring, decode_threads=decode_threads, image_size=224, batch_size=16, classes=10)
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
    return [os.sched_getaffinity(thread) for thread in busy], decoding, os.sched_getaffinity(0)


def cpu_s() -> dict[int, float]:
    found = {}
    for thread in os.listdir("/proc/self/task"):
        found[int(thread)] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    return found


@pytest.mark.parametrize("decode_threads", [1, 2, 3])
def test_a_pipeline_has_the_decode_threads_that_were_asked_for(
    elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory, decode_threads: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "photographs"
    cores, decoding, own = elsewhere(busy_threads, folder, decode_threads, 1)
    assert cores == [own] * decode_threads
    assert decoding > 0.8


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_ranks_with_more_threads_than_were_asked_for_keep_to_as_many_cores(
    elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "photographs"
    cores, decoding, own = elsewhere(busy_threads, folder, 1, 2)
    assert cores == [{min(own)}]
    assert decoding > 0.8
    assert len(own) == len(os.sched_getaffinity(0))
