"""From MLflow back to DataFrames: one row a trial, a cell, a sweep, or a step. The only reader.

A database is read past MLflow, from a copy in columns that lies beside it and is brought up to date first (`mirror`);
any other store is asked through MLflow (`remote`). Both give the same rows.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeps import analysis
from sweeps.analysis.frames import CATEGORIES, categorised
from sweeps.errors import InputError, Mistake
from sweeps.record import ledger, ownership, rows
from sweeps.spec import arrangements
from sweeps.store import access, arrays, database, mirror, remote, selection, tracking
from sweeps.store.selection import HELD, NEAREST, OWN, STORED_AS, WHERE, Condition
from sweeps.text import caller
from workers.contract.redact import masked
from workers.contract.spelling import did_you_mean
from workers.measure import usage

NEEDED = {  # a run that lacks one is no trial of ours, or is not whole
    STORED_AS["cell"]: "tag sweep.cell",
    STORED_AS["outcome"]: "tag sweep.outcome",
    HELD: "parameters",
}
ENDS = ("completed", "infeasible", "failed", "lost", "pruned", "cancelled")
STATES = {"FINISHED": "complete", "KILLED": "stopped"}  # MLflow's words for a sweep's own run, and `sweep status`'

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    Names = str | Sequence[str]


class LeftOut(UserWarning):
    """Runs that a query passed over, and why."""


def trials(
    name: Names, where: str = "", columns: Sequence[str] = (), *, store: Names = (), rebuild: bool = False
) -> pd.DataFrame:
    """Every trial of a sweep or of several, in this store or others, typed, in the order they started.

    `where` is a condition such as `gpus >= 4 and precision == 'fp16'`; `columns` are those wanted. Rows of several
    sweeps or stores say which in columns of their own. `rebuild` throws the copy away first.
    """
    names, stores = _several(name), _several(store) or [access.store_name()]
    condition = Condition(where)
    wanted = [*columns, *condition.words] if columns else []
    read = {uri: _read(uri, names, selection.stored(wanted) if wanted else None, rebuild) for uri in stores}
    _check_names(names, read)
    asked = [side for side, several in (("sweep", names), ("store", stores)) if len(several) > 1]
    found = []
    for uri, runs in read.items():
        table = _whole(_trials_of(names, runs))
        made = _frame(table, wanted)
        for side, value in (("store", masked(uri)), ("sweep", arrays.texts(table, "tag:sweep.name"))):
            if side in {*asked, *columns, *condition.words}:
                made.insert(0, side, value)
        found.append(made)
    held = condition.held(_joined(found))
    return selection.chosen(held, columns or [name for name in held if name not in ("sweep", "store") or name in asked])


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of several stores, one store below the other."""
    import pandas as pd

    if len(tables) == 1:
        return tables[0]
    both = pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
    variables = [name for name in both if name.startswith(rows.VARIABLE)]
    both[variables] = both[variables].fillna("")
    return categorised(both)


def cells(of: Names | pd.DataFrame, where: str = "", *, store: Names = ()) -> pd.DataFrame:
    """One row a cell: each figure's mean with its interval; of trials, or of the sweep of that name."""
    import pandas as pd

    if isinstance(of, pd.DataFrame):
        return analysis.cells(Condition(where).held(of))
    return analysis.cells(trials(of, where, store=store))


def series(trial: str, metric: str, sweep: str = "", *, store: str = "") -> pd.DataFrame:
    """Return a metric of a trial step by step, such as `steps/step_ms`: of the last trial of that id, or of a sweep's
    own."""
    import pandas as pd

    uri = store or access.store_name()
    run = _run_of(trial, sweep, uri)
    name = rows.stored_as(metric)
    points = _answer(uri, lambda store: database.series(store, run, name), lambda: remote.series(uri, run, name))
    if not points:
        known = _answer(uri, lambda store: database.metric_names(store, run), lambda: remote.metric_names(uri, run))
        hint = did_you_mean(metric, [*known, *rows.METRICS], "steps/step_ms", most=NEAREST)
        rule = f"must be a metric that the trial has{hint}"
        raise InputError(uri, [Mistake(trial, rule, metric)])
    table = pd.DataFrame(points, columns=["step", "at", metric])
    table["at"] = pd.to_datetime(table["at"], unit="ms", utc=True)
    return table


