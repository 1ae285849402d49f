"""Which rows and columns of a table of trials are wanted, in which order; and where a store keeps each column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from sweeps.analysis.frames import WORDS
from sweeps.errors import InputError, Mistake
from sweeps.record import rows
from sweeps.spec import expression
from sweeps.spec.expression import ExpressionError
from sweeps.store.tabular import TAGS
from workers.contract.spelling import did_you_mean

if TYPE_CHECKING:
    import pandas as pd

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
STORED_AS = {name: f"tag:sweep.{name}" for name in WORDS}
WHERE: dict[str, str] = {name: f"tag:sweep.{name}" for name in rows.WHERE}
NEAREST = 3  # of the names that users give: a few are often alike
HELD = "param:batch_size"  # every trial's run has it, once its values have come
OWN = ("run", "experiment", "status", "started_ms", "ended_ms", *(f"tag:{tag}" for tag in TAGS))


def headline(found: pd.DataFrame) -> list[str]:
    """Return the figures of a table of trials that tell most: the rate by its unit, and what scripts have reported."""
    own = [name for name in found if rows.is_of_script(name)]
    units = [name for name in own if rows.is_unit_rate(name)]
    of_scripts = found["parameters"].isna()
    if (of_scripts & found["loss"].notna()).any():
        own.append("loss")
    has_units = bool(units) and not (found["images_per_s"].notna() & found[units].isna().all(axis=1)).any()
    told = [name for name in HEADLINE if found[name].notna().any() and not (has_units and name == "images_per_s")]
    return [*own, *told]


class Condition:
    """A `where`, read before anything else is, as far as that goes: a store may have columns of its own."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        names = [*STORED_AS, *rows.PARAMS, *WHERE, *rows.METRICS, "started_at", "sweep", "store", "global_batch"]
        self._known = frozenset(names)
        self.words = sorted(self._read(self._known | _alike(self._text)).names) if self._text else []

    def _read(self, names: Collection[str]) -> expression.Expression:
        try:
            return expression.condition(self._text, names)
        except ExpressionError as error:
            raise _misread(error) from None

    def held(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows for which it holds."""
        if not self._text:
            return table
        full = table
        if "global_batch" in self.words and "global_batch" not in table:
            full = table.assign(global_batch=table["batch_size"] * table["gpus"])
        try:
            return table[self._read([*full]).rows(full)].reset_index(drop=True)
        except ExpressionError as error:
            raise _misread(error) from None


def _alike(text: str) -> set[str]:
    """Return columns that only some stores have: variables of the environment, axes and figures of a user's program."""
    import re

    return set(re.findall(rf"\b(?:env|own|reported)\.\w+|\b[a-z]\w*{rows.RATE}\b", text))


def _misread(error: ExpressionError) -> InputError:
    return InputError("where", [Mistake("", error.rule, error.got, error.pointer)])


def stored(wanted: Iterable[str]) -> list[str]:
    """Return the columns of a table of runs for these of a frame."""
    found = [*OWN, HELD]
    for name in wanted:
        if name in rows.METRICS or name.startswith(rows.SYSTEM) or rows.is_of_script(name):
            found.append(f"metric:{rows.stored_as(name)}")
        elif name == "arrangement":
            found += ["param:gpus", "param:placement", f"metric:{rows.METRICS['nodes']}"]
        elif name == "global_batch":
            found += ["param:batch_size", "param:gpus"]
        else:
            found.append(f"param:{name}")
    return list(dict.fromkeys(found))


def chosen(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return these columns, in this order; raises where there is none of a name."""
    if unknown := [name for name in columns if name not in table]:
        known = [*table, *STORED_AS, *rows.PARAMS, *WHERE, *rows.METRICS, "started_at", "sweep", "store"]
        hints = {name: did_you_mean(name, known, "trial, gpus, images_per_s, …", most=NEAREST) for name in unknown}
        raise InputError("columns", [Mistake("", f"must be a column{hint}", name) for name, hint in hints.items()])
    return table if list(columns) == list(table) else table[[*columns]]


def ordered(table: pd.DataFrame, text: str) -> pd.DataFrame:
    """Sort by columns such as `gpus,images_per_s:desc`; rows without a value come last."""
    if not text:
        return table
    parts = [part.strip().rpartition(":") if ":" in part else (part.strip(), "", "") for part in text.split(",")]
    if wrong := [way for _, sign, way in parts if sign and way not in ("asc", "desc")]:
        raise InputError("sort", [Mistake("", "must be asc or desc behind the colon", way) for way in wrong])
    names = [name for name, _, _ in parts]
    chosen(table, names)
    rising = [way != "desc" for _, _, way in parts]
    return table.sort_values(names, ascending=rising, kind="stable", na_position="last", ignore_index=True)


def tells(column: pd.Series) -> bool:
    """Say whether a column of a list of sweeps tells anything."""
    return bool(column.map(lambda value: value not in ("", 0)).fillna(False).any()) and column.notna().any()
