"""What the system says of its cores, and what is made of it where it says nothing."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from workers.node import topology
from workers.node.topology import Core, Topology


def system(folder: Path, siblings: dict[int, str], nodes: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        (folder / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(f"{text}\n")
    for node, text in nodes.items():
        (folder / f"node/node{node}").mkdir(parents=True)
        (folder / f"node/node{node}/cpulist").write_text(f"{text}\n")
    return folder


SIBLINGS = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
NODES = {0: "0,2,4,6", 1: "1,3,5,7", 2: ""}  # the last has memory alone


def test_siblings_are_one_core_and_nodes_stay_together(tmp_path: Path) -> None:
    found = topology.here(system(tmp_path, SIBLINGS, NODES), range(8))
    assert found == Topology((Core(0, (0, 4)), Core(0, (2, 6)), Core(1, (1, 5)), Core(1, (3, 7))))


def test_a_container_has_only_the_cores_that_it_may_use(tmp_path: Path) -> None:
    found = topology.here(system(tmp_path, SIBLINGS, NODES), [2, 5, 6, 7])
    assert found == Topology((Core(0, (2, 6)), Core(1, (5,)), Core(1, (7,))))


def test_where_no_siblings_are_told_each_logical_core_counts_and_it_says_so(tmp_path: Path) -> None:
    whole = Topology((Core(0, (0,)), Core(0, (1,))), has_siblings=False)
    assert topology.here(tmp_path, [1, 0]) == whole
    assert topology.here(system(tmp_path, {0: "0-1"}, {}), [0, 1]) == whole, "or not of all"


def test_this_machine_s_cores_are_those_that_this_process_may_run_on() -> None:
    assert {cpu for core in topology.here().cores for cpu in core.cpus} == os.sched_getaffinity(0)


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cores_are_written_as_the_system_does(cores: set[int]) -> None:
    assert topology.parsed(topology.listed(cores)) == cores
