"""How far published figures bear out a simulated step time: what `--simulate` says of it, and where nothing judges it.

A row of references/simulator.csv is a published figure and by how much the model misses it when its numbers are fitted
to all other rows; benchmarks/simulator.py writes it.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps.simulator import model
from workers.contract.messages import IMAGE_SIZES, TrialConfig

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
    if ours := _of_networks(trials, kind, rows):
        off = [abs(row.left_out) for row in ours]
        names = ", ".join(sorted({row.model for row in ours}))
        yield (
            f"published figures of {names} on any kind of node, left out of what the model is fitted to, are met within"
            f" {max(off):.0%} (median {statistics.median(off):.1%})"
        )
    yield from (f"! {says}" for says in doubts(trials, kind, rows))


def doubts(trials: Sequence[TrialConfig], kind: str, rows: Sequence[PublishedFigure]) -> Iterator[str]:
    """Where the model misses published figures of the trials' networks, and what of the trials none judges."""
    ours = _of_networks(trials, kind, rows)
    missed = [row for row in ours if abs(row.left_out) > HOLDS]
    if missed:
        where = "; ".join(f"{row.model} on {row.gpus} GPUs of {row.kind} ({row.left_out:+.0%})" for row in missed)
        yield f"the model does not hold for {where}"
    if loose := [name for name in sorted({row.model for row in ours}) if _median(name, ours) > HALF_HOLD]:
        half = ", ".join(f"{name} ({_median(name, ours):.1%})" for name in loose)
        yield f"the model does not hold to {HALF_HOLD:.0%} in the median for {half}"
    if found := list(unjudged(trials, kind, rows)):
        yield f"no published figure judges {'; '.join(found)}"


def _of_networks(trials: Sequence[TrialConfig], kind: str, rows: Sequence[PublishedFigure]) -> list[PublishedFigure]:
    networks = {trial.model for trial in trials if model.KINDS[kind].gpus}
    return [row for row in rows if row.model in networks]


def _median(network: str, rows: Sequence[PublishedFigure]) -> float:
    return statistics.median(abs(row.left_out) for row in rows if row.model == network)


def unjudged(trials: Sequence[TrialConfig], kind: str, rows: Sequence[PublishedFigure]) -> Iterator[str]:
    """Yield what of these very trials, on nodes of a kind, no published figure says: a row judges the figure of its own
    unit, kind of node, network, precision, number of GPUs and batch, and nothing else."""
    if not model.KINDS[kind].gpus:
        yield "nodes without GPUs"
        return
    if any(trial.device != "gpu" for trial in trials):
        yield "ranks on processors"
    trials = [trial for trial in trials if trial.device == "gpu"]
    own = [row for row in rows if row.kind == kind]
    if parts := [part for name in sorted({trial.model for trial in trials}) for part in _rates(name, trials, own)]:
        yield f"images/s on {kind} of {', '.join(parts)}"
    most = max((row.gpus for row in rows), default=0)
    if beyond := {trial.gpus for trial in trials if trial.gpus > most}:
        yield f"any network on more than {most} GPUs ({_counted(beyond)}: as the model, fitted to fewer, goes on)"
    batches = {row.batch_size for row in own if row.model in {trial.model for trial in trials}}
    if batches and any(trial.batch_size not in batches for trial in trials):
        yield f"batches other than {', '.join(map(str, sorted(batches)))} a GPU"
    sizes = {(trial.model, trial.image_size) for trial in trials if trial.image_size != IMAGE_SIZES[trial.model][1]}
    yield from (f"images of {size} pixels for {name}" for name, size in sorted(sizes))
    optimizers = sorted({trial.optimizer for trial in trials} - {"sgd"})
    yield from (f"optimizer: {name}" for name in optimizers)
    options = {
        "xla": any(trial.xla for trial in trials),
        "compression": any(trial.compression != "none" for trial in trials),
        "reduction: grouped": any(trial.reduction == "grouped" for trial in trials),
        "the decoding of JPEGs": any(model.decode_threads(trial, 1, 1) for trial in trials),
        "how a network learns (protocol: convergence)": any(trial.protocol == "convergence" for trial in trials),
    }
    yield from (name for name, is_used in options.items() if is_used)


def _rates(network: str, trials: Sequence[TrialConfig], rows: Sequence[PublishedFigure]) -> Iterator[str]:
    """Where a network's images/s are not published though trials have some, by precision and GPUs."""
    rates, growths = (
        {(row.precision, row.gpus) for row in rows if (row.unit, row.model) == (unit, network)}
        for unit in ("images/s", "speed-up")
    )
    missing = {(trial.precision, trial.gpus) for trial in trials if trial.model == network} - rates
    known = {precision for precision, _ in rates}
    for precision in sorted({precision for precision, _ in missing}) if known else [""]:
        own = {at for at in missing if at[0] == precision} if known else missing
        said = f"{network} in {precision}" if known else network
        if precision in known:
            said += f" on {_counted(gpus for _, gpus in own)}"
        if judged := own & growths:
            formats = " and ".join(sorted({its for its, _ in judged}))
            said += f" (its speed-up on {_counted(gpus for _, gpus in judged)} in {formats} is judged)"
        yield said


def _counted(gpus: Iterable[int]) -> str:
    """`1, 2 and 4 GPUs`."""
    *most, last = sorted({*gpus})
    return f"{', '.join(map(str, most))} and {last} GPUs" if most else f"{last} GPU{'s' * (last != 1)}"
