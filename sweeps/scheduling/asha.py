"""Which trials of an `asha` search are hopeless. Pure: epochs in, verdicts out.

A trial is judged among its equals only: cells on as many ranks, arranged alike on nodes of the same hardware, that run
the same code and learn the same files under the same conditions (`ALIKE`). Hardware, code and files are known by their
fingerprints, as in `cache`, and code of the user's own by what each epoch says of it: who stood at a rung with other
code decides about nobody that runs now. A trial on a node
that has not said what it is made of is judged by none, and judges none. Whatever else the axes vary is what the search
compares. So a study over GPU counts never loses its baseline to a quicker count.

- Rungs: of the cells that have come to a rung, the best 1 in `reduction` (rounded up) go on, by top-1, or by the figure
  of a user's script that is the goal; what is no number there is behind all others. The first rung
  is after `grace` epochs, each next one after `reduction` times as many; a rung counts from the validation at it or
  after it. It is asynchronous successive halving: a cell is judged as it arrives, by those that were there before.
- Time: what has taken more than `reduction` times as long as the quickest other cell took to the target, and is not
  there, is stopped after its epoch. The time is that of `hours_to_target`: of epochs, not of waiting or building.

A rung knows cells, not trials: the first trial to come there speaks for its cell. Its repeats share the verdict, since
a mean over the repeats that were lucky would be wrong; for the same reason a cell with a repeat at the target is not
stopped by time. A trial that is tried again, and comes to a rung once more, is not judged or counted twice.

Of all equals the best at a rung is never stopped there, so that of each group at least one cell comes to its end.
A cell that is spared (see `baselines`) is not stopped at all, but stands at rungs for its rivals.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sweeps.scheduling import cache
from sweeps.scheduling.cache import NodeContents
from sweeps.spec import keys
from sweeps.spec.arrangements import Seats
from workers.contract.messages import EpochRecord, TrialConfig, reaches_target

# Resources and conditions: what a study compares others under, and not what it looks for.
ALIKE = ("device", "gpus", "placement", "data", "cache", "isolation", "cores_per_worker", "worker_memory_gib")


@dataclasses.dataclass(frozen=True)
class Equals:
    """What a trial must have in common with another for a comparison to be fair."""

    asked: tuple[str, ...]  # by `ALIKE`
    seats: tuple[str, ...] = ()  # ranks on each node, and its hardware
    software: str = ""
    data_files: str = ""
    code: str = ""  # of the user's own
    is_known: bool = False  # every node has said what it is made of; else nothing can be compared

    def asked_for(self, name: str) -> str:
        """Return what was asked for by one of `ALIKE`."""
        return self.asked[ALIKE.index(name)].removeprefix(f"{name} ")


def equals(config: TrialConfig, seats: Seats, made: Mapping[str, NodeContents]) -> Equals:
    """Return what tells a trial's equals; `made`: what nodes are made of, by name."""
    asked = tuple(f"{name} {getattr(config, name)}" for name in ALIKE)
    places = [(made.get(name, NodeContents()).fingerprints(config), ranks) for name, ranks in seats]
    found = cache.fingerprints(config, places)
    if not found:
        return Equals(asked)
    on = sorted(f"{ranks} on {hardware}" for (hardware, _, _), ranks in places)
    return Equals(asked, tuple(on), *found[1:], is_known=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrival:
    """A trial at a rung or at its target; what the rungs are rebuilt from when a sweep goes on."""

    trial: str
    cell: str
    equals: Equals
    epoch: int
    figure: float  # that the search goes by
    taken_s: float  # by its epochs so far
    is_at_rung: bool  # as the first of its cell
    is_at_target: bool
    why: str = ""  # it was stopped here; empty if it goes on
    framework: str = "tensorflow"  # whose software its equals have


def arrival(noted: Mapping[str, Any]) -> Arrival:
    """Return what stands in a line of the ledger."""
    names = [field.name for field in dataclasses.fields(Arrival)]
    known = {"figure": noted.get("top1"), "framework": "tensorflow", **noted}  # as earlier versions have it
    return Arrival(**{**{name: known[name] for name in names}, "equals": _equals(noted["equals"])})


def _equals(noted: Mapping[str, Any] | Sequence[str]) -> Equals:
    """Return the equals of a noted arrival. A ledger of an earlier version does not tell the code and the files."""
    if not isinstance(noted, Mapping):
        return Equals(tuple(noted))
    return Equals(**{**noted, "asked": tuple(noted["asked"]), "seats": tuple(noted["seats"])})


class Judgement(NamedTuple):
    why: str  # the trial should be stopped; empty if it goes on
    arrivals: Sequence[Arrival] = ()  # that are new, for the ledger


class Rungs:
    """All that is known of the trials of one search."""

    def __init__(
        self, grace: int, reduction: int, epochs: int, evaluate_every: int = 1, goal: str = keys.ASHA_GOAL
    ) -> None:
        self._reduction = reduction
        self._goal, self._column = goal, keys.column_of(goal)
        self.epochs = frozenset(_rungs(grace, reduction, epochs, evaluate_every))
        self._arrived: dict[tuple[Equals, int], dict[str, Arrival]] = defaultdict(dict)  # by rung and cell
        self._at_target: dict[Equals, dict[str, Arrival]] = defaultdict(dict)  # by cell: its quickest trial
        self._taken_s: dict[str, dict[int, float]] = defaultdict(dict)  # by trial, up to each of its epochs

    def resumed(self, arrivals: Iterable[Arrival]) -> None:
        """Take what was known before the driver stopped, in its order."""
        for known in arrivals:
            if known.equals.is_known:
                self._add(known)

    def judge(
        self, config: TrialConfig, equals: Equals, epochs: Sequence[EpochRecord], is_spared: bool = False
    ) -> Judgement:
        """Hear of epochs that a trial has finished, in their order; those told of before change nothing.

        A trial that has come to its own end with the last of them is not stopped any more.
        """
        if not epochs or not equals.is_known:
            return Judgement("")
        equals = dataclasses.replace(equals, code=epochs[-1].code) if epochs[-1].code else equals
        is_over = is_spared or reaches_target(epochs[-1], config) or epochs[-1].epoch >= config.epochs
        why, arrivals = "", []
        for epoch in epochs:
            now = self._arrival(config, equals, epoch)
            if now and (new := self._arrives(now, is_over)):
                arrivals.append(new)
            why = why or ("" if is_over else self._why(config, equals, epoch.epoch))
        return Judgement(why, arrivals)

    def forget(self, trial: str) -> None:
        """Forget what an attempt at a trial that is over has told: another tells its epochs anew."""
        self._taken_s.pop(trial, None)

    def _arrival(self, config: TrialConfig, equals: Equals, epoch: EpochRecord) -> Arrival | None:
        """Return where its trial is now, where an epoch was validated."""
        taken = self._taken_s[config.trial]
        before = max((at for at in taken if at < epoch.epoch), default=None)
        taken[epoch.epoch] = epoch.taken_s + (0.0 if before is None else taken[before])
        figure = epoch.figures.get(self._column)
        if figure is None:
            return None
        return Arrival(
            trial=config.trial,
            cell=config.cell,
            equals=equals,
            epoch=epoch.epoch,
            figure=figure,
            taken_s=taken[epoch.epoch],
            is_at_rung=epoch.epoch in self.epochs and config.cell not in self._arrived[equals, epoch.epoch],
            is_at_target=reaches_target(epoch, config),
            framework=config.framework,
        )

    def _arrives(self, now: Arrival, is_over: bool) -> Arrival | None:
        """Return the arrival with its verdict; none if it tells nothing new."""
        if now.is_at_rung:
            now = dataclasses.replace(now, why="" if is_over else self._worse(now))
        elif not now.is_at_target or not self._is_quickest(now):
            return None
        self._add(now)
        return now

    def _add(self, one: Arrival) -> None:
        if one.is_at_rung:
            self._arrived[one.equals, one.epoch][one.cell] = one
        if one.is_at_target and self._is_quickest(one):
            self._at_target[one.equals][one.cell] = one

    def _is_quickest(self, one: Arrival) -> bool:
        """Say whether it is the quickest of its cell."""
        known = self._at_target[one.equals].get(one.cell)
        return known is None or one.taken_s < known.taken_s

    def _why(self, config: TrialConfig, equals: Equals, epoch: int) -> str:
        mine = self._arrived[equals, epoch].get(config.cell) if epoch in self.epochs else None
        if mine and mine.why:
            return mine.why if mine.trial == config.trial else f"as its repeat {mine.trial}: {mine.why}"
        return self._too_long(config, equals, self._taken_s[config.trial][epoch])

    def _worse(self, now: Arrival) -> str:
        """Why an arrival is among the worse at its rung, with itself counted."""
        there = sorted(self._arrived[now.equals, now.epoch].values(), key=self._score, reverse=True)
        better = sum(self._score(one) > self._score(now) for one in there)
        most = math.ceil((len(there) + 1) / self._reduction)
        if better < most:
            return ""
        rival = there[most - 1]
        return (
            f"of the {len(there) + 1} cells that have come to epoch {now.epoch} with {_words(now.equals)}, the best "
            f"{most} go on (reduction: {self._reduction}), but its {self._said(now)} is number {better + 1}, "
            f"behind {self._shown(rival)} of {rival.trial}"
        )

    def _score(self, one: Arrival) -> float:
        """Return what is larger where an arrival is better."""
        if not math.isfinite(one.figure):
            return -math.inf
        return -one.figure if keys.is_lower_better(self._goal) else one.figure

    def _said(self, one: Arrival) -> str:
        name = "top-1" if self._column == keys.ASHA_GOAL else self._goal.rpartition(" ")[2]
        return f"{name} of {self._shown(one)}"

    def _shown(self, one: Arrival) -> str:
        return f"{one.figure:.2%}" if self._column == keys.ASHA_GOAL else f"{one.figure:.4g}"

    def _too_long(self, config: TrialConfig, equals: Equals, taken_s: float) -> str:
        rivals = self._at_target[equals]
        if not rivals or config.cell in rivals:
            return ""
        best = min(rivals.values(), key=lambda one: one.taken_s)
        if taken_s <= self._reduction * best.taken_s:
            return ""
        return (
            f"with {_words(equals)}, a trial may take {self._reduction} times (reduction) the {best.taken_s:.1f} s "
            f"that {best.trial} took to the target, but its epochs took {taken_s:.1f} s and it is not there"
        )


def _rungs(grace: int, reduction: int, epochs: int, evaluate_every: int) -> Iterable[int]:
    """Yield the validated epochs at which trials are judged; not the last, where they end by themselves."""
    at = grace
    while (validated := math.ceil(at / evaluate_every) * evaluate_every) < epochs:
        yield validated
        at *= reduction


def _words(equals: Equals) -> str:
    """Return what equals have in common that readers ask about first."""
    ranks, placement = equals.asked[ALIKE.index("gpus")], equals.asked[ALIKE.index("placement")]
    return f"{ranks}, {placement}"
