"""Tests of GPUs are told one by one, and each is judged beside those of its kind."""

from __future__ import annotations

import subprocess
import types
from typing import Any

import pytest

from sweeps.run.conductor import Conductor
from sweeps.scheduling.observer import Observer
from tests.unit.records import config
from workers.checks import gpu_self_test

MODEL = "NVIDIA A100-SXM4-80GB"


def measured(*factors: float, links: tuple[float, ...] = (250.0, 20.0, 250.0, 20.0)) -> list[dict[str, Any]]:
    """What GPUs gave that are so many times as fast as they should be; every second link is without NVLink."""
    return [
        {
            "model": MODEL,
            "figures": {"gpu_fp16_tflops": 280.0 * f, "gpu_memory_gib_per_s": 1600.0, "gpu_link_gib_per_s": link},
        }
        for f, link in zip(factors, links, strict=False)
    ]


class Heard(Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, message: str) -> None:
        self.warnings.append(message)


class Notes:
    """A ledger that only takes notes."""

    def __init__(self) -> None:
        self.probes: list[dict[str, Any]] = []

    def note(self, kind: str, facts: dict[str, Any]) -> None:
        self.probes.append(facts)


def judged(*rounds: list[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """The warnings of a sweep in which these were tested, one round after the other; and what its ledger notes."""
    heard, notes = Heard(), Notes()
    conductor = Conductor(types.SimpleNamespace(), notes, [heard])  # type: ignore[arg-type]
    for n, tests in enumerate(rounds):
        conductor.tested(config(repeat=n), tests)
    return heard.warnings, notes.probes


def test_a_gpu_is_told_by_its_number_and_a_link_by_both() -> None:
    found = gpu_self_test.tests("n0", 5.0, ["4", "6"], measured(1, 1))
    assert [(one["node"], set(one["figures"])) for one in found] == [
        ("n0 GPU 4", {"gpu_fp16_tflops", "gpu_memory_gib_per_s"}),
        ("n0 GPU 4→6", {"gpu_link_gib_per_s"}),
        ("n0 GPU 6", {"gpu_fp16_tflops", "gpu_memory_gib_per_s"}),
        ("n0 GPU 6→4", {"gpu_link_gib_per_s"}),
    ]
    assert {one["kind"] for one in found} == {MODEL, f"{MODEL} 4→6", f"{MODEL} 6→4"}


def test_one_slow_gpu_among_its_peers_is_found() -> None:
    warnings, notes = judged(gpu_self_test.tests("n0", 0.0, list("0123"), measured(1, 0.97, 0.85, 1.02)))
    assert warnings == [
        "n0 GPU 2 is slower: fp16 matrix products: 238 TFLOP/s, 15% below the median of its 3 peers (280)"
    ]
    assert [one["node"] for one in notes if one.get("slow")] == ["n0 GPU 2"]


def test_a_link_without_nvlink_is_not_slow_beside_one_that_has_it() -> None:
    assert judged(gpu_self_test.tests("n0", 0.0, list("0123"), measured(1, 1, 1, 1)))[0] == []


def test_a_link_that_is_slower_than_the_same_link_of_other_nodes_is_found() -> None:
    slower = measured(1, 1, 1, 1, links=(25.0, 20.0, 250.0, 20.0))
    rounds = [
        gpu_self_test.tests(f"n{n}", 0.0, list("0123"), one) for n, one in enumerate([measured(1, 1, 1, 1), slower])
    ]
    (warning,) = judged(*rounds)[0]
    assert warning.startswith(
        "n1 GPU 0→1 differs from the one other node: copying from GPU to GPU: 25 GiB/s, 90% below"
    )


def test_another_model_is_no_peer() -> None:
    other = [{"model": "Tesla T4", "figures": {"gpu_fp16_tflops": 40.0}}]
    assert (
        judged(
            gpu_self_test.tests("n0", 0.0, ["0"], other), gpu_self_test.tests("n1", 0.0, list("01"), measured(1, 1))
        )[0]
        == []
    )


def test_a_node_is_still_judged_beside_nodes_and_not_beside_gpus() -> None:
    def node(name: str, gflops: float) -> dict[str, Any]:
        return {"node": name, "at": 0.0, "figures": {"core_gflops": gflops}}

    gpus = gpu_self_test.tests("n0", 0.0, list("01"), measured(1, 1))
    (warning,) = judged([node("n0", 100.0), *gpus, node("n1", 50.0)])[0]
    assert warning.startswith("n1 differs from the one other node: matrix products on one core")


def test_gpus_that_cannot_be_tested_are_named_and_the_sweep_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}

    def fails(command: list[str], env: dict[str, str], **_: Any) -> Any:
        asked.update(env)
        return subprocess.CompletedProcess(command, 1, "", "noise\nInternalError: no kernel image is available\n")

    monkeypatch.setattr(subprocess, "run", fails)
    found = gpu_self_test.probe("n0", ["0", "MIG-aaaa", "3"])
    assert (asked["CUDA_VISIBLE_DEVICES"], asked["CUDA_DEVICE_ORDER"]) == ("0,3", "PCI_BUS_ID")
    warnings, notes = judged(found)
    assert warnings == ["n0's GPUs could not be tested: InternalError: no kernel image is available"]
    assert [one["figures"] for one in notes] == [{}]


def test_a_test_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(command: list[str], timeout: float, **_: Any) -> Any:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hangs)
    assert gpu_self_test.probe("n0", ["0"])[0]["trouble"] == "no answer within 180 s"


def test_nothing_is_started_where_a_gang_has_no_whole_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("started a process"))
    assert gpu_self_test.probe("n0", []) == []
    assert gpu_self_test.probe("n0", ["MIG-aaaa"]) == []


def test_a_rate_is_told_without_what_the_first_time_takes() -> None:
    import time

    took = iter([0.2])

    def work(times: int) -> None:
        time.sleep(next(took, 0.01 * times))

    rate = gpu_self_test.paced(work)
    assert 30 < rate() <= 100
    assert 30 < rate() <= 100
