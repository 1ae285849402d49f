"""Which trials a sweep runs, one interface for all searches. Each goes by a seed and the order of outcomes only.

A strategy is told how every trial ended, whoever ran it: in a sweep that goes on, those that ended before come first.
A trial may be told of twice, where it was inferred infeasible and then measured all the same: the last word counts.

Trials that were not measured alike decide nothing together. What counts is what has been measured like the last one:
after an edit and `sweep resume` the first outcome of the new code puts aside what the old one had found.

`grid`, `random` and `asha` run what was planned. `frontier` halves, for each combination of the other axes, the batch
sizes (or the values of another axis) between the largest that fits and the smallest that does not. `tpe` draws cells
from where the best ones so far are dense and the others are not (a tree of Parzen estimators, Optuna's).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import statistics
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.scheduling import cache
from sweeps.scheduling.cache import Fingerprints
from sweeps.spec import plan
from sweeps.spec.keys import SweepSpec, column_of, is_lower_better
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
        """True where nothing more will be proposed, unless an inference falls. Ask for proposals once before."""

    def propose(self) -> list[TrialConfig]:
        """Trials to run now, each once; none while an outcome has to be awaited."""

    def tell(self, record: TrialRecord) -> None:
        """How a trial ended for good, whether it ran or not."""

    def passed_over(self, config: TrialConfig) -> None:
        """Take in that the budget does not hold a trial, with nothing else running: its outcome is not to be awaited.
        It may yet come, if others turn out to take less than predicted."""

    def hardware(self, config: TrialConfig) -> str:
        """Return the fingerprint of the nodes on which a trial's outcome goes with those that are known; empty if any
        will do."""


def strategy(planned: Plan, is_ruled_out: Callable[[TrialConfig], bool]) -> Strategy:
    """Return the search that a plan asks for. Cells that are ruled out are not drawn."""
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

    def hardware(self, config: TrialConfig) -> str:
        return ""


class _Origins:
    """With what trials were measured: nodes, their software, files. What was inferred goes with what it is inferred
    from."""

    def __init__(self) -> None:
        self._of: dict[str, Fingerprints] = {}  # by trial

    def of(self, record: TrialRecord) -> Fingerprints:
        """Of a trial, once its witness has been told of."""
        found = self._of.get(record.outcome.inferred_from) or cache.of_record(record)
        self._of[record.config.trial] = found
        return found


class Bisection:
    """The largest batch that fits: of each ladder of cells one trial at a time, all ladders at once."""

    def __init__(self, ladders: Iterable[Sequence[TrialConfig]]) -> None:
        self._ladders = [_Ladder(cells) for cells in ladders]
        self._of = {cell.cell: ladder for ladder in self._ladders for cell in ladder.cells}
        self._origins = _Origins()

    @property
    def total(self) -> int:
        """One cell that fails, and is tried again, is not counted."""
        return sum(ladder.total for ladder in self._ladders)

    @property
    def is_over(self) -> bool:
        return all(ladder.is_over for ladder in self._ladders)

    def propose(self) -> list[TrialConfig]:
        return [trial for ladder in self._ladders if (trial := ladder.next())]

    def tell(self, record: TrialRecord) -> None:
        made = self._origins.of(record)
        if ladder := self._of.get(record.config.cell):
            ladder.tell(record, made)

    def passed_over(self, config: TrialConfig) -> None:
        """Leave its ladder: nothing can be said of it without this trial."""

    def hardware(self, config: TrialConfig) -> str:
        """Return that of its ladder's findings: what fits on other GPUs says nothing of these."""
        ladder = self._of.get(config.cell)
        return ladder.made[0] if ladder else ""


@dataclasses.dataclass(frozen=True)
class _Try:
    """How a trial of a ladder has ended."""

    step: int
    fits: bool | None  # None where that was not found
    made: Fingerprints  # with what it was measured
    wanted: Fingerprints  # what the ladder went by until then


