"""How a sweep stands in MLflow's web pages: saved views of its experiment, as the pages of MLflow 3.17 read them.

A view is a tag of the experiment: a name, and the page's state (filter, order, columns, charts) as JSON in JSON. That
form is the pages' own: it was read from their script, and a test opens a view in a browser.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from sweeps.record import rows
from sweeps.record.ledger import SweepFacts
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import is_varied

TAG = "mlflow.sharedViewState."
ONCE = "-once"  # ends the key of the view that has one repeat of each cell
PAGE = 100  # runs that the page takes at once, and draws
SECTION = "The study"
OPEN = {"display": True, "isReordered": True, "deleted": False, "isGenerated": False}
FIGURES = {  # columns, the one that decides first
    "throughput": (
        "images_per_s",
        "images_per_s_per_gpu",
        "step_ms_p50",
        "step_ms_p95",
        "comm_share",
        "input_share",
        "gpu_hours_per_epoch",
    ),
    "convergence": ("top1", "top5", "epochs_to_target", "hours_to_target", "loss", "images_per_s"),
}
TAGS = ("sweep.outcome", "sweep.limited_by")
WIDTHS = {  # pixels, where a column needs more than the page's 100
    "metrics.`images_per_s_per_gpu`": 160,
    "metrics.`cost/gpu_hours_per_epoch`": 200,
    "tags.`sweep.outcome`": 130,
    "tags.`sweep.limited_by`": 260,
}


@dataclasses.dataclass(frozen=True)
class View:
    key: str  # the same whenever a sweep is written, so that it has one view
    name: str
    state: dict[str, Any]

    def tag(self, created_at: float, updated_at: float) -> tuple[str, str]:
        """Name and value."""
        of = {"name": self.name, "createdAt": int(1000 * created_at), "updatedAt": int(1000 * updated_at)}
        return f"{TAG}{self.key}", json.dumps({**of, "state": json.dumps(self.state)})


def views(facts: SweepFacts, trials: int) -> list[View]:
    """All of a sweep's trials, best first; where they are more than the page draws, a repeat of each cell as well."""
    own = f"tags.`sweep.id` = '{facts.id}' AND tags.`sweep.trial` IS NOT NULL"  # without the sweep's own run
    made = [View(facts.id, facts.name, _state(facts.spec, own))]
    if trials > PAGE and facts.spec.repeats > 1:
        once = _state(facts.spec, f"{own} AND tags.`sweep.repeat` = '0'")
        made.append(View(f"{facts.id}{ONCE}", f"{facts.name}, each cell once", once))
    return made


def addresses(server: str, experiment: str, sweep: str, run: str, tags: Collection[str]) -> dict[str, str]:
    """Return where a sweep's pages are, by what they show; `sweep` is its id, `tags` are those of the experiment."""
    runs = f"{server.rstrip('/')}/#/experiments/{experiment}/runs"
    kind = "workflowType=machine_learning"
    made = {}
    if f"{TAG}{sweep}" in tags:
        drawn = f"{sweep}{ONCE}" if f"{TAG}{sweep}{ONCE}" in tags else sweep
        made["trials"] = f"{runs}?{kind}&viewStateShareKey={quote(sweep)}"
        made["charts"] = f"{runs}?{kind}&compareRunsMode=CHART&viewStateShareKey={quote(drawn)}"
    else:
        made["trials"] = f"{runs}?{kind}"
    if run:
        made["verdict"] = f"{runs}/{run}?{kind}"
    return made


def _state(spec: SweepSpec, trials: str) -> dict[str, Any]:
    numbers, words = _axes(spec)
    figures = [rows.METRICS[name] for name in FIGURES[spec.protocol]]
    columns = [
        *(f"metrics.`axis/{name}`" for name in numbers),
        *(f"params.`{name}`" for name in words),
        *(f"metrics.`{name}`" for name in figures),
        *(f"tags.`{name}`" for name in TAGS),
    ]
    return {
        "searchFilter": trials,
        "orderByKey": f"metrics.`{figures[0]}`",
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {name: width for name, width in WIDTHS.items() if name in columns},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunSections": [{"uuid": SECTION, "name": SECTION, "columns": 2, **OPEN}],
        "compareRunCharts": [
            {"uuid": f"{SECTION} {n}", "metricSectionId": SECTION, "deleted": False, "isGenerated": False, **chart}
            for n, chart in enumerate(_charts(spec, numbers, words))
        ],
        "isAccordionReordered": True,  # else the page sorts the sections by name
    }


def _axes(spec: SweepSpec) -> tuple[list[str], list[str]]:
    """Return the axes that vary: those that are numbers, which are logged as metrics too, and the others."""
    varied = {name: axis.points() for name, axis in spec.axes.items() if is_varied(axis)}
    numbers = [
        name
        for name, points in varied.items()
        if all(type(point) in (int, float) for point in points) and not name.startswith("env.")
    ]
    return numbers, [name for name in varied if name not in numbers]


def _charts(spec: SweepSpec, numbers: Sequence[str], words: Sequence[str]) -> Iterator[dict[str, Any]]:
    main = rows.METRICS[FIGURES[spec.protocol][0]]
    if numbers or words:
        metrics = [*(f"axis/{name}" for name in numbers), main]
        yield {"type": "PARALLEL", "selectedParams": [*words], "selectedMetrics": metrics, "showAllRuns": True}
    for name in numbers:
        yield _scatter(f"axis/{name}", main)
    if "gpus" in numbers and spec.protocol == "throughput":  # level where it scales
        yield _scatter("axis/gpus", rows.METRICS["images_per_s_per_gpu"])
    if spec.protocol == "convergence":
        yield {"type": "LINE", "metricKey": "epochs/top1", "selectedMetricKeys": ["epochs/top1"], "xAxisKey": "step"}
    yield {"type": "BAR", "metricKey": main, "selectedMetricKeys": [main], "dataAccessKey": main}


def _scatter(across: str, up: str) -> dict[str, Any]:
    return {
        "type": "SCATTER",
        "xaxis": {"key": across, "type": "METRIC"},
        "yaxis": {"key": up, "type": "METRIC"},
    }
