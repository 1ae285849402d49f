"""A node's counters as they stand: processors, memory, disks, networks, InfiniBand, energy, GPUs.

Each source is opened once and read anew at each sample. What counts up is given as it counts (bytes, seconds,
joules), so that differences are exact whatever happens between two samples. Linux, the standard library, and
NVIDIA's library where the `gpu` extra brought it.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from workers.contract.files import text

CHUNK = 1 << 16
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SECTOR = 512  # bytes, in /proc/diskstats whatever the disk's own
ALL_LINKS = 0xFFFFFFFF

Values = dict[str, dict[str, float]]  # by quantity, then by core, disk, interface, port or GPU; "" for the node


class ReadingSource(NamedTuple):
    """Something that can be read again and again. Raises OSError, ValueError or LookupError when it can't be."""

    name: str
    read: Callable[[], Values]


class Missing(NamedTuple):
    name: str
    why: str


def sources(proc: str = "/proc", sys: str = "/sys") -> tuple[list[ReadingSource], list[Missing]]:
    """Return what this node can tell, and what it can't. Those that may take milliseconds come last."""
    things = [*_of_the_system(proc, sys), *_of_infiniband(sys), *_of_energy(sys), *_of_gpus()]
    return [it for it in things if isinstance(it, ReadingSource)], [it for it in things if isinstance(it, Missing)]


class KernelFile:
    """A file of the kernel, held open: each read gives what it says now."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str:
        said = b""
        while chunk := os.pread(self._fd, CHUNK, len(said)):
            said += chunk
        return said.decode(errors="replace")


def _of_the_system(proc: str, sys: str) -> Iterator[ReadingSource | Missing]:
    parsers: dict[str, Callable[[str], Values]] = {
        "stat": processor_seconds,
        "meminfo": memory_bytes,
        "diskstats": partial(disk_bytes, disks=whole_disks(sys)),
        "net/dev": partial(network_bytes, interfaces=real_interfaces(sys)),
    }
    for name, parse in parsers.items():
        yield _opened(f"{proc}/{name}", [f"{proc}/{name}"], parse)


def _opened(name: str, paths: list[str], parse: Callable[..., Values]) -> ReadingSource | Missing:
    try:
        files = [KernelFile(path) for path in paths]
    except OSError as error:
        return Missing(name, str(error))
    return ReadingSource(name, lambda: parse(*(file.read() for file in files)))


def processor_seconds(stat: str) -> Values:
    """Return the figures of /proc/stat. Waiting for a disk isn't busy; what a hypervisor gave to others is told for all
    together."""
    busy: dict[str, float] = {}
    stolen = 0
    for line in stat.partition("\nintr")[0].splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu"):
            break
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, ticks[:8])  # guests are within user
        if name == "cpu":
            stolen = steal
        else:
            busy[name[3:]] = (user + nice + system + irq + softirq) / TICKS_PER_S
    return {"cpu_busy_s": busy, "cpu_steal_s": {"": stolen / TICKS_PER_S}}


def memory_bytes(meminfo: str) -> Values:
    """Return the figures of /proc/meminfo. What programs share counts as used, not as cached."""
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in meminfo.splitlines())}
    available = kib["MemAvailable"]
    cached = kib["Cached"] + kib["Buffers"] - kib["Shmem"]
    return {
        "memory_used_bytes": {"": (kib["MemTotal"] - available) * 1024},
        "memory_available_bytes": {"": available * 1024},
        "page_cache_bytes": {"": cached * 1024},
    }


def disk_bytes(diskstats: str, disks: set[str]) -> Values:
    """Return the figures of /proc/diskstats. Partitions, and what lies on other disks, would count twice."""
    read: dict[str, float] = {}
    written: dict[str, float] = {}
    for line in diskstats.splitlines():
        _, _, name, *counts = line.split()
        if name in disks:
            read[name] = int(counts[2]) * SECTOR
            written[name] = int(counts[6]) * SECTOR
    return {"disk_read_bytes": read, "disk_write_bytes": written}


def whole_disks(sys: str) -> set[str]:
    """Return the disks with a device behind them: no loop, no RAID, no mapped ones, no single path of several to one
    disk."""
    named = {path.split("/")[-2] for path in glob.glob(f"{sys}/block/*/device")}
    return {name for name in named if text(f"{sys}/block/{name}/hidden") != "1"}


def network_bytes(dev: str, interfaces: set[str]) -> Values:
    """Return the figures of /proc/net/dev. Without a real interface (in a container) all but the loopback count."""
    received, sent = {}, {}
    for line in dev.splitlines()[2:]:
        name, _, counts = line.partition(":")
        columns = counts.split()
        received[name.strip()] = int(columns[0])
        sent[name.strip()] = int(columns[8])
    counted = {name for name in sent if name in interfaces} or sent.keys() - {"lo"}
    return {
        "net_send_bytes": {name: count for name, count in sent.items() if name in counted},
        "net_receive_bytes": {name: count for name, count in received.items() if name in counted},
        "loopback_bytes": {"": sent.get("lo", 0)},
    }


def real_interfaces(sys: str) -> set[str]:
    """Return the interfaces with a device behind them: a bridge or a bond counts what its members count."""
    return {path.split("/")[-2] for path in glob.glob(f"{sys}/class/net/*/device")}


def _of_infiniband(sys: str) -> Iterator[ReadingSource | Missing]:
    for port in sorted(glob.glob(f"{sys}/class/infiniband/*/ports/*")):
        parts = port.split("/")
        name = f"{parts[-3]}/{parts[-1]}"
        counters = [f"{port}/counters/port_{way}_data" for way in ("xmit", "rcv")]
        yield _opened(f"InfiniBand {name}", counters, partial(port_bytes, name=name))


def port_bytes(sent: str, received: str, name: str) -> Values:
    """Return the bytes of a port, which counts words of four."""
    return {"ib_send_bytes": {name: int(sent) * 4}, "ib_receive_bytes": {name: int(received) * 4}}


def _of_energy(sys: str) -> Iterator[ReadingSource | Missing]:
    """Yield the energy of processor packages; what lies within a package (cores, DRAM) is left out."""
    zones = sorted(glob.glob(f"{sys}/class/powercap/intel-rapl:*"))
    packages = [zone for zone in zones if text(f"{zone}/name").startswith("package")]
    if not packages:
        yield Missing("cpu_energy_j", "this node shows no RAPL counters")
    for zone in packages:
        name = text(f"{zone}/name")
        range_uj = text(f"{zone}/max_energy_range_uj")
        if range_uj:
            yield _opened(f"cpu_energy_j of {name}", [f"{zone}/energy_uj"], EnergyMeter(name, int(range_uj)).read)
        else:
            yield Missing(f"cpu_energy_j of {name}", "where it begins anew can't be read")


class EnergyMeter:
    """Goes on counting where a counter of microjoules begins anew at its range."""

    def __init__(self, name: str, range_uj: int) -> None:
        self._name = name
        self._range_uj = range_uj
        self._last_uj = 0
        self._total_uj = 0

    def read(self, said: str) -> Values:
        now_uj = int(said)
        self._total_uj += (now_uj - self._last_uj) % (self._range_uj + 1)
        self._last_uj = now_uj
        return {"cpu_energy_j": {self._name: self._total_uj / 1e6}}


def nvml() -> tuple[Any, str]:
    """NVIDIA's library, started; or None, and why. It makes no CUDA context."""
    try:
        import pynvml
    except ImportError:
        return None, "pynvml is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, str(error)
    return pynvml, ""


