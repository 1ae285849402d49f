"""A sweep as it comes along: a live table on a terminal, a plain line a trial elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.observer import Observer, Spent
from sweeps.text import tables
from workers.contract.messages import OWN_FIGURE, EpochRecord, Measurement, Progress, TrialConfig

PHASE_WORDS = {
    "start": "starting",
    "ring": "joining the ring",
    "build": "building",
    "explain": "finding what limits it",
    "finish": "reporting",
}
QUIETLY = ("completed", "infeasible", "pruned")  # on a terminal these need no line of their own


class SweepProgress(Observer):
    """Counts done, running and waiting; knows the best so far and how long the rest will take."""

    def __init__(
        self,
        trials: int,
        name: Callable[[TrialConfig], str],
        console: Console,
        unit: str,
        earlier: Sequence[TrialRecord] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`trials` there will be, as far as is known, with those that an `earlier` driver has done; their cost is told
        in `unit`."""
        self.done = 0  # by this driver
        self._earlier = len(earlier)
        self._ended = {record.config.trial for record in earlier}
        self._again = 0  # trials that have ended twice: their first end did not stand
        self.best: TrialRecord | None = None
        self._trials = trials
        self._name_of = name
        self._width = 0  # of the longest name so far
        self._console = console
        self._unit = unit
        self._clock = clock
        self._begun = clock()
        self._first_start: float | None = None
        self._spent: Spent | None = None
        self._last = ""
        self._running: dict[str, tuple[TrialConfig, Progress]] = {}
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=2, transient=True)

    def __enter__(self) -> SweepProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def started(self, config: TrialConfig) -> None:
        self._first_start = self._first_start or self._clock()
        self._running[config.trial] = (config, Progress("start", 0))

    def progressed(self, config: TrialConfig, progress: Progress) -> None:
        self._running[config.trial] = (config, progress)

    def tried_again(self, record: TrialRecord) -> None:
        self._running.pop(record.config.trial, None)
        why = explained(record).strip()
        self._console.print(f"! {why}\n    tried again", style="yellow")

    def ended(self, record: TrialRecord) -> None:
        self._running.pop(record.config.trial, None)
        self.done += 1
        self._count_again(record.config.trial)
        if score(record) > (score(self.best) if self.best else 0.0):
            self.best = record
        line = self._line(record)
        self._last = line.splitlines()[0].split("  ", 1)[1]
        if not self._console.is_terminal:
            print(line, file=self._console.file)
        elif record.outcome.status not in QUIETLY:
            self._console.print(line)

    def spent(self, so_far: Spent) -> None:
        self._spent = so_far
        self._trials = so_far.trials + self._again

    def _count_again(self, trial: str) -> None:
        self._again += trial in self._ended
        self._trials += trial in self._ended
        self._ended.add(trial)

    def warned(self, message: str) -> None:
        self._console.print(f"! {message}", style="yellow")

    @property
    def left_s(self) -> float | None:
        """The seconds left at the pace so far: in GPU-hours, where it is known what the rest will take, else in
        trials."""
        if not self.done or self._first_start is None:
            return None
        elapsed = self._clock() - self._first_start
        if self._spent and (part_left := self._spent.part_left) is not None:
            return elapsed * part_left
        return elapsed * (self._trials - self._earlier - self.done) / self.done

    def _line(self, record: TrialRecord) -> str:
        config, outcome = record.config, record.outcome
        left = f"  {tables.clock_time(self.left_s)} left" if self.left_s else ""
        place = f"{self._earlier + self.done:>{len(str(self._trials))}}/{self._trials}"
        text = f"{place}  {self._name(config)} #{config.repeat}  {figure(record)}{left}"
        if outcome.status == "completed" or outcome.inferred_from:  # whose witness has been explained
            return text
        return text + "\n" + explained(record)

    def _table(self) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        done = self._earlier + self.done
        waiting = self._trials - done - len(self._running)
        counts = f"{done} done  {len(self._running)} running  {waiting} waiting"
        left = "" if self.left_s is None else f"{tables.clock_time(self.left_s)} left"
        bar = ProgressBar(total=self._trials, completed=done, width=30)
        head.add_row(bar, counts, tables.clock_time(self._clock() - self._begun), left, self._cost())
        rows: list[RenderableType] = [head]
        for config, progress in self._running.values():
            rows.append(Text(f"  ▸ {self._name(config)} #{config.repeat}  {stage(config, progress)}", style="cyan"))
        if self._last:
            rows.append(Text(f"  last {self._last}", style="dim"))
        if self.best:
            rows.append(Text(f"  best {self._name(self.best.config)}     {figure(self.best)}", style="bold"))
        return Group(*rows)

    def _cost(self) -> str:
        """Return what has been spent, and what the whole sweep is predicted to take."""
        if not self._spent:
            return ""
        spent, expected = (tables.number(hours, 3) for hours in (self._spent.gpu_hours, self._spent.expected))
        return f"{spent} of about {expected} {self._unit}"

    def _name(self, config: TrialConfig) -> str:
        name = self._name_of(config)
        self._width = max(self._width, len(name))
        return f"{name:<{self._width}}"


