"""From a spec to its cells and trials. Pure: the same spec on the same nodes gives the same trials, with the same ids.

Without nodes a placement stays a word. For a cluster's nodes it becomes an arrangement of ranks, which belongs to the
cell. Placements that come to one arrangement there are one cell, by the first of their names; the others are left out.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sweeps.errors import InputError, Mistake
from sweeps.spec import arrangements, conditions, program
from sweeps.spec.arrangements import Node
from sweeps.spec.expression import ExpressionError
from sweeps.spec.keys import MOST_TRIALS, OWN, SweepSpec, as_written
from sweeps.spec.rules import DIGITS_CLASSES, NEEDED_BY, OF_REDUCTION
from sweeps.spec.space import Axis, Uniform, shown
from sweeps.text.sparkline import sparkline
from workers.contract import imagenet, messages, schedules
from workers.contract.messages import IMAGE_SIZES, TrialConfig, has_jpegs, nodes_by_ranks

MOST_POINTS = 300_000  # of a grid, those that it leaves out among them
MOST_LOOKED_AT = 20_000  # to draw some of them
VAIN_DRAWS = 5000  # until there seems to be no other cell
FEWEST_WARMUP = 10
NAMED = ("batch_size", "global_batch", "gpus", "precision", "decode_threads")  # in every trial's name
DIGITS_SIZE = 32
HOROVOD = "env.HOROVOD_"  # begins the name of an axis that is a variable of Horovod's
OF_OWN_NETWORK = (32, 224)  # sides of images: where the file does not say, as most networks were published with


@dataclasses.dataclass(frozen=True)
class Plan:
    spec: SweepSpec
    trials: tuple[TrialConfig, ...]  # in the order they are run; none where a search proposes them as it goes
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)  # why, and how many cells
    nodes: tuple[Node, ...] = ()  # that it is for; none: no cluster yet

    @functools.cached_property
    def most(self) -> int:
        """How many trials there may be."""
        search, repeats = self.spec.search, self.spec.repeats
        if search.method == "tpe":
            cells = sum(1 for _ in grid(self.spec, self.nodes)) if is_enumerable(self.spec) else MOST_TRIALS
            return min(search.trials or 0, cells) * repeats
        if search.method == "frontier":
            return sum(len(cells).bit_length() for cells in ladders(self.spec, self.nodes))
        return len(self.trials)

    @property
    def cells(self) -> dict[str, TrialConfig]:
        """One trial of each cell."""
        return {trial.cell: trial for trial in sorted(self.trials, key=self._place) if trial.repeat == 0}

    def _place(self, trial: TrialConfig) -> list[float]:
        """Return the place of a cell in the file's order, which a reader expects."""
        return [rank(axis, value(trial, name)) for name, axis in self.spec.axes.items()]

    @property
    def axes(self) -> dict[str, Axis]:
        """The axes that vary."""
        return {name: axis for name, axis in self.spec.axes.items() if is_varied(axis)}


def is_varied(axis: Axis) -> bool:
    return axis.is_varied or bool(axis.when)


def rank(axis: Axis, at: Any) -> float:
    """Return where a value stands on its axis."""
    if isinstance(axis, Uniform):
        return float(at)
    points = axis.points()
    return points.index(at) if at in points else -1


def plan(spec: SweepSpec, place: str = "plan", nodes: Sequence[Node] = ()) -> Plan:
    """Every cell `repeats` times. A round has each cell once, in random order, so that a drift falls on no axis."""
    left_out: collections.Counter[str] = collections.Counter()
    cells = _chosen(spec, left_out, place, nodes)
    if not cells:
        rule = f"must leave a cell; left out are {_by_reason(left_out)}" if left_out else "must leave a cell"
        raise InputError(place, [Mistake("where" if spec.where else "space", rule, "; ".join(spec.where) or "none")])
    if spec.search.method in ("tpe", "frontier"):
        return Plan(spec, (), left_out, tuple(nodes))
    _require_few(len(cells) * spec.repeats, place)
    drawn = random.Random(spec.seed)
    rounds = (drawn.sample(cells, len(cells)) for _ in range(spec.repeats))
    ordered = (dataclasses.replace(cell, repeat=n) for n, order in enumerate(rounds) for cell in order)
    return Plan(spec, tuple(ordered), left_out, tuple(nodes))