def _of_gpus() -> Iterator[ReadingSource | Missing]:
    library, why = nvml()
    if not library:
        yield Missing("GPUs", why)
        return
    gpus = {}
    for index in range(library.nvmlDeviceGetCount()):
        try:
            gpus[str(index)] = library.nvmlDeviceGetHandleByIndex(index)
        except library.NVMLError as error:
            yield Missing(f"GPU {index}", str(error))
    for name, gpu in gpus.items():
        for quantity, ask in _questions(library).items():
            yield ReadingSource(f"{quantity} of GPU {name}", partial(_ask, library, quantity, ask, name, gpu))
    if gpus:
        yield ReadingSource("PCIe of GPUs", InTurn(library, gpus).read)


def _ask(library: Any, quantity: str, ask: Callable[[Any], float], name: str, gpu: Any) -> Values:
    try:
        return {quantity: {name: ask(gpu)}}
    except library.NVMLError as error:
        raise OSError(str(error)) from error


def _questions(library: Any) -> dict[str, Callable[[Any], float]]:
    """Return what is asked of each GPU; the links' bytes are those of its data."""
    return {
        "gpu_percent": lambda gpu: library.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "gpu_memory_bytes": lambda gpu: library.nvmlDeviceGetMemoryInfo(gpu).used,
        "gpu_power_w": lambda gpu: library.nvmlDeviceGetPowerUsage(gpu) / 1e3,
        "gpu_energy_j": lambda gpu: library.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,
        "gpu_clock_mhz": lambda gpu: library.nvmlDeviceGetClockInfo(gpu, library.NVML_CLOCK_SM),
        "gpu_temperature_c": lambda gpu: library.nvmlDeviceGetTemperature(gpu, library.NVML_TEMPERATURE_GPU),
        "gpu_nvlink_send_bytes": lambda gpu: _linked(library, gpu, library.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
        "gpu_nvlink_receive_bytes": lambda gpu: _linked(library, gpu, library.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
    }


def _linked(library: Any, gpu: Any, field: int) -> int:
    answer = library.nvmlDeviceGetFieldValues(gpu, [(field, ALL_LINKS)])[0]
    if answer.nvmlReturn != library.NVML_SUCCESS:
        raise library.NVMLError(answer.nvmlReturn)
    return int(answer.value.ullVal) * 1024


class InTurn:
    """PCIe traffic, which NVML measures by waiting 20 ms for each direction: one GPU is asked at each sample,
    and of the others the last answer is given again."""

    def __init__(self, library: Any, gpus: dict[str, Any]) -> None:
        self._library = library
        self._turns = itertools.cycle(gpus.items())
        self._last: Values = {"gpu_pcie_send_kb_per_s": {}, "gpu_pcie_receive_kb_per_s": {}}

    def read(self) -> Values:
        name, gpu = next(self._turns)
        ways = (self._library.NVML_PCIE_UTIL_TX_BYTES, self._library.NVML_PCIE_UTIL_RX_BYTES)
        for quantity, way in zip(self._last, ways, strict=True):
            ask = partial(self._library.nvmlDeviceGetPcieThroughput, counter=way)
            self._last[quantity] |= _ask(self._library, quantity, ask, name, gpu)[quantity]
        return self._last
