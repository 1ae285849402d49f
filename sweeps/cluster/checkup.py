"""`sweep doctor --cluster`: every node asked the same questions, one table of the answers."""

from __future__ import annotations

import contextlib
import secrets
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from sweeps.cluster import ray_cluster
from sweeps.spec import reading
from workers.checks import node_checkup
from workers.contract.paths import results_root

CLOCKS_WITHIN_S = 0.5
SLOW_LINK = 0.5  # of the median of all
ROUNDS = 5  # of which the quickest tells a clock best
LAUNCHER_FILE = Path("~/ray_bootstrap_config.yaml")  # as `ray up` leaves it on a head
COLUMNS = ("", "node", "address", "rack", "GPUs", "clock", "to the next", "wrong")
ABSENT = "has not joined: `ray up` may still be setting it up, or has failed to"


def examine(address: str, folders: Sequence[str]) -> list[dict[str, str]]:
    """A row for each node, the head's among them, and for each that has not joined; the last column says what is wrong.
    `folders` are those that trials read."""
    with ray_cluster.connected(address):
        nodes = [node for node in ray.nodes() if node["Alive"]]
        asked = [
            ray_cluster.on(node["NodeID"], node_checkup.facts).remote(
                [str(results_root()), *(folders if _runs_trials(node) else ())]
            )
            for node in nodes
        ]
        answers = ray.get(asked)
        offsets = [_offset_s(node) for node in nodes]
        measured = iter(_links([node for node in nodes if _runs_trials(node)]))
        links = [next(measured) if _runs_trials(node) else None for node in nodes]
    known = [_of(node) | told for node, told in zip(nodes, answers, strict=True)]
    named = expected({node["address"] for node in known}, _launched(), _resolved)
    if named:
        print(f"{len(named) - len(absent(named))} of {len(named)} nodes have joined", file=sys.stderr)
    return rows(known, offsets, links) + absent(named)


def expected(joined: Collection[str], launched: Mapping[str, Any], resolved: Callable[[str], str]) -> dict[str, bool]:
    """Whether each node has joined that the launcher's file names, by address or host name: the head and the others. A
    file of another cluster names none."""
    provider = launched.get("provider") or {}
    head = provider.get("head_ip") or ""
    if not head or resolved(head) not in joined:
        return {}
    return {name: resolved(name) in joined for name in (head, *(provider.get("worker_ips") or ()))}


def absent(named: Mapping[str, bool]) -> list[dict[str, str]]:
    """Pure: a row for each that has not joined."""
    late = [name for name, has_joined in named.items() if not has_joined]
    return [dict.fromkeys(COLUMNS, "") | {"": "✗", "address": name, "wrong": ABSENT} for name in late]


def _resolved(name: str) -> str:
    """The address that a host's name leads to, or what was given if none."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(name)
    return name


def _launched() -> dict[str, Any]:
    """What `ray up` has told this machine, if it is a head that it has made."""
    if not LAUNCHER_FILE.expanduser().is_file():
        return {}
    return reading.mapping(reading.read(LAUNCHER_FILE.expanduser()), str(LAUNCHER_FILE))


def _runs_trials(node: Mapping[str, Any]) -> bool:
    return bool(node["Resources"].get("CPU"))


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
        if node["runs_trials"]:
            wrong += [*_of_name(node), *_of_gpus(node)]
        elif not any(one["runs_trials"] for one in nodes):
            wrong.append("no node that runs trials has joined it")
        if len(speeds) > 2 and speed and speed < SLOW_LINK * statistics.median(speeds):
            wrong.append("a slow link")
        kinds = Counter(node["gpus"])
        kind = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
        values = (
            "✗" if wrong else "✓",
            node["host"],
            node["address"],
            node["rack"],
            kind if node["runs_trials"] else "runs no trials",
            f"{offset:+.2f} s",
            f"{speed:,.0f} MiB/s" if speed else "",
            "; ".join(wrong),
        )
        found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def _of_gpus(node: Mapping[str, Any]) -> list[str]:
    wrong = ["Horovod without NCCL (make clean setup GPU=1)"] if node["gpus"] and not node["has_nccl"] else []
    wrong += node["mismatches"]
    if node["promised"] != len(node["gpus"]):
        wrong.append(f"Ray promises {node['promised']} GPUs, TensorFlow sees {len(node['gpus'])}")
    elif node["devices"] and not node["gpus"]:
        wrong.append("TensorFlow sees no GPU")
    return wrong


def _of_name(node: Mapping[str, Any]) -> list[str]:
    """Horovod looks its node's name up, and listens and reduces at the address that it finds."""
    address, found = node["address"], node["name_leads_to"]
    if not found:
        return ["does not know its own name (/etc/hosts)"]
    is_local = address.startswith("127.")  # a cluster on one machine
    return [] if is_local or found == address else [f"its name leads to {found}, not {address} (/etc/hosts)"]


def _most(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]


def _of(node: Mapping[str, Any]) -> dict[str, Any]:
    rack, promised = node.get("Labels", {}).get("rack", ""), int(node["Resources"].get("GPU", 0))
    return {
        "address": node["NodeManagerAddress"],
        "rack": rack,
        "promised": promised,
        "runs_trials": _runs_trials(node),
    }


def _offset_s(node: Mapping[str, Any]) -> float:
    """Of its clock from the head's: half of the quickest answer's way is all that it can be wrong by."""
    asked = []
    for _ in range(ROUNDS):
        began = time.time()
        theirs = ray.get(ray_cluster.on(node["NodeID"], node_checkup.clock).remote())
        ended = time.time()
        asked.append((ended - began, theirs - (began + ended) / 2))
    return float(min(asked)[1])


def _links(nodes: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Each node to the next, one after another; none where there is one node."""
    if len(nodes) < 2:
        return [None for _ in nodes]
    found: list[float | None] = []
    word = secrets.token_bytes()
    for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        address = following["NodeManagerAddress"]
        sink = ray_cluster.on(following["NodeID"], node_checkup.Sink).remote(address, word)
        port = ray.get(sink.port_number.remote())
        found.append(ray.get(ray_cluster.on(node["NodeID"], node_checkup.send).remote(address, port, word)))
        ray.kill(sink)
    return found
