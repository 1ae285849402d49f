"""From a spec to its cells and trials. Pure: the same spec gives the same trials, with the same ids."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

from sweeps.errors import InputError, Mistake
from sweeps.rules import DIGITS_CLASSES, NEEDED_BY
from sweeps.sparkline import sparkline
from sweeps.spec import AXES, Space, SweepSpec
from workers import contract, schedules
from workers.contract import IMAGE_SIZES, WITHOUT_JPEGS, TrialConfig

MOST_TRIALS = 100_000
FEWEST_WARMUP = 10
NAMED = ("batch_size", "gpus", "precision", "decode_threads")  # in every trial's name
DIGITS_SIZE = 32
IMAGENET_CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Plan:
    spec: SweepSpec
    trials: tuple[TrialConfig, ...]  # in the order they are run

    @property
    def cells(self) -> dict[str, TrialConfig]:
        """One trial of each cell."""
        return {trial.cell: trial for trial in sorted(self.trials, key=self._place) if trial.repeat == 0}

    def _place(self, trial: TrialConfig) -> list[int]:
        """Of a cell in the file's order, which a reader expects."""
        axes = self.spec.axes.items()
        return [points.index(at) if (at := value(trial, axis)) in points else -1 for axis, points in axes]

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The axes that vary, and their points."""
        return {name: points for name, points in self.spec.axes.items() if len(points) > 1}


def plan(spec: SweepSpec, place: str = "plan") -> Plan:
    """Every cell `repeats` times. A round measures each cell once, so that a drift of the machine touches all."""
    axes = spec.axes
    count = math.prod(len(points) for points in axes.values()) * spec.repeats
    if count > MOST_TRIALS:
        raise InputError(place, [Mistake("space", f"a sweep holds at most {MOST_TRIALS} trials", f"{count}")])
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    cells = {trial.cell: trial for trial in (_trial(spec, point) for point in points)}
    drawn = random.Random(spec.seed)
    rounds = (_shuffled(list(cells.values()), drawn) for _ in range(spec.repeats))
    return Plan(spec, tuple(dataclasses.replace(trial, repeat=n) for n, order in enumerate(rounds) for trial in order))


def _shuffled(cells: list[TrialConfig], drawn: random.Random) -> list[TrialConfig]:
    """In random order, so that a drift of the machine falls on no axis; but gangs of one size in a row, as blocks,
    themselves in random order: another size starts slower."""
    blocks: dict[int, list[TrialConfig]] = {}
    for trial in cells:
        blocks.setdefault(trial.gpus, []).append(trial)
    sizes = drawn.sample(list(blocks), len(blocks))
    return [trial for size in sizes for trial in drawn.sample(blocks[size], len(blocks[size]))]


def summary(planned: Plan) -> str:
    """`16 cells × 3 repeats = 48 trials: batch_size 32, 128 × gpus 1, 2`."""
    repeats = planned.spec.repeats
    axes = " × ".join(f"{name} {', '.join(map(shown, points))}" for name, points in planned.axes.items())
    count = f"{len(planned.trials) // repeats} cells × {repeats} repeats = {len(planned.trials)} trials"
    return f"{count}: {axes}" if axes else count


def schedules_drawn(planned: Plan) -> list[str]:
    """Each learning-rate schedule over the run as a line of blocks, for every global batch that changes it."""
    epochs = planned.spec.epochs
    if not epochs:
        return []
    drawn: dict[tuple[str, str], None] = {}
    for trial in planned.cells.values():
        curve = schedules.curve(schedules.parse(trial.lr_schedule), epochs, trial.global_batch, points=45)
        ends = f"{curve[0]:.3g} to {curve[-1]:.3g} at a global batch of {trial.global_batch}"
        drawn[trial.lr_schedule, f"{sparkline(curve)}  {ends}"] = None
    width = max(len(text) for text, _ in drawn)
    return [f"learning rate over {epochs} epochs", *(f"  {text:<{width}}  {line}" for text, line in drawn)]


def value(trial: TrialConfig, axis: str) -> Any:
    """Where a trial stands on an axis."""
    section, _, variable = axis.partition(".")
    return trial.env.get(variable, "") if section == "env" else getattr(trial, axis)


def shown(point: Any) -> str:
    """A point as a sweep file writes it."""
    return ("off", "on")[point] if isinstance(point, bool) else str(point)


def names(trials: Sequence[TrialConfig]) -> dict[str, str]:
    """Short telling names by trial id: what every study looks at, and whatever else varies in this one."""
    others = [name for name in [*AXES, *_variables(trials)] if name not in NAMED]
    varied = [axis for axis in others if len({value(trial, axis) for trial in trials}) > 1]
    has_threads = any(trial.data not in WITHOUT_JPEGS for trial in trials)
    return {trial.trial: _name(trial, varied, has_threads) for trial in trials}


def _name(trial: TrialConfig, varied: Sequence[str], has_threads: bool) -> str:
    words = [f"b{trial.batch_size}", f"×{trial.gpus}", trial.precision]
    if has_threads:
        words.append(f"t{trial.decode_threads}")
    for axis in varied:
        at = value(trial, axis)
        words.append(f"{axis}={shown(at)}" if isinstance(at, (bool, int, float)) else str(at))
    return " ".join(words)


def _variables(trials: Sequence[TrialConfig]) -> list[str]:
    return sorted({f"env.{name}" for trial in trials for name in trial.env})


def _trial(spec: SweepSpec, point: dict[str, Any]) -> TrialConfig:
    """The trial of one point. What would have no effect there is set as if nobody had asked for it."""
    plain = {name: at for name, at in point.items() if not name.startswith("env.")}
    defaults = Space.model_fields
    for axis, needed in NEEDED_BY.items():
        if plain["optimizer"] != needed:
            plain[axis] = defaults[axis].default.points()[0]
    if plain["data"] in WITHOUT_JPEGS:
        plain["decode_threads"], plain["cache"] = "auto", "any"
    is_converging = spec.protocol == "convergence"
    is_digits = plain["data"] == "digits"
    smallest, published = IMAGE_SIZES[plain["model"]]
    image_size = max(smallest, DIGITS_SIZE) if is_digits else published
    classes = DIGITS_CLASSES if is_digits else IMAGENET_CLASSES
    return TrialConfig(
        **plain,  # the axes are named as the trial's fields are
        env={name.removeprefix("env."): at for name, at in point.items() if name.startswith("env.")},
        protocol=spec.protocol,
        device=spec.device,
        isolation=spec.isolation,
        emulate=spec.emulate,
        image_size=image_size if spec.image_size == "auto" else spec.image_size,
        classes=classes if spec.classes == "auto" else spec.classes,
        cores_per_worker=spec.cores_per_worker,
        worker_memory_gib=spec.worker_memory_gib or 0.0,
        warmup_steps=0 if is_converging else spec.steps.warmup if spec.steps else FEWEST_WARMUP,
        measured_steps=spec.steps.measured if spec.steps else 0,
        ci=0.0 if is_converging or spec.steps else spec.stop.ci,
        max_steps=0 if is_converging or spec.steps else spec.stop.max_steps,
        min_window=0 if is_converging or spec.steps else spec.stop.min_window,
        explain=spec.explain and not is_converging,
        epochs=spec.epochs or 0,
        evaluate_every=spec.evaluate_every if is_converging else 0,
        checkpoint_every=spec.checkpoint_every,
        target_top1=spec.target.top1 or 0.0,
        target_top5=spec.target.top5 or 0.0,
        seed=spec.seed,
        deadlines=contract.Deadlines(**spec.deadlines.model_dump()),
    )
