"""What of a trial's settings is in force, asked of what runs it: the network, what reduces its gradients, torch.
Nothing here looks at what was asked for."""

from __future__ import annotations

import os
import re
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from workers.strategies import ddp

aten = torch.ops.aten
CONTRACTIONS = (aten.convolution, aten.addmm, aten.mm, aten.bmm, aten.baddbmm, aten.matmul, aten.linear)
INTERFACES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}


class Contractions(TorchDispatchMode):
    """Notes in which formats, and in which order of memory, matrices are multiplied within."""

    def __init__(self) -> None:
        super().__init__()
        self.formats: set[str] = set()
        self.are_channels_last: set[bool] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        if function.overloadpacket in CONTRACTIONS:
            self.formats.add(str(tensors[-1].dtype).removeprefix("torch."))
        if function.overloadpacket is aten.convolution and tensors[1].ndim == 4:
            kernel = tensors[1]
            if not kernel.is_contiguous() or not kernel.is_contiguous(memory_format=torch.channels_last):
                self.are_channels_last.add(kernel.is_contiguous(memory_format=torch.channels_last))
        return function(*arguments, **(named or {}))


def of_network(network: Any, images: Any) -> dict[str, str]:
    """Return the formats that a network multiplies in, and whether its convolutions have their channels last; a kernel
    of one pixel or one channel is both."""
    with torch.no_grad(), Contractions() as noted:
        network(images)
    found = {"precision": ", ".join(sorted(noted.formats))}
    if noted.are_channels_last:
        found["channels_last"] = ", ".join("on" if is_last else "off" for is_last in sorted(noted.are_channels_last))
    return found


def of_compiler() -> str:
    """Say whether torch.compile has compiled anything here."""
    import torch._dynamo.utils

    return "on" if torch._dynamo.utils.counters["stats"]["unique_graphs"] else "off"


def of_reduction(wrapped: Any) -> dict[str, str]:
    """Return in how many buckets a module's gradients are reduced, how large these are, and in which format."""
    has, sizes = wrapped._get_ddp_logging_data(), ddp.buckets(wrapped)
    found = {
        "reduction": f"{len(sizes)} bucket{'s'[: len(sizes) - 1]}",
        "bucket_mib": ", ".join(f"{size / 2**20:.3g}" for size in sizes),
        "compression": "float16" if "FP16" in str(has.get("comm_hook", "")) else "float32",
        "strategy": f"ddp over {dist.get_backend()}",
    }
    interface = os.environ.get(INTERFACES.get(dist.get_backend(), ""), "")
    return found | ({"interface": interface} if interface else {})


def of_torch() -> dict[str, str]:
    """Return what this process has in force."""
    is_tf32 = {torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32}
    found = {
        "torch": torch.__version__,
        "tf32": ", ".join("on" if is_on else "off" for is_on in sorted(is_tf32)),
        "intra_op_threads": str(torch.get_num_threads()),
        "inter_op_threads": str(torch.get_num_interop_threads()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if blas := re.search(r"BLAS_INFO=(\w+)", torch.__config__.show()):
        found["blas"] = blas[1]
    if torch.cuda.is_initialized():
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())
        found["cudnn_benchmark"] = "on" if torch.backends.cudnn.benchmark else "off"
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found
