"""Which rank sits where: Horovod's view of a gang, from where its bundles came to lie. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from workers.contract.ranks import Seat


@dataclasses.dataclass(frozen=True)
class Location:
    """Where a supervisor sits, as it found it."""

    node: str
    address: str
    interface: str
    gpu: str
    fork_server: str
    shares_machine: bool = False  # with another of Ray's nodes
    node_id: str = ""  # Ray's
    hardware: str = ""
    software: str = ""


def seated(locations: Sequence[Location]) -> list[Seat]:
    """Horovod's view of the gang: rank, place within the node, place among the nodes. Locations come node by node."""
    nodes = list(dict.fromkeys(location.fork_server for location in locations))
    on_machine = Counter(address for address, _ in {(location.address, location.fork_server) for location in locations})
    is_one_machine = len({location.address for location in locations}) == 1  # though it may be several of Ray's nodes
    here = Counter(location.fork_server for location in locations)
    seen: Counter[str] = Counter()
    seats = []
    for rank, location in enumerate(locations):
        local = seen[location.fork_server]
        seen[location.fork_server] += 1
        peers = [node for node in nodes if here[node] > local]  # nodes that have a rank of this local rank
        seats.append(
            Seat(
                rank=rank,
                size=len(locations),
                local_rank=local,
                local_size=here[location.fork_server],
                cross_rank=peers.index(location.fork_server),
                cross_size=len(peers),
                host=location.address,
                shares_machine=location.shares_machine or on_machine[location.address] > 1,
                gpus=tuple(other.gpu for other in locations if other.fork_server == location.fork_server),
                interface="lo" if is_one_machine else location.interface,
            )
        )
    return seats
