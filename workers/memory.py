"""Memory that runs out: a finding about the trial, with the bytes, wherever it happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from workers.contract import TrialConfig
from workers.rank import Infeasible

GIB = 1 << 30
NEARLY_ALL = 0.9  # of a node's memory, for all its ranks
PAGE = os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def shortage_is_a_finding(config: TrialConfig) -> Iterator[None]:
    """TensorFlow's own allocators gave up."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        asked = str(error.message).strip().splitlines()[0].split(" [Op:")[0]
        if config.device == "cpu":
            raise Infeasible(
                "host memory", f"{asked}; this rank holds {resident(os.getpid()) / GIB:.2f} GiB"
            ) from error
        used = tf.config.experimental.get_memory_info("GPU:0")["peak"]
        raise Infeasible("device memory", f"{asked}; up to {used / GIB:.2f} GiB of the device were in use") from error


def limit(config: TrialConfig, local_size: int) -> float:
    """How many bytes of the host a rank may hold."""
    node = os.sysconf("SC_PHYS_PAGES") * PAGE
    return config.worker_memory_gib * GIB or NEARLY_ALL * node / local_size


def resident(pid: int) -> int:
    """Bytes that a process holds in memory, those of mapped files left out; 0 for one that is gone."""
    try:
        _, pages, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(pages) - int(shared)) * PAGE


def kernel_kills() -> int:
    """How often the kernel has ended a process of this node for want of memory, since it started."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