def is_there() -> bool:
    """Say whether there is a tracking store to ask: MLflow would make one."""
    return not _is_absent(access.store_name())


def sweep(name: str, *, store: str = "") -> dict[str, Any]:
    """Return the latest sweep of that name as its own run tells it: id, run, study, status, started_ms, simulated,
    note, gpu_hours, and what it was planned from: the values set on the command line (None where an earlier version
    wrote it) and the nodes (none likewise)."""
    uri = store or access.store_name()
    table = _in_order(_read(uri, [name], OWN))
    is_it = (arrays.texts(table, "tag:sweep.name") == name) & (arrays.texts(table, "tag:sweep.trial") == "")
    table = table.filter(is_it & (arrays.texts(table, "tag:sweep.id") != ""))
    if not len(table):
        raise InputError(uri, [Mistake(name, "must have a run of its own, beside its trials'", "none")])
    (found,) = table.slice(len(table) - 1).to_pylist()
    tag = {side: arrays.texts(table, f"tag:sweep.{side}")[-1] for side in ("id", "simulated")}
    try:
        tags = remote.tags(uri, found["run"])
    except Exception as error:
        raise access.refused("answer", error, uri) from None
    return {"run": found["run"], "study": found["experiment"], "status": found["status"], "started_ms":
            found["started_ms"], **tag, "note": tags.get(tracking.NOTE, ""),
            "gpu_hours": _number(tags.get(tracking.SPENT, "")),
            "overrides": json.loads(tags.get(tracking.OVERRIDES, "null")),
            "nodes": arrangements.read(tags.get(tracking.NODES, ""))}  # fmt: skip


def sweep_file(run: str, *, store: str = "") -> str | None:
    """Return the file of the sweep whose own run this is; None where its artifacts can't be read from here."""
    return remote.artifact(store or access.store_name(), run, tracking.FILE)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def list_sweeps(*, store: Names = ()) -> pd.DataFrame:
    """One row a sweep, the latest last: how many trials ended how, when, and in which store.

    Those whose ledger lies here but that no store holds say so: `sweep sync NAME` brings them there.
    """
    import pandas as pd

    found = []
    for uri in _several(store) or [access.store_name()]:
        if not _is_absent(uri):
            found += [row | {"store": masked(uri), "status": _state(row)} for row in _sweeps(_read(uri, (), OWN))]
    known = {row["sweep"] for row in found}
    found += [{"sweep": name, "status": "ledger only"} for name in ledger.names() if name not in known]
    table = pd.DataFrame(found, columns=["sweep", "study", "status", "trials", *ENDS, "started_at", "ended_at",
                                         "simulated", "store"])  # fmt: skip
    for name in ("study", "simulated", "store"):
        table[name] = table[name].fillna("")
    table[["trials", *ENDS]] = table[["trials", *ENDS]].astype("Int64")
    for name in ("started_at", "ended_at"):
        table[name] = pd.to_datetime(table[name].astype("Int64"), unit="ms", utc=True)
    return table.sort_values("started_at", kind="stable", na_position="first", ignore_index=True)


def _state(of: Mapping[str, Any]) -> str:
    """Return a sweep's state as `sweep status` has it. A driver that was killed has not told the store that it ended:
    where the ledger lies here, that knows."""
    name, said = of["sweep"], str(of["status"])
    if said != "running":
        return said
    try:
        if ledger.facts(name).id != of["id"] or ownership.is_driven(name):
            return said
        return "complete" if ledger.read(name).is_complete else "stopped"
    except (InputError, OSError):  # it does not lie here, or no longer
        return said


class SweepInStore(NamedTuple):
    """Return where a sweep is in a tracking store."""

    experiment: str  # its id
    sweep: str  # its id
    run: str  # its own; empty where somebody deleted it
    tags: frozenset[str]  # names of those of the experiment


