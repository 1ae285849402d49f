"""Real ranks on this machine: each of their threads runs where the record says."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gangs import gang
from workers.contract.messages import RankReport
from workers.inputs import dataset
from workers.launch import verdict
from workers.node import topology

IMAGE_PX = 64

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.skipif(len(topology.here().cores) != 2, reason="says what becomes of two cores"),
]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("photographs") / "images"
    recipe = dataset.Recipe(images=128, shards=2, width_px=320, height_px=240, classes=10, seed=0)
    dataset.make(folder, recipe)
    dataset.make(folder, dataclasses.replace(recipe, split="validation", images=32))
    return str(folder)


def watched(size: int, folder: Path, **fields: object) -> tuple[list[RankReport], list[dict[str, Any]]]:
    """What each rank reports, and what the kernel said of its threads."""
    asked = {"image_size": IMAGE_PX, "measured_steps": 30} | fields
    outcome = verdict.outcome(gang(size, folder, "tests.integration.watched_ranks:run", **asked), ())
    assert outcome.measurement, outcome
    told = [json.loads((folder / f"threads-{rank}.json").read_text()) for rank in range(size)]
    return list(outcome.measurement.ranks), told


def cpus(core: topology.Core) -> str:
    return topology.listed(core.cpus)


def test_every_thread_of_two_ranks_runs_on_its_rank_s_core_alone(tmp_path: Path) -> None:
    reports, told = watched(2, tmp_path)
    for core, report, threads in zip(topology.here().cores, reports, told, strict=True):
        assert report.pinned == f"compute {cpus(core)}"
        assert not report.pinning_note
        assert {thread["cpus"] for thread in threads["finish"].values()} == {cpus(core)}
        assert str(threads["pid"]) in threads["finish"]
        assert len(threads["finish"]) > 2, "TensorFlow's and Horovod's are among them"


@pytest.mark.parametrize("protocol", ["throughput", "convergence"])
def test_threads_that_decode_have_the_core_that_is_theirs_and_all_others_the_other(
    tmp_path: Path, photographs: str, protocol: str
) -> None:
    compute, decode = (cpus(core) for core in topology.here().cores)
    asked = {"protocol": protocol, "epochs": 2, "evaluate_every": 1, "data": photographs, "decode_threads": 1}
    (report,), (threads,) = watched(1, tmp_path, **asked)
    assert report.pinned == f"compute {compute}, decode {decode}"
    assert report.decode_threads == 1
    before, after = threads["before input"], threads["finish"]
    assert {thread["cpus"] for thread in before.values()} == {compute}
    assert {after[thread]["cpus"] for thread in after.keys() & before.keys()} == {compute}
    assert after[str(threads["pid"])]["cpus"] == compute
    if protocol == "throughput":  # its decode threads are still there when it reports
        started = {thread: facts for thread, facts in after.items() if thread not in before}
        decoding = [facts for facts in started.values() if facts["cpus"] == decode]
        assert {facts["cpus"] for facts in after.values()} == {compute, decode}
        assert max(started.values(), key=lambda facts: facts["ms"]) in decoding
        assert sum(facts["ms"] for facts in decoding) > 0.9 * sum(facts["ms"] for facts in started.values())


def test_where_there_are_too_few_cores_nothing_is_pinned_and_it_says_why(tmp_path: Path, photographs: str) -> None:
    reports, told = watched(2, tmp_path, data=photographs, decode_threads=3)
    anywhere = topology.listed(os.sched_getaffinity(0))
    for report, threads in zip(reports, told, strict=True):
        assert report.pinned == ""
        needed = "2 ranks need 6 physical cores of their own (1 each to compute and 2 each to decode)"
        assert report.pinning_note == f"{needed}, but the node has 2"
        assert report.decode_threads == 4, "two for each"
        assert {thread["cpus"] for thread in threads["finish"].values()} == {anywhere}
