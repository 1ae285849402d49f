"""Which GPU is meant: one name for what Ray, CUDA and NVIDIA's management library (NVML) each have a name for.

CUDA numbers GPUs by speed unless it is told otherwise; NVML, and `nvidia-smi`, by their place on the bus. Every process
that is started to use GPUs gets `ORDER`, so that a number means the same GPU to both. Ray hands out what its worker
found in CUDA_VISIBLE_DEVICES: numbers, UUIDs (`GPU-…`, also shortened), or slices of a GPU (`MIG-…`).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from workers.contract.ranks import Fault
from workers.node import readings

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
NONE = "-1"  # in CUDA_VISIBLE_DEVICES
BUS_CHARACTERS = 13  # of 0000:07:00.0 with its end


def environment(names: Sequence[str]) -> dict[str, str]:
    """Return the variables with which a process sees these GPUs, in this order, and no others."""
    return {**ORDER, "CUDA_VISIBLE_DEVICES": ",".join(names) or NONE}


def is_slice(name: str) -> bool:
    """Say whether a name is of a slice of a GPU, of which NVML tells little: its counters are the whole GPU's."""
    return name.startswith("MIG-")


def handle(library: Any, name: str) -> Any:
    """Return NVML's handle of a GPU, of the whole GPU for a slice. Raises LookupError where there is none."""
    if name.isdecimal():
        return library.nvmlDeviceGetHandleByIndex(int(name))
    if is_slice(name):
        return library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(library.nvmlDeviceGetHandleByUUID(name))
    for _, gpu, uuid in _gpus(library):
        if name and uuid.startswith(name):
            return gpu
    raise LookupError(f"this node has no GPU {name}")


def number(name: str) -> str:
    """Return NVML's number of a GPU that Ray names by its UUID; any other name, or one not found, as it is."""
    library, _ = readings.nvml()
    if library and name.startswith("GPU-"):
        with contextlib.suppress(library.NVMLError):
            return next((str(index) for index, _, uuid in _gpus(library) if uuid.startswith(name)), name)
    return name


def bus(library: Any, gpu: Any) -> str:
    """Return where a GPU sits, as the kernel writes it: 0000:07:00.0."""
    return _text(library.nvmlDeviceGetPciInfo(gpu).busId).lower()[-12:]


def check(name: str) -> None:
    """Raise a Fault where CUDA's first device is not the GPU of this name: another GPU's readings would be told.

    Says nothing where CUDA or NVML can't be asked, and of slices.
    """
    library, _ = readings.nvml()
    ours = _bus_of_cuda()
    if not library or not ours or not name or is_slice(name):
        return
    try:
        meant = bus(library, handle(library, name))
    except (LookupError, library.NVMLError):
        return
    if meant != ours:
        cure = "give Ray's worker GPUs by UUID (CUDA_VISIBLE_DEVICES=GPU-…)"
        raise Fault("another GPU", f"CUDA and NVML must mean one GPU by {name}, but got {ours} and {meant}: {cure}")


def _bus_of_cuda() -> str:
    """Return where the driver says that this process's first device sits; nothing where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    device, text = ctypes.c_int(), ctypes.create_string_buffer(BUS_CHARACTERS)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return ""
    return "" if driver.cuDeviceGetPCIBusId(text, BUS_CHARACTERS, device) else text.value.decode().lower()


def _gpus(library: Any) -> Iterator[tuple[int, Any, str]]:
    for index in range(library.nvmlDeviceGetCount()):
        with contextlib.suppress(library.NVMLError):  # one that this process may not touch
            gpu = library.nvmlDeviceGetHandleByIndex(index)
            yield index, gpu, _text(library.nvmlDeviceGetUUID(gpu))


def _text(said: str | bytes) -> str:
    return said if isinstance(said, str) else said.decode()
