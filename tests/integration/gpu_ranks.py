"""Ranks that meet what only a GPU shows, planted: what its libraries say, what its memory counters read."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from workers.contract import messages
from workers.contract.ranks import Seat, Voice
from workers.frameworks.tensorflow import memory
from workers.workloads.images import train

REFUSED, BROKEN, ABORTS = 911, 912, 913  # as batch sizes
HELD = ctypes.create_string_buffer(1 << 16)  # as long as the process
NCCL = b"n1:17:99 [0] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'"


def fails(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    """NCCL fails; it says why, as it does, where the C library holds it back until the process ends in order."""
    import tensorflow as tf

    if config.batch_size == ABORTS:
        sys.stderr.write(
            "2026-11-21 08:46:18.5: F x.cc:71] EigenAllocator for GPU ran out of memory when allocating 8\n"
        )
        sys.stderr.flush()
        os.abort()
    with memory.shortage_is_a_finding(config):
        if config.batch_size == REFUSED:
            libc = ctypes.CDLL(None)
            libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), HELD, 0, len(HELD))  # as if to a file
            libc.puts(NCCL)
        raise tf.errors.UnknownError(None, None, "ncclAllReduce failed: unhandled cuda error")


def counts_memory(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    """Trains on the CPU with a device whose peak is 1 GiB until the window ends, and 9 GiB from the steps after it."""
    import tensorflow as tf

    def info(device: str) -> dict[str, Any]:
        phase, _ = voice._beat.read()
        return {"current": 0, "peak": (1 if phase == "step" else 9) << 30}

    tf.config.experimental.get_memory_info = info
    train.run(config, seat, voice)


def on_cpu(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    """Says what the GPUs' self-test finds on two devices that this rank's processor stands for."""
    import json

    import tensorflow as tf

    from workers.checks import gpu_self_test

    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    formats: tuple[messages.Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
    small = {"matrix": 128, "copy_bytes": 1 << 20}
    two = list(gpu_self_test.measure(devices, formats, 0.0, **small))
    one = list(gpu_self_test.measure(devices[:1], formats, 0.0, **small))
    voice.say("failed", kind="told", message=json.dumps([two, one]))


def of_known_speed(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    """Says what the self-test finds where a product, a pass over memory and a copy take a millisecond each."""
    import json
    import types

    import tensorflow as tf

    from workers.checks import gpu_self_test

    now = 0.0

    def slow(work: Any, seconds: float) -> Any:
        def worked(*given: Any) -> Any:
            nonlocal now
            now += seconds
            return work(*given)

        return worked

    clock = types.SimpleNamespace(perf_counter=lambda: now, monotonic=lambda: now)
    gpu_self_test.time = clock  # type: ignore[assignment]
    tf.matmul, tf.negative = slow(tf.matmul, 1e-3), slow(tf.negative, 1e-3)
    tf.identity = slow(tf.identity, 0.5e-3)  # twice a copy
    cpu = "/CPU:0"
    found = gpu_self_test.measure([cpu, cpu], ["fp32"], 0.0, matrix=100, copy_bytes=1 << 20)
    voice.say("failed", kind="told", message=json.dumps(next(found)))
