"""Memory that runs out while torch computes: a finding about the trial, with the bytes, wherever it happens."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import torch

from workers.contract.messages import TrialConfig
from workers.contract.ranks import Infeasible
from workers.frameworks.memory import GIB, log_size, own_log, refusal, resident

OF_HOST = re.compile(r"DefaultCPUAllocator: can't allocate memory[^.]*|mmap\(.*Cannot allocate memory.*")


@contextlib.contextmanager
def shortage_is_a_finding(config: TrialConfig) -> Iterator[None]:
    """Turn an error into a finding where memory ran out: torch's allocators gave up, or a library of the GPU was
    refused what it asked for."""
    begin = log_size()
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise _of_device(str(error).strip().splitlines()[0]) from error
    except RuntimeError as error:
        if found := OF_HOST.search(str(error)):
            held = f"this rank holds {resident(os.getpid()) / GIB:.2f} GiB"
            raise Infeasible("host memory", f"{found[0].strip()}; {held}") from error
        if config.device == "gpu" and (said := refusal(str(error), own_log(begin))):
            raise _of_device(said) from error
        raise


def _of_device(asked: str) -> Infeasible:
    return Infeasible("device memory", f"{asked}; torch had up to {device_peak_mib() / 1024:.2f} GiB of it in tensors")


def device_peak_mib() -> float:
    """Return the most that torch's tensors and scratch space took of this rank's GPU since it started; 0 without one.
    What its allocator keeps in reserve, and what CUDA, its libraries and NCCL hold by themselves, is not in it."""
    if not torch.cuda.is_initialized():
        return 0.0
    try:
        return float(torch.cuda.max_memory_allocated(0)) / 2**20
    except RuntimeError:  # a device that an error has left unusable
        return 0.0
