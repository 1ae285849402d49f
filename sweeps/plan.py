"""From a spec to its cells and trials. Pure: the same spec gives the same trials, with the same ids."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from sweeps.errors import InputError, Mistake
from sweeps.spec import Space, SweepSpec
from workers import contract
from workers.contract import TrialConfig

MOST_TRIALS = 100_000


@dataclasses.dataclass(frozen=True)
class Plan:
    spec: SweepSpec
    trials: tuple[TrialConfig, ...]  # in the order they are run

    @property
    def cells(self) -> dict[str, TrialConfig]:
        """One trial of each cell."""
        return {trial.cell: trial for trial in self.trials if trial.repeat == 0}

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The axes that vary, and their points."""
        return {name: points for name, points in _axes(self.spec).items() if len(points) > 1}


def plan(spec: SweepSpec, place: str = "plan") -> Plan:
    """Every cell `repeats` times. A round measures each cell once, so that a drift of the machine touches all."""
    axes = _axes(spec)
    count = math.prod(len(points) for points in axes.values()) * spec.repeats
    if count > MOST_TRIALS:
        raise InputError(place, [Mistake("space", f"a sweep holds at most {MOST_TRIALS} trials", f"{count}")])
    cells = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    cells.sort(key=lambda cell: cell["gpus"])  # gangs of one shape in a row start faster
    return Plan(spec, tuple(_trial(spec, cell, repeat) for repeat in range(spec.repeats) for cell in cells))


def summary(planned: Plan) -> str:
    """`16 cells × 3 repeats = 48 trials: batch_size 32, 128 × gpus 1, 2`."""
    repeats = planned.spec.repeats
    axes = " × ".join(f"{name} {', '.join(map(str, points))}" for name, points in planned.axes.items())
    count = f"{len(planned.trials) // repeats} cells × {repeats} repeats = {len(planned.trials)} trials"
    return f"{count}: {axes}" if axes else count


def _axes(spec: SweepSpec) -> dict[str, list[Any]]:
    return {name: getattr(spec.space, name).points() for name in Space.model_fields}


def _trial(spec: SweepSpec, cell: dict[str, Any], repeat: int) -> TrialConfig:
    return TrialConfig(
        **cell,  # the axes are named as the trial's fields are
        model=spec.model,
        data=spec.data,
        device=spec.device,
        image_size=spec.image_size,
        classes=spec.classes,
        cores_per_worker=spec.cores_per_worker,
        learning_rate=spec.learning_rate,
        warmup_steps=spec.steps.warmup,
        measured_steps=spec.steps.measured,
        seed=spec.seed,
        repeat=repeat,
        deadlines=contract.Deadlines(**spec.deadlines.model_dump()),
    )
