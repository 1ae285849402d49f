"""A sweep's trials as a DataFrame: `sweeps.trials` against MLflow's own search, at 1,000, 10,000 and 100,000 trials.

The runs are put into MLflow's tables in bulk (sqlite), with what a trial really has: its parameters, tags, figures,
and the axes once more. Then, in turns in one process, the quickest of each: `mlflow.search_runs`; ours without a copy;
ours with one. Then ours after a trial was added, one deleted, one restored and two edited, and its memory in a process
of its own. The rows of both are compared value by value. `--http` puts a server before the store; `--sizes 1000` is a
short one. Beyond 10,000 the search is asked for the first 10,000 in pages of 1,000 and taken times the rest, which
favours it: later pages take longer. `--whole` asks for all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweeps.record import rows
from sweeps.spec import plan, sweep_file
from verdicts import conclude

HERE = Path(__file__).parent
FRAME = 10_000  # runs that search_runs is asked for at a time, at most
SWEEP = """
name: bulk
model: resnet50
device: gpu
space: {batch_size: [32, 64, 128, 256, 512], gpus: [1, 2, 4, 8, 16, 32], precision: [fp32, fp16]}
"""
STORED = {column: name for column, name in rows.METRICS.items() if column not in ("top1", "top5", "epochs_to_target")}

RUN = (
    *("run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage", "experiment_id", "source_type"),
    *("source_name", "entry_point_name", "user_id", "source_version", "artifact_uri"),
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return side(args.side, args.sizes[0], args.whole)
    figures: dict[str, float] = {}
    bounds: dict[str, str] = {}
    print(f"{'trials':>8}{'search_runs':>13}{'no copy':>10}{'copy':>9}{'changed':>9}{'ratios':>22}{'MiB':>7}")
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            populate(Path("mlflow.db"), size)
            with served() if args.http else contextlib.nullcontext(f"sqlite:///{Path('mlflow.db').absolute()}") as uri:
                os.environ |= {"MLFLOW_TRACKING_URI": uri, "MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}
                found = timed("both", size, args.whole) | timed("memory", size)
                if not args.http:
                    found |= timed("changed", size)
        first, again = found["search_s"] / found["first_s"], found["search_s"] / found["again_s"]
        figures |= {f"first_{size}": first, f"first_s_{size}": found["first_s"], f"search_s_{size}": found["search_s"]}
        figures |= {f"copy_{size}": again, f"copy_s_{size}": found["again_s"]}
        figures |= {f"mib_{size}": found["mib"], f"same_{size}": found["same"]}
        bounds |= {f"first_{size}": ">= 1" if args.http else ">= 10", f"same_{size}": ">= 1"}
        if not args.http:
            bounds |= {f"copy_{size}": ">= 100", f"copy_s_{size}": "<= 1", f"mib_{size}": "<= 1024"}
        print(
            f"{size:>8,}{found['search_s']:>11.2f} s{found['first_s']:>8.3f} s{found['again_s']:>7.3f} s"
            f"{found.get('changed_s', 0):>7.3f} s{first:>10.1f}× {again:>9.0f}×{found['mib']:>7.0f}",
            flush=True,
        )
    return conclude("query-http" if args.http else "query", figures, bounds)


def timed(what: str, size: int, is_whole: bool = False) -> dict[str, float]:
    """Ask in a process of its own."""
    command = [sys.executable, str(HERE / "query.py"), "--side", what, "--sizes", str(size), *["--whole"] * is_whole]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def side(what: str, size: int, is_whole: bool) -> int:
    found = both(size, is_whole) if what == "both" else {"memory": memory, "changed": changed}[what](size)
    print(json.dumps(found))
    return 0


def both(size: int, is_whole: bool) -> dict[str, float]:
    """MLflow's own and ours, in turns, and their rows beside each other."""
    import mlflow

    from sweeps.store import query

    client = mlflow.MlflowClient()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    wanted = "tags.`sweep.name` = 'bulk'"
    client.search_runs(experiments, wanted, max_results=1)  # what is loaded at the first question is no row's
    query.trials("bulk", "gpus >= 0")
    took: dict[str, list[float]] = {"search_s": [], "first_s": [], "again_s": []}
    for _ in range(3 if size < FRAME else 2 if size == FRAME else 1):
        with gauge() as spent:
            query.trials("bulk", rebuild=True)
        took["first_s"] += spent
        if size <= FRAME:
            with gauge() as spent:
                mlflow.search_runs(experiments, wanted, max_results=size + 1)
            took["search_s"] += spent
        with gauge() as spent:
            query.trials("bulk", rebuild=True)
        took["first_s"] += spent
        for _ in range(3):
            with gauge() as spent:
                query.trials("bulk")
            took["again_s"] += spent
    seen, paged_s = pages(client, experiments, wanted, size if is_whole or size <= FRAME else FRAME)
    if not took["search_s"]:
        took["search_s"] = [paged_s * size / len(seen)]
    return {name: min(times) for name, times in took.items()} | {"same": float(is_same(seen, size))}