class _Ladder:
    """Cells that differ in their batch size alone, or in another axis that a frontier is of, smallest first.

    It goes by what was found with one software, one set of files and on one hardware: as the last trial that found
    something. A ladder that has come to its end stays as it is.
    """

    def __init__(self, cells: Sequence[TrialConfig]) -> None:
        self.cells = cells
        self.made: Fingerprints = ("", "", "")  # what it goes by
        self._steps = {cell.cell: step for step, cell in enumerate(cells)}
        self._tries: dict[str, _Try] = {}  # by trial
        self._repeats: dict[int, int] = {}  # by step: how many have ended
        self._out = ""  # the trial that is awaited

    @property
    def is_over(self) -> bool:
        return not self._out and self._step() is None

    @property
    def total(self) -> int:
        """Trials that have found something, and those that it takes yet, at most."""
        low, high = self._between()
        to_come = (high - low - 1).bit_length() if self._step() is not None else 0
        return sum(one.fits is not None for one in self._tries.values()) + to_come

    def next(self) -> TrialConfig | None:
        step = self._step()
        if self._out or step is None:
            return None
        # Where a trial has ended, and decides nothing, its cell's next repeat is another.
        trial = dataclasses.replace(self.cells[step], repeat=self._repeats.get(step, 0))
        self._out = trial.trial
        return trial

    def tell(self, record: TrialRecord, made: Fingerprints) -> None:
        config, status = record.config, record.outcome.status
        if config.trial == self._out:
            self._out = ""
        if status == "cancelled":
            return
        step = self._steps[config.cell]
        fits = status != "infeasible" if status in FINDINGS else None
        self._tries[config.trial] = _Try(step, fits, made, self.made)
        self._repeats[step] = max(self._repeats.get(step, 0), config.repeat + 1)
        if fits is not None and any(made) >= any(self.made):  # nobody may know it of what was inferred
            self.made = made

    def _step(self) -> int | None:
        """Return the batch in the middle of what is not known; None where all is, or where it can't be."""
        low, high = self._between()
        middle = (low + high) // 2
        return middle if high - low > 1 and self._in_vain(middle) < MOST_FAILURES else None

    def _between(self) -> tuple[int, int]:
        """Return the last step that fits, and the first beyond it that does not."""
        found = [one for one in self._tries.values() if one.fits is not None and one.made == self.made]
        low = max((one.step for one in found if one.fits), default=-1)
        return low, min((one.step for one in found if not one.fits and one.step > low), default=len(self.cells))

    def _in_vain(self, step: int) -> int:
        """Trials of a batch size that were to tell whether it fits, and have failed, or ran where it was not asked."""
        return sum(one.step == step and one.wanted == self.made for one in self._tries.values())


