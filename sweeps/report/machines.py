"""What it ran on: nodes that are alike together, and how they did in their self-tests."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping
from typing import Any

from sweeps.analysis.study import Study
from sweeps.report.chart import Block, Section, Table
from sweeps.text import tables
from workers.checks import self_test
from workers.contract.messages import SOFTWARE_OF

PROBES = {
    "core_gflops": "one core, GFLOP/s",
    "node_gflops": "all cores, GFLOP/s",
    **{name: f"{what}, {unit}" for name, (what, unit) in self_test.OF_A_GPU.items()},
    "copy_gib_per_s": "memory, GiB/s",
    "decode_images_per_s": "JPEG decoding, images/s",
    "allreduce_mib_per_s": "allreduce, MiB/s",
}
SIDES = {"hardware": "hardware", "software": "software", "torch_software": "software of torch"}


def section(study: Study) -> Section | None:
    ran = {record.config.framework for record in study.records} or {"tensorflow"}  # a store alone does not tell
    sides = ["hardware", *(side for framework, side in SOFTWARE_OF.items() if framework in ran)]
    blocks: list[Block] = [*(block for side in sides for block in _facts(study, side)), *_probes(study)]
    if not blocks:
        return None
    names = sorted({str(node["node"]) for node in study.nodes})
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    lead = f"{len(names)} node{'' if len(names) == 1 else 's'}: {listed}." if names else "What the nodes were made of."
    return Section("machines", "Machines", lead, tuple(blocks))


def _facts(study: Study, side: str) -> list[Block]:
    """Return a table with a column for each kind of node, a row for each fact."""
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
    columns = ("", *(f"kind {n}" if len(kinds) > 1 else SIDES[side] for n in range(1, len(kinds) + 1)))
    return [Table(f"machines-{side.replace('_', '-')}", SIDES[side].capitalize(), columns, tuple(rows))]


def _flat(facts: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    made = []
    for name, value in facts.items():
        said = f"{before}{name.removeprefix('is_').replace('_', ' ')}"
        if isinstance(value, Mapping):
            made += _flat(value, f"{said} · ")
        elif isinstance(value, (list, tuple)):
            made += _listed(said, value)
        else:
            made.append((said, _plain(value)))
    return made


def _plain(value: object) -> str:
    return "–" if value is None else ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _listed(said: str, values: list[Any] | tuple[Any, ...]) -> list[tuple[str, str]]:
    """Equal things once, with their number."""
    counts = collections.Counter(
        ", ".join(f"{name} {value}" for name, value in _flat(item)) if isinstance(item, Mapping) else str(item)
        for item in values
    )
    words = "; ".join(f"{n} × {what}" if n > 1 else what for what, n in counts.items())
    return [(said, words)] if words else []


def _probes(study: Study) -> list[Block]:
    """Return the tests of nodes alone, and those of the links between some."""
    found: dict[tuple[str, ...], dict[str, list[Mapping[str, Any]]]] = {}
    for probe in study.probes:
        names = tuple(probe.get("figures", {}))
        if names:
            found.setdefault(names, {}).setdefault(str(probe["node"]), []).append(probe)
    note = "Five seconds before a node's first trial, and then every hour. Means over its tests."
    blocks: list[Block] = []
    for n, (names, nodes) in enumerate(found.items(), 1):
        rows = []
        for node, probes in sorted(nodes.items()):
            slow = sorted({str(what) for probe in probes for what in probe.get("slow", ())})
            means = (statistics.fmean(float(probe["figures"][name]) for probe in probes) for name in names)
            rows.append((node, len(probes), *(tables.number(mean) for mean in means), "; ".join(slow) or "–"))
        columns = ("node", "tests", *(PROBES.get(name, name.replace("_", " ")) for name in names), "slow in")
        title = "Self-tests" if n == 1 else f"Self-tests: {columns[2].split(',')[0]}"
        blocks.append(Table(f"machines-probes-{n}", title, columns, tuple(rows), frozenset(columns[1:-1]), note))
        note = ""
    return blocks
