"""Runs asked of MLflow itself: over HTTP, or of a store whose tables can't be read.

Over HTTP the answers are read as the JSON that they are; MLflow's client makes objects of every value first, which
takes most of its time.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.record import rows
from sweeps.store import access
from sweeps.store.tabular import METRICS, PARAMS, TAGS, Columns, Run

if TYPE_CHECKING:
    import pyarrow as pa

PAGE = 1000
PATIENCE_S = 120  # a busy server takes its time over a thousand runs
SIDES = 2  # questions at a time


def read(uri: str, wanted: Sequence[str]) -> pa.Table:
    """Return the runs that answer to any of these filters of MLflow's."""
    experiments = _experiments(uri)
    search = _over_http if uri.startswith("http") else _through_client
    with ThreadPoolExecutor(SIDES) as pool:
        parts = pool.map(lambda asked: list(search(uri, list(experiments), asked)), wanted)
        found = {run["info"]["run_id"]: run for part in parts for run in part}
    runs = [_run(run["info"], experiments) for run in found.values()]
    columns = Columns(runs)
    for kind, into, known, prefix in (
        ("tags", "tag", TAGS, "sweep."),
        ("params", "param", PARAMS, rows.NAMED),
    ):
        columns.texts(into, _values(found, kind, known, prefix))
    figures = _values(found, "metrics", METRICS, (rows.SYSTEM, *rows.OF_SCRIPTS))
    columns.figures((run, key, float(value)) for run, key, value in figures)
    return columns.table()


def _values(
    found: dict[str, Any], kind: str, known: Sequence[str], prefix: str | tuple[str, ...]
) -> Iterator[tuple[str, str, Any]]:
    names = frozenset(known)
    for run, content in found.items():
        for one in content["data"].get(kind, ()):
            if (key := one["key"]) in names or key.startswith(prefix):
                yield run, key, one["value"]


def _run(info: dict[str, Any], experiments: dict[str, str]) -> Run:
    def time(name: str) -> int | None:
        return int(info[name]) if info.get(name) else None

    return Run(info["run_id"], experiments[info["experiment_id"]], info["status"], time("start_time"), time("end_time"))


def experiment(uri: str, name: str) -> tuple[str, frozenset[str]]:
    """Return the id of an experiment, and the names of its tags."""
    found = access.client(uri).get_experiment_by_name(name)
    return str(found.experiment_id), frozenset(found.tags)


def _experiments(uri: str) -> dict[str, str]:
    client, token = access.client(uri), None
    found: dict[str, str] = {}
    while True:
        page = client.search_experiments(page_token=token)
        found |= {experiment.experiment_id: experiment.name for experiment in page}
        if not (token := page.token):
            return found


def _over_http(uri: str, experiments: list[str], wanted: str) -> Iterator[dict[str, Any]]:
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request, verify_rest_response

    asked = {"experiment_ids": experiments, "filter": wanted, "max_results": PAGE, "page_token": ""}
    while True:
        endpoint = "/api/2.0/mlflow/runs/search"
        answer = verify_rest_response(
            http_request(get_default_host_creds(uri), endpoint, "POST", json=asked, timeout=PATIENCE_S),
            endpoint,
        ).json()
        yield from answer.get("runs", ())
        if not (token := answer.get("next_page_token")):
            return
        asked["page_token"] = token


def _through_client(uri: str, experiments: list[str], wanted: str) -> Iterator[dict[str, Any]]:
    client, token = access.client(uri), None
    while True:
        page = client.search_runs(experiments, wanted, page_token=token, max_results=PAGE)
        for run in page:
            data = {name: getattr(run.data, name) for name in ("tags", "params", "metrics")}
            yield {
                "info": {name: getattr(run.info, name) for name in INFO},
                "data": {
                    name: [{"key": key, "value": value} for key, value in values.items()]
                    for name, values in data.items()
                },
            }
        if not (token := page.token):
            return


INFO = ("run_id", "experiment_id", "status", "start_time", "end_time")


def series(uri: str, run: str, key: str) -> list[tuple[int, int, float]]:
    """Step, time in ms and value of one metric of a run."""
    history = access.client(uri).get_metric_history(run, key)
    return sorted((point.step, point.timestamp, point.value) for point in history)


def tags(uri: str, run: str) -> dict[str, str]:
    return dict(access.client(uri).get_run(run).data.tags)


def artifact(uri: str, run: str, name: str) -> str | None:
    """Return a text among a run's artifacts; None where they can't be read from here."""
    with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder:
        return Path(access.client(uri).download_artifacts(run, name, folder)).read_text(encoding="utf-8")
    return None


def metric_names(uri: str, run: str) -> list[str]:
    return [*access.client(uri).get_run(run).data.metrics]
