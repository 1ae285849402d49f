"""What a report is made of: a sweep's trials as rows, its cells, and what its ledger knows beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps import analysis
from sweeps.analysis import frames, overview
from sweeps.errors import InputError
from sweeps.record import ledger, rows
from sweeps.record.ledger import SweepFacts, TrialRecord
from sweeps.spec import keys, space
from sweeps.spec.plan import Plan, namer
from workers.contract.messages import TrialConfig
from workers.measure import usage

if TYPE_CHECKING:
    import pandas as pd

WORDS = {  # of axes, as one would say them
    "batch_size": "batch size",
    "global_batch": "global batch",
    "decode_threads": "decode threads",
    "lr_schedule": "schedule",
    "weight_decay": "weight decay",
    "label_smoothing": "label smoothing",
    "fusion_mib": "fusion MiB",
    "cycle_ms": "cycle ms",
    "response_cache": "response cache",
    "data_files": "files",
}
TELEMETRY = (  # of a node over time
    "gpu_percent",
    "gpu_memory_gib",
    "gpu_power_w",
    "gpu_temperature_c",
    "cpu_percent",
    "memory_used_gib",
    "page_cache_gib",
    "disk_read_mib_per_s",
    "disk_write_mib_per_s",
    "net_send_mib_per_s",
    "net_receive_mib_per_s",
    "loopback_mib_per_s",
    "ib_send_mib_per_s",
    "ib_receive_mib_per_s",
)

MOST_POINTS = 240  # of a curve over time
FEWEST_CELLS = 4  # that tell axes apart


@dataclasses.dataclass(frozen=True)
class Study:
    """One sweep, as its report sees it."""

    facts: SweepFacts
    records: tuple[TrialRecord, ...]
    nodes: tuple[Mapping[str, Any], ...] = ()
    probes: tuple[Mapping[str, Any], ...] = ()
    attempts: tuple[TrialRecord, ...] = ()  # that were tried again
    asides: tuple[Mapping[str, Any], ...] = ()  # nodes that got no more trials
    is_complete: bool = True
    spent: float | None = None  # GPU-hours of all attempts; a tracking store of before does not tell
    samples: Path | None = None  # the folder of the nodes' readings, where it lies here
    stored: pd.DataFrame | None = None  # the trials of a tracking store, where there is no ledger to have records from
    twin: Study | None = None  # the latest simulation of this study; of a simulation, the latest that was measured

    @property
    def name(self) -> str:
        return self.facts.name

    @functools.cached_property
    def plan(self) -> Plan:
        return Plan(self.facts.spec, self.facts.trials, nodes=self.facts.nodes)

    @property
    def is_convergence(self) -> bool:
        return self.facts.spec.protocol == "convergence"

    @property
    def rank(self) -> str:
        """What a rank stands for."""
        return keys.RANK[self.facts.spec.device]

    @functools.cached_property
    def trials(self) -> pd.DataFrame:
        """A row a trial, with its short name, its nodes, and where it comes from if it was measured before."""
        named = namer(self.facts.spec)
        if self.stored is not None:
            return _of_store(self.stored, named)
        table = []
        for record in self.records:
            cached = record.outcome.cached
            extra = {
                "name": f"{named(record.config)} #{record.config.repeat}",
                "attempts": record.attempts,
                "cached_from": cached.sweep if cached else "",
            }
            table.append(rows.row(record) | extra)
        frame = analysis.plain(analysis.frame(table))
        extra_columns = {column: [row[column] for row in table] for column in ("name", "attempts", "cached_from")}
        return frame.copy().assign(**extra_columns)

    @functools.cached_property
    def configs(self) -> tuple[TrialConfig, ...]:
        """Of the trials that are here."""
        if self.stored is not None:
            return tuple(_configs(analysis.plain(self.stored)))
        return tuple(record.config for record in self.records)

    @functools.cached_property
    def cells(self) -> pd.DataFrame:
        """The table of `analysis.cells` in the file's order, with its efficiency, its step and its kind."""
        if self.trials.empty:
            made = [f"{figure}_ci" for figure in analysis.FIGURES]
            return self.trials.reindex(
                columns=[*self.trials, "n", "reached", "withheld", "outcomes", "efficiency", *made]
            )
        table = analysis.scaling(self.trials, self.is_strong)
        ended = self.trials[self.trials["kind"] != ""]
        kinds = frames.kinds(ended).groupby(ended["cell"]).first()
        table["step_ms"] = table["step_ms_mean"]
        table["kind"] = table["cell"].map(kinds).fillna("")
        return overview.in_order(table, self.plan).reset_index(drop=True)

    @functools.cached_property
    def effects(self) -> pd.DataFrame:
        """What each axis explains of the sweep's own figure; empty where there is nothing to tell axes apart by."""
        return analysis.effects(self.trials, self.figure) if self._has_effects else _none("axis", "share")

    @functools.cached_property
    def interactions(self) -> pd.DataFrame:
        """The same of pairs of axes."""
        return analysis.interactions(self.trials, self.figure) if self._has_effects else _none("axis", "share")

    @property
    def _has_effects(self) -> bool:
        axes = [axis for axis in self.axes if axis in self.trials]
        return len(self.measured) >= FEWEST_CELLS and len(axes) >= 2 and bool((self.measured[self.figure] > 0).any())

    @property
    def figure(self) -> str:
        """What the sweep is for."""
        return "top1" if self.is_convergence else "images_per_s"

    @property
    def own_goal(self) -> str:
        """The column of the figure of a user's script that the search goes by, where it goes by one."""
        named = [goal for goal in self.facts.spec.search.goal or () if " " in goal]
        return keys.column_of(named[0]) if named else ""

    @property
    def is_less_better(self) -> bool:
        """Of that figure."""
        return keys.is_lower_better(self.facts.spec.goals[0])

    @property
    def is_strong(self) -> bool:
        return "global_batch" in self.facts.spec.axes

    @functools.cached_property
    def measured(self) -> pd.DataFrame:
        return self.cells[self.cells["n"] > 0]

    @functools.cached_property
    def axes(self) -> list[str]:
        """What tells the cells apart: the axes that vary, then unlike machines, programs, files or arrangements."""
        known = [name for name in self.plan.axes if name in self.cells and self.cells[name].nunique(dropna=False) > 1]
        return [*known, *(analysis.apart(self.cells) if len(self.cells) else ())]

    def values(self, axis: str) -> list[Any]:
        """Return the values of an axis, in its order."""
        return list(dict.fromkeys(self.in_axis_order(axis)[axis]))

    def in_axis_order(self, axis: str) -> pd.DataFrame:
        return self.cells.sort_values(axis, kind="stable") if self.is_number(axis) else self.cells

    def is_number(self, axis: str) -> bool:
        return bool(self.cells[axis].dtype.kind in "if")

    @property
    def rate(self) -> str:
        """What a throughput is told in."""
        return f"{self.facts.spec.counted}/s"

    def word(self, axis: str) -> str:
        """Return an axis, as one would say it."""
        if axis == "gpus":
            return f"{self.rank}s"
        return WORDS.get(axis, axis.removeprefix(rows.VARIABLE).removeprefix(rows.OWN))

    def said(self, axis: str, at: Any) -> str:
        """Return a value with what it is of: `batch size 256`, `8 GPUs`, `fp16`."""
        if axis == "decode_threads" and str(at) != "auto":
            return f"{at} decode thread{'' if str(at) == '1' else 's'}"
        if axis == "placement":
            return {"pack": "packed", "spread": "spread"}.get(str(at), f"placed {at}")
        if axis == "gpus":
            return f"{at:g} {self.rank}{'' if at == 1 else 's'}"
        if axis in ("precision", "model", "data", "optimizer"):
            return str(at)
        return f"{self.word(axis)} {space.shown(at)}"

    def numeric(self, figures: Iterable[str]) -> frozenset[str]:
        """Columns of a table that hold numbers: these, and the axes that do."""
        return frozenset({*figures, *(self.word(axis) for axis in self.axes if self.is_number(axis))})

    def described(self, cell: Any, axes: list[str] | None = None) -> str:
        """Return a cell by what tells it from the others."""
        return ", ".join(self.said(axis, cell[axis]) for axis in (self.axes if axes is None else axes))

    def readings(self) -> dict[str, list[dict[str, float]]]:
        """Return what each node whose samples lie here read over the sweep; times in seconds since it began."""
        if not self.samples:
            return {}
        begin, end = self.span
        step_s = max(1.0, (end - begin) / MOST_POINTS)
        found = {}
        for path in sorted(self.samples.glob("*.jsonl")):
            read = usage.series(path, begin, end, step_s, TELEMETRY)
            if read:
                found[path.stem] = [{**row, "at": row["at"] - begin} for row in read]
        return found

    @functools.cached_property
    def span(self) -> tuple[float, float]:
        """The time from the first trial's start to the last one's end, of those that ran."""
        ran = [record for record in self.records if not record.outcome.cached]
        if not ran:
            return self.facts.created_at, self.facts.created_at
        return min(record.started_at for record in ran), max(record.ended_at for record in ran)


