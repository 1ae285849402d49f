"""A name of a GPU means one GPU: to Ray, to CUDA, to NVML, in every place that takes it."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_telemetry import NvmlError, line, nvml_of, sampled
from workers.contract.ranks import Fault
from workers.measure import usage
from workers.node import gpus, pinning, readings

UUIDS = ["GPU-aaaa1111-0", "GPU-bbbb2222-1", "GPU-bbbb3333-2"]
BUSES = ["00000000:07:00.0", "00000000:1A:00.0", "00000000:C1:00.0"]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """NVML of three GPUs, of which the second has a slice."""

    def by_uuid(uuid: str) -> Any:
        if uuid.startswith("MIG-"):
            return ("slice of", 1)
        raise NvmlError("Not Found")

    made = nvml_of(3)
    made.nvmlDeviceGetUUID = lambda gpu: UUIDS[gpu]
    made.nvmlDeviceGetPciInfo = lambda gpu: types.SimpleNamespace(busId=BUSES[gpu].encode())
    made.nvmlDeviceGetHandleByUUID = by_uuid
    made.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = lambda one: one[1]
    monkeypatch.setattr(readings, "nvml", lambda: (made, ""))
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_a_process_numbers_gpus_by_their_place_on_the_bus_as_nvml_does() -> None:
    assert gpus.environment(["1", "3"]) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,3"}
    assert gpus.environment([])["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("2", "2"),
        (UUIDS[1], "1"),
        ("GPU-bbbb3", "2"),  # CUDA takes the beginning of a UUID too
        ("GPU-cccc", "GPU-cccc"),
        ("MIG-dddd", "MIG-dddd"),
        ("", ""),
    ],
)
def test_what_ray_names_by_uuid_gets_nvmls_number(library: Any, name: str, number: str) -> None:
    assert gpus.number(name) == number


def test_names_stay_as_they_are_where_nvml_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "nvml", lambda: (None, "no driver"))
    assert gpus.number(UUIDS[0]) == UUIDS[0]


@pytest.mark.parametrize(("name", "handle"), [("0", 0), (UUIDS[2], 2), ("GPU-aaaa", 0), ("MIG-dddd", 1)])
def test_nvml_is_asked_about_the_gpu_of_that_name(library: Any, name: str, handle: int) -> None:
    assert gpus.handle(library, name) == handle


@pytest.mark.parametrize("name", ["", "-1", "GPU-cccc"])
def test_a_name_of_no_gpu_finds_none(library: Any, name: str) -> None:
    with pytest.raises(LookupError, match="no GPU"):
        gpus.handle(library, name)


@pytest.mark.parametrize("name", ["1", UUIDS[1], "MIG-dddd"])
def test_a_rank_sits_near_its_gpu_however_it_is_named(library: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def text(path: Path) -> str:
        read.append(str(path))
        return "4-7\n"

    monkeypatch.setattr(Path, "read_text", text)
    assert pinning.near_gpu(name) == {4, 5, 6, 7}
    assert read == ["/sys/bus/pci/devices/0000:1a:00.0/local_cpulist"]
    assert pinning.near_gpu("GPU-cccc") == set()


def test_cuda_that_means_another_gpu_fails_the_trial_and_says_so(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_bus_of_cuda", lambda: "0000:1a:00.0")
    gpus.check("1")
    gpus.check("MIG-dddd")
    with pytest.raises(Fault, match=r"by 0, but got 0000:1a:00\.0 and 0000:07:00\.0"):
        gpus.check("0")
    monkeypatch.setattr(gpus, "_bus_of_cuda", lambda: "")
    gpus.check("0")


def test_without_a_driver_cuda_says_nothing() -> None:
    if not Path("/dev/nvidiactl").exists():
        assert gpus._bus_of_cuda() == ""


def test_readings_are_of_the_gangs_gpus_and_none_are_told_of_a_slice() -> None:
    """The sampler names GPUs by NVML's numbers; a slice's counters are those of all that share its GPU."""
    known = sampled(*(line(1000 + i, gpu_power_w={"0": 100, "1": 300}) for i in range(3)))
    assert usage.summary(known, 1000, 1002, gpus=["1"])["gpu_power_w"] == 300
    assert "gpu_power_w" not in usage.summary(known, 1000, 1002, gpus=["MIG-dddd"])
