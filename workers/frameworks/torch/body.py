"""torch, as a workload knows its framework (`frameworks.framework`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from workers.contract.messages import Phase, TrialConfig
from workers.contract.ranks import Fault, Seat
from workers.frameworks import precision
from workers.frameworks.learning import Learner
from workers.frameworks.torch import memory
from workers.frameworks.torch import readback as in_force
from workers.frameworks.torch.feed import OnDevice
from workers.frameworks.torch.learner import TorchLearner
from workers.inputs.plain import opening
from workers.inputs.source import Cores, Source
from workers.node import gpus
from workers.strategies import ddp
from workers.strategies.ring import Ring

shortage_is_a_finding, device_peak_mib = memory.shortage_is_a_finding, memory.device_peak_mib
readback = in_force.of_torch


def place(config: TrialConfig) -> None:
    if config.device == "cpu":
        torch.set_num_threads(config.cores_per_worker)
        torch.set_num_interop_threads(1)
        native = precision.native_on_cpu(precision.cpu_flags())
    else:
        _require_gpu()
        gpus.check(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        torch.cuda.set_device(0)
        torch.backends.cudnn.benchmark = True  # all batches have one shape: try once which kernel is the fastest
        native = precision.native_on_gpu(torch.cuda.get_device_capability(0))
    precision.require(config, native)
    torch.backends.cuda.matmul.allow_tf32 = config.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = config.precision == "tf32"


def _require_gpu() -> None:
    if not torch.backends.cuda.is_built():
        rule = "device: gpu needs a torch that was built with CUDA"
        raise Fault("no CUDA", f"{rule}, but {torch.__version__} was not: install its CUDA build on every node")
    if not torch.cuda.is_available():
        raise Fault("no GPU", f"device is gpu, but torch {torch.__version__} sees no GPU in this rank: see nvidia-smi")


def joined(seat: Seat, config: TrialConfig) -> AbstractContextManager[Ring]:
    return ddp.joined(seat, config)


def learner(config: TrialConfig, ring: Ring) -> Learner:
    return TorchLearner(config, ring)


def open_source(config: TrialConfig, ring: Ring, cores: Cores, beat: Callable[[Phase, int], None]) -> Source:
    return OnDevice(opening.open_source(config, ring, cores, beat), config)
