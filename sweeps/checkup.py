"""`sweep doctor --cluster`: every node asked the same questions, one table of the answers."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from sweeps import cluster
from workers import checkup
from workers.paths import results_root

CLOCKS_WITHIN_S = 0.5
SLOW_LINK = 0.5  # of the median of all
ROUNDS = 5  # of which the quickest tells a clock best


def examine(address: str, folders: Sequence[str]) -> list[dict[str, str]]:
    """A row a node that trials may run on; the last column says what is wrong with it."""
    with cluster.connected(address):
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        asked = [cluster.on(node["NodeID"], checkup.facts).remote([str(results_root()), *folders]) for node in nodes]
        answers = ray.get(asked)
        offsets = [_offset_s(node) for node in nodes]
        links = _links(nodes)
    return rows([_of(node) | told for node, told in zip(nodes, answers, strict=True)], offsets, links)


def rows(
    nodes: Sequence[Mapping[str, Any]], offsets: Sequence[float], links: Sequence[float | None]
) -> list[dict[str, str]]:
    """Pure: what was found, and what of it is wrong."""
    usual = {name: _most([node["versions"][name] for node in nodes]) for name in nodes[0]["versions"]} if nodes else {}
    speeds = [speed for speed in links if speed]
    found = []
    for node, offset, speed in zip(nodes, offsets, links, strict=True):
        wrong = [
            f"{name} {version}, others {usual[name]}"
            for name, version in node["versions"].items()
            if version != usual[name]
        ]
        wrong += [f"clock {offset:+.1f} s" for _ in [0] if abs(offset) > CLOCKS_WITHIN_S]
        wrong += [f"can't read {folder}" for folder in node["missing"]]
        wrong += ["does not know its own name (/etc/hosts)"] if not node["is_named"] else []
        wrong += ["Horovod without NCCL (make clean setup GPU=1)"] if node["gpus"] and not node["has_nccl"] else []
        wrong += node["mismatches"]
        if node["promised"] != len(node["gpus"]):
            wrong.append(f"Ray promises {node['promised']} GPUs, TensorFlow sees {len(node['gpus'])}")
        elif node["devices"] and not node["gpus"]:
            wrong.append("TensorFlow sees no GPU")
        if len(speeds) > 2 and speed and speed < SLOW_LINK * statistics.median(speeds):
            wrong.append("a slow link")
        kinds = Counter(node["gpus"])
        found.append(
            {
                "": "✗" if wrong else "✓",
                "node": node["host"],
                "address": node["address"],
                "rack": node["rack"],
                "GPUs": ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none",
                "clock": f"{offset:+.2f} s",
                "to the next": f"{speed:,.0f} MiB/s" if speed else "",
                "wrong": "; ".join(wrong),
            }
        )
    return found


def _most(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]


def _of(node: Mapping[str, Any]) -> dict[str, Any]:
    rack, promised = node.get("Labels", {}).get("rack", ""), int(node["Resources"].get("GPU", 0))
    return {"address": node["NodeManagerAddress"], "rack": rack, "promised": promised}


def _offset_s(node: Mapping[str, Any]) -> float:
    """Of its clock from the head's: half of the quickest answer's way is all that it can be wrong by."""
    asked = []
    for _ in range(ROUNDS):
        began = time.time()
        theirs = ray.get(cluster.on(node["NodeID"], checkup.clock).remote())
        ended = time.time()
        asked.append((ended - began, theirs - (began + ended) / 2))
    return float(min(asked)[1])


def _links(nodes: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Each node to the next, one after another; none where there is one node."""
    if len(nodes) < 2:
        return [None for _ in nodes]
    found: list[float | None] = []
    for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        address = following["NodeManagerAddress"]
        sink = cluster.on(following["NodeID"], checkup.Sink).remote(address)
        port = ray.get(sink.port_number.remote())
        found.append(ray.get(cluster.on(node["NodeID"], checkup.send).remote(address, port)))
        ray.kill(sink)
    return found
