"""Number formats: which of them this device computes natively, and how a rank is set to one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def apply(precision: Precision) -> None:
    """Set Keras and TensorFlow to a format, before a network is built. Weights stay fp32."""
    import keras
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    policy = {"fp16": "mixed_float16", "bf16": "mixed_bfloat16"}.get(precision, "float32")
    keras.config.set_dtype_policy(policy)


def require(config: TrialConfig, native: list[Precision]) -> None:
    """A format that the device would emulate tells nothing about the device, so its user must want it.

    There is no emulating tf32: TensorFlow would compute in fp32 and say nothing.
    """
    wanted = config.precision
    if wanted in native or (config.emulate and wanted != "tf32"):
        return
    cure = "" if wanted == "tf32" else " (emulate: true runs it all the same)"
    here = f"this {config.device} computes {', '.join(native)}, but not {wanted}{cure}"
    raise Infeasible("precision not supported here", here)


def loss_scaled(optimizer: Any, precision: Precision) -> Any:
    """fp16 gradients underflow: scale the loss, and skip a step whose gradients overflow."""
    import keras

    return keras.optimizers.LossScaleOptimizer(optimizer) if precision == "fp16" else optimizer
