"""What the nodes read while the sweep ran, and when each trial had them."""

from __future__ import annotations

from sweeps.analysis.study import Study
from sweeps.report.chart import Block, Chart, Mark, Panel, Scale, Section, Series

GROUPS: tuple[tuple[str, str, dict[str, str]], ...] = (  # (title, unit, figures and what they are called)
    ("GPUs", "%", {"gpu_percent": "GPU busy"}),
    ("GPU memory", "GiB", {"gpu_memory_gib": "in use"}),
    ("GPU power", "W", {"gpu_power_w": "drawn"}),
    ("GPU temperature", "°C", {"gpu_temperature_c": "hottest"}),
    ("Processor", "%", {"cpu_percent": "busy"}),
    ("Memory", "GiB", {"memory_used_gib": "in use", "page_cache_gib": "page cache"}),
    ("Disks", "MiB/s", {"disk_read_mib_per_s": "read", "disk_write_mib_per_s": "written"}),
    (
        "Network",
        "MiB/s",
        {"net_send_mib_per_s": "sent", "net_receive_mib_per_s": "received", "loopback_mib_per_s": "loopback"},
    ),
    ("InfiniBand", "MiB/s", {"ib_send_mib_per_s": "sent", "ib_receive_mib_per_s": "received"}),
)
MOST_NODES = 8


def section(study: Study) -> Section | None:
    readings = study.readings()
    if not readings:
        return None
    nodes = dict(list(readings.items())[:MOST_NODES])
    names = _names(study, list(nodes))
    blocks: list[Block] = []
    for title, unit, figures in GROUPS:
        several = len(figures) > 1
        series = []
        for node, rows in nodes.items():
            for figure, word in figures.items():
                marks = tuple(Mark(row["at"], row[figure]) for row in rows if figure in row)
                if any(mark.y > 0 for mark in marks):
                    label = ", ".join(([names[node]] if len(nodes) > 1 else []) + ([word] if several else []))
                    series.append(Series(label or names[node], marks))
        if not series:
            continue
        top = max((mark.y, one.name) for one in series for mark in one.marks)
        chart = Chart(
            f"telemetry-{title.lower().replace(' ', '-')}",
            title,
            f"Highest {top[0]:.3g} {unit} ({top[1]}).",
            Scale("since the first trial began", form="time", starts_at_zero=True),
            Scale(unit, starts_at_zero=True),
            (Panel("", tuple(series)),),
            is_small=True,
        )
        blocks.append(chart)
    if not blocks:
        return None
    left = f" The first {MOST_NODES} of {len(readings)} nodes." if len(readings) > MOST_NODES else ""
    lead = f"Readings of each node over the whole sweep, by a sampler beside the trials.{left}"
    return Section("telemetry", "Telemetry", lead, tuple(blocks))


def _names(study: Study, keys: list[str]) -> dict[str, str]:
    """Nodes by their own names where the ledger has them."""
    known = {str(node.get("id", "")): str(node.get("node", "")) for node in study.nodes}
    made = {}
    for key in keys:
        tail = key.split("-")[-1]
        made[key] = next((name for id_, name in known.items() if name and tail and id_.startswith(tail)), tail[:8])
    return made