def place(name: str) -> SweepInStore:
    """Return the last of several sweeps of a name."""
    uri = access.store_name()
    table = _read(uri, [name], OWN)
    _check_names([name], {uri: table})
    last = _in_order(table.filter(arrays.texts(table, "tag:sweep.name") == name))
    sweep = str(arrays.texts(last, "tag:sweep.id")[-1])
    own = last.filter((arrays.texts(last, "tag:sweep.id") == sweep) & (arrays.texts(last, "tag:sweep.trial") == ""))
    try:
        experiment, tags = remote.experiment(uri, last["experiment"][-1].as_py())
    except Exception as error:  # whatever the store's driver or HTTP library raises
        raise access.refused("answer", error, uri) from None
    return SweepInStore(experiment, sweep, own["run"][-1].as_py() if len(own) else "", tags)


def stored_trials(names: Collection[str]) -> dict[str, set[str]]:
    """Return the trials of these sweeps that the store holds whole, by the sweep's id; none where there is no store."""
    uri = access.store_name()
    found: dict[str, set[str]] = {}
    if not names or _is_absent(uri):
        return found
    table = _read(uri, [*names], OWN)
    columns = [arrays.texts(table, name) for name in ("tag:sweep.id", "tag:sweep.trial", "status")]
    for sweep_id, trial, status in zip(*columns, strict=True):
        if trial and status != "RUNNING":  # how it ended is the last that is written of a trial
            found.setdefault(sweep_id, set()).add(trial)
    return found


def doubled(names: Collection[str]) -> Counter[str]:
    """Count the runs that a store holds beside one for each trial of these sweeps and one for the sweep itself, by the
    sweep's id: the server made them after whoever asked for them had given up and asked again."""
    uri = access.store_name()
    if not names or _is_absent(uri):
        return Counter()
    table = _read(uri, [*names], OWN)
    runs = Counter(zip(*(arrays.texts(table, name) for name in ("tag:sweep.id", "tag:sweep.trial")), strict=True))
    more: Counter[str] = Counter()
    for (sweep_id, _), count in runs.items():
        if sweep_id and count > 1:
            more[sweep_id] += count - 1
    return more


def finished(wanted: Collection[str]) -> list[dict[str, Any]]:
    """Return what the store holds of these cells: completed trials that were really measured, oldest first."""
    import numpy as np

    uri = access.store_name()
    if _is_absent(uri):
        return []
    filters = [f"tags.`sweep.cell` = '{cell}' and tags.`sweep.outcome` = 'completed'" for cell in sorted(wanted)]
    table = _in_order(_ask(uri, None, filters))
    tag = {name: arrays.texts(table, f"tag:sweep.{name}") for name in ("outcome", "kind", "cell", "simulated")}
    is_measured = (tag["outcome"] == "completed") & (tag["kind"] != "cached") & np.isin(tag["cell"], [*wanted])
    is_real = tag["simulated"] == ""
    has_all = arrays.texts(table, "status") == "FINISHED"  # the last that is written of a trial
    table = table.filter(is_measured & is_real & has_all)
    texts = {name: arrays.texts(table, f"tag:sweep.{name}") for name in ("name", "estimators")}
    return [
        {
            **row,
            "started_at": row["started_at"].timestamp(),
            "sweep": sweep,
            "estimators": estimators,
            "figures": _figures(row),
        }
        for row, sweep, estimators in zip(_frame(table).to_dict("records"), *texts.values(), strict=True)
    ]


