"""`sweep doctor --cluster`: every node asked the same questions, one table of the answers."""

from __future__ import annotations

import contextlib
import re
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

from sweeps.cluster import ray_cluster, versions
from sweeps.spec import reading
from sweeps.text import caller
from workers.checks import node_checkup
from workers.contract.paths import results_root

CLOCKS_WITHIN_S = 0.5
SLOW_LINK = 0.5  # of the median of all
ROUNDS = 5  # of which the quickest tells a clock best
FACTS_WITHIN_S = 120.0  # a node imports TensorFlow for it
CLOCK_WITHIN_S = 30.0
LINK_WITHIN_S = 60.0
OTHER_CODE = re.compile(r"No module named '(workers|sweeps)|Can't get attribute")
LAUNCHER_FILE = Path("~/ray_bootstrap_config.yaml")  # as `ray up` leaves it on a head
COLUMNS = ("", "node", "address", "rack", "GPUs", "clock", "to the next", "wrong")
ABSENT = "has not joined: `ray up` may still be setting it up, or has failed to"


def examine(address: str, folders: Sequence[str]) -> list[dict[str, str]]:
    """Return a row for each node, the head's among them, and for each that has not joined; the last column says what is
    wrong. `folders` are those that trials read."""
    with ray_cluster.connected(address):
        nodes = [node for node in ray.nodes() if node["Alive"]]
        asked = [
            ray_cluster.on(node["NodeID"], node_checkup.facts).remote(
                [str(results_root()), *(folders if _runs_trials(node) else ())]
            )
            for node in nodes
        ]
        answers = _facts(asked)
        offsets = [
            _offset_s(node) if "fault" not in answer else None for node, answer in zip(nodes, answers, strict=True)
        ]
        linked = [
            node for node, answer in zip(nodes, answers, strict=True) if _runs_trials(node) and "fault" not in answer
        ]
        measured = dict(zip([node["NodeID"] for node in linked], _links(linked), strict=True))
        links = [measured.get(node["NodeID"]) for node in nodes]
    known = [_facts_of(node) | answer for node, answer in zip(nodes, answers, strict=True)]
    launched = _launched()
    named = expected({node["address"] for node in known}, launched, _resolved)
    if named:
        print(f"{len(named) - len(absent(named))} of {len(named)} nodes have joined", file=sys.stderr)
    may_be_idle = asks_for_none(launched)
    if may_be_idle and not any(node["runs_trials"] for node in known):
        print("no node runs trials now: they come when trials wait for them", file=sys.stderr)
    return rows(known, offsets, links, may_be_idle) + absent(named)


