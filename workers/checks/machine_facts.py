"""What this machine is and can do, as facts. `python -m workers.checks.machine_facts` prints them as JSON.

It imports TensorFlow and Horovod to ask them, so the control plane runs it as a process of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import platform
from pathlib import Path

import psutil

from workers.contract import quota
from workers.contract.messages import Precision
from workers.contract.packages import version_of
from workers.frameworks import precision
from workers.node import toolkit

PACKAGES = ("ray", "tensorflow", "keras", "horovod", "mlflow", "numpy", "pandas")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    name: str
    memory_gib: float
    capability: tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    host: str
    system: str
    python: str
    packages: dict[str, str]
    processor: str
    cores: int  # physical
    threads: int
    usable: str  # of these, where a container may not use them all
    memory_gib: float
    gpus: tuple[Gpu, ...]
    driver: str  # NVIDIA's; empty without one
    toolkit: str  # CUDA's, that Horovod was built with or would be
    cpu_precisions: tuple[Precision, ...]
    gpu_precisions: tuple[Precision, ...]
    tensorflow_cuda: bool  # can this TensorFlow use a GPU
    horovod: dict[str, bool]  # what Horovod was built with
    trouble: tuple[str, ...]  # what could not be asked, and why


def facts() -> Facts:
    trouble: list[str] = []
    gpus = _gpus(trouble)
    with_cuda, horovod = _built(trouble)
    return Facts(
        host=platform.node(),
        system=platform.platform(terse=True),
        python=platform.python_version(),
        packages={name: version_of(name) for name in PACKAGES},
        processor=_processor(),
        cores=psutil.cpu_count(logical=False) or 0,
        threads=os.cpu_count() or 0,
        usable=quota.described(os.cpu_count() or 0),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        gpus=gpus,
        driver=toolkit.shown_driver(toolkit.driver_here()),
        toolkit=toolkit.shown(toolkit.toolkit_here()),
        cpu_precisions=tuple(precision.native_on_cpu(precision.cpu_flags())),
        gpu_precisions=tuple(precision.native_on_gpu(min(gpu.capability for gpu in gpus))) if gpus else (),
        tensorflow_cuda=with_cuda,
        horovod=horovod,
        trouble=tuple(trouble),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _gpus(trouble: list[str]) -> tuple[Gpu, ...]:
    """Return the GPUs by NVIDIA's library, where the `gpu` extra brought it: no CUDA context is made."""
    try:
        import pynvml
    except ImportError:
        if Path("/dev/nvidiactl").exists():
            trouble.append("this node has an NVIDIA driver, but the gpu extra is not installed: make setup GPU=1")
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        found.append(
            Gpu(
                name=pynvml.nvmlDeviceGetName(handle),
                memory_gib=round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1),
                capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
            )
        )
    return tuple(found)


def _built(trouble: list[str]) -> tuple[bool, dict[str, bool]]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            import horovod.tensorflow as hvd
            import tensorflow as tf
    except Exception as error:  # whatever a broken build raises is the fact to report
        trouble.append(f"Horovod and TensorFlow can't be imported together: {error}; cure: make clean setup")
        return False, {}
    flags = {
        "gloo": hvd.gloo_built(),
        "nccl": hvd.nccl_built(),
        "mpi": hvd.mpi_built(),
        "cuda": hvd.cuda_built(),
    }
    return tf.test.is_built_with_cuda(), {name: bool(value) for name, value in flags.items()}


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(facts())))
