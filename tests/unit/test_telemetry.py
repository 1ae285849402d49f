"""A node's counters are read as they stand, and a window's figures are exact differences of them."""

from __future__ import annotations

import itertools
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.measure import usage
from workers.measure.usage import GIB, MIB, Sample
from workers.node import readings, telemetry

STAT = """\
cpu  400 20 100 5000 300 10 30 60 999 0
cpu0 300 20 50 2000 100 10 20 40 999 0
cpu1 100 0 50 3000 200 0 10 20 0 0
intr 99999 1 2 3
cpufoo 1
ctxt 5
"""
MEMINFO = """\
MemTotal:       16000 kB
MemFree:         1000 kB
MemAvailable:    9000 kB
Buffers:          100 kB
Cached:          5000 kB
SwapCached:         0 kB
Shmem:            300 kB
HugePages_Total:    0
"""
DISKSTATS = """\
   7       0 loop0 9 0 9 0 9 0 9 0 0 0 0
 259       0 nvme0n1 10 0 2000 5 20 0 4000 6 0 7 8 0 0 0 0 0 0
 259       1 nvme0n1p1 10 0 2000 5 20 0 4000 6 0 7 8
   8       0 sda 1 0 8 0 1 0 16 0 0 0 0
 253       0 dm-0 10 0 2008 5 20 0 4016 6 0 7 8
"""
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 500 5 0 0 0 0 0 0 500 5 0 0 0 0 0 0
  eth0:70 7 0 0 0 0 0 0 30 3 0 0 0 0 0 0
 bond0: 70 7 0 0 0 0 0 0 30 3 0 0 0 0 0 0
