"""Ranks of TensorFlow, joined by Horovod: NCCL between GPUs, Gloo between CPUs. Collectives work in `tf.function`."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workers.contract.messages import Compression, Reduction
from workers.contract.ranks import Fault, Seat
from workers.strategies import rendezvous
from workers.strategies.ring import Numbers, ReducingRing, Solo, Tensor


def check_own_name(seat: Seat) -> None:
    """Horovod 0.28 looks its node's name up for its process sets, whatever interface it was given: it crashes where
    nothing is known of it, and reductions go over the address that is found."""
    name = os.uname().nodename
    cure = f"add it to the node's /etc/hosts: {seat.host} {name}"
    try:
        found = socket.getaddrinfo(name, None)[0][4][0]
    except socket.gaierror as error:
        raise Fault("unknown host", f"a node must know its own name {name}, but: {error.strerror}; {cure}") from None
    if seat.interface != "lo" and ipaddress.ip_address(found).is_loopback:
        rule = f"a node's name must lead to its address in the cluster, but {name} leads to {found}"
        raise Fault("unknown host", f"{rule}; {cure}")


class Horovod:
    """Of two ranks and more."""

    def __init__(self, seat: Seat, compression: Compression, reduction: Reduction) -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        os.environ.update(environment(seat, os.environ))
        check_own_name(seat)
        hvd.init()
        rendezvous.leave(seat.rendezvous, seat.rank)
        self._hvd, self._tf = hvd, tf
        self._compression = getattr(hvd.Compression, compression)
        self._is_grouped = reduction == "grouped"
        self.rank, self.size = seat.rank, seat.size
        self.local_rank, self.local_size = seat.local_rank, seat.local_size

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        hvd, how = self._hvd, {"op": self._hvd.Average, "compression": self._compression}
        if self._is_grouped:
            return list(hvd.grouped_allreduce(list(tensors), **how))
        return [hvd.allreduce(tensor, name=f"gradient.{n}", **how) for n, tensor in enumerate(tensors)]

    def sum_of(self, flag: Tensor) -> Tensor:
        flag = self._tf.convert_to_tensor(flag)  # as gradients are sent, so that it is fused with them
        return self._hvd.allreduce(flag, name="flag", op=self._hvd.Sum, compression=self._compression)

    def spread(self, variables: Sequence[Any]) -> None:
        # Keras 3 wraps TensorFlow's variables, and Horovod knows only those. In a graph, all at once; Horovod's own
        # graph, which it has autograph convert first, takes longer to build than a small network.
        values = [variable.value for variable in variables]

        def group() -> None:
            self._hvd.broadcast_variables(values, root_rank=0)

        self._tf.function(group, autograph=False)()

    def total(self, values: Numbers) -> Numbers:
        summed: Numbers = self._hvd.allreduce(
            self._tf.convert_to_tensor(values), name="total", op=self._hvd.Sum
        ).numpy()
        return summed

    def barrier(self) -> None:
        self._hvd.allreduce(self._tf.zeros([]), name="barrier", op=self._hvd.Sum).numpy()


def environment(seat: Seat, own: Mapping[str, str]) -> dict[str, str]:
    """Return what horovodrun would set for this seat, with the trial's word, and that NCCL must say why it failed.

    The interface for NCCL is Gloo's, as with horovodrun, unless the user's `own` variables or the trial's name another:
    horovodrun over Gloo would overrule that without a word. A trial's record has the one that was in force.
    """
    variables = {
        "HOROVOD_HOSTNAME": seat.host,
        "HOROVOD_RANK": seat.rank,
        "HOROVOD_SIZE": seat.size,
        "HOROVOD_LOCAL_RANK": seat.local_rank,
        "HOROVOD_LOCAL_SIZE": seat.local_size,
        "HOROVOD_CROSS_RANK": seat.cross_rank,
        "HOROVOD_CROSS_SIZE": seat.cross_size,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": seat.rendezvous,  # the beginning of all URLs, with its port and the word
        "HOROVOD_GLOO_RENDEZVOUS_PORT": rendezvous.place(seat.rendezvous)[1],
        "HOROVOD_GLOO_IFACE": seat.interface,
        "NCCL_SOCKET_IFNAME": own.get("NCCL_SOCKET_IFNAME") or seat.interface,
        "NCCL_DEBUG": own.get("NCCL_DEBUG") or "WARN",  # else the reason of an error is nowhere
    }
    return {name: str(value) for name, value in variables.items() if value != ""}


@contextlib.contextmanager
def joined(
    seat: Seat, compression: Compression = "none", reduction: Reduction = "overlapped"
) -> Iterator[ReducingRing]:
    """Stand in the ring until the block ends."""
    if seat.size == 1:
        yield Solo()
        return
    ring = Horovod(seat, compression, reduction)
    yield ring
    ring.barrier()  # a rank that leaves early looks like a failure to those still reporting
    ring._hvd.shutdown()
