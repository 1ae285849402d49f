"""A sweep's cells as tables for a screen: the axes that vary, the figures that its protocol is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sweeps import analysis
from sweeps.analysis.best_cell import NOT_SHOWN
from sweeps.analysis.frames import kinds
from sweeps.record import bottleneck, rows
from sweeps.spec.keys import RANK, SweepSpec
from sweeps.spec.plan import Plan, rank
from sweeps.spec.space import shown
from sweeps.text import tables

if TYPE_CHECKING:
    import pandas as pd


def table(trials: pd.DataFrame, planned: Plan) -> pd.DataFrame:
    """One row a cell."""
    is_strong = "global_batch" in planned.spec.axes
    found = in_order(analysis.scaling(trials, is_strong), planned)
    made = found.reindex(columns=[*planned.axes], fill_value="").map(shown)  # a variable may have been set nowhere
    if planned.spec.protocol == "convergence":
        _convergence(made, found, planned.spec)
    else:
        _throughput(made, found, f"{planned.spec.counted}/s")
    for side in analysis.apart(found):
        made[side.replace("_", " ")] = found[side]
    made["repeats"] = found["n"]
    if found["withheld"].any() and (found["withheld"] < found["n"]).any():  # of all cells a sentence says it
        made["withheld"] = found["withheld"]
    made["outcome"] = [
        f"{outcomes}: {message}" if message else outcomes
        for outcomes, message in zip(found["outcomes"], found["message"], strict=True)
    ]
    return made


def _throughput(made: pd.DataFrame, found: pd.DataFrame, rate: str) -> None:
    made[rate] = _with_interval(found, "images_per_s")
    if "gpus" in made:
        made["efficiency"] = [
            tables.percent(value, ci) for value, ci in zip(found["efficiency"], found["efficiency_ci"], strict=True)
        ]
    if found["compute_share"].notna().any():
        made["limited by"] = limited_by(found)


def limited_by(found: pd.DataFrame) -> list[str]:
    """Return what limits each cell, over its repeats."""
    verdicts = [bottleneck.of_cell(cell) for _, cell in found.iterrows()]
    return [bottleneck.in_short(verdict) if verdict else "–" for verdict in verdicts]


def _convergence(made: pd.DataFrame, found: pd.DataFrame, spec: SweepSpec) -> None:
    if spec.run:
        own = ["loss", "top1", "top5", *(name for name in found if name.startswith(rows.REPORTED))]
        for name in own:
            if f"{name}_ci" in found and found[name].notna().any():
                made[name.removeprefix(rows.REPORTED)] = _with_interval(found, name)
        if found["images_per_s"].notna().any():
            made[f"{spec.counted}/s"] = _with_interval(found, "images_per_s")
        return
    made["top-1"] = [tables.accuracy(top1, ci) for top1, ci in zip(found["top1"], found["top1_ci"], strict=True)]
    if found["reached"].any():
        made["reached target"] = [f"{at} of {n}" for at, n in zip(found["reached"], found["n"], strict=True)]
        made["epochs to it"] = _with_interval(found, "epochs_to_target")
        made["time to it"] = _times(found, "hours_to_target")
        made["training alone"] = _times(found, "train_hours_to_target")
    made["images/s"] = _with_interval(found, "images_per_s")


def _with_interval(found: pd.DataFrame, figure: str) -> list[str]:
    return [tables.plus_minus(mean, ci) for mean, ci in zip(found[figure], found[f"{figure}_ci"], strict=True)]


def _times(found: pd.DataFrame, figure: str) -> list[str]:
    pairs = zip(found[figure], found[f"{figure}_ci"], strict=True)
    return [tables.duration(3600 * hours, 3600 * ci) for hours, ci in pairs]


def front(trials: pd.DataFrame, planned: Plan) -> list[str]:
    """Throughput against its cost, in lines: the cells that no other that was measured alike beats in both. Empty where
    one wins outright."""
    found = analysis.cells(trials)
    if planned.spec.protocol != "throughput" or found["gpus"].nunique() == 1:
        return []
    hours = f"{RANK[planned.spec.device]}-hours"
    sides = analysis.conditions(found)
    each = f", of cells with the same {' and '.join(side.replace('_', ' ') for side in sides)}" if sides else ""
    lines = [f"Throughput against {hours} for an epoch of ImageNet, where no cell beats another in both{each}"]
    lines[0] += f" ({NOT_SHOWN}):"
    for _, alike in found.groupby(sides or (lambda row: 0), sort=False):
        unbeaten = analysis.pareto(alike, ["images_per_s"], ["gpu_hours_per_epoch"])
        for _, cell in unbeaten.iterrows() if len(unbeaten) > 1 else ():
            rate = tables.plus_minus(cell["images_per_s"], cell["images_per_s_ci"])
            cost = tables.plus_minus(cell["gpu_hours_per_epoch"], cell["gpu_hours_per_epoch_ci"])
            lines.append(f"  {_named(cell, planned, sides)}: {rate} images/s, {cost} {hours}")
    return lines if len(lines) > 1 else []


def frontier(trials: pd.DataFrame, planned: Plan) -> pd.DataFrame:
    """Return what a frontier sweep is for: the largest batch that fits, or the largest value of another axis, a row for
    each combination of the other axes."""
    largest = planned.spec.frontier_axis
    found = in_order(analysis.frontier(trials, largest), planned)
    others = [axis for axis in (*planned.axes, *analysis.APART) if axis in found and axis != largest]
    made = found[others].map(shown)
    made[f"largest {planned.spec.frontier_word}"] = [f"{at:g}" if at == at else "none" for at in found[largest]]
    made[f"{planned.spec.counted}/s"] = _with_interval(found, "images_per_s")
    made["too large"] = [
        f"{batch:g}: {kind}" if kind else "–" for batch, kind in zip(found["too_large"], kinds(found), strict=True)
    ]
    return made


def in_order(found: pd.DataFrame, planned: Plan) -> pd.DataFrame:
    """Return rows in the file's order; trials ran in another one."""
    for name, axis in reversed(planned.axes.items()):
        if name in found:
            # a column of threads is text, since `auto` stands among them
            places = found[name].map(lambda at, axis=axis: rank(axis, int(at) if str(at).isdecimal() else at))
            found = found.loc[places.sort_values(kind="stable").index]
    return found


def _named(cell: Any, planned: Plan, sides: Sequence[str]) -> str:
    axes = [*([*planned.axes] or ["batch_size", "gpus"]), *sides]
    return ", ".join(
        f"{axis.replace('_', ' ') if axis in sides else axis} {shown(cell.get(axis, ''))}" for axis in axes
    )