def _figures(row: dict[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in row.items()
        if (name in rows.METRICS or name.startswith(rows.SYSTEM)) and not math.isnan(value)
    }


def _several(names: Names) -> list[str]:
    return [names] if isinstance(names, str) and names else list(names)


def _is_absent(uri: str) -> bool:
    """Say whether a store's file is missing: MLflow would make it."""
    return uri.startswith(database.SQLITE) and not database.file_of(uri).exists()


def _absent(uri: str) -> InputError:
    names = caller.elsewhere("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_URI names another")
    return InputError(uri, [Mistake("", f"must be a tracking store; {names}", "no file")])


def _read(uri: str, names: Sequence[str], columns: Sequence[str] | None, rebuild: bool = False) -> pa.Table:
    """Return what a store holds of these sweeps, and perhaps of others; of all where none is named."""
    if _is_absent(uri):
        raise _absent(uri)
    if rebuild:
        mirror.forget(uri)
    named = [f"tags.`sweep.name` LIKE '{name.replace(chr(39), '_')}'" for name in names]
    return _ask(uri, columns, named or ["tags.`mlflow.source.name` = 'sweep'"])


def _ask(uri: str, columns: Sequence[str] | None, filters: Sequence[str]) -> pa.Table:
    try:
        if database.is_database(uri):
            try:
                return mirror.read(uri, columns)
            except database.UnlikeError:
                pass  # MLflow knows, or says what is wrong
        return remote.read(uri, filters)
    except Exception as error:  # MLflow raises whatever its database driver or HTTP library raises
        raise access.refused("answer", error, uri) from None


def _answer(uri: str, of_database: Callable[[Any], Any], otherwise: Callable[[], Any]) -> Any:
    try:
        if database.is_database(uri):
            try:
                with database.connected(uri) as store:
                    return of_database(store)
            except database.UnlikeError:
                pass
        return otherwise()
    except Exception as error:
        raise access.refused("answer", error, uri) from None


def _check_names(names: Sequence[str], read: Mapping[str, pa.Table]) -> None:
    """Check that each is in one of the stores."""
    if unknown := [name for name in names if name not in _names(read.values())]:
        known = _names(_read(uri, (), OWN) for uri in read)  # what was read may be of these names alone
        raise InputError(", ".join(read), [_unknown(name, known) for name in unknown])


def _names(tables: Iterable[pa.Table]) -> set[str]:
    return {name for table in tables for name in arrays.texts(table, "tag:sweep.name")} - {""}


def _unknown(name: str, known: Collection[str]) -> Mistake:
    here = ledger.names()
    if name in here:
        return Mistake("", f"must hold the sweep (its ledger is there: {caller.command('sync', name)} brings it)", name)
    last = ", ".join(sorted(known)[-5:])
    hint = did_you_mean(name, [*known, *here], f"there: {last}" if last else "none yet", most=NEAREST)
    return Mistake("", f"must hold a sweep of that name{hint}", name)


def _trials_of(names: Sequence[str], table: pa.Table) -> pa.Table:
    """Return the trials of these sweeps, in the order they started."""
    import numpy as np

    is_trial = arrays.texts(table, "tag:sweep.trial") != ""
    return _in_order(table.filter(np.isin(arrays.texts(table, "tag:sweep.name"), names) & is_trial))


def _in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([("started_ms", "ascending"), ("run", "ascending")])


def _whole(table: pa.Table) -> pa.Table:
    """Leave out the runs that lack a tag that every trial has, and say which."""
    import numpy as np

    has = {what: arrays.texts(table, column) != "" for column, what in NEEDED.items()}
    return _having(table, np.logical_and.reduce([*has.values()]), [what for what in has if not has[what].all()])


def _having(table: pa.Table, is_whole: Any, lacking: Sequence[str]) -> pa.Table:
    """Return those runs alone; say which others there are, and what they lack."""
    if not lacking:
        return table
    left = arrays.texts(table.filter(~is_whole), "run")
    runs = ", ".join(left[:3]) + (", …" if len(left) > 3 else "")
    warnings.warn(
        f"left out, for they have no {' or no '.join(lacking)}: {len(left)} runs ({runs})", LeftOut, stacklevel=4
    )
    return table.filter(is_whole)


def _run_of(trial: str, sweep: str, uri: str) -> str:
    """Return the run of a trial."""
    if _is_absent(uri):
        raise _absent(uri)
    name = trial.replace("'", "_")
    table = _in_order(_ask(uri, OWN, [f"tags.`sweep.trial` LIKE '{name}'"]))
    is_it = arrays.texts(table, "tag:sweep.trial") == trial
    if sweep:
        is_it &= arrays.texts(table, "tag:sweep.name") == sweep
    if not is_it.any():
        trials = arrays.texts(table, "tag:sweep.trial")
        hint = did_you_mean(trial, trials, "sweep trials tells them", most=NEAREST)
        raise InputError(uri, [Mistake("", f"must hold a trial of that id{hint}", trial)])
    return str(table.filter(is_it)["run"][-1].as_py())


def _sweeps(table: pa.Table) -> list[dict[str, Any]]:
    """Return a row for each sweep's own run."""
    from collections import Counter

    is_ours = arrays.texts(table, "tag:sweep.id") != ""
    table = _having(table, is_ours, [] if is_ours.all() else ["tag sweep.id"])
    sweep, trial = arrays.texts(table, "tag:sweep.id"), arrays.texts(table, "tag:sweep.trial")
    ended: dict[str, Counter[str]] = {}
    for of, outcome in zip(sweep[trial != ""], arrays.texts(table, STORED_AS["outcome"])[trial != ""], strict=True):
        ended.setdefault(of, Counter())[outcome] += 1
    parents = table.filter(trial == "")
    tag = {name: arrays.texts(parents, f"tag:sweep.{name}") for name in ("name", "id", "simulated")}
    found = []
    for n, run in enumerate(parents.select(["experiment", "status", "started_ms", "ended_ms"]).to_pylist()):
        counts = ended.get(tag["id"][n], Counter())
        found.append(
            {
                "sweep": tag["name"][n],
                "id": tag["id"][n],
                "study": run["experiment"],
                "status": STATES.get(run["status"], run["status"].lower()),
                "trials": counts.total(),
                **{name: counts[name] for name in ENDS},
                "started_at": run["started_ms"],
                "ended_at": run["ended_ms"],
                "simulated": tag["simulated"][n],
            }
        )
    return found


def _frame(table: pa.Table, wanted: Collection[str] = ()) -> pd.DataFrame:
    """Return runs as `frame` has them; of these columns, if they are given."""
    import numpy as np
    import pandas as pd

    variables = arrays.present(table, f"param:{rows.VARIABLE}")
    own = arrays.present(table, f"param:{rows.OWN}")
    system = arrays.present(table, f"metric:{rows.SYSTEM}")
    told = (name for prefix in rows.OF_SCRIPTS for name in arrays.present(table, f"metric:{prefix}"))
    of_scripts = sorted(map(rows.column_of, told))
    both = {"batch_size", "gpus"} if "global_batch" in wanted else set()
    made: dict[str, Any] = {}
    for name in (*STORED_AS, *rows.PARAMS, *own, *variables, *WHERE, *rows.METRICS, *of_scripts, *system, "started_at"):
        if wanted and name not in wanted and name not in both:
            continue
        stored = STORED_AS.get(name) or WHERE.get(name) or f"param:{name}"
        if name in CATEGORIES:
            made[name] = arrays.category(table, stored, "" if name in STORED_AS else rows.BEFORE.get(name))
        elif name == "arrangement":
            made[name] = _arrangements(table)
        elif name in STORED_AS or name in WHERE or name in variables:
            made[name] = arrays.texts(table, stored)
        elif name in rows.PARAMS or name in own:
            made[name] = arrays.typed(table, name)
        elif name == "started_at":
            made[name] = pd.to_datetime(table["started_ms"].to_numpy(), unit="ms", utc=True)
        else:
            stored = f"metric:{rows.stored_as(name)}"
            there = stored in table.column_names
            made[name] = table[stored].to_numpy() if there else np.full(len(table), math.nan)
    return pd.DataFrame(made, copy=False)


def _arrangements(table: pa.Table) -> Any:
    """Return arrangements as the runs tell them; for runs of earlier versions, what their node count implies."""
    import numpy as np

    recorded = arrays.texts(table, WHERE["arrangement"])
    column = f"metric:{rows.METRICS['nodes']}"
    if column in table.column_names:
        nodes = table[column].to_numpy()
        gpus, placement = arrays.typed(table, "gpus"), arrays.texts(table, "param:placement")
        for n in np.flatnonzero((recorded == "") & (nodes > 0)):
            recorded[n] = rows.arrangement(gpus[n], nodes[n], placement[n])
    return recorded


def readings(name: str, step_s: float = 1.0) -> pd.DataFrame:
    """Return what disks and networks carried over a sweep on each node whose readings lie here: for curves over
    time."""
    import pandas as pd

    found = []
    for path in sorted(ledger.paths(name).samples("*").parent.glob("*.jsonl")):
        for row in usage.series(path, 0.0, math.inf, step_s):
            found.append({"node": path.stem, **row})
    table = pd.DataFrame(found, columns=["node", "at", *usage.CURVES])
    table["at"] = pd.to_datetime(table["at"], unit="s", utc=True)
    return table