def figure(record: TrialRecord) -> str:
    """Return what a trial found, in a few words."""
    measured, script = record.outcome.measurement, record.config.script
    counted = script.unit if script else "images"
    if record.outcome.cached:
        return f"{record.outcome.cached.figures['images_per_s']:>9,.1f} {counted}/s, {record.outcome.message}"
    if record.outcome.inferred_from:
        return f"{record.outcome.status}, as {record.outcome.inferred_from}"
    if not measured:
        return record.outcome.status
    if record.config.protocol == "throughput":
        return f"{measured.images_per_s:>9,.1f} {counted}/s"
    if script:
        return _said(measured.epochs[-1])
    reached = f"target after {len(measured.epochs)} epochs, " if measured.ranks[0].reached_target else ""
    return f"{reached}top-1 {accuracy(measured):.2%}"


def score(record: TrialRecord) -> float:
    """Return a figure that is larger where a trial is better."""
    measured = record.outcome.measurement
    if not measured:
        return 0.0
    return accuracy(measured) if record.config.protocol == "convergence" else measured.images_per_s


def accuracy(measured: Measurement) -> float:
    """Top-1 of the last validation."""
    return next((epoch.top1 for epoch in reversed(measured.epochs) if epoch.top1 is not None), 0.0)


def stage(config: TrialConfig, progress: Progress) -> str:
    """How far a running trial has come."""
    if progress.phase == "count":
        return f"counting its records: {progress.step:,}"
    if config.script and config.epochs and progress.epoch:
        return f"epoch {progress.epoch.epoch} of {config.epochs}, {_said(progress.epoch)}"
    if progress.phase not in ("step", "evaluate"):
        return PHASE_WORDS[progress.phase]
    if not config.epochs:
        return f"step {progress.step}/{config.steps}"
    last = progress.epoch
    doing = "epoch" if progress.phase == "step" else "validating epoch"
    if last is None:
        return f"{doing} 1/{config.epochs}"
    so_far = "" if last.top1 is None else f", top-1 {last.top1:.2%}"
    return f"{doing} {min(last.epoch + 1, config.epochs)}/{config.epochs}, loss {last.loss:.3g}{so_far}"


def _said(epoch: EpochRecord) -> str:
    """Return what a script has reported, as it called it."""
    return ", ".join(f"{name.removeprefix(OWN_FIGURE)} {figure:.4g}" for name, figure in epoch.figures.items())


def explained(record: TrialRecord) -> str:
    """Which rank, after which step, why, and where to read on."""
    outcome = record.outcome
    where = f"rank {outcome.rank}, step {outcome.step}: " if outcome.rank is not None else ""
    log = f"\n    log: {outcome.log}" if outcome.log and outcome.status != "infeasible" else ""
    said = "".join(f"\n    | {line}" for line in outcome.last_lines)
    return f"    trial {record.config.trial}: {where}{outcome.why}{log}{said}"
