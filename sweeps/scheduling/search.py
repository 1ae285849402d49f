"""Which trials a sweep runs, one interface for all searches. Each goes by a seed and the order of outcomes only.

A strategy is told how every trial ended, whoever ran it: in a sweep that goes on, those that ended before come first.
A trial may be told of twice, where it was inferred infeasible and then measured all the same: the last word counts.

`grid`, `random` and `asha` run what was planned. `frontier` halves, for each combination of the other axes, the batch
sizes between the largest that fits and the smallest that does not. `tpe` draws cells from where the best ones so far
are dense and the others are not (a tree of Parzen estimators, Optuna's).
"""

from __future__ import annotations

import dataclasses
import functools
import random
import statistics
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.spec import plan
from sweeps.spec.keys import LOWER_IS_BETTER, SweepSpec
from sweeps.spec.plan import Plan
from sweeps.spec.space import Axis, Uniform
from workers.contract.messages import Status, TrialConfig

if TYPE_CHECKING:
    from optuna.trial import Trial, TrialState

FINDINGS: tuple[Status, ...] = ("completed", "infeasible", "pruned")  # that say something of the cell
MOST_FAILURES = 2  # of a batch size, until its combination is left
FEWEST_OUT, MOST_OUT = 4, 8  # cells that tpe draws before it is told of the first of them
OUT = 12  # between those, one in so many of all its cells
STARTUP = 10  # cells that tpe draws at random
MOST_PASSED_OVER = 100  # cells in a row that the budget does not hold
DRAWS = 10  # of a cell that can be run, until one is taken at random


class Strategy(Protocol):
    """A search: proposes trials, and hears how they ended."""

    @property
    def total(self) -> int:
        """Trials, at most."""

    @property
    def is_over(self) -> bool:
        """Nothing more will be proposed, unless an inference falls. Ask for proposals once before."""

    def propose(self) -> list[TrialConfig]:
        """Trials to run now, each once; none while an outcome has to be awaited."""

    def tell(self, record: TrialRecord) -> None:
        """How a trial ended for good, whether it ran or not."""

    def passed_over(self, config: TrialConfig) -> None:
        """The budget does not hold a trial, with nothing else running: its outcome is not to be awaited. It may yet
        come, if others turn out to take less than predicted."""


def strategy(planned: Plan, is_ruled_out: Callable[[TrialConfig], bool]) -> Strategy:
    """The search that a plan asks for. Cells that are ruled out are not drawn."""
    method = planned.spec.search.method
    if method == "tpe":
        return Parzen(planned, is_ruled_out)
    return Bisection(plan.ladders(planned.spec, planned.nodes)) if method == "frontier" else Listed(planned.trials)


class Listed:
    """Trials that are all known beforehand."""

    def __init__(self, trials: Sequence[TrialConfig]) -> None:
        self.total = len(trials)
        self._left = {trial.trial: trial for trial in trials}

    @property
    def is_over(self) -> bool:
        return not self._left

    def propose(self) -> list[TrialConfig]:
        proposed = list(self._left.values())
        self._left = {}
        return proposed

    def tell(self, record: TrialRecord) -> None:
        if self._left:
            self._left.pop(record.config.trial, None)

    def passed_over(self, config: TrialConfig) -> None: ...


class Bisection:
    """The largest batch that fits: of each ladder of cells one trial at a time, all ladders at once."""

    def __init__(self, ladders: Iterable[Sequence[TrialConfig]]) -> None:
        self._ladders = [_Ladder(cells) for cells in ladders]
        self._of = {cell.cell: ladder for ladder in self._ladders for cell in ladder.cells}

    @property
    def total(self) -> int:
        """One cell that fails, and is tried again, is not counted."""
        return sum(len(ladder.cells).bit_length() for ladder in self._ladders)

    @property
    def is_over(self) -> bool:
        return all(ladder.is_over for ladder in self._ladders)

    def propose(self) -> list[TrialConfig]:
        return [trial for ladder in self._ladders if (trial := ladder.next())]

    def tell(self, record: TrialRecord) -> None:
        if ladder := self._of.get(record.config.cell):
            ladder.tell(record)

    def passed_over(self, config: TrialConfig) -> None:
        """Of its ladder nothing can be said without it."""