def _facts(asked: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what each node says within one time for all, or as `fault` why it does not."""
    give_up, answers = time.monotonic() + FACTS_WITHIN_S, list[dict[str, Any]]()
    for one in asked:
        try:
            answers.append(ray.get(one, timeout=max(0.0, give_up - time.monotonic())))
        except ray.exceptions.RayError as error:
            answers.append({"fault": unanswered(error, FACTS_WITHIN_S)})
    return answers


def unanswered(error: Exception, within_s: float) -> str:
    """Pure: why a node has not answered a question, and what helps."""
    brings = caller.current().ray_up
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return f"has not answered within {within_s:.0f} s: see whether it is overloaded, or its folders hang"
    if OTHER_CODE.search(str(error)):
        return f"has {versions.OTHER_CODE}: {brings} brings it there, and ends sweeps"
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"can't say what it is: {_last_line(error)}: `sweep doctor` there says more"
    return f"has gone while it was asked: if it does not come back, {brings} starts it again, and ends sweeps"


def unlinked(error: Exception, to: str) -> str:
    """Pure: why nothing came from a node to the next one, and what helps."""
    if isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.GetTimeoutError):
        why = _last_line(error) if isinstance(error, ray.exceptions.RayTaskError) else f"{LINK_WITHIN_S:.0f} s"
        return f"no link to {to} ({why}): no firewall may stand between nodes"
    return f"no link to {to}: one of the two has gone, or can't listen at its address"


def _last_line(error: Exception) -> str:
    """Return what was raised on the node, which Ray puts after the way to it."""
    return next(iter(reversed(str(error).strip().splitlines())), type(error).__name__)


def expected(joined: Collection[str], launched: Mapping[str, Any], resolved: Callable[[str], str]) -> dict[str, bool]:
    """Whether each node has joined that the launcher's file names, by address or host name: the head and the others. A
    file of another cluster names none."""
    provider = launched.get("provider") or {}
    head = provider.get("head_ip") or ""
    if not head or resolved(head) not in joined:
        return {}
    return {name: resolved(name) in joined for name in (head, *(provider.get("worker_ips") or ()))}


def asks_for_none(launched: Mapping[str, Any]) -> bool:
    """Pure: whether the launcher's file has nodes come only when trials wait for them, as a cloud's may."""
    types = launched.get("available_node_types") or {}
    others = [of for name, of in types.items() if name != launched.get("head_node_type")]
    return bool(others) and not any((of or {}).get("min_workers") for of in others)


def absent(named: Mapping[str, bool]) -> list[dict[str, str]]:
    """Pure: a row for each that has not joined."""
    late = [name for name, has_joined in named.items() if not has_joined]
    return [dict.fromkeys(COLUMNS, "") | {"": "✗", "address": name, "wrong": ABSENT} for name in late]


def _resolved(name: str) -> str:
    """Return the address that a host's name leads to, or what was given if none."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(name)
    return name


def _launched() -> dict[str, Any]:
    """Return what `ray up` has told this machine, if it is a head that it has made."""
    if not LAUNCHER_FILE.expanduser().is_file():
        return {}
    return reading.mapping(reading.read(LAUNCHER_FILE.expanduser()), str(LAUNCHER_FILE))


def _runs_trials(node: Mapping[str, Any]) -> bool:
    return bool(node["Resources"].get("CPU"))


def rows(
    nodes: Sequence[Mapping[str, Any]],
    offsets: Sequence[float | str | None],
    links: Sequence[float | str | None],
    may_be_idle: bool = False,
) -> list[dict[str, str]]:
    """Pure: what was found, and what of it is wrong. In place of an answer may stand why there is none. A cluster that
    `may_be_idle` needs no node that runs trials."""
    answered = [node for node in nodes if "fault" not in node]
    usual = {
        name: _most([node["versions"][name] for node in answered if name in node["versions"]])
        for name in {name: None for node in answered for name in node["versions"]}
    }
    speeds = [speed for speed in links if speed and not isinstance(speed, str)]
    can_run = may_be_idle or any(node["runs_trials"] for node in nodes)
    found = []
    for node, offset, speed in zip(nodes, offsets, links, strict=True):
        wrong = [node["fault"]] if "fault" in node else _of_answers(node, usual)
        wrong += [offset] if isinstance(offset, str) else _of_clock(offset)
        if not can_run and not node["runs_trials"]:
            wrong.append("no node that runs trials has joined it")
        if isinstance(speed, str):
            wrong.append(speed)
        elif len(speeds) > 2 and speed and speed < SLOW_LINK * statistics.median(speeds):
            wrong.append("a slow link")
        values = (
            "✗" if wrong else "✓",
            node["host"],
            node["address"],
            node["rack"],
            _kinds(node),
            "" if offset is None or isinstance(offset, str) else f"{offset:+.2f} s",
            f"{speed:,.0f} MiB/s" if speed and not isinstance(speed, str) else "",
            "; ".join(wrong),
        )
        found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def _kinds(node: Mapping[str, Any]) -> str:
    if not node["runs_trials"]:
        return "runs no trials"
    if "fault" in node:
        return ""
    kinds = Counter(node["gpus"])
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"


def _of_answers(node: Mapping[str, Any], usual: Mapping[str, str]) -> list[str]:
    wrong = [
        f"{name} {version}, others {usual[name]}"
        for name, version in node["versions"].items()
        if version != usual[name]
    ]
    wrong += [f"can't read {folder}" for folder in node["missing"]]
    if node["runs_trials"]:
        wrong += [*_of_name(node), *(node.get("trouble") or _of_gpus(node))]
    return wrong


def _of_clock(offset: float | None) -> list[str]:
    return [f"clock {offset:+.1f} s"] if offset is not None and abs(offset) > CLOCKS_WITHIN_S else []


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


def _facts_of(node: Mapping[str, Any]) -> dict[str, Any]:
    rack, promised = node.get("Labels", {}).get("rack", ""), int(node["Resources"].get("GPU", 0))
    return {
        "host": node["NodeManagerHostname"],
        "address": node["NodeManagerAddress"],
        "rack": rack,
        "promised": promised,
        "runs_trials": _runs_trials(node),
    }


def _offset_s(node: Mapping[str, Any]) -> float | str:
    """Return its clock's offset from the head's, right to half of the quickest answer's way; or why it is not known."""
    asked = []
    for _ in range(ROUNDS):
        began = time.time()
        question = ray_cluster.on(node["NodeID"], node_checkup.clock).remote()
        try:
            theirs = ray.get(question, timeout=CLOCK_WITHIN_S)
        except ray.exceptions.RayError as error:
            return unanswered(error, CLOCK_WITHIN_S)
        ended = time.time()
        asked.append((ended - began, theirs - (began + ended) / 2))
    return float(min(asked)[1])


def _links(nodes: Sequence[Mapping[str, Any]]) -> list[float | str | None]:
    """Each node to the next, one after another, or why not; none where there is one node."""
    if len(nodes) < 2:
        return [None for _ in nodes]
    word = secrets.token_bytes()
    return [_link(node, following, word) for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True)]


def _link(node: Mapping[str, Any], following: Mapping[str, Any], word: bytes) -> float | str:
    address = following["NodeManagerAddress"]
    sink = ray_cluster.on(following["NodeID"], node_checkup.Sink).remote(address, word)
    try:
        port = ray.get(sink.port_number.remote(), timeout=LINK_WITHIN_S)
        sending = ray_cluster.on(node["NodeID"], node_checkup.send).remote(address, port, word)
        return float(ray.get(sending, timeout=LINK_WITHIN_S))
    except ray.exceptions.RayError as error:
        return unlinked(error, address)
    finally:
        ray.kill(sink)
