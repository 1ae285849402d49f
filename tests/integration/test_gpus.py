"""What only a GPU shows, as far as it can be shown without one: real ranks, with what a GPU would say planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from tests.integration import gpu_ranks
from tests.integration.gangs import gang
from workers.checks import gpu_self_test, self_test
from workers.contract import messages
from workers.contract.ranks import Seat
from workers.launch import verdict
from workers.strategies.horovod import environment

pytestmark = pytest.mark.usefixtures("fork_server")

RANKS = "tests.integration.gpu_ranks"
SEAT = Seat(rank=1, size=4, local_rank=1, local_size=2, cross_rank=0, cross_size=2, host="10.0.0.7",
            interface="eth0", rendezvous="10.0.0.1:4242/word")  # fmt: skip


def test_a_ranks_environment_is_what_horovodrun_sets_with_the_interface_for_nccl_too() -> None:
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

    slot = SlotInfo("10.0.0.7", 1, 1, 0, 4, 2, 2)
    theirs = create_slot_env_vars(slot) | create_run_env_vars("10.0.0.1", ["eth0"], "4242")
    assert theirs["NCCL_SOCKET_IFNAME"] == "eth0"
    ours = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": SEAT.rendezvous, "NCCL_DEBUG": "WARN"}
    assert environment(SEAT, {}) == {**theirs, **ours}


def test_an_interface_that_the_user_chose_stays() -> None:
    own = {"NCCL_SOCKET_IFNAME": "ib0,ib1", "NCCL_DEBUG": "INFO"}
    assert environment(SEAT, own).items() >= own.items()
    assert environment(SEAT, own)["HOROVOD_GLOO_IFACE"] == "eth0"


@pytest.mark.parametrize(("env", "interface"), [({}, "lo"), ({"NCCL_SOCKET_IFNAME": "eth7"}, "eth7")])
def test_the_interface_in_force_is_in_the_record(tmp_path: Path, env: dict[str, str], interface: str) -> None:
    outcome = verdict.outcome(gang(2, tmp_path, "workers.workloads.images.train:run", env=env), ())
    assert outcome.measurement, outcome
    assert [rank.in_force["NCCL_SOCKET_IFNAME"] for rank in outcome.measurement.ranks] == [interface] * 2


@pytest.mark.parametrize(
    ("how", "device", "status", "kind", "message"),
    [
        (gpu_ranks.REFUSED, "gpu", "infeasible", "device memory", f"{gpu_ranks.NCCL.decode()}; TensorFlow had up to 0"),
        (gpu_ranks.REFUSED, "cpu", "failed", "raised", "UnknownError: ncclAllReduce failed: unhandled cuda error"),
        (gpu_ranks.BROKEN, "gpu", "failed", "raised", "UnknownError: ncclAllReduce failed: unhandled cuda error"),
        (gpu_ranks.ABORTS, "gpu", "infeasible", "device memory", "2026-11-21 08:46:18.5: F x.cc:71] EigenAllocator"),
        (gpu_ranks.ABORTS, "cpu", "failed", "killed", "killed by signal 6 (SIGABRT)"),
    ],
)  # fmt: skip
def test_a_library_that_was_refused_memory_is_a_finding_and_one_that_broke_is_a_failure(
    tmp_path: Path, how: int, device: str, status: str, kind: str, message: str
) -> None:
    ends = gang(1, tmp_path, f"{RANKS}:fails", batch_size=how, device=device)
    outcome = verdict.outcome(ends, ())
    assert (outcome.status, outcome.kind) == (status, kind), outcome
    assert outcome.message.startswith(message)


def test_what_a_c_library_said_is_in_a_ranks_log(tmp_path: Path) -> None:
    """NCCL writes to a stream that is lost when a process ends as a rank does."""
    gang(1, tmp_path, f"{RANKS}:fails", batch_size=gpu_ranks.REFUSED, device="cpu")
    assert gpu_ranks.NCCL.decode() in (tmp_path / "rank-0.log").read_text()


def test_a_ranks_device_memory_is_the_peak_at_the_end_of_the_window(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"explain": True, "measured_steps": 30}
    ends = gang(2, tmp_path, f"{RANKS}:counts_memory", **fields)
    outcome = verdict.outcome(ends, ())
    assert outcome.measurement, outcome
    assert outcome.measurement.ranks[0].without_ms  # steps were taken after the window
    assert [rank.peak_device_memory_mib for rank in outcome.measurement.ranks] == [1024] * 2
    back = messages.trial_outcome(json.loads(json.dumps(messages.to_json(outcome))))
    assert back == outcome
    record = TrialRecord(config=config(), outcome=back, started_at=0.0, ended_at=1.0)
    assert rows.metrics(record)["peak_device_memory_mib"] == 1024


def test_there_is_no_device_memory_on_a_processor(tmp_path: Path) -> None:
    outcome = verdict.outcome(gang(1, tmp_path), ())
    assert outcome.measurement, outcome
    record = TrialRecord(config=config(), outcome=outcome, started_at=0.0, ended_at=1.0)
    assert "peak_device_memory_mib" not in rows.metrics(record)
    assert rows.metrics(record)["peak_memory_mib"] > 100


def config() -> messages.TrialConfig:
    from tests.unit.records import config as made

    return made()


def test_the_gpu_self_test_measures_every_figure_and_the_link_where_there_is_a_next_device(tmp_path: Path) -> None:
    (end,) = gang(1, tmp_path, f"{RANKS}:on_cpu")
    assert end.kind == "told", end
    two, one = json.loads(end.message)
    link = {"gpu_link_gib_per_s"}
    assert [figures.keys() for figures in two] == [self_test.OF_A_GPU.keys()] * 2
    assert [figures.keys() for figures in one] == [self_test.OF_A_GPU.keys() - link]
    assert all(value > 0 for figures in (*two, *one) for value in figures.values())


def test_a_figure_is_what_a_device_of_known_speed_does_a_second(tmp_path: Path) -> None:
    """Products of 100 × 100 matrices, and passes over a MiB, a millisecond each."""
    (end,) = gang(1, tmp_path, f"{RANKS}:of_known_speed")
    assert end.kind == "told", end
    found = json.loads(end.message)
    assert found["gpu_fp32_tflops"] == pytest.approx(2 * 100**3 / 1e12 / 1e-3)
    assert found["gpu_memory_gib_per_s"] == pytest.approx(2 / 1024 / 1e-3)  # read and written
    assert found["gpu_link_gib_per_s"] == pytest.approx(1 / 1024 / 1e-3)


def test_gpus_that_tensorflow_does_not_see_are_named_with_the_cure() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this node has GPUs")
    (found,) = gpu_self_test.probe("n0", ["0", "1"])
    assert found["trouble"] == "TensorFlow must see the node's GPUs, but sees none: sweep doctor"