class _Ladder:
    """Cells that differ in their batch size alone, smallest first."""

    def __init__(self, cells: Sequence[TrialConfig]) -> None:
        self.cells = cells
        self._steps = {cell.batch_size: step for step, cell in enumerate(cells)}
        self._fits: dict[int, bool] = {}
        self._failures: dict[int, int] = {}
        self._out = ""  # the trial that is awaited

    @property
    def is_over(self) -> bool:
        return not self._out and self._step() is None

    def next(self) -> TrialConfig | None:
        step = self._step()
        if self._out or step is None:
            return None
        # Once a trial has failed for good, its cell's next repeat is another.
        trial = dataclasses.replace(self.cells[step], repeat=self._failures.get(step, 0))
        self._out = trial.trial
        return trial

    def tell(self, record: TrialRecord) -> None:
        if record.config.trial == self._out:
            self._out = ""
        step = self._steps[record.config.batch_size]
        if record.outcome.status in FINDINGS:
            self._fits[step] = record.outcome.status != "infeasible"
        elif record.outcome.status != "cancelled":
            self._failures[step] = record.config.repeat + 1

    def _step(self) -> int | None:
        """The one in the middle of what is not known; None where all is, or where it can't be."""
        low = max((step for step, fits in self._fits.items() if fits), default=-1)
        high = min((step for step, fits in self._fits.items() if not fits and step > low), default=len(self.cells))
        middle = (low + high) // 2
        return middle if high - low > 1 and self._failures.get(middle, 0) < MOST_FAILURES else None


