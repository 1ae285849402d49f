"""A gang over a real placement group: its GPUs, its stop, the loss of a supervisor, the death of the node actor."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from sweeps.cluster import cleanup, ray_cluster
from tests.integration import bad_ranks
from tests.unit.records import config
from workers.contract import messages
from workers.contract.paths import SweepPaths
from workers.contract.ranks import Seat, Voice
from workers.launch.gang import Group, NodeActors

pytestmark = pytest.mark.alone

BUNDLE = {"CPU": 2, "GPU": 2}
DEADLINES = messages.Deadlines(ring_s=20, step_s=20)


def shows_its_gpu(_: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    voice.say("failed", kind=f"rank {seat.rank}", message=os.environ["CUDA_VISIBLE_DEVICES"])


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory, left_behind: Callable[[], list[str]]) -> Iterator[SweepPaths]:
    """A private Ray with two (logical) GPUs and a fork server."""
    os.environ.update(ray_cluster.QUIET)
    paths = SweepPaths("group", tmp_path_factory.mktemp("results"))
    with cleanup.swept() as folder:
        ray.init("local", num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        node_actors = NodeActors(paths)
        node_actors.cover()
        yield paths
        node_actors.dismiss()
        ray.shutdown()
    assert not left_behind()


@pytest.fixture
def group(logs: SweepPaths) -> Iterator[Group]:
    placement = placement_group([BUNDLE])
    ray.get(placement.ready())
    made = Group(placement, [2])
    yield made
    made.close()
    remove_placement_group(placement)
    until = time.monotonic() + 10
    while ray.available_resources().get("GPU", 0) < 2:
        assert time.monotonic() < until, "the placement group is not free"
        time.sleep(0.1)


def trial(batch_size: int, **fields: Any) -> messages.TrialConfig:
    given = {"batch_size": batch_size, "image_size": 32, "classes": 10, "deadlines": DEADLINES} | fields
    return dataclasses.replace(config(gpus=2), **given)


def ended(group: Group) -> messages.TrialOutcome:
    while (outcome := group.wait(1)) is None:
        pass
    return outcome


def processes(wanted: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that has just ended
            if wanted in " ".join(process.cmdline()):
                found.append(process)
    return found


def ranks() -> list[psutil.Process]:
    found = processes("workers.launch.fork_server")
    fork_servers = {process.pid for process in found}
    return [process for process in found if process.is_running() and process.ppid() in fork_servers]


def wait_for_ranks() -> list[psutil.Process]:
    until = time.monotonic() + 60
    while len(found := ranks()) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def test_each_rank_sees_a_gpu_of_its_own(group: Group, logs: SweepPaths) -> None:
    group.start(trial(8, device="gpu"), logs, "tests.integration.test_group:shows_its_gpu")
    outcome = ended(group)
    assert [place.gpu for place in outcome.granted] == ["0", "1"]
    assert outcome.rank is not None
    assert outcome.message == str(outcome.rank)


def test_a_node_and_the_gangs_gpus_are_tested_once_and_new_gpus_when_they_come(logs: SweepPaths, group: Group) -> None:
    """These GPUs are only promised, so that their test says what it misses, and that the gang's are asked about."""
    group.seats = [1]
    first = group.probe(logs, 3600, trial(8, device="gpu", gpus=1))
    assert [bool(test["figures"]) for test in first] == [True, False]
    assert "sees none" in first[1]["trouble"]
    assert group.probe(logs, 3600, trial(8, device="gpu", gpus=1)) == []
    group.seats = [2]
    (second,) = group.probe(logs, 3600, trial(8, device="gpu"))
    assert "sees none" in second["trouble"]
    assert group.probe(logs, 3600, trial(8, device="gpu")) == []


def test_a_smaller_gang_takes_over_from_a_larger_one_and_gives_back(group: Group, logs: SweepPaths) -> None:
    granted = []
    for ranks in (1, 2, 1):
        group.seats = [ranks]
        group.start(trial(8, device="gpu", gpus=ranks), logs, "tests.integration.test_group:shows_its_gpu")
        granted.append([place.gpu for place in ended(group).granted])
    assert granted == [["0"], ["0", "1"], ["0"]]
    assert len(processes("ray::Supervisor")) == 2


def test_a_gang_that_is_stopped_is_gone_and_its_supervisors_serve_the_next(group: Group, logs: SweepPaths) -> None:
    group.start(trial(bad_ranks.NEVER_JOINS), logs, "tests.integration.bad_ranks:run")
    wait_for_ranks()
    group.stop()
    assert not ranks()
    group.start(trial(8), logs, "tests.integration.bad_ranks:run")
    assert ended(group).status == "completed"


def test_a_lost_supervisor_takes_its_gang_with_it_and_the_next_gang_runs(group: Group, logs: SweepPaths) -> None:
    group.start(trial(bad_ranks.NEVER_JOINS), logs, "tests.integration.bad_ranks:run")
    wait_for_ranks()
    processes("ray::Supervisor.run")[0].send_signal(signal.SIGKILL)
    outcome = ended(group)
    assert (outcome.status, outcome.kind) == ("lost", "node lost")
    assert not ranks()
    group.start(trial(8), logs, "tests.integration.bad_ranks:run")
    assert ended(group).status == "completed"


def test_a_killed_node_actor_comes_back_with_a_fork_server(group: Group, logs: SweepPaths) -> None:
    (node_actor,) = processes("ray::NodeActor.tend")
    before = {process.pid for process in processes("workers.launch.fork_server")}
    node_actor.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while not {process.pid for process in processes("workers.launch.fork_server")} - before:
        assert time.monotonic() < until
        time.sleep(0.2)
    group.start(trial(8), logs, "tests.integration.bad_ranks:run")
    assert ended(group).status == "completed"


def test_a_fork_server_s_log_lies_with_the_ranks_(logs: SweepPaths) -> None:
    assert list(Path(logs.logs).glob("fork-server-*.log"))


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed: make setup TORCH=1")
def test_a_node_starts_the_fork_server_of_torch_when_a_trial_first_wants_it_and_keeps_it(
    group: Group, logs: SweepPaths
) -> None:
    of_torch = "-torch torch"
    assert not processes(of_torch)
    kept = []
    for batch_size in (8, 16):
        group.start(trial(batch_size, framework="torch", measured_steps=5), logs)
        assert ended(group).status == "completed"
        kept.append([process.pid for process in processes(of_torch)])
    assert len(kept[0]) == 1
    assert kept[0] == kept[1]
    group.start(trial(8, measured_steps=5), logs)
    assert ended(group).status == "completed", "beside it the other framework's goes on"