def _chosen(
    spec: SweepSpec, left_out: collections.Counter[str], place: str, nodes: Sequence[Node]
) -> list[TrialConfig]:
    """Return the cells that are planned; of a search that proposes its own, some that there are."""
    method, trials = spec.search.method, spec.search.trials
    if method in ("random", "tpe") and not is_enumerable(spec):
        return list(sample(spec, 1 if method == "tpe" else trials or 1, nodes))
    points = _size(spec)
    if not spec.where and not spec.conditions and method == "grid":
        _require_few(points * spec.repeats, place)
    if points > MOST_POINTS:
        rule = f"must have at most {MOST_POINTS} points with search: {method}; random and tpe take more"
        raise InputError(place, [Mistake("space", rule, points)])
    cells = list(_enumerated(spec, left_out, nodes))
    if method in ("random", "asha") and trials and trials < len(cells):
        chosen = random.Random(f"{spec.seed} cells").sample(range(len(cells)), trials)
        return [cells[n] for n in sorted(chosen)]
    return cells


def _require_few(trials: int, place: str) -> None:
    if trials > MOST_TRIALS:
        raise InputError(place, [Mistake("space", f"a sweep holds at most {MOST_TRIALS} trials", trials)])


def _size(spec: SweepSpec) -> int:
    return math.prod(len(axis.points()) for axis in spec.axes.values())


def is_enumerable(spec: SweepSpec) -> bool:
    """Can every cell be looked at, rather than some drawn?"""
    return _size(spec) <= MOST_LOOKED_AT and not any(isinstance(axis, Uniform) for axis in spec.axes.values())


def grid(spec: SweepSpec, nodes: Sequence[Node] = ()) -> Iterator[TrialConfig]:
    """Every distinct cell, in the file's order; of axes that all have points."""
    return _enumerated(spec, collections.Counter(), nodes)


def _enumerated(spec: SweepSpec, left_out: collections.Counter[str], nodes: Sequence[Node]) -> Iterator[TrialConfig]:
    """Yield the cells of the grid; counts those that are none, by the reason."""
    axes, arranged = spec.axes, _arranging(spec, nodes)
    found: set[tuple[Any, ...]] = set()
    reasons: dict[tuple[Any, ...], str] = {}
    for point in itertools.product(*(axis.points() for axis in axes.values())):
        values = settled(spec, dict(zip(axes, point, strict=True)))
        key = tuple(_in_effect(spec, values).values())
        if key in found:
            continue
        made = _cell(spec, values, arranged)
        if isinstance(made, TrialConfig) and (twin := _twin(spec, values, made, arranged)):
            made = f"{made.placement} is {twin.placement} here"
        if isinstance(made, str):
            reasons.setdefault(key, made)
        else:
            found.add(key)
            yield made
    left_out.update(reason for key, reason in reasons.items() if key not in found)


def sample(spec: SweepSpec, count: int, nodes: Sequence[Node] = ()) -> Iterator[TrialConfig]:
    """Distinct cells drawn at random, `count` of them or fewer if there seem to be no more."""
    drawn = random.Random(f"{spec.seed} cells")
    seen: set[str] = set()
    for _ in range(count):
        for _ in range(VAIN_DRAWS):
            made = cell_at(spec, draw(spec, lambda _, axis: axis.draw(drawn)), nodes)
            if isinstance(made, TrialConfig) and made.cell not in seen:
                seen.add(made.cell)
                yield made
                break
        else:
            return


def draw(spec: SweepSpec, pick: Callable[[str, Axis], Any]) -> dict[str, Any]:
    """Return a point as `pick` chooses it; it is only asked about axes whose condition holds at what it chose
    before."""
    values: dict[str, Any] = {}
    for name in spec.order:
        axis = spec.axes[name]
        values[name] = axis.settled(pick(name, axis)) if _applies(spec, name, values) else spec.default(name)
    return values