"""


def test_a_core_that_waits_for_a_disk_or_its_hypervisor_is_not_busy() -> None:
    read = readings.processor_seconds(STAT)
    ticks = {core: seconds * readings.TICKS_PER_S for core, seconds in read["cpu_busy_s"].items()}
    assert ticks == pytest.approx({"0": 400, "1": 160})
    assert read["cpu_steal_s"][""] * readings.TICKS_PER_S == pytest.approx(60)


def test_shared_memory_counts_as_used_and_not_as_page_cache() -> None:
    read = readings.memory_bytes(MEMINFO)
    assert read["memory_used_bytes"] == {"": 7000 * 1024}
    assert read["memory_available_bytes"] == {"": 9000 * 1024}
    assert read["page_cache_bytes"] == {"": 4800 * 1024}


def test_only_whole_disks_count() -> None:
    read = readings.disk_bytes(DISKSTATS, {"nvme0n1", "sda"})
    assert read == {
        "disk_read_bytes": {"nvme0n1": 2000 * 512, "sda": 8 * 512},
        "disk_write_bytes": {"nvme0n1": 4000 * 512, "sda": 16 * 512},
    }


@pytest.mark.parametrize(("real", "counted"), [({"eth0"}, {"eth0"}), (set(), {"eth0", "bond0"})])
def test_real_interfaces_count_and_in_a_container_all_but_the_loopback(real: set[str], counted: set[str]) -> None:
    read = readings.network_bytes(NET, real)
    assert read["net_send_bytes"] == dict.fromkeys(counted, 30)
    assert read["net_receive_bytes"] == dict.fromkeys(counted, 70)
    assert read["loopback_bytes"] == {"": 500}


def test_an_infiniband_port_counts_words_of_four_bytes() -> None:
    assert readings.port_bytes("10\n", "20\n", "mlx5_0/1") == {
        "ib_send_bytes": {"mlx5_0/1": 40},
        "ib_receive_bytes": {"mlx5_0/1": 80},
    }


@given(st.integers(1, 10**9), st.data())
def test_energy_goes_on_where_its_counter_begins_anew(range_uj: int, data: st.DataObject) -> None:
    grown = data.draw(st.lists(st.integers(0, range_uj), max_size=20))
    meter = readings.EnergyMeter("package-0", range_uj)
    for total in itertools.accumulate(grown):
        assert meter.read(str(total % (range_uj + 1)))["cpu_energy_j"]["package-0"] == pytest.approx(total / 1e6)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a node with one disk, one interface, one InfiniBand port, one processor package and no GPU."""
    monkeypatch.setattr(readings, "nvml", lambda: (None, "no driver"))
    files = {
        "proc/stat": STAT,
        "proc/meminfo": MEMINFO,
        "proc/diskstats": DISKSTATS,
        "proc/net/dev": NET,
        "sys/block/nvme0n1/device/model": "A disk",
        "sys/block/nvme0c0n1/device/model": "A path to it",
        "sys/block/nvme0c0n1/hidden": "1",
        "sys/block/loop0/size": "8",
        "sys/class/net/eth0/device/vendor": "0x1",
        "sys/class/net/bond0/mtu": "1500",
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "10",
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "20",
        "sys/class/powercap/intel-rapl:0/name": "package-0",
        "sys/class/powercap/intel-rapl:0/energy_uj": "2000000",
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "9000000",
        "sys/class/powercap/intel-rapl:0:0/name": "core",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def test_what_a_node_has_is_found_and_read_again_and_again(node: Path) -> None:
    sources, missing = readings.sources(f"{node}/proc", f"{node}/sys")
    values, gone = telemetry.take(sources)
    assert [it.name for it in missing] == ["GPUs"]
    assert not gone
    assert values["disk_read_bytes"] == {"nvme0n1": 2000 * 512}
    assert values["net_send_bytes"] == {"eth0": 30}
    assert values["ib_send_bytes"] == {"mlx5_0/1": 40}
    assert values["cpu_energy_j"] == {"package-0": 2.0}
    (node / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("1000000")
    assert telemetry.take(sources)[0]["cpu_energy_j"] == {"package-0": pytest.approx(10.000001)}


def test_what_can_no_longer_be_read_is_named_once_and_the_rest_goes_on(node: Path) -> None:
    sources, _ = readings.sources(f"{node}/proc", f"{node}/sys")
    (node / "proc/meminfo").write_text("nothing of it")
    values, gone = telemetry.take(sources)
    assert [it.name for it in gone] == [f"{node}/proc/meminfo"]
    assert "memory_used_bytes" not in values
    assert "cpu_busy_s" in values
    assert telemetry.take(sources)[1] == []


def test_a_node_without_energy_counters_says_so(tmp_path: Path) -> None:
    _, missing = readings.sources(f"{tmp_path}/proc", f"{tmp_path}/sys")
    assert "cpu_energy_j" in [it.name for it in missing]


class NvmlError(Exception):
    pass


def nvml_of(gpus: int, without: str = "") -> types.SimpleNamespace:
    """A stand-in for NVIDIA's library, in which every answer names its GPU and one question has no answer."""

    def answer(name: str, value: Any) -> Any:
        def ask(gpu: int, *_: Any, **__: Any) -> Any:
            if name == without:
                raise NvmlError("Not Supported")
            return value(gpu)

        return ask

    linked = types.SimpleNamespace(nvmlReturn=0, value=types.SimpleNamespace(ullVal=7))
    return types.SimpleNamespace(
        NVMLError=NvmlError,
        NVML_SUCCESS=0,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX=138,
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX=139,
        NVML_PCIE_UTIL_TX_BYTES=0,
        NVML_PCIE_UTIL_RX_BYTES=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: gpus,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=answer("rates", lambda gpu: types.SimpleNamespace(gpu=90 + gpu)),
        nvmlDeviceGetMemoryInfo=answer("memory", lambda gpu: types.SimpleNamespace(used=gpu * GIB)),
        nvmlDeviceGetPowerUsage=answer("power", lambda gpu: 300_000 + gpu),
        nvmlDeviceGetTotalEnergyConsumption=answer("energy", lambda gpu: 5_000),
        nvmlDeviceGetClockInfo=answer("clock", lambda gpu: 1980),
        nvmlDeviceGetTemperature=answer("temperature", lambda gpu: 60 + gpu),
        nvmlDeviceGetFieldValues=answer("fields", lambda gpu: [linked]),
        nvmlDeviceGetPcieThroughput=answer("pcie", lambda gpu: 1000 + gpu),
    )


def gpu_sources(monkeypatch: pytest.MonkeyPatch, library: Any, node: Path) -> list[readings.ReadingSource]:
    monkeypatch.setattr(readings, "nvml", lambda: (library, ""))
    return readings.sources(f"{node}/proc", f"{node}/sys")[0]


def test_each_gpu_is_asked_and_pcie_of_one_at_a_time(monkeypatch: pytest.MonkeyPatch, node: Path) -> None:
    sources = gpu_sources(monkeypatch, nvml_of(2), node)
    values, gone = telemetry.take(sources)
    assert not gone
    assert values["gpu_percent"] == {"0": 90, "1": 91}
    assert values["gpu_energy_j"] == {"0": 5.0, "1": 5.0}
    assert values["gpu_nvlink_send_bytes"] == {"0": 7 * 1024, "1": 7 * 1024}
    assert values["gpu_pcie_send_kb_per_s"] == {"0": 1000}
    assert telemetry.take(sources)[0]["gpu_pcie_send_kb_per_s"] == {"0": 1000, "1": 1001}


def test_a_gpu_without_an_energy_meter_tells_the_rest(monkeypatch: pytest.MonkeyPatch, node: Path) -> None:
    values, gone = telemetry.take(gpu_sources(monkeypatch, nvml_of(1, without="energy"), node))
    assert [(it.name, it.why) for it in gone] == [("gpu_energy_j of GPU 0", "Not Supported")]
    assert values["gpu_power_w"] == {"0": 300.0}


def line(at: float, *, every_s: float = 1.0, **quantities: Any) -> str:
    """A sample whose monotonic clock began at 1000 of the wall clock. A number stands for the whole node's."""
    values = {name: it if isinstance(it, dict) else {"": it} for name, it in quantities.items()}
    return json.dumps({"at": at, "monotonic": at - 1000, "every_s": every_s, **values})


def sampled(*lines: str) -> list[Sample]:
    return list(usage.samples(lines))


def test_rates_are_differences_over_the_window() -> None:
    at_1000 = {"cpu_busy_s": {"0": 10, "1": 20}, "disk_read_bytes": {"a": 0, "b": 5 * MIB}, "net_send_bytes": MIB}
    at_1001 = {"cpu_busy_s": {"0": 11, "1": 20}, "disk_read_bytes": {"a": 0, "b": 9 * MIB}, "net_send_bytes": MIB}
    at_1004 = {"cpu_busy_s": {"0": 14, "1": 21}, "disk_read_bytes": {"a": 0, "b": 13 * MIB}, "net_send_bytes": 9 * MIB}
    known = sampled(line(1000, **at_1000), line(1001, **at_1001), line(1004, **at_1004))
    told = usage.summary(known, 1000, 1004)
    assert told == {
        "samples": 3,
        "sampled_s": 4,
        "cpu_percent": pytest.approx(62.5),
        "cpu_core_max_percent": pytest.approx(100),
        "disk_read_mib_per_s": 2,
        "disk_read_mib": 8,
        "net_send_mib_per_s": 2,
    }


def test_a_window_between_two_samples_has_its_part_of_what_they_count() -> None:
    known = sampled(
        line(1000, disk_read_bytes=0, memory_used_bytes=2 * GIB),
        line(1001, disk_read_bytes=8 * MIB, memory_used_bytes=4 * GIB),
    )
    told = usage.summary(known, 1000.25, 1000.5)
    assert told["samples"] == 0
    assert told["sampled_s"] == 0.25
    assert told["disk_read_mib"] == 2
    assert told["disk_read_mib_per_s"] == 8
    assert told["memory_used_gib"] == 3  # at its end


def test_a_window_that_begins_between_samples_takes_part_of_the_first_stretch() -> None:
    known = sampled(*(line(1000 + i, disk_read_bytes=MIB * i * i) for i in range(4)))  # 1, 3, 5 MiB
    assert usage.summary(known, 1000.5, 1002.5)["disk_read_mib"] == 0.5 + 3 + 2.5


@given(
    st.lists(st.integers(0, 10**12), min_size=3, max_size=12),
    st.floats(0.01, 0.99),
)
def test_two_windows_side_by_side_count_what_both_count(grown: list[int], where: float) -> None:
    counts = list(itertools.accumulate(grown))
    known = sampled(*(line(1000 + i, disk_read_bytes=count) for i, count in enumerate(counts)))
    end = 1000 + len(counts) - 1
    cut = 1000 + where * (end - 1000)
    parts = [usage.summary(known, 1000, cut), usage.summary(known, cut, end)]
    whole = usage.summary(known, 1000, end)
    assert sum(part["disk_read_mib"] for part in parts) == pytest.approx(whole["disk_read_mib"])


def test_nothing_is_told_where_nothing_was_sampled(tmp_path: Path) -> None:
    known = sampled(line(1000, disk_read_bytes=0), line(1001, disk_read_bytes=0))
    assert usage.summary([], 1000, 1001) == {}
    assert usage.summary(known, 1001, 1005) == {}
    assert usage.summary(known, 990, 1000) == {}
    assert usage.summary(tmp_path / "none", 990, 1000) == {}


def test_a_window_within_a_gap_of_the_sampler_is_not_guessed() -> None:
    known = sampled(line(1000, disk_read_bytes=0), line(1060, disk_read_bytes=60 * MIB))
    assert usage.summary(known, 1010, 1020) == {}
    assert usage.summary(known, 1000, 1060)["disk_read_mib"] == 60  # all of it is a plain difference


def test_a_rate_is_of_the_monotonic_clock() -> None:
    """The wall clock is adjusted while the sampler runs."""
    known = [
        Sample(1000, 0, 1.0, {"disk_read_bytes": {"a": 0}}),
        Sample(1002, 1, 1.0, {"disk_read_bytes": {"a": 6 * MIB}}),
    ]
    assert usage.summary(known, 1000, 1002)["disk_read_mib_per_s"] == 6


def test_a_counter_that_began_anew_tells_nothing_of_that_stretch() -> None:
    counts = [100 * MIB, 102 * MIB, 0, 2 * MIB]
    known = sampled(*(line(1000 + i, disk_read_bytes=count) for i, count in enumerate(counts)))
    assert usage.summary(known, 1000, 1003)["disk_read_mib_per_s"] == 2


@pytest.mark.parametrize(("seen", "is_told"), [(8, True), (4, False)])
def test_a_counter_that_went_missing_is_told_if_most_of_the_window_was_seen(seen: int, is_told: bool) -> None:
    lines = [
        line(1000 + i, loopback_bytes=i * MIB, **({"disk_read_bytes": 3 * i * MIB} if i <= seen else {}))
        for i in range(11)
    ]
    lines.insert(seen + 1, json.dumps({"at": 1000 + seen + 1, "missing": "disks", "why": "gone"}))
    told = usage.summary(sampled(*lines), 1000, 1010)
    assert told["loopback_mib_per_s"] == 1
    assert told.get("disk_read_mib") == (30 if is_told else None)  # the rest as what was seen
    assert told.get("disk_read_mib_per_s") == (3 if is_told else None)


def test_readings_are_means_over_time_and_maxima() -> None:
    known = sampled(
        line(1000, page_cache_bytes=0, gpu_percent={"0": 100, "1": 0}, gpu_memory_bytes={"0": GIB, "1": 2 * GIB}),
        line(1001, page_cache_bytes=4 * GIB, gpu_percent={"0": 100, "1": 0}, gpu_memory_bytes={"0": 3 * GIB, "1": 0}),
        line(1004, page_cache_bytes=4 * GIB, gpu_percent={"0": 100, "1": 0}, gpu_memory_bytes={"0": GIB, "1": 0}),
    )
    told = usage.summary(known, 1000, 1004)
    assert told["page_cache_gib"] == 3.5
    assert told["gpu_percent"] == 50
    assert told["gpu_memory_gib"] == 3


def test_energy_is_what_meters_say_and_else_power_over_time() -> None:
    known = sampled(
        line(1000, cpu_energy_j={"p0": 5, "p1": 5}, gpu_energy_j={"0": 900}, gpu_power_w={"0": 100, "1": 200}),
        line(1002, cpu_energy_j={"p0": 25, "p1": 15}, gpu_energy_j={"0": 1150}, gpu_power_w={"0": 100, "1": 400}),
    )
    told = usage.summary(known, 1000, 1002)
    assert told["cpu_energy_j"] == 30
    assert told["gpu_energy_j"] == 250 + 600
    assert told["gpu_power_w"] == 400


def test_a_trial_on_some_gpus_is_told_of_those() -> None:
    known = sampled(*(line(1000 + i, gpu_percent={"0": 10, "1": 90, "10": 50}, cpu_busy_s=i) for i in range(2)))
    told = usage.summary(known, 1000, 1001, gpus=("1",))
    assert told["gpu_percent"] == 90
    assert told["cpu_percent"] == 100
    of_none = usage.summary(known, 1000, 1001, gpus=())
    assert not [name for name in of_none if name.startswith("gpu_")], "a trial without GPUs has none of the node's"


def test_a_gpu_that_was_not_seen_takes_the_figures_of_its_trial_s_gpus_along() -> None:
    """300 J of one GPU are not the energy of two."""
    lines = [line(1000 + i, gpu_energy_j={"0": 300 * i}, gpu_power_w={"0": 300}, cpu_busy_s=i) for i in range(2)]
    assert usage.summary(sampled(*lines), 1000, 1001, gpus=("0",))["gpu_energy_j"] == 300
    told = usage.summary(sampled(*lines), 1000, 1001, gpus=("0", "1"))
    assert not [name for name in told if name.startswith("gpu_")]
    assert told["cpu_percent"] == 100


def test_nodes_add_up_what_they_move_and_keep_the_worst() -> None:
    nodes = [
        {
            "samples": 9,
            "sampled_s": 9,
            "cpu_percent": 20,
            "disk_read_mib": 3,
            "gpu_temperature_c": 60,
            "cpu_energy_j": 7,
        },
        {"samples": 8, "sampled_s": 8, "cpu_percent": 40, "disk_read_mib": 4, "gpu_temperature_c": 80},
    ]
    assert usage.combine(nodes) == {
        "samples": 17,
        "sampled_s": 8,
        "cpu_percent": 30,
        "disk_read_mib": 7,
        "gpu_temperature_c": 80,
    }
    assert usage.combine([]) == {}


def test_energy_of_a_trial_is_of_what_every_node_can_tell() -> None:
    both = {"cpu_energy_j": 1.0, "gpu_energy_j": 10.0}
    assert usage.combine([both, both]) == {"cpu_energy_j": 2, "gpu_energy_j": 20}
    assert usage.combine([both, {"gpu_energy_j": 20.0}]) == {"gpu_energy_j": 30}
    assert usage.combine([both, {}]) == {}


def test_a_machine_that_is_several_of_ray_s_nodes_counts_once() -> None:
    """Both read the same processors and disks; each has GPUs of its own."""
    one = {"cpu_energy_j": 50.0, "disk_read_mib": 3.0, "cpu_percent": 20.0, "gpu_energy_j": 300.0, "gpu_power_w": 150.0}
    other = one | {"gpu_energy_j": 200.0, "gpu_power_w": 100.0}
    apart = {"cpu_energy_j": 50.0, "disk_read_mib": 3.0, "cpu_percent": 20.0}
    assert usage.combine([one, other], ["a", "a"]) == apart | {"gpu_energy_j": 500.0, "gpu_power_w": 250.0}
    assert usage.combine([one, other], ["a", "b"])["cpu_energy_j"] == 100.0
    assert usage.combine([one, other], ["", ""])["cpu_energy_j"] == 100.0, "nobody knows which machines"
    assert usage.combine([one, other, one], ["a", "a", "b"])["cpu_energy_j"] == 100.0
    assert usage.combine([{}, one], ["a", "a"]) == apart, "GPUs of a node that saw nothing are not known"


def test_a_node_by_itself_combines_to_itself() -> None:
    known = sampled(*(line(1000 + i, cpu_busy_s=i, cpu_energy_j=3 * i, memory_used_bytes=GIB) for i in range(4)))
    told = usage.summary(known, 1000, 1003)
    assert usage.combine([told]) == told


def test_a_curve_has_a_row_from_sample_to_sample() -> None:
    counts = [0, 1, 5, 5, 8]
    known = sampled(*(line(1000 + i, disk_read_bytes=count * MIB) for i, count in enumerate(counts)))
    rows = usage.series(known, 1000, 1004)
    assert rows == [{"at": 1001 + i, "disk_read_mib_per_s": rate} for i, rate in enumerate([1, 4, 0, 3])]
    thinned = usage.series(known, 1000, 1004, step_s=2)
    assert thinned == [{"at": 1002, "disk_read_mib_per_s": 2.5}, {"at": 1004, "disk_read_mib_per_s": 1.5}]


def cut_and_noted(count: int) -> Iterator[str]:
    """A long file, as a night leaves it: a note now and then, and here and there a line that was cut."""
    for i in range(count):
        if i % 501 == 7:
            yield json.dumps({"at": 1000 + i, "missing": "something", "why": "gone"})
        if i % 777 == 5:
            yield '{"at": 10'
        yield line(1000 + i, disk_read_bytes=i * MIB)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("night") / "telemetry.jsonl"
    path.write_text("\n".join(cut_and_noted(20_000)) + "\n" + '{"at": 21000, "monot')
    return path


@pytest.mark.parametrize("first", [0, 1, 4, 506, 776, 10_000, 15_543, 19_990])
def test_a_window_of_a_long_file_is_read_with_its_neighbours(night: Path, first: int) -> None:
    found = usage.within(night, 1000 + first + 0.5, 1000 + first + 3.5)
    assert [sample.at for sample in found] == [1000 + first + i for i in range(5)]
    assert usage.summary(night, 1000 + first + 0.5, 1000 + first + 3.5)["disk_read_mib"] == 3


def test_reading_a_window_of_a_long_file_reads_little_of_it(night: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    loads = json.loads
    monkeypatch.setattr(usage.json, "loads", lambda text: parsed.append(1) or loads(text))
    usage.within(night, 19_000, 19_002)
    assert len(parsed) < 3000
