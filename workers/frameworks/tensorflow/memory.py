"""Memory that runs out: a finding about the trial, with the bytes, wherever it happens."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from workers.contract.libc import flush_c_output
from workers.contract.messages import TrialConfig
from workers.contract.ranks import Infeasible

GIB = 1 << 30
NEARLY_ALL = 0.9  # of a node's memory, for all its ranks
PAGE = os.sysconf("SC_PAGE_SIZE")


# What a GPU's libraries say when they were refused device memory: in TensorFlow 2.18 (its own texts, and what it passes
# on of cuBLAS and cuDNN 8 and 9), in Horovod, in NCCL.
REFUSED = re.compile(
    r"\bCU[A-Z]+_STATUS_ALLOC_FAILED\b"
    r"|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|unknown cudnn status: 4004\b"
    r"|the resource allocation failed"  # cuBLAS in words
    r"|failed to allocate the scratch space for the runner|Scratch allocation failed: "
    r"|convolution algorithm failed memory allocation"
    r"|Failed to allocate memory for convolution redzone|Failed to allocate scratch buffer for device"
    r"|Failed to allocate request for .* on device ordinal|from device collective memory"
    r"|EigenAllocator for GPU ran out of memory|CUDA driver ran out of memory"
    r"|\bcuda[A-Z]\w+ failed: out of memory"  # Horovod
    r"|NCCL WARN Cuda failure (\d+ )?'out of memory'|NCCL WARN Failed to CUDA (malloc|calloc)"
)
# A refusal too, but TensorFlow's allocator also prints it while it feels for what is left, and goes on.
REFUSED_BY_DRIVER = re.compile(r"CUDA_ERROR_OUT_OF_MEMORY")
# What is raised when such a library failed for any reason; the log may say for which.
UNEXPLAINED = re.compile(
    r"unhandled cuda error"
    r"|No (DNN|dnn|BLAS|Blas|blas) |without BLAS support|Blas \w+ launch failed|Failed to create cuBlas instance"
    r"|DNN library initialization failed|Dnn is not supported|Failed to get convolution algorithm"
    r"|Creation of local cudnn handle failed|No algorithm worked"
)
# Neither is a finding about the trial: other processes hold the device, or it is the host's memory that ran out.
NOT_THE_TRIALS = re.compile(
    r"PrimaryCtxRetain|implicit initialization|context on device|Failed to CUDA host alloc|bytes on host"
)
FATAL = re.compile(r"^\S+ \S+: F ")  # TensorFlow's last line before it aborts
LOG_BYTES = 1 << 16


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


def refusal(raised: str, log: str) -> str:
    """Return the line that says a library of the GPU was refused device memory; nothing where that isn't sure. Pure.

    An error that says so itself is enough. One that only says that a library failed needs the refusal in the rank's
    log; what TensorFlow's own allocator prints there does not count, since it prints it when it is not a failure too.
    """
    if said := _line(raised, REFUSED) or _line(raised, REFUSED_BY_DRIVER):
        return said
    return _line(log, REFUSED) if UNEXPLAINED.search(raised) else ""


def fatal_refusal(path: str, begin: int) -> str:
    """Return the line of a rank's log, from there on, with which it aborted for want of device memory; or nothing."""
    try:
        with open(path, "rb") as log:
            log.seek(max(begin, os.fstat(log.fileno()).st_size - LOG_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return _line("\n".join(line for line in lines if FATAL.match(line)), REFUSED)


def _line(text: str, wanted: re.Pattern[str]) -> str:
    """Return the last line that matches; nothing where any line shows that it is not the trial's doing."""
    if NOT_THE_TRIALS.search(text):
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if wanted.search(line)), "")


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


def log_size() -> int:
    """Return how long this process's standard error is, where that is a file: its log."""
    about = os.fstat(2)
    return about.st_size if stat.S_ISREG(about.st_mode) else 0


def own_log(begin: int) -> str:
    """Return the end of what this process has logged from there on; nothing where its log is no file."""
    flush_c_output()
    end = log_size()
    if not end:
        return ""
    with open("/proc/self/fd/2", "rb") as log:
        log.seek(max(begin, end - LOG_BYTES))
        return log.read().decode(errors="replace")


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
