"""A GPU's library that was refused memory is a finding about the trial; one that failed for another reason is not."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from workers.frameworks import memory
from workers.launch import supervisor

# As they stand in public reports of these failures, and in the sources of what prints them.
IN_THE_ERROR = [
    "failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED",
    "the resource allocation failed",
    "Failed to enqueue convolution on stream: CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "<unknown cudnn status: 4004>\nin external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc(5333): 'status'",
    "No algorithm worked!  Error messages:\n"
    "  Profiling failure on CUDNN engine eng11{}: UNKNOWN: CUDNN_STATUS_ALLOC_FAILED\n"
    "in tensorflow/compiler/xla/stream_executor/cuda/cuda_dnn.cc(5333): 'status'",
    "CUDNN failed to allocate the scratch space for the runner or to find a working no-scratch runner.",
    "The primary convolution algorithm failed memory allocation, while a secondary algorithm is not provided.",
    "cudaStreamCreateWithPriority failed: out of memory",
    "INTERNAL: Failed to load in-memory CUBIN: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    # torch
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO "
    "for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    "Cuda failure 2 'out of memory'",
]
# What is raised, what the log has besides.
IN_THE_LOG = [
    ("ncclAllReduce failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
     "n1:17:99 [0] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'"),
    ("ncclCommInitRank failed: unhandled cuda error",
     "n1:17:99 [0] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'"),
    ("NCCL async error: unhandled cuda error", "n1:17:99 [0] NCCL WARN Failed to CUDA calloc async 4194304 bytes"),
    ("No BLAS support for stream",
     "2024-06-06 10:53:20.251154: E external/local_xla/xla/stream_executor/cuda/cuda_blas.cc:185] "
     "failed to create cublas handle: the resource allocation failed"),
    ("DNN library initialization failed. Look at the errors above for more details.",
     "2024-06-06 10:53:20.251154: E cuda_dnn.cc:455] Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"),
    ("GET was unable to find an engine to execute this computation",
     "UserWarning: Plan failed with a cudnnException: CUDNN_STATUS_ALLOC_FAILED"),
]  # fmt: skip
NOT_REFUSED = [
    # a plain failure of a library
    ("ncclAllReduce failed: unhandled cuda error", "n1:17:99 [0] NCCL WARN Cuda failure 'an illegal memory access'"),
    ("ncclAllReduce failed: unhandled cuda error", ""),
    ("ncclCommInitRank failed: unhandled system error", "n1:17:99 [0] NCCL WARN Cuda failure 'out of memory'"),
    ("ncclCommInitRank failed: unhandled cuda error",
     "n1:17 NCCL WARN Cuda failure 'out of memory'\nn1:17 NCCL WARN Failed to CUDA host alloc 4096 bytes"),
    ("DNN library initialization failed. Look at the errors above for more details.",
     "E cuda_dnn.cc] Loaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.3.0."),
    ("No algorithm worked!  Error messages:\n"
     "  Profiling failure on CUDNN engine eng0{}: CUDNN_STATUS_NOT_SUPPORTED", ""),
    ("No BLAS support for stream", "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED"),
    ("CUDNN_STATUS_EXECUTION_FAILED", ""),
    ("GET was unable to find an engine to execute this computation", "cudnnException: CUDNN_STATUS_NOT_SUPPORTED"),
    ("NCCL error, unhandled cuda error\nLast error:\nCuda failure 700 'an illegal memory access was encountered'", ""),
    # TensorFlow's allocator, feeling for what is left
    ("No algorithm worked!", "E cuda_driver.cc:828] failed to allocate 32.00M (33554432 bytes) from device: "
     "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    ("No algorithm worked!", "W bfc_allocator.cc] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.25GiB. "
     "The caller indicates that this is not a failure"),
    # an error that has nothing to do with what the log has
    ("the loss is nan", "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"),
    # another process holds the GPU; the host's memory
    ("failed initializing StreamExecutor for CUDA device ordinal 0: INTERNAL: failed call to cuDevicePrimaryCtxRetain: "
     "CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported: 16945512448", ""),
    ("CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory", ""),
    ("failed to alloc 4096 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory", ""),
]  # fmt: skip


@pytest.mark.parametrize("raised", IN_THE_ERROR)
def test_an_error_that_says_so_is_a_refusal(raised: str) -> None:
    found = memory.refusal(raised, "")
    assert found
    assert found in raised


@pytest.mark.parametrize(("raised", "log"), IN_THE_LOG)
def test_an_error_that_says_nothing_is_explained_by_the_ranks_log(raised: str, log: str) -> None:
    assert memory.refusal(raised, f"before\n{log}\nafter\n") == log
    assert memory.refusal(raised, "before\nafter\n") == ""


@pytest.mark.parametrize(("raised", "log"), NOT_REFUSED)
def test_a_failure_of_another_kind_stays_a_failure(raised: str, log: str) -> None:
    assert memory.refusal(raised, log) == ""


FATAL = "2026-11-21 08:46:18.556087: F x.cc:71] EigenAllocator for GPU ran out of memory when allocating 8"


def test_a_rank_that_aborts_for_want_of_device_memory_is_infeasible(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    earlier = f"{FATAL}9\n"  # of an earlier attempt at the trial
    log.write_text(f"{earlier}2026-11-21 08:46:18.5: E x.cc:1] CUDNN_STATUS_ALLOC_FAILED\n{FATAL}\n")
    refused = memory.fatal_refusal(str(log), len(earlier))
    assert refused == FATAL
    assert supervisor._verdict(b"", -signal.SIGABRT, refused=refused) == {
        "what": "infeasible", "kind": "device memory", "message": FATAL,
    }  # fmt: skip
    survived = "2026-11-21 08:46:18.4: E x.cc:1] CUDNN_STATUS_ALLOC_FAILED"
    log.write_text(f"{earlier}{survived}\n2026-11-21 08:46:18.5: F x.cc:1] Check failed: a == b\n")
    assert memory.fatal_refusal(str(log), len(earlier)) == ""
    log.write_text(f"{FATAL}\n")  # it was cut meanwhile
    assert memory.fatal_refusal(str(log), 10 * len(earlier)) == FATAL
    assert memory.fatal_refusal(str(tmp_path / "none"), 0) == ""
    assert supervisor._verdict(b"", -signal.SIGABRT)["what"] == "failed"


def test_a_rank_that_torch_aborts_because_another_has_gone_is_an_echo_and_no_cause(tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    begins = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    watched = "  what():  [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: "
    left = "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5"
    log.write_text(f"{begins}{watched}{left}\nncclRemoteError: A call failed possibly due to a network error.\n")
    alone = memory.fatal_echo(str(log), 0)
    assert left in alone
    assert memory.fatal_refusal(str(log), 0) == ""
    verdict = supervisor._verdict(b"", -signal.SIGABRT, alone=alone)
    assert (verdict["what"], verdict["kind"]) == ("echo", "ring broken")
    log.write_text(f"{begins}{watched}CUDA error: an illegal memory access was encountered\n")
    assert memory.fatal_echo(str(log), 0) == ""
    log.write_text(f"{begins}{watched}CUDA error: out of memory\n")
    assert "CUDA error: out of memory" in memory.fatal_refusal(str(log), 0)


def test_a_process_that_has_gone_holds_nothing() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert memory.held(gone.pid) == 0
