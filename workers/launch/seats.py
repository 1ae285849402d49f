"""Which rank sits where: Horovod's view of a gang, from where its bundles came to lie. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from workers.contract.ranks import Seat


@dataclasses.dataclass(frozen=True)
class Location:
    """The place where a supervisor sits, as it found it."""

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
    by_node: dict[str, list[Location]] = {}
    for location in locations:
        by_node.setdefault(location.fork_server, []).append(location)
    on_machine = Counter(address for address, _ in {(location.address, location.fork_server) for location in locations})
    is_one_machine = len(on_machine) == 1  # though it may be several of Ray's nodes
    seats: list[Seat] = []
    here: Counter[str] = Counter()  # ranks so far, by node
    across: Counter[int] = Counter()  # nodes so far that have a rank of this local rank
    cross_size = Counter(local for ranks in by_node.values() for local in range(len(ranks)))
    gpus = {node: tuple(location.gpu for location in ranks) for node, ranks in by_node.items()}
    for rank, location in enumerate(locations):
        node = location.fork_server
        local = here[node]
        here[node] += 1
        seats.append(
            Seat(
                rank=rank,
                size=len(locations),
                local_rank=local,
                local_size=len(by_node[node]),
                cross_rank=across[local],
                cross_size=cross_size[local],
                host=location.address,
                shares_machine=location.shares_machine or on_machine[location.address] > 1,
                gpus=gpus[node],
                interface="lo" if is_one_machine else location.interface,
            )
        )
        across[local] += 1
    return seats