def pages(client: Any, experiments: list[str], wanted: str, count: int) -> tuple[dict[str, Any], float]:
    """Trials as MLflow has them, and what its answers took."""
    seen: dict[str, Any] = {}
    token, paged_s = None, 0.0
    while len(seen) < count:
        with gauge() as spent:
            page = client.search_runs(experiments, wanted, page_token=token, max_results=1000)
        paged_s += sum(spent)
        seen |= {run.data.tags["sweep.trial"]: expected(run) for run in page if "sweep.trial" in run.data.tags}
        if not (token := page.token):
            break
    return seen, paged_s


def expected(run: Any) -> tuple[Any, ...]:
    """Return a trial's values, column by column, from what MLflow says."""
    tags, params, metrics = run.data.tags, run.data.params, run.data.metrics
    return (
        *(tags.get(f"sweep.{name}", "") for name in ("cell", "outcome", "kind", "message", "hardware", "software")),
        *(rows.typed(name, params[name]) for name in rows.PARAMS),
        *(metrics.get(name) for name in rows.METRICS.values()),
        run.info.start_time,
    )


def is_same(seen: dict[str, Any], size: int) -> bool:
    from sweeps.store import query

    table = query.trials("bulk")
    wanted = [*("cell", "outcome", "kind", "message", "hardware", "software"), *rows.PARAMS, *rows.METRICS]
    table["started_ms"] = table["started_at"].astype("int64") // 1_000_000
    columns = [table[name].tolist() for name in (*wanted, "started_ms")]
    own = dict(zip(table["trial"], zip(*columns, strict=True), strict=True))
    assert len(own) == len(table) == size
    assert own.keys() >= seen.keys()
    for trial, values in seen.items():
        for name, mine, theirs in zip((*wanted, "started_ms"), own[trial], values, strict=True):
            assert mine == theirs or (theirs is None and mine != mine), (trial, name, mine, theirs)
            assert theirs is None or type(mine) is type(theirs), (trial, name, mine, theirs)
    return True


