"""What it ran on: nodes that are alike together, and how they did in their self-tests."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping
from typing import Any

from sweeps.report.chart import Block, Section, Table
from sweeps.report.study import Study

PROBES = {
    "core_gflops": "one core, GFLOP/s",
    "node_gflops": "all cores, GFLOP/s",
    "gpu_gflops": "a GPU, GFLOP/s",
    "copy_gib_per_s": "memory, GiB/s",
    "decode_images_per_s": "JPEG decoding, images/s",
}


def section(study: Study) -> Section | None:
    blocks: list[Block] = [*_facts(study, "hardware"), *_facts(study, "software"), *_probes(study)]
    if not blocks:
        return None
    names = sorted({str(node["node"]) for node in study.nodes})
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    lead = f"{len(names)} node{'s' * (len(names) != 1)}: {listed}." if names else "What the nodes were made of."
    return Section("machines", "Hardware and software", lead, tuple(blocks))


def _facts(study: Study, side: str) -> list[Block]:
    """A column for each kind of node, a row a fact."""
    kinds: dict[str, Mapping[str, Any]] = {}
    nodes: dict[str, list[str]] = collections.defaultdict(list)
    for node in study.nodes:
        facts = node.get(side) or {}
        digest = str(facts.get("digest", ""))
        kinds.setdefault(digest, facts)
        if str(node["node"]) not in nodes[digest]:
            nodes[digest].append(str(node["node"]))
    if not kinds:
        return []
    flat = {digest: dict(_flat(facts)) for digest, facts in kinds.items()}
    names = list(dict.fromkeys(name for facts in flat.values() for name in facts if name != "digest"))
    rows = [("fingerprint", *kinds)]
    if len(kinds) > 1:
        rows.append(("nodes", *(", ".join(nodes[digest]) for digest in kinds)))
    rows += [(name, *(facts.get(name, "–") for facts in flat.values())) for name in names]
    columns = ("", *(f"kind {n}" if len(kinds) > 1 else side for n in range(1, len(kinds) + 1)))
    return [Table(f"machines-{side}", side.capitalize(), columns, tuple(rows))]


def _flat(facts: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    made = []
    for name, value in facts.items():
        said = f"{before}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            made += _flat(value, f"{said} · ")
        elif isinstance(value, (list, tuple)):
            made += _listed(said, value)
        else:
            made.append((said, {True: "yes", False: "no", None: "–"}.get(value, str(value))))
    return made


def _listed(said: str, values: list[Any] | tuple[Any, ...]) -> list[tuple[str, str]]:
    """Equal things once, with their number."""
    counts = collections.Counter(
        ", ".join(f"{name} {value}" for name, value in _flat(item)) if isinstance(item, Mapping) else str(item)
        for item in values
    )
    told = "; ".join(f"{n} × {what}" if n > 1 else what for what, n in counts.items())
    return [(said, told)] if told else []


def _probes(study: Study) -> list[Block]:
    found: dict[str, list[Mapping[str, Any]]] = collections.defaultdict(list)
    for probe in study.probes:
        found[str(probe["node"])].append(probe)
    figures = [name for probe in study.probes for name in probe.get("figures", {})]
    names = list(dict.fromkeys(figures))
    if not names:
        return []
    rows = []
    for node, probes in sorted(found.items()):
        means = [[float(p["figures"][name]) for p in probes if name in p["figures"]] for name in names]
        slow = sorted({str(what) for probe in probes for what in probe.get("slow", ())})
        shown = [f"{statistics.fmean(one):,.4g}" if one else "–" for one in means]
        rows.append((node, len(probes), *shown, "; ".join(slow) or "–"))
    columns = ("node", "tests", *(PROBES.get(name, name.replace("_", " ")) for name in names), "slow in")
    note = "Five seconds before a node's first trial, and then every hour. Means over a node's tests."
    return [Table("machines-probes", "Self-tests", columns, tuple(rows), frozenset(columns[1:-1]), note)]