class Parzen:
    """Optuna's TPE: for one goal or two, with conditions and constraints, never a cell twice.

    A few cells are out at a time, and count as bad ones until they are told of, so that the next are drawn elsewhere.
    A cell counts with its repeats' mean. Infeasible and pruned ones, and those that did not come to a target, rank
    behind all others; failed ones say nothing.
    """

    def __init__(self, planned: Plan, is_ruled_out: Callable[[TrialConfig], bool]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # The best of 24 draws; where that is taken, one draw, which goes further afield.
        self._samplers = [_sampler(planned.spec, 0, candidates=24), _sampler(planned.spec, 1, candidates=1)]
        directions = ["minimize" if goal in LOWER_IS_BETTER else "maximize" for goal in planned.spec.goals]
        self._study = optuna.create_study(sampler=self._samplers[0], directions=directions)
        self._states = optuna.trial.TrialState
        self._spec, self._nodes = planned.spec, planned.nodes
        self._is_ruled_out = is_ruled_out
        self._random = random.Random(f"{self._spec.seed} tpe")
        self._rest = plan.grid(self._spec, self._nodes) if plan.is_enumerable(self._spec) else iter(())
        self._ended: dict[str, dict[int, _End]] = {}  # by cell and repeat; none yet of a cell that is out
        self._out: dict[str, Trial] = {}  # by cell
        self._before: dict[str, TrialConfig] = {}  # cells that were told of before anything was proposed
        self._is_begun = self._is_exhausted = False
        self._passed_over = 0  # cells, since one has ended
        self.total = planned.most

    @property
    def is_over(self) -> bool:
        is_full = len(self._ended) * self._spec.repeats >= self.total
        return self._is_begun and (is_full or self._is_exhausted)

    def propose(self) -> list[TrialConfig]:
        proposed = [] if self._is_begun else self._left_over()
        self._is_begun = True
        most_out = min(max(FEWEST_OUT, self.total // self._spec.repeats // OUT), MOST_OUT)
        while not self.is_over and (len(self._out) < most_out or len(self._ended) < STARTUP):
            proposed += self._next()
        return proposed

    def tell(self, record: TrialRecord) -> None:
        config, cell = record.config, record.config.cell
        if not self._is_begun:
            self._before[cell] = config
        ended = self._ended.setdefault(cell, {})
        ended[config.repeat] = _end(record, self._spec.goals)
        if len(ended) == self._spec.repeats:
            trial = self._out.pop(cell, None) or self._asked(config)
            self._study.tell(trial, *self._verdict(ended.values()))
            self._passed_over = 0

    def passed_over(self, config: TrialConfig) -> None:
        """Another cell is drawn in its place, unless so many were in vain that the budget seems to hold none."""
        if self._passed_over < MOST_PASSED_OVER and (trial := self._out.pop(config.cell, None)):
            self._passed_over += 1
            self._study.tell(trial, state=self._states.FAIL)

    def _left_over(self) -> list[TrialConfig]:
        """The repeats that are missing of cells that were told of before."""
        trials = (trial for config in self._before.values() for trial in plan.repeats_of(self._spec, config))
        return [trial for trial in trials if trial.repeat not in self._ended[trial.cell]]

    def _next(self) -> list[TrialConfig]:
        """The repeats of one more cell; none where there is no other."""
        for n in range(DRAWS):
            self._study.sampler = self._samplers[n > 0]
            trial = self._study.ask()
            drawn = plan.cell_at(self._spec, plan.draw(self._spec, functools.partial(_suggested, trial)), self._nodes)
            if self._is_new(drawn):
                return self._send(drawn, trial)
            self._study.tell(trial, state=self._states.FAIL)
        if cell := self._any():
            return self._send(cell, self._asked(cell))
        self._is_exhausted = True
        return []

    def _send(self, cell: TrialConfig, trial: Trial) -> list[TrialConfig]:
        self._out[cell.cell] = trial
        self._ended[cell.cell] = {}
        return plan.repeats_of(self._spec, cell)

    def _is_new(self, cell: TrialConfig | str) -> TypeGuard[TrialConfig]:
        return not isinstance(cell, str) and cell.cell not in self._ended and not self._is_ruled_out(cell)

    def _any(self) -> TrialConfig | None:
        """A cell at random; where that is in vain, the first that is left."""
        for _ in range(plan.VAIN_DRAWS):
            drawn = plan.draw(self._spec, lambda _, axis: axis.draw(self._random))
            cell = plan.cell_at(self._spec, drawn, self._nodes)
            if self._is_new(cell):
                return cell
        return next(filter(self._is_new, self._rest), None)

    def _asked(self, cell: TrialConfig) -> Trial:
        """Optuna's trial of a cell that it did not draw."""
        parameters: dict[str, Any] = {}

        def known(name: str, axis: Axis) -> Any:
            at = plan.value(cell, name)
            parameters.update(_parameter(name, axis, at))
            return at

        plan.draw(self._spec, known)
        self._study.enqueue_trial(parameters)
        trial = self._study.ask()
        for name in parameters:
            _suggested(trial, name, self._spec.axes[name])
        return trial

    def _verdict(self, ends: Collection[_End]) -> tuple[list[float] | None, TrialState]:
        """The goals' means over the repeats that have them; of those that were measured alike, the last ones."""
        last = next((end.made for end in reversed([*ends]) if end.figures), ())
        measured = [end.figures for end in ends if end.figures and end.made == last]
        if measured:
            return [statistics.fmean(values) for values in zip(*measured, strict=True)], self._states.COMPLETE
        return None, self._states.PRUNED if any(end.is_finding for end in ends) else self._states.FAIL


@dataclasses.dataclass(frozen=True)
class _End:
    """What counts of a trial's end. A whole record holds every step of every rank."""

    is_finding: bool
    figures: tuple[float, ...]  # of the goals; none where one of them is missing
    made: tuple[str, ...] = ()  # with what software, on what files, and how its ranks sat on nodes


def _end(record: TrialRecord, goals: Sequence[str]) -> _End:
    figures = rows.metrics(record) if record.outcome.status == "completed" else {}
    values = tuple(figures[goal] for goal in goals if goal in figures)
    where = rows.where(record)
    made = where["software"], where["data_files"], where["arrangement"]
    return _End(record.outcome.status in FINDINGS, values if len(values) == len(goals) else (), made)


def _sampler(spec: SweepSpec, number: int, candidates: int) -> Any:
    import optuna

    is_joint = len(spec.goals) == 1  # axes that apply together are drawn together; for two goals each is better alone
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=spec.seed + number,
            n_startup_trials=STARTUP,
            n_ei_candidates=candidates,
            multivariate=is_joint,
            group=is_joint,
            constant_liar=True,
        )


def _suggested(trial: Trial, name: str, axis: Axis) -> Any:
    """A point of an axis, as Optuna has it. Numbers are drawn by their rank: a log2 axis is even."""
    if isinstance(axis, Uniform):
        suggest = trial.suggest_int if axis.is_whole else trial.suggest_float
        return suggest(name, axis.low, axis.high, log=axis.is_log)
    points = axis.points()
    if len(points) == 1:
        return points[0]
    if not _is_ranked(points):
        return trial.suggest_categorical(name, points)
    return sorted(points)[trial.suggest_int(name, 0, len(points) - 1)]


def _parameter(name: str, axis: Axis, at: Any) -> dict[str, Any]:
    """The other way round; nothing where a point had no effect, or is none of a file that was edited since."""
    if isinstance(axis, Uniform):
        return {name: at} if axis.low <= at <= axis.high else {}
    points = axis.points()
    if len(points) == 1 or at not in points:
        return {}
    return {name: sorted(points).index(at) if _is_ranked(points) else at}


def _is_ranked(points: Sequence[Any]) -> bool:
    return all(isinstance(point, (int, float)) and not isinstance(point, bool) for point in points)
