"""From MLflow back to a DataFrame, one row a trial. The only reader."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps import ledger, rows, tracking
from sweeps.errors import InputError, Mistake
from workers import usage

HEADLINE = (
    "images_per_s",
    "step_ms_p50",
    "step_ms_p95",
    "top1",
    "epochs_to_target",
    "hours_to_target",
    "launch_s",
    "trial_s",
)

SIMULATED = "simulated"  # begins the fingerprint of a machine that was made up

if TYPE_CHECKING:
    import pandas as pd


def trials(name: str) -> pd.DataFrame:
    """Every trial of a sweep, typed, in the order they started."""
    store = tracking.store_name()
    if _is_absent():
        raise InputError(store, [Mistake("", "must be a tracking store; MLFLOW_TRACKING_URI names another", "no file")])
    try:
        found = _runs(name)
    except Exception as error:  # MLflow raises whatever its database driver or HTTP library raises
        raise tracking.refused("answer", error) from None
    if not found:
        raise InputError(store, [Mistake("", "must hold a sweep of that name", name)])
    ended = (_row(run) for run in found if "sweep.trial" in run.data.tags)
    return frame(sorted(ended, key=lambda row: row["started_at"]))


def _is_absent() -> bool:
    """MLflow would make the file."""
    store = tracking.store_name()
    return store.startswith("sqlite:///") and not Path(store.removeprefix("sqlite:///")).exists()


def _runs(name: str) -> list[Any]:
    """A sweep's runs: its own and its trials'. No sweep has a quote in its name."""
    client = tracking.client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    wanted = f"tags.`sweep.name` = '{name.replace(chr(39), '')}'"
    found: list[Any] = []
    token = None
    while True:
        page = client.search_runs(experiments, wanted, page_token=token, max_results=1000)
        found += page
        token = page.token
        if not token:
            return found


def finished(cells: Collection[str]) -> list[dict[str, Any]]:
    """What the store holds of these cells: completed trials that were really measured, oldest first."""
    if _is_absent():
        return []
    try:
        return _finished(cells)
    except Exception as error:
        raise tracking.refused("answer", error) from None


def _finished(cells: Collection[str]) -> list[dict[str, Any]]:
    client = tracking.client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]

    def of(cell: str) -> list[Any]:
        measured = f"tags.`sweep.cell` = '{cell}' and tags.`sweep.outcome` = 'completed'"
        return list(client.search_runs(experiments, measured, order_by=["start_time"], max_results=1000))

    if not client.search_runs(experiments, "tags.`sweep.outcome` = 'completed'", max_results=1):
        return []
    found = [run for cell in sorted(cells) for run in of(cell)]
    return [
        {**row, "sweep": run.data.tags["sweep.name"], "figures": {k: v for k, v in row.items() if _is_figure(k)}}
        for run in found
        if (row := _row(run))["kind"] != "cached" and not row["hardware"].startswith(SIMULATED)
    ]


def _is_figure(column: str) -> bool:
    return column in rows.METRICS or column.startswith(rows.SYSTEM)


def frame(trial_rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a DataFrame whose columns stand in one order, present even where nothing was measured."""
    import pandas as pd

    variables = sorted({name for row in trial_rows for name in row if name.startswith(rows.VARIABLE)})
    system = sorted({name for row in trial_rows for name in row if name.startswith(rows.SYSTEM)})
    told = ["trial", "cell", "outcome", "kind", "message", "limited_by"]
    own = ["hardware", "software", *rows.METRICS, *system, "started_at"]
    columns = [*told, *rows.PARAMS, *variables, *own]
    table = pd.DataFrame(trial_rows, columns=columns)
    table[variables] = table[variables].fillna("").astype(str)
    table["decode_threads"] = table["decode_threads"].astype(str)
    measured = [*rows.METRICS, *system]
    table[measured] = table[measured].astype(float)
    table["started_at"] = pd.to_datetime(table["started_at"], unit="s", utc=True).dt.round("ms")
    return table


def _row(run: Any) -> dict[str, Any]:
    tags, figures = run.data.tags, run.data.metrics
    return {
        "trial": tags["sweep.trial"],
        "cell": tags["sweep.cell"],
        "outcome": tags["sweep.outcome"],
        "kind": tags.get("sweep.kind", ""),
        "message": tags.get("sweep.message", ""),
        "limited_by": tags.get("sweep.limited_by", ""),
        **{name: rows.typed(name, text) for name, text in run.data.params.items()},
        **{name: figures[logged] for name, logged in rows.METRICS.items() if logged in figures},
        **{name: figure for name, figure in figures.items() if name.startswith(rows.SYSTEM)},
        "hardware": tags.get("sweep.hardware", ""),
        "software": tags.get("sweep.software", ""),
        "started_at": run.info.start_time / 1000,
    }


def readings(name: str, step_s: float = 1.0) -> pd.DataFrame:
    """What disks and networks carried over a sweep on each node whose readings lie here: for curves over time."""
    import pandas as pd

    found = []
    for path in sorted(ledger.paths(name).samples("*").parent.glob("*.jsonl")):
        for row in usage.series(path, 0.0, math.inf, step_s):
            found.append({"node": path.stem, **row})
    table = pd.DataFrame(found, columns=["node", "at", *usage.CURVES])
    table["at"] = pd.to_datetime(table["at"], unit="s", utc=True)
    return table