class Parzen:
    """Optuna's TPE: for one goal or two, with conditions and constraints, never a cell twice.

    A few cells are out at a time, and count as bad ones until they are told of, so that the next are drawn elsewhere.
    A cell counts with its repeats' mean. Infeasible and pruned ones, and those that did not come to a target, rank
    behind all others; failed ones say nothing. Nor do those that were measured with another software than the last
    one, or on other files in its folder; they are not drawn again. Cells on unlike nodes do count together: which node
    a cell comes to is chance, and gangs of several sizes can't be all on alike ones.
    """

    def __init__(self, planned: Plan, is_ruled_out: Callable[[TrialConfig], bool]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # The best of 24 draws; where that is taken, one draw, which goes further afield.
        self._samplers = [_sampler(planned.spec, 0, candidates=24), _sampler(planned.spec, 1, candidates=1)]
        directions = ["minimize" if is_lower_better(goal) else "maximize" for goal in planned.spec.goals]
        self._new_study = functools.partial(optuna.create_study, sampler=self._samplers[0], directions=directions)
        self._study = self._new_study()
        self._states = optuna.trial.TrialState
        self._spec, self._nodes = planned.spec, planned.nodes
        self._is_ruled_out = is_ruled_out
        self._random = random.Random(f"{self._spec.seed} tpe")
        self._rest = plan.grid(self._spec, self._nodes) if plan.is_enumerable(self._spec) else iter(())
        self._ended: dict[str, dict[int, _End]] = {}  # by cell and repeat; none yet of a cell that is out
        self._out: dict[str, Trial] = {}  # by cell
        self._cells: dict[str, TrialConfig] = {}  # of all these, one trial
        self._origins = _Origins()
        self._made: dict[Hashable, str] = {}  # of the last trial that found something: its software, by `_kind`; its
        # files, by folder
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
        self._cells.setdefault(cell, config)
        ended = self._ended.setdefault(cell, {})
        ended[config.repeat] = end = _end(record, self._spec.goals, self._origins.of(record))
        if end.is_finding and bool(end.software) >= bool(self._made.get(_kind(config))):
            self._go_by(config, end)
        if len(ended) == self._spec.repeats:
            trial = self._out.pop(cell, None) or self._trial_of(config)
            self._study.tell(trial, *self._verdict(config, ended.values()))
            self._passed_over = 0

    def _go_by(self, config: TrialConfig, end: _End) -> None:
        """From now on what was measured with another software, or on other files in this folder, counts no more."""
        before = dict(self._made)
        self._made |= {_kind(config): end.software, config.data: end.files}
        if any(self._made[kind] != made for kind, made in before.items()):
            self._study = self._new_study()
            for cell, ended in self._ended.items():
                if cell in self._out:
                    self._out[cell] = self._trial_of(self._cells[cell])
                elif cell != config.cell and len(ended) == self._spec.repeats:
                    told = self._trial_of(self._cells[cell])
                    self._study.tell(told, *self._verdict(self._cells[cell], ended.values()))

    def passed_over(self, config: TrialConfig) -> None:
        """Draw another cell in its place, unless so many were in vain."""
        if self._passed_over < MOST_PASSED_OVER and (trial := self._out.pop(config.cell, None)):
            self._passed_over += 1
            self._study.tell(trial, state=self._states.FAIL)

    def hardware(self, config: TrialConfig) -> str:
        return ""

    def _left_over(self) -> list[TrialConfig]:
        """Return the repeats that are missing of cells that were told of before."""
        trials = (trial for config in self._cells.values() for trial in plan.repeats_of(self._spec, config))
        return [trial for trial in trials if trial.repeat not in self._ended[trial.cell]]

    def _next(self) -> list[TrialConfig]:
        """Return the repeats of one more cell; none where there is no other."""
        for n in range(DRAWS):
            self._study.sampler = self._samplers[n > 0]
            trial = self._study.ask()
            drawn = plan.cell_at(self._spec, plan.draw(self._spec, functools.partial(_suggested, trial)), self._nodes)
            if self._is_new(drawn):
                return self._send(drawn, trial)
            self._study.tell(trial, state=self._states.FAIL)
        if cell := self._any():
            return self._send(cell, self._trial_of(cell))
        self._is_exhausted = True
        return []

    def _send(self, cell: TrialConfig, trial: Trial) -> list[TrialConfig]:
        self._out[cell.cell] = trial
        self._ended[cell.cell] = {}
        self._cells[cell.cell] = cell
        return plan.repeats_of(self._spec, cell)

    def _is_new(self, cell: TrialConfig | str) -> TypeGuard[TrialConfig]:
        return not isinstance(cell, str) and cell.cell not in self._ended and not self._is_ruled_out(cell)

    def _any(self) -> TrialConfig | None:
        """Return a cell at random; where that is in vain, the first that is left."""
        for _ in range(plan.VAIN_DRAWS):
            drawn = plan.draw(self._spec, lambda _, axis: axis.draw(self._random))
            cell = plan.cell_at(self._spec, drawn, self._nodes)
            if self._is_new(cell):
                return cell
        return next(filter(self._is_new, self._rest), None)

    def _trial_of(self, cell: TrialConfig) -> Trial:
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

    def _verdict(self, config: TrialConfig, ends: Collection[_End]) -> tuple[list[float] | None, TrialState]:
        """Return the goals' means over the repeats that have them; of those that were measured alike, the last ones."""
        made = (self._made.get(_kind(config)), self._made.get(config.data))
        now = [end for end in ends if (end.software, end.files) == made]
        last = next((end.made for end in reversed(now) if end.figures), ())
        measured = [end.figures for end in now if end.figures and end.made == last]
        if measured:
            return [statistics.fmean(values) for values in zip(*measured, strict=True)], self._states.COMPLETE
        return None, self._states.PRUNED if any(end.is_finding for end in now) else self._states.FAIL


def _kind(config: TrialConfig) -> Hashable:
    """Return what trials have in common that must run the same software: ranks of each framework load their own."""
    return config.own_code, config.framework


@dataclasses.dataclass(frozen=True)
class _End:
    """What counts of a trial's end. A whole record holds every step of every rank."""

    is_finding: bool
    figures: tuple[float, ...]  # of the goals; none where one of them is missing
    made: tuple[str, ...]  # on what hardware, with what software, on what files, and how its ranks sat on nodes

    @property
    def software(self) -> str:
        return self.made[1]

    @property
    def files(self) -> str:
        return self.made[2]


def _end(record: TrialRecord, goals: Sequence[str], made: Fingerprints) -> _End:
    figures = rows.metrics(record) if record.outcome.status == "completed" else {}
    known = [figures.get(column_of(goal), math.nan) for goal in goals]
    values = tuple(figure for figure in known if math.isfinite(figure))
    is_finding = record.outcome.status in FINDINGS
    return _End(is_finding, values if len(values) == len(goals) else (), (*made, rows.where(record)["arrangement"]))


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
    """Return a point of an axis, as Optuna has it. Numbers are drawn by their rank: a log2 axis is even."""
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
    """Return a point as Optuna's parameters; nothing where it had no effect, or is none of a file that was edited
    since."""
    if isinstance(axis, Uniform):
        return {name: at} if axis.low <= at <= axis.high else {}
    points = axis.points()
    if len(points) == 1 or at not in points:
        return {}
    return {name: sorted(points).index(at) if _is_ranked(points) else at}


def _is_ranked(points: Sequence[Any]) -> bool:
    return all(isinstance(point, (int, float)) and not isinstance(point, bool) for point in points)
