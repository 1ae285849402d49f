"""Memory: what a process holds of it and may hold, and what libraries say where none is left, whichever the framework.
What it raises then is known to its own `memory`."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from workers.contract.libc import flush_c_output
from workers.contract.messages import TrialConfig

GIB = 1 << 30
NEARLY_ALL = 0.9  # of a node's memory, for all its ranks
PAGE = os.sysconf("SC_PAGE_SIZE")


# What a GPU's libraries say when they were refused device memory: in TensorFlow 2.18 (its own texts, and what it passes
# on of cuBLAS and cuDNN 8 and 9), in Horovod, in NCCL, in torch (which passes on what NCCL said last).
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
    r"|^Cuda failure (\d+ )?'out of memory'|^Failed to CUDA (malloc|calloc)"
    r"|\bCUDA error: out of memory|\bCUDA out of memory\. Tried to allocate"
)
# A refusal too, but TensorFlow's allocator also prints it while it feels for what is left, and goes on.
REFUSED_BY_DRIVER = re.compile(r"CUDA_ERROR_OUT_OF_MEMORY")
# What is raised when such a library failed for any reason; the log may say for which.
UNEXPLAINED = re.compile(
    r"unhandled cuda error"
    r"|No (DNN|dnn|BLAS|Blas|blas) |without BLAS support|Blas \w+ launch failed|Failed to create cuBlas instance"
    r"|DNN library initialization failed|Dnn is not supported|Failed to get convolution algorithm"
    r"|Creation of local cudnn handle failed|No algorithm worked"
    r"|[Uu]nable to find an engine to execute this computation|Unable to find a valid cuDNN algorithm"
)
# Neither is a finding about the trial: other processes hold the device, or it is the host's memory that ran out.
NOT_THE_TRIALS = re.compile(
    r"PrimaryCtxRetain|implicit initialization|context on device|Failed to CUDA host alloc|bytes on host"
)
# The last line before an abort: TensorFlow's, and C++'s of an error that nobody caught, as threads of torch raise.
FATAL = re.compile(r"^\S+ \S+: F |^\s*what\(\): ")
# With which a thread of torch's aborts a rank whose ring another has left.
LEFT_ALONE = re.compile(r"ncclRemoteError|remote process exited|NCCL communicator was aborted")
LOG_BYTES = 1 << 16


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
    return _line("\n".join(line for line in logged(path, begin).splitlines() if FATAL.match(line)), REFUSED)


def fatal_echo(path: str, begin: int) -> str:
    """Return the line of a rank's log, from there on, with which it aborted because another had gone; or nothing."""
    return _line("\n".join(line for line in logged(path, begin).splitlines() if FATAL.match(line)), LEFT_ALONE)


def logged(path: str, begin: int) -> str:
    """Return the end of a rank's log, of what came from there on; nothing where there is no log."""
    try:
        with open(path, "rb") as log:
            log.seek(_from(begin, os.fstat(log.fileno()).st_size))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def _from(begin: int, end: int) -> int:
    """Return where to read a log from that was so long before; one that is shorter now was cut meanwhile."""
    return max(begin if begin <= end else 0, end - LOG_BYTES)


def _line(text: str, wanted: re.Pattern[str]) -> str:
    """Return the last line that matches; nothing where any line shows that it is not the trial's doing."""
    if NOT_THE_TRIALS.search(text):
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if wanted.search(line)), "")


def log_size() -> int:
    """Return how long this process's standard error is, where that is a file: its log."""
    about = os.fstat(2)
    return about.st_size if stat.S_ISREG(about.st_mode) else 0


def own_log(begin: int) -> str:
    """Return the end of what this process has logged from there on; nothing where its log is no file."""
    flush_c_output()
    return logged("/proc/self/fd/2", begin) if log_size() else ""


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


def held(pid: int) -> int:
    """Bytes that a process and all that it has started hold in memory."""
    return resident(pid) + sum(map(held, _children(pid)))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    threads: list[str] = []
    with contextlib.suppress(OSError):  # it has gone meanwhile, or below a thread of it has
        threads = os.listdir(f"/proc/{pid}/task")
    for thread in threads:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def kernel_kills() -> int:
    """How often the kernel has ended a process of this node for want of memory, since it started."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
