"""What a script's ranks find in their environment, by how they are joined."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from workers.contract.ranks import Seat
from workers.strategies.rendezvous import Rendezvous
from workers.workloads.script import joining

SEATS = [
    Seat(rank=n, size=2, local_rank=n, local_size=2, cross_rank=0, cross_size=1, host="127.0.0.1", interface="lo")
    for n in range(2)
]


def test_ranks_of_torchrun_have_one_master_and_places_of_their_own() -> None:
    store = Rendezvous(SEATS, "127.0.0.1")
    seats = [replace(seat, rendezvous=store.address) for seat in SEATS]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda seat: joining.environment("torchrun", seat), seats)
    store.close()
    assert first["MASTER_ADDR"] == second["MASTER_ADDR"] == "127.0.0.1"
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "0"
    places = [
        (each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"]) for each in (first, second)
    ]
    assert places == [("0", "0", "2", "2"), ("1", "1", "2", "2")]


def test_ranks_of_mpi_have_their_places_and_those_of_none_only_ours() -> None:
    found = joining.environment("mpi", SEATS[1])
    assert (found["OMPI_COMM_WORLD_RANK"], found["OMPI_COMM_WORLD_SIZE"], found["PMI_RANK"]) == ("1", "2", "1")
    ours = {"SWEEP_RANK": "1", "SWEEP_RANKS": "2", "SWEEP_LOCAL_RANK": "1"}
    assert joining.environment("none", SEATS[1]) == ours
