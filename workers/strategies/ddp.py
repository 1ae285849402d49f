"""Ranks of torch, joined by torch.distributed: NCCL between GPUs, Gloo between CPUs, gradients by
DistributedDataParallel.

They find each other where all gangs do, at the rendezvous that their launcher has opened for this trial alone, under
its word; torch's own TCPStore would do what any stranger asks of it. Once all have joined it closes.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workers.contract.messages import Deadlines, TrialConfig
from workers.contract.ranks import Seat
from workers.strategies import rendezvous
from workers.strategies.ring import Numbers, Ring, Solo

SCOPE = "torch"
WHOLE_MIB = 1 << 20  # a bucket that holds the gradients of any network
LONGER_S = 60.0  # than any deadline: whoever looks after a rank says first that it stands still


class GangStore(dist.Store):
    """The gang's rendezvous, as a process group asks for a store of keys."""

    def __init__(self, seat: Seat) -> None:
        super().__init__()
        self._seat = seat
        self._known: dict[str, bytes] = {}  # nobody changes what it has said: it is asked for three times
        self.is_closed = False  # as the rendezvous is once all have joined: a thread of NCCL's may ask even then

    def set(self, key: str, value: bytes | str) -> None:
        rendezvous.tell(self._seat.rendezvous, _path(key), value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        if key not in self._known:
            self._known[key] = rendezvous.awaited(self._seat, _path(key))
        return self._known[key]

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait as long as it takes: its supervisor ends a rank that waits too long."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        if self.is_closed:
            return False
        return all(rendezvous.value_at(self._seat.rendezvous, _path(key)) for key in keys)


def _path(key: str) -> str:
    return f"{SCOPE}/{urllib.parse.quote(key, safe='')}"


class Ddp:
    """Of two ranks and more."""

    def __init__(self, seat: Seat, config: TrialConfig) -> None:
        os.environ.update(environment(seat, os.environ))
        self.rank, self.size = seat.rank, seat.size
        self.local_rank, self.local_size = seat.local_rank, seat.local_size
        self._device = torch.device("cuda", 0) if config.device == "gpu" else torch.device("cpu")
        self._compression, self._is_grouped = config.compression, config.reduction == "grouped"
        store = GangStore(seat)
        dist.init_process_group(
            "nccl" if config.device == "gpu" else "gloo",
            store=store,
            rank=seat.rank,
            world_size=seat.size,
            timeout=datetime.timedelta(seconds=patience_s(config.deadlines)),
            device_id=self._device if config.device == "gpu" else None,
        )
        self.barrier()  # from here on nobody asks the store
        store.is_closed = True
        rendezvous.leave(seat.rendezvous, seat.rank)

    def parallel(self, module: torch.nn.Module) -> DistributedDataParallel:
        """Return a module whose backward pass leaves the mean of all ranks' gradients.

        Gradients are reduced in buckets, each beside the backward pass as soon as it is full; grouped, in one bucket
        once the last gradient is there. The first step has one bucket in any case: it shows in which order they appear.
        """
        wrapped = DistributedDataParallel(
            module,
            device_ids=[0] if self._device.type == "cuda" else None,
            forward_sync_buffers=False,  # batch norm's statistics are each rank's own until the ranks agree
            gradient_as_bucket_view=True,
            **({"bucket_cap_mb": WHOLE_MIB} if self._is_grouped else {}),
        )
        if self._compression == "fp16":
            wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        return wrapped

    def buffers(self, wrapped: DistributedDataParallel) -> list[torch.Tensor]:
        """Return a buffer for each bucket that a module's steps reduce, as large and in the format that is sent."""
        kind = torch.float16 if self._compression == "fp16" else torch.float32
        return [torch.zeros(count // 4, dtype=kind, device=self._device) for count in buckets(wrapped)]

    def reduce(self, buffers: Sequence[torch.Tensor]) -> float:
        """Reduce these as a backward pass would, one beside the other, and wait for them."""
        works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
        for work in works:
            work.wait()
        return float(torch.stack([buffer[0] for buffer in buffers]).sum())

    def spread(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give every rank the values that rank 0 holds, all of a format at once."""
        for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
            alike = [tensor for tensor in tensors if tensor.dtype == kind]
            flat = torch.cat([tensor.detach().reshape(-1).to(self._device) for tensor in alike])
            dist.broadcast(flat, src=0)
            with torch.no_grad():
                for tensor, part in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
                    tensor.copy_(part.reshape(tensor.shape))

    def total(self, values: Numbers) -> Numbers:
        summed = torch.from_numpy(np.array(values)).to(self._device)
        dist.all_reduce(summed)
        numbers: Numbers = summed.cpu().numpy()
        return numbers

    def barrier(self) -> None:
        met = torch.zeros(1, device=self._device)
        dist.all_reduce(met)
        met.item()


def buckets(wrapped: DistributedDataParallel) -> list[int]:
    """Return the bytes of gradients in each bucket that a module's steps reduce, as it has them."""
    has = wrapped._get_ddp_logging_data()
    told = has.get("rebuilt_bucket_sizes") or has["bucket_sizes"]
    return [int(count) for count in told.split(",")]


def patience_s(deadlines: Deadlines) -> float:
    """How long a rank may wait for others in an operation."""
    return max(deadlines.ring_s, deadlines.build_s, deadlines.step_s) + LONGER_S


def environment(seat: Seat, own: Mapping[str, str]) -> dict[str, str]:
    """Return what is set for this seat before it joins: its interface, unless the user's `own` variables or the trial's
    name another, and that NCCL must say why it failed.

    NCCL's monitor would ask the rendezvous once a second beside the steps, and end a rank that stands still: a rank has
    a supervisor for that.
    """
    variables = {
        "GLOO_SOCKET_IFNAME": own.get("GLOO_SOCKET_IFNAME") or seat.interface,
        "NCCL_SOCKET_IFNAME": own.get("NCCL_SOCKET_IFNAME") or seat.interface,
        "NCCL_DEBUG": own.get("NCCL_DEBUG") or "WARN",
        "TORCH_NCCL_ENABLE_MONITORING": own.get("TORCH_NCCL_ENABLE_MONITORING") or "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": own.get("TORCH_NCCL_DUMP_ON_TIMEOUT") or "0",
    }
    return {name: value for name, value in variables.items() if value}


@contextlib.contextmanager
def joined(seat: Seat, config: TrialConfig) -> Iterator[Ring]:
    """Stand in the ring until the block ends. The process ends behind it without unwinding the group, which takes
    seconds."""
    if seat.size == 1:
        yield Solo()
        return
    ring = Ddp(seat, config)
    yield ring
    ring.barrier()  # a rank that leaves early looks like a failure to those still reporting
