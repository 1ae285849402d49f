"""What a script's ranks find in their environment, so that they can join: as the launcher that they were written for
would leave it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from workers.contract.messages import Joining
from workers.contract.ranks import Seat
from workers.strategies import horovod, rendezvous

MASTER = "torchrun/0"  # where rank 0 says its port


def environment(joining: Joining, seat: Seat) -> dict[str, str]:
    """Return the variables of a rank at this seat; all ranks must ask."""
    own = {"SWEEP_RANK": seat.rank, "SWEEP_RANKS": seat.size, "SWEEP_LOCAL_RANK": seat.local_rank}
    said: Mapping[str, object] = {}
    if joining == "horovod" and seat.size > 1:  # one alone needs no launcher
        horovod.check_own_name(seat)
        said = horovod.environment(seat, os.environ)
    elif joining == "torchrun":
        said = _torchrun(seat, *_master(seat))
    elif joining == "mpi":
        said = _mpi(seat)
    return {name: str(value) for name, value in {**own, **said}.items()}


def _torchrun(seat: Seat, address: str, port: int) -> dict[str, object]:
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "RANK": seat.rank,
        "WORLD_SIZE": seat.size,
        "LOCAL_RANK": seat.local_rank,
        "LOCAL_WORLD_SIZE": seat.local_size,
        "GROUP_RANK": seat.cross_rank,
        "GROUP_WORLD_SIZE": seat.cross_size,
        "ROLE_RANK": seat.rank,
        "ROLE_WORLD_SIZE": seat.size,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "GLOO_SOCKET_IFNAME": seat.interface,
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME") or seat.interface,
    }


def _mpi(seat: Seat) -> dict[str, object]:
    """As Open MPI, and as MPICH and Intel's, name them; there is no MPI that joins them."""
    return {
        "OMPI_COMM_WORLD_RANK": seat.rank,
        "OMPI_COMM_WORLD_SIZE": seat.size,
        "OMPI_COMM_WORLD_LOCAL_RANK": seat.local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": seat.local_size,
        "OMPI_COMM_WORLD_NODE_RANK": seat.local_rank,
        "PMI_RANK": seat.rank,
        "PMI_SIZE": seat.size,
        "MPI_LOCALRANKID": seat.local_rank,
        "MPI_LOCALNRANKS": seat.local_size,
    }


def _master(seat: Seat) -> tuple[str, int]:
    """Where rank 0 will listen: a port that was free when it looked."""
    if seat.rank:
        host, _, told_port = rendezvous.awaited(seat, MASTER).decode().rpartition(":")
        return host, int(told_port)
    with socket.create_server((seat.host, 0)) as looked:
        port = int(looked.getsockname()[1])
    if seat.size > 1:
        rendezvous.tell(seat.rendezvous, MASTER, f"{seat.host}:{port}".encode())
    return seat.host, port
