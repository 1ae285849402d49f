"""Which rank sits where: Horovod's view of a gang, from where its bundles came to lie. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from workers.contract.ranks import Seat


@dataclasses.dataclass(frozen=True)
class Bench:
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


def seated(benches: Sequence[Bench]) -> list[Seat]:
    """Horovod's view of the gang: rank, place within the node, place among the nodes. Benches come node by node."""
    nodes = list(dict.fromkeys(bench.fork_server for bench in benches))
    on_machine = Counter(address for address, _ in {(bench.address, bench.fork_server) for bench in benches})
    is_one_machine = len({bench.address for bench in benches}) == 1  # though it may be several of Ray's nodes
    here = Counter(bench.fork_server for bench in benches)
    seen: Counter[str] = Counter()
    seats = []
    for rank, bench in enumerate(benches):
        local = seen[bench.fork_server]
        seen[bench.fork_server] += 1
        peers = [node for node in nodes if here[node] > local]  # nodes that have a rank of this local rank
        seats.append(
            Seat(
                rank=rank,
                size=len(benches),
                local_rank=local,
                local_size=here[bench.fork_server],
                cross_rank=peers.index(bench.fork_server),
                cross_size=len(peers),
                host=bench.address,
                shares_machine=bench.shares_machine or on_machine[bench.address] > 1,
                gpus=tuple(other.gpu for other in benches if other.fork_server == bench.fork_server),
                interface="lo" if is_one_machine else bench.interface,
            )
        )
    return seats
