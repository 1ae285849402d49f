"""What `--simulate` takes, and that it tells every mistake at once."""

from __future__ import annotations

import pytest

from sweeps.errors import InputError
from sweeps.simulator.cluster import parse
from sweeps.spec.arrangements import Node


def test_a_shape_gives_nodes_with_names_and_its_kind_s_cores() -> None:
    cluster = parse("nodes=2, gpus=4, gpu=v100")
    assert cluster.nodes == (Node("node-1", 40, 4, "v100"), Node("node-2", 40, 4, "v100"))
    assert cluster.hardware == "simulated:v100"


def test_a_number_of_nodes_is_enough() -> None:
    assert parse("nodes=1").nodes == (Node("node-1", 40, 4, "v100"),)


def test_every_part_is_taken() -> None:
    cluster = parse("nodes=1,gpus=8,gpu=p100,cpus=16,memory=32,noise=2%,loss=0.05,seed=7")
    assert cluster.nodes == (Node("node-1", 16, 8, "p100"),)
    assert (cluster.noise, cluster.loss, cluster.seed) == (0.02, 0.05, 7)
    assert cluster.kind.gpu_gib == 32
    assert cluster.hardware == "simulated:p100-32GiB"


def test_nodes_without_gpus_have_memory_of_their_own() -> None:
    cluster = parse("nodes=3,gpu=none,cpus=8,memory=16")
    assert cluster.nodes[2] == Node("node-3", 8, 0)
    assert cluster.kind.memory_gib == 16


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["NAME=VALUE", "nodes: must be given"]),
        ("gpus=4", ["nodes: must be given, as in nodes=8,gpus=4,gpu=v100, but got nothing"]),
        ("nodes=0", ["nodes: must be a whole number from 1 to 1024, but got 0"]),
        ("nodes=2,nodes=3", ["nodes: must be given once, but got 3"]),
        ("nodes=2,gpu=v10", ["gpu: must be one of v100, v100-k", "but got v10"]),
        ("nodes=2,gpu=none,gpus=4", ["gpus: must be left out, or be 0, with gpu=none"]),
        ("nodes=2,gpus=0", ["gpus: must be at least 1; gpu=none gives nodes without"]),
        ("nodes=2,lost=5%", ["(did you mean loss?), but got lost=5%"]),
        ("nodes=2,loss=1.5", ["loss: must be at least 0 and less than 1"]),
        ("nodes=2,noise=nan", ["noise: must be at least 0 and less than 1"]),
        ("nodes=2,memory=inf", ["memory: must be GiB"]),
        ("nodes=²", ["nodes: must be a whole number"]),
    ],
)
def test_a_wrong_shape_is_told(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        parse(text)
    for word in words:
        assert word in str(refused.value)


def test_all_mistakes_are_told_at_once_and_each_once() -> None:
    with pytest.raises(InputError) as refused:
        parse("nodes=x,gpu=h900,loss=-1,colour=red")
    assert [mistake.key for mistake in refused.value.mistakes] == ["nodes", "gpu", "loss", ""]
    assert all(line.startswith("--simulate: ") for line in str(refused.value).splitlines())
