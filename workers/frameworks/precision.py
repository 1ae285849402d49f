"""Number formats: which of them this device computes natively, whichever the framework."""

from __future__ import annotations

from pathlib import Path

from workers.contract.messages import Precision, TrialConfig
from workers.contract.ranks import Infeasible

# What a processor's flags must hold for a format to be computed by it rather than emulated.
CPU_FLAGS: dict[Precision, set[str]] = {
    "fp32": set(),
    "bf16": {"avx512_bf16", "amx_bf16"},
    "fp16": {"avx512_fp16", "amx_fp16"},
}
# The first CUDA compute capability with matrix units for a format.
GPU_CAPABILITY: dict[Precision, tuple[int, int]] = {
    "fp32": (0, 0),
    "fp16": (7, 0),
    "bf16": (8, 0),
    "tf32": (8, 0),
}


def native_on_cpu(flags: set[str]) -> list[Precision]:
    return [name for name, needed in CPU_FLAGS.items() if not needed or needed & flags]


def native_on_gpu(capability: tuple[int, int]) -> list[Precision]:
    return [name for name, needed in GPU_CAPABILITY.items() if capability >= needed]


def cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def require(config: TrialConfig, native: list[Precision]) -> None:
    """Refuse a format that the device would emulate, unless its user wants it: it tells nothing about the device.

    There is no emulating tf32: a framework would compute in fp32 and say nothing.
    """
    wanted = config.precision
    if wanted in native or (config.emulate and wanted != "tf32"):
        return
    cure = "" if wanted == "tf32" else " (emulate: true runs it all the same)"
    here = f"this {config.device} computes {', '.join(native)}, but not {wanted}{cure}"
    raise Infeasible("precision not supported here", here)