def memory(size: int) -> dict[str, float]:
    from sweeps.store import query

    assert len(query.trials("bulk", rebuild=True)) == size
    return {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def changed(size: int) -> dict[str, float]:
    """One trial more, one deleted, one restored, a tag and a figure edited: all are seen, and what that takes."""
    import mlflow

    from sweeps.store import query

    client = mlflow.MlflowClient()
    table = query.trials("bulk")
    (experiment,) = [e.experiment_id for e in client.search_experiments() if e.name == "bulk"]
    at = [run_of(client, experiment, trial) for trial in table["trial"].iloc[:4]]
    client.delete_run(at[0])
    client.set_tag(at[1], "sweep.outcome", "failed")
    client.log_metric(at[2], "images_per_s", 7.0)
    more = client.create_run(experiment, tags={"sweep.name": "bulk", "sweep.trial": "more-0", "sweep.cell": "more"})
    client.set_tag(more.info.run_id, "sweep.outcome", "completed")
    client.log_param(more.info.run_id, "batch_size", "32")
    with gauge() as took:
        seen = query.trials("bulk").set_index("trial")
    first = table["trial"]
    assert len(seen) == size
    assert first[0] not in seen.index
    assert seen.loc[first[1], "outcome"] == "failed"
    assert seen.loc[first[2], "images_per_s"] == 7.0
    assert seen.loc["more-0", "cell"] == "more"
    client.restore_run(at[0])
    client.delete_run(more.info.run_id)
    assert sorted(query.trials("bulk")["trial"]) == sorted(first)
    return {"changed_s": took[0]}


def run_of(client: Any, experiment: str, trial: str) -> str:
    (run,) = client.search_runs([experiment], f"tags.`sweep.trial` = '{trial}'")
    return str(run.info.run_id)


@contextlib.contextmanager
def gauge() -> Iterator[list[float]]:
    took: list[float] = []
    began = time.perf_counter()
    yield took
    took.append(time.perf_counter() - began)


def populate(path: Path, size: int) -> None:
    """Write runs as the tracker writes them, without asking it."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{path.absolute()}")
    experiment = int(client.create_experiment("bulk"))
    cells = plan.plan(sweep_file.parse(SWEEP, "bulk")).trials
    at = 1_700_000_000_000
    with contextlib.closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA synchronous=OFF")
        for start in range(0, size, 1000):
            tags, params, metrics, made = [], [], [], []
            for n in range(start, min(size, start + 1000)):
                config, run = cells[n % len(cells)], uuid.uuid4().hex
                started = at + 1000 * n
                made.append((run, f"b{config.batch_size} ×{config.gpus} #{n}", "FINISHED", started, started + 900,
                             "active", experiment, "UNKNOWN", "", "", "me", "", f"mlruns/{run}"))  # fmt: skip
                tags_of_trial = {"sweep.id": "0" * 32, "sweep.name": "bulk", "sweep.trial": f"{config.cell}-{n}",
                        "sweep.cell": config.cell, "sweep.outcome": "completed", "sweep.hardware": f"node{n % 3}",
                        "sweep.software": "python", "sweep.limited_by": f"input-bound: {n % 100}% of a step",
                        "mlflow.runName": made[-1][1], "mlflow.user": "me", "mlflow.source.name": "sweep",
                        "mlflow.parentRunId": "0" * 32, "mlflow.note.content": ""}  # fmt: skip
                tags += [(key, value, run) for key, value in tags_of_trial.items()]
                params += [(key, str(value), run) for key, value in rows.params(config).items()]
                figures = {name: 100.0 + n / 7 + place for place, name in enumerate(STORED.values())}
                figures |= {f"axis/{name}": float(getattr(config, name)) for name in ("batch_size", "gpus")}
                metrics += [(key, value, started, 0, 0, run) for key, value in figures.items()]
            for table, values in (("tags", tags), ("params", params)):
                store.executemany(f"INSERT INTO {table} (key, value, run_uuid) VALUES (?, ?, ?)", values)
            for table in ("metrics", "latest_metrics"):
                columns = "key, value, timestamp, step, is_nan, run_uuid"
                store.executemany(f"INSERT INTO {table} ({columns}) VALUES (?, ?, ?, ?, ?, ?)", metrics)
            store.executemany(f"INSERT INTO runs ({', '.join(RUN)}) VALUES ({', '.join('?' * len(RUN))})", made)
        store.commit()


@contextlib.contextmanager
def served() -> Iterator[str]:
    """MLflow's server before the store here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", "sqlite:///mlflow.db", "--workers", "1"]
    with open("server.log", "w") as log:
        server = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.2)
        yield uri
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