def _none(*columns: str) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(columns=[*columns])


def _of_store(stored: pd.DataFrame, named: Callable[[TrialConfig], str]) -> pd.DataFrame:
    """Trials as a study has them. How often they were tried is not told there."""
    trials = analysis.plain(stored)
    return trials.copy().assign(
        name=[f"{named(config)} #{config.repeat}" for config in _configs(trials)],
        attempts=1,
        cached_from=["an earlier sweep" if kind == "cached" else "" for kind in trials["kind"]],
    )


def _configs(trials: pd.DataFrame) -> list[TrialConfig]:
    return [TrialConfig(**{name: row[name] for name in rows.PARAMS}, env={}) for row in trials.to_dict("records")]


def read(name: str) -> Study:
    """Return the study of a sweep whose ledger lies here, with its twin."""
    found = _alone(name)
    twin = _twin(found.facts)
    return dataclasses.replace(found, twin=_alone(twin)) if twin else found


def _alone(name: str) -> Study:
    record = ledger.read(name)
    return Study(
        record.facts,
        record.trials,
        record.nodes,
        record.probes,
        record.attempts,
        record.asides,
        record.is_complete,
        record.spent,
        ledger.paths(name).samples("*").parent,
    )


def _twin(facts: SweepFacts) -> str:
    """Return the latest sweep that simulated a measured one, or was measured after a simulated one; empty if there is
    none that can be read."""
    is_simulated = bool(facts.simulated)
    study = facts.study.removesuffix(ledger.SIMULATED) if is_simulated else f"{facts.study}{ledger.SIMULATED}"
    named = re.compile(rf"{re.escape(study)}(-\d+)?")
    for name in reversed([name for name in ledger.names() if named.fullmatch(name)]):
        with contextlib.suppress(InputError):  # an earlier version's
            other = ledger.facts(name)
            if other.study == study and bool(other.simulated) != is_simulated:
                return name
    return ""
