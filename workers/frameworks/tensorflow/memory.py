"""Memory that runs out while TensorFlow computes: a finding about the trial, with the bytes, wherever it happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from workers.contract.messages import TrialConfig
from workers.contract.ranks import Infeasible
from workers.frameworks.memory import GIB, log_size, own_log, refusal, resident


@contextlib.contextmanager
def shortage_is_a_finding(config: TrialConfig) -> Iterator[None]:
    """Turn an error into a finding where memory ran out: TensorFlow's allocators gave up, or a library of the GPU was
    refused what it asked for."""
    import tensorflow as tf

    begin = log_size()
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        asked = str(error.message).strip().splitlines()[0].split(" [Op:")[0]
        if config.device == "cpu":
            raise Infeasible(
                "host memory", f"{asked}; this rank holds {resident(os.getpid()) / GIB:.2f} GiB"
            ) from error
        raise _of_device(asked) from error
    except Exception as error:
        if config.device == "gpu" and (said := refusal(str(error), own_log(begin))):
            raise _of_device(said) from error
        raise


def _of_device(asked: str) -> Infeasible:
    return Infeasible(
        "device memory", f"{asked}; TensorFlow had up to {device_peak_mib() / 1024:.2f} GiB of the device in use"
    )


def device_peak_mib() -> float:
    """Return the most that TensorFlow's tensors and scratch space took of this rank's GPU since it started; 0 without
    one. What CUDA, its libraries and NCCL hold by themselves is not in it."""
    import tensorflow as tf

    try:
        return float(tf.config.experimental.get_memory_info("GPU:0")["peak"]) / 2**20
    except (ValueError, tf.errors.OpError):  # no such device, or one that an error has left unusable
        return 0.0