def settled(spec: SweepSpec, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point whose axes keep their default where their condition does not hold."""
    at = draw(spec, lambda name, _: point[name])
    return {name: at[name] for name in spec.axes}


def _applies(spec: SweepSpec, axis: str, values: Mapping[str, Any]) -> bool:
    condition = spec.conditions.get(axis)
    if condition is None:
        return True
    try:
        return condition.holds(conditions.referable(values))
    except ExpressionError:  # told by the rules, where it is so everywhere
        return False


def cell_at(spec: SweepSpec, point: Mapping[str, Any], nodes: Sequence[Node] = ()) -> TrialConfig | str:
    """Return the cell at a point, a value for each axis that applies there; or why there is none. Where another
    placement that comes first is the same on these nodes, it is that one's cell."""
    arranged, values = _arranging(spec, nodes), settled(spec, point)
    made = _cell(spec, values, arranged)
    return made if isinstance(made, str) else _twin(spec, values, made, arranged) or made


Arranged = Callable[[int, str], tuple[int, ...]]  # ranks and placement, to ranks on each node


def _arranging(spec: SweepSpec, nodes: Sequence[Node]) -> Arranged:
    """Return what placements come to on these nodes; nothing where there are none."""
    slots = tuple(arrangements.slots_of(spec.device, spec.cores_per_worker, node) for node in nodes)
    return lambda ranks, placement: arrangements.arranged(ranks, placement, slots) if slots else ()


def _twin(spec: SweepSpec, values: Mapping[str, Any], cell: TrialConfig, arranged: Arranged) -> TrialConfig | None:
    """Return the cell that differs from this one in the name of its placement alone, with one that the file names
    before."""
    if not cell.arrangement:
        return None
    for placement in itertools.takewhile(lambda one: one != cell.placement, spec.axes["placement"].points()):
        if arranged(cell.gpus, placement) == cell.arrangement:
            made = _cell(spec, settled(spec, {**values, "placement": placement}), arranged)
            if made == dataclasses.replace(cell, placement=placement):
                return made
    return None


def places_alike(planned: Plan, gpus: int, placement: str) -> list[str]:
    """Return the file's placements that come to the same as this one on the plan's nodes, itself among them."""
    arranged = _arranging(planned.spec, planned.nodes)
    found = arranged(gpus, placement)
    points = planned.spec.axes["placement"].points()
    return [one for one in points if one == placement or (found and arranged(gpus, one) == found)]


def _cell(spec: SweepSpec, values: Mapping[str, Any], arranged: Arranged) -> TrialConfig | str:
    gpus = values["gpus"]
    if values.get("global_batch", 0) % gpus:
        return "global_batch is not a multiple of gpus"
    form = nodes_by_ranks(values["placement"])
    if form and form[0] * form[1] != gpus:
        return "placement is for another number of gpus"
    known = conditions.referable(values)
    for constraint in spec.constraints:
        try:
            if not constraint.holds(known):
                return f"where {constraint}"
        except ExpressionError as error:
            return f"where {constraint}: {error}"
    return _trial(spec, _in_effect(spec, values), arranged)


def ladders(spec: SweepSpec, nodes: Sequence[Node] = ()) -> list[list[TrialConfig]]:
    """Return the cells that differ in nothing but the axis of a frontier, which is batch_size where the file names no
    other, from its smallest value to its largest."""
    axis = spec.frontier_axis
    rows: dict[str, list[TrialConfig]] = {}
    for cell in grid(spec, nodes):
        rows.setdefault(_but_for(cell, axis).cell, []).append(cell)
    return [sorted(row, key=lambda cell: value(cell, axis)) for row in rows.values()]


def _but_for(cell: TrialConfig, axis: str) -> TrialConfig:
    """Return a cell without what it has of an axis: the items of a program's step go with it."""
    if axis == "batch_size":
        cell = dataclasses.replace(cell, batch_size=0)
    else:
        cell = dataclasses.replace(cell, own={name: at for name, at in cell.own.items() if f"{OWN}{name}" != axis})
    return dataclasses.replace(cell, script=dataclasses.replace(cell.script, items=0)) if cell.script else cell


def repeats_of(spec: SweepSpec, cell: TrialConfig) -> list[TrialConfig]:
    return [dataclasses.replace(cell, repeat=n) for n in range(spec.repeats)]


def summary(planned: Plan) -> str:
    """`16 cells × 3 repeats = 48 trials: batch_size 32, 128 × gpus 1, 2`; then what was left out."""
    axes = " × ".join(f"{as_written(name)} {axis}" for name, axis in planned.axes.items())
    counted = f"{_counted(planned)}: {axes}" if axes else _counted(planned)
    return f"{counted}\n{left_out(planned)}" if planned.left_out else counted


def left_out(planned: Plan) -> str:
    """`left out: 2 cells: spread is pack here`; empty where nothing is."""
    return f"left out: {_by_reason(planned.left_out)}" if planned.left_out else ""


def _counted(planned: Plan) -> str:
    search, repeats = planned.spec.search, planned.spec.repeats
    if search.method == "frontier":
        rows, axis = len(ladders(planned.spec, planned.nodes)), as_written(planned.spec.frontier_axis)
        return f"the largest {axis} of {rows} by bisection, at most {planned.most} trials"
    cells = planned.most // repeats
    count = f"{cells} cells × {repeats} repeats = {planned.most} trials"
    if search.method == "tpe":
        return f"tpe for {' and '.join(planned.spec.goals)}, at most {count}"
    if search.method == "grid":
        return count
    return f"{search.method}, {count}"


def _by_reason(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{count} cells: {reason}" for reason, count in left_out.items())


def schedules_drawn(planned: Plan) -> list[str]:
    """Each learning-rate schedule over the run as a line of blocks, for every global batch that changes it."""
    epochs = planned.spec.epochs
    if not epochs or planned.spec.run:  # a program's own rate is its own affair
        return []
    drawn: dict[tuple[str, str], None] = {}
    for trial in planned.cells.values():
        curve = schedules.curve(schedules.parse(trial.lr_schedule), epochs, trial.global_batch, points=45)
        ends = f"{curve[0]:.3g} to {curve[-1]:.3g} at a global batch of {trial.global_batch}"
        drawn[trial.lr_schedule, f"{sparkline(curve)}  {ends}"] = None
    width = max(len(text) for text, _ in drawn)
    return [f"learning rate over {epochs} epochs", *(f"  {text:<{width}}  {line}" for text, line in drawn)]


def value(trial: TrialConfig, axis: str) -> Any:
    """Return where a trial stands on an axis."""
    section, _, name = axis.partition(".")
    of = {"env": trial.env, "own": trial.own}.get(section)
    return getattr(trial, axis) if of is None else of.get(name, "")


def namer(spec: SweepSpec) -> Callable[[TrialConfig], str]:
    """Return what gives trials short telling names: what every study looks at, and whatever else varies in this one."""
    varied = [name for name, axis in spec.axes.items() if name not in NAMED and is_varied(axis)]
    has_threads = any(has_jpegs(data) for data in spec.data.points())
    has_batch = not spec.run or spec.space.batch_size is not None or spec.space.global_batch is not None
    return lambda trial: _name(trial, varied, has_threads, has_batch)


def _name(trial: TrialConfig, varied: Sequence[str], has_threads: bool, has_batch: bool) -> str:
    words = [f"b{trial.batch_size}"] if has_batch else []
    words.append(f"×{trial.gpus}")
    if not trial.script:
        words.append(trial.precision)
    if has_threads:
        words.append(f"t{trial.decode_threads}")
    for axis in varied:
        at = value(trial, axis)
        is_own = axis.startswith(OWN) and at != ""
        text = f"{as_written(axis)}={shown(at)}" if is_own or isinstance(at, (bool, int, float)) else str(at)
        words.append(text or f"no {axis[4:]}")
    return " ".join(words)


def _in_effect(spec: SweepSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """Set what would have no effect at a point as if nobody had asked for it."""
    made = dict(values)
    if not spec.run:  # a program is told of every axis, and does with it what it likes
        made |= {axis: spec.default(axis) for axis, owner in messages.AXES_OF.items() if made["framework"] != owner}
    if made["framework"] == "torch":
        made |= {axis: spec.default(axis) for axis in made if axis in messages.OF_HOROVOD or axis.startswith(HOROVOD)}
    for axis, needed in NEEDED_BY.items():
        if made["optimizer"] != needed:
            made[axis] = spec.default(axis)
    if not has_jpegs(made["data"]):
        made["decode_threads"], made["cache"] = "auto", "any"
    if made["gpus"] == 1 and made["placement"] in ("spread", "1x1"):
        made["placement"] = "pack"
    if made["gpus"] == 1:  # nothing is reduced
        made |= {axis: spec.default(axis) for axis in OF_REDUCTION}
    if not (spec.run or messages.is_own(made["model"]) or messages.is_own(made["data"])):  # nobody is told of them
        made |= {axis: None for axis in made if axis.startswith(OWN)}
    if made["xla"]:  # its one operation gives all gradients at once: there is nothing to reduce beside it
        made["reduction"] = spec.default("reduction")
    return made


def _trial(spec: SweepSpec, values: Mapping[str, Any], arranged: Arranged) -> TrialConfig | str:
    plain = {name: at for name, at in values.items() if not name.startswith(("env.", OWN))}
    if (global_batch := plain.pop("global_batch", None)) is not None:
        plain["batch_size"] = global_batch // plain["gpus"]
    variables = {name.removeprefix("env."): at for name, at in values.items() if name.startswith("env.")}
    is_converging = spec.protocol == "convergence"
    is_digits = plain["data"] == "digits"
    script = program.script(spec, values) if spec.run else None
    if isinstance(script, str):
        return script
    if spec.run:
        plain = {"batch_size": 1} | plain | {"model": program.name_of(spec.run)}
    smallest, published = (0, 0) if script else IMAGE_SIZES.get(plain["model"], OF_OWN_NETWORK)
    image_size = max(smallest, DIGITS_SIZE) if is_digits else published
    classes = DIGITS_CLASSES if is_digits else imagenet.CLASSES
    return TrialConfig(
        **plain,  # the axes are named as the trial's fields are
        env={name: at for name, at in variables.items() if at is not None},
        env_from=spec.env_from,
        protocol=spec.protocol,
        device=spec.device,
        isolation=spec.isolation,
        emulate=spec.emulate,
        image_size=image_size if spec.image_size == "auto" else spec.image_size,
        classes=0 if script else classes if spec.classes == "auto" else spec.classes,
        labels_from=spec.labels_from if has_jpegs(plain["data"]) else 1,
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
        targets=spec.targets,
        seed=spec.seed,
        deadlines=messages.Deadlines(**spec.deadlines.model_dump()),
        arrangement=arranged(plain["gpus"], plain["placement"]),
        script=script,
        own=program.own(values),
    )
