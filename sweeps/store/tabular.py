"""Runs of a tracking store as columns: what every way of reading them comes to.

A column is named after where MLflow keeps it: `tag:sweep.cell`, `param:gpus`, `metric:step_ms/p50`. Texts stay as they
are stored and are typed when they are asked for; a text that repeats is kept once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeps.record import rows
from workers.contract import messages

if TYPE_CHECKING:
    import pyarrow as pa

TAGS = (
    "sweep.name",
    "sweep.id",
    "sweep.trial",
    "sweep.cell",
    "sweep.outcome",
    "sweep.kind",
    "sweep.message",
    "sweep.inferred_from",
    "sweep.limited_by",
    "sweep.why_withheld",
    "sweep.measured_by",
    "sweep.pinned",
    "sweep.why_not_pinned",
    "sweep.hardware",
    "sweep.software",
    "sweep.data_files",
    "sweep.arrangement",
    "sweep.estimators",
    "sweep.simulated",
)
EARLIER_NOT_PINNED = "not: "  # an earlier version wrote why behind it, where the cores stand
PARAMS, METRICS = tuple(rows.PARAMS), tuple(rows.METRICS.values())


class Run(NamedTuple):
    run: str
    experiment: str
    status: str
    started_ms: int | None
    ended_ms: int | None


class Columns:
    """Fills up value by value, in any order; what is told of a run that is not there is passed over."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._at = {run.run: n for n, run in enumerate(runs)}
        self._texts: dict[str, tuple[array[int], dict[str, int]]] = {}
        self._figures: dict[str, array[float]] = {}

    def texts(self, kind: str, values: Iterable[Sequence[Any]]) -> None:
        """Run, key, value."""
        by_key: dict[str, tuple[array[int], dict[str, int]]] = {}
        at = self._at.get
        for run, key, value in values:
            n = at(run)
            if n is None or value is None:
                continue
            column = by_key.get(key)
            if column is None:
                column = by_key[key] = self._column(f"{kind}:{key}")
            codes, known = column
            codes[n] = known.setdefault(value, len(known))

    def figures(self, values: Iterable[Sequence[Any]]) -> None:
        """Run, key, value; None is not a number."""
        at, count, figures = self._at.get, len(self._runs), self._figures
        for run, key, value in values:
            n = at(run)
            if n is None or value is None:
                continue
            column = figures.get(key)
            if column is None:
                column = figures[key] = array("d", [math.nan]) * count
            column[n] = value

    def _split_inferences(self) -> None:
        """Earlier versions wrote within a kind and a message what is a tag of its own now."""
        import numpy as np

        if "tag:sweep.kind" not in self._texts:  # nothing is said of how they ended
            return
        kinds, known = self._column("tag:sweep.kind")
        said, texts = self._column("tag:sweep.message")
        kind, message = list(known), [*texts, ""]
        inferred = [code for text, code in known.items() if messages.inference(text, "")]
        for n in np.flatnonzero(np.isin(kinds, inferred)):
            for name, text in messages.inference(kind[kinds[n]], message[said[n]]).items():
                codes, known = self._column(f"tag:sweep.{name}")
                codes[n] = known.setdefault(text, len(known))

    def _split_pins(self) -> None:
        """Earlier versions wrote why ranks were not pinned where the cores of others stand."""
        import numpy as np

        if "tag:sweep.pinned" not in self._texts:
            return
        cores, known = self._column("tag:sweep.pinned")
        whys, reasons = self._column("tag:sweep.why_not_pinned")
        texts = list(known)
        loose = [code for text, code in known.items() if text.startswith(EARLIER_NOT_PINNED)]
        for n in np.flatnonzero(np.isin(cores, loose)):
            whys[n] = reasons.setdefault(texts[cores[n]].removeprefix(EARLIER_NOT_PINNED), len(reasons))
            cores[n] = -1

    def _column(self, name: str) -> tuple[array[int], dict[str, int]]:
        return self._texts.setdefault(name, (array("i", [-1]) * len(self._runs), {}))

    def table(self) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        self._split_inferences()
        self._split_pins()
        own = zip(*self._runs, strict=True) if self._runs else [()] * len(Run._fields)
        kinds = {"started_ms": pa.int64(), "ended_ms": pa.int64()}
        made = {
            name: pa.array(values, kinds.get(name, pa.string())) for name, values in zip(Run._fields, own, strict=True)
        }
        for name, (stored, known) in self._texts.items():
            codes = np.frombuffer(stored, np.int32)
            made[name] = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(known, pa.string()))
        for key, column in self._figures.items():
            made[f"metric:{key}"] = pa.array(np.frombuffer(column, np.float64))
        return pa.table(made)
