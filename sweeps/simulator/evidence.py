"""How far published figures bear out a simulated step time: what `--simulate` says of it, and where nothing judges it.

A row of references/simulator.csv is a published figure and by how much the model misses it when its numbers are fitted
to all other rows; benchmarks/simulator.py writes it.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps.simulator import model
from workers.contract.messages import TrialConfig

FILE = Path(__file__).parents[2] / "references" / "simulator.csv"
KIND = {  # of simulated nodes, for the systems whose figures are published
    "other-8x-V100-SXM2-16GB": "v100-8x",
    "C4140-K-V100-SXM2-Xeon4116": "v100-k",
    "C4140-M-V100-SXM2-Xeon6148": "v100",
    "C4130-P100-PCIe-16GB": "p100",
    "C4140-V100-PCIe": "v100-pcie",
}
FRAMEWORK = "tensorflow-horovod"  # the one whose speed-ups are fitted to
HOLDS = 0.10  # of a published figure: what is further off is said not to hold
HALF_HOLD = 0.03  # the same of a network's median


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    unit: str
    kind: str
    model: str
    precision: str
    batch_size: int
    gpus: int
    left_out: float  # of the published figure
    published: float = 0.0


@functools.cache
def rows() -> tuple[PublishedFigure, ...]:
    with FILE.open() as lines:
        return tuple(
            PublishedFigure(
                unit=row["unit"],
                kind=row["kind"],
                model=row["model"],
                precision=row["precision"],
                batch_size=int(row["batch_size"]),
                gpus=int(row["gpus"]),
                left_out=float(row["left_out_error"]),
                published=float(row["published"]),
            )
            for row in csv.DictReader(lines)
        )


def fitted_to(
    system: str, framework: str, settings: Mapping[str, Any], unit: str, value: float
) -> PublishedFigure | None:
    """Return the row of the fit that a published figure is; None if the model was not fitted to it."""
    if unit == "speed-up" and framework != FRAMEWORK:
        return None
    known = [settings.get(name) for name in ("model", "precision", "batch_size", "gpus")]
    for row in rows():
        where = [row.model, row.precision, row.batch_size, row.gpus]
        if (row.unit, row.kind, row.published) == (unit, KIND.get(system), value) and where == known:
            return row
    return None


def summary_lines(trials: Sequence[TrialConfig], kind: str, rows: Sequence[PublishedFigure]) -> Iterator[str]:
    """How near the model comes to the published figures of the trials' networks; where it misses; what none judges."""
    networks = {trial.model for trial in trials}
    ours = [row for row in rows if row.model in networks and model.KINDS[kind].gpus]
    if ours:
        off = [abs(row.left_out) for row in ours]
        names = ", ".join(sorted({row.model for row in ours}))
        yield (
            f"published figures of {names}, left out of what the model is fitted to, are met within {max(off):.0%}"
            f" (median {statistics.median(off):.1%})"
        )
    missed = [row for row in ours if abs(row.left_out) > HOLDS]
    if missed:
        where = "; ".join(f"{row.model} on {row.gpus} GPUs of {row.kind} ({row.left_out:+.0%})" for row in missed)
        yield f"! the model does not hold for {where}"
    if loose := [name for name in sorted({row.model for row in ours}) if _median(name, ours) > HALF_HOLD]:
        half = ", ".join(f"{name} ({_median(name, ours):.1%})" for name in loose)
        yield f"! it does not hold to {HALF_HOLD:.0%} in the median for {half}"
    if unjudged := list(_unjudged(trials, kind, ours)):
        yield f"! no published figure judges {'; '.join(unjudged)}"


def _median(network: str, rows: Sequence[PublishedFigure]) -> float:
    return statistics.median(abs(row.left_out) for row in rows if row.model == network)


def _unjudged(trials: Sequence[TrialConfig], kind: str, ours: Sequence[PublishedFigure]) -> Iterator[str]:
    if not model.KINDS[kind].gpus:
        yield "nodes without GPUs"
        return
    judged = {row.model for row in ours}
    if unknown := sorted({trial.model for trial in trials} - judged):
        yield ", ".join(unknown)
    known = [trial for trial in trials if trial.model in judged]
    most = {name: max(row.gpus for row in ours if row.model == name) for name in judged}
    for limit in sorted(set(most.values())):
        names = sorted({trial.model for trial in known if trial.gpus > limit == most[trial.model]})
        if names:
            yield f"{', '.join(names)} on more than {limit} GPUs"
    batches = {row.batch_size for row in ours}
    if known and any(trial.batch_size not in batches for trial in known):
        yield f"batches other than {', '.join(map(str, sorted(batches)))} a GPU"
    precisions = {(row.model, row.precision) for row in ours}
    if others := sorted({f"{t.model} in {t.precision}" for t in known if (t.model, t.precision) not in precisions}):
        yield ", ".join(others)
    if known and not any(row.kind == kind and row.unit == "images/s" for row in ours):
        yield f"images/s of {', '.join(sorted(judged))} on {kind}"
    options = {
        "xla": any(trial.xla for trial in known),
        "compression": any(trial.compression != "none" for trial in known),
        "reduction: grouped": any(trial.reduction == "grouped" for trial in known),
        "the decoding of JPEGs": any(model.decode_threads(trial, 1, 1) for trial in known),
    }
    yield from (name for name, is_used in options.items() if is_used)
