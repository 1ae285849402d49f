"""What a simulated trial measures: noise on the model, through the code that judges a real trial's steps."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sweeps.simulator import learning, model, trial_time
from sweeps.simulator.model import Kind
from workers.contract.messages import ROUNDS, EpochRecord, RankReport, StepRecord, TrialConfig, Window, Without

if TYPE_CHECKING:
    import numpy as np

    from workers.measure.steady import Known


SLOW_START, SETTLING = 0.5, 2.0  # the first steps take half as much again, and a factor e less of it after each two
LEVEL = 0.5  # of the noise: what the repeats of a cell differ by
UNSURE = 0.002  # deviation of an accuracy
JPEG_MIB = 0.11
ASKING = 2  # steps from the one that is enough to the last: one to look at it, one to tell all ranks
KNOWN_MIB = 4  # as workers.strategies.ring adds up to see how fast that is


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialNodes:
    """The nodes on which a trial is measured: their kind, the ranks and cores of each, and how much its steps
    scatter."""

    kind: Kind
    ranks: tuple[int, ...]
    cores: int
    noise: float


class Measuring:
    """One trial from its first step on; its ranks stand in one ring, so their steps are one another's."""

    def __init__(self, config: TrialConfig, trial_nodes: TrialNodes, entered_at: float, seed: int) -> None:
        import numpy as np

        self._config, self._trial_nodes, self._entered_at = config, trial_nodes, entered_at
        self._step = model.step(config, trial_nodes.kind, trial_nodes.ranks, trial_nodes.cores)
        self._rng = np.random.default_rng(seed)
        self._build_s = trial_time.build_s(config)

    def learnt(self, earlier: Known | None) -> Known:
        """Return what is known of its cell's windows behind this trial, where so much was known before."""
        from workers.measure import steady

        earlier = earlier or steady.NOTHING
        taken, window = until_enough(self._config, self._trace(), earlier)
        return steady.learnt(earlier, taken, window.warmup_steps)

    def throughput(self, earlier: Known | None = None) -> tuple[RankReport, float]:
        """Return what each rank reports, and when it has; `earlier` trials of the cell have shown so much."""
        config = self._config
        taken, window = until_enough(config, self._trace(), earlier)
        ended_at = self._entered_at + sum(taken) / 1e3
        without_ms = self._without(len(taken))
        times = taken[window.warmup_steps :]
        window_s = sum(times) / 1e3
        report = self._report(
            images=len(times) * config.batch_size,
            window_s=window_s,
            window_at=(ended_at - window_s, ended_at),
            window=window,
            without_ms=without_ms,
            steps=tuple(
                StepRecord(step=n, step_ms=ms, loss=round(learning.start_loss(config, n), 4))
                for n, ms in enumerate(times)
            ),
        )
        return report, ended_at + self._apart_s(len(taken), without_ms) + trial_time.REPORT_S

    def convergence(self) -> tuple[RankReport, float, list[tuple[float, EpochRecord]]]:
        """Return the same, and each epoch with the time at which it was over."""
        config, (train, _) = self._config, learning.images(self._config)
        began_at = clock = self._entered_at + self._build_s
        finished: list[tuple[float, EpochRecord]] = []
        is_reached = False
        step_ms = self._level(self._step.step_ms)
        for number in range(1, config.epochs + 1):
            train_s = self._scattered(trial_time.epoch_s(config, step_ms))
            record = EpochRecord(
                epoch=number,
                images=train,
                loss=learning.loss(config, number),
                rate=learning.rate(config, number),
                train_s=train_s,
            )
            clock += train_s
            if number % config.evaluate_every == 0 or number == config.epochs:
                top1 = min(max(learning.top1(config, number) + UNSURE * float(self._rng.standard_normal()), 0.0), 1.0)
                evaluate_s = self._scattered(trial_time.judging_s(config, step_ms))
                record = dataclasses.replace(record, evaluate_s=evaluate_s, top1=top1, top5=learning.top5(top1))
                is_reached = learning.is_reached(config, top1)
                clock += evaluate_s
            finished.append((clock, record))
            if is_reached:
                break
        epochs = tuple(record for _, record in finished)
        report = self._report(
            images=len(epochs) * train // config.gpus,
            window_s=sum(epoch.train_s for epoch in epochs),
            window_at=(began_at, clock),
            epochs=epochs,
            reached_target=is_reached,
        )
        return report, clock + trial_time.REPORT_S, finished

    def _trace(self) -> list[float]:
        """Return as many steps as there may be, in milliseconds; the first builds the step."""
        import numpy as np

        n = np.arange(self._config.steps)
        slow = 1 + SLOW_START * np.exp(-n / SETTLING)
        steps = self._noisy(self._level(self._step.step_ms), len(n)) * slow
        steps[0] = 1e3 * self._build_s
        return steps.round(4).tolist()  # type: ignore[no-any-return]

    def _without(self, steps: int) -> dict[Without, tuple[tuple[float, ...], ...]]:
        """Return the steps without each part, by rounds, as `workers.measure.step_shares` goes about it."""
        from workers.measure import step_shares

        parts = step_shares.parts(self._config, self._config.gpus) if self._config.explain else []
        counted = step_shares.block(steps, parts)
        if not counted:
            return {}
        found: dict[Without, list[tuple[float, ...]]] = {part: [] for part in step_shares.order(0, parts)}
        level = self._level(1.0)
        for nth in range(ROUNDS):
            for part in step_shares.order(nth, parts):
                times = self._noisy(level * self._step.without(part), step_shares.SETTLING + counted)
                found[part].append(tuple(times.round(4).tolist()[step_shares.SETTLING :]))
        return {part: tuple(rounds) for part, rounds in found.items()}

    def _apart_s(self, steps: int, without_ms: Mapping[Without, tuple[tuple[float, ...], ...]]) -> float:
        """Return what looking took, with the steps that don't count."""
        from workers.measure import step_shares

        times = [ms for rounds in without_ms.values() for block in rounds for ms in block]
        cost = step_shares.cost(steps, step_shares.parts(self._config, self._config.gpus))
        return cost * statistics.fmean(times) / 1e3 if times else 0.0

    def _report(self, **figures: Any) -> RankReport:
        config, trial_nodes = self._config, self._trial_nodes
        read = figures["images"] * JPEG_MIB if model.decode_threads(config, 1, trial_nodes.cores) else 0.0
        is_alone = config.gpus == 1
        known_s = (
            0.0
            if is_alone
            else model.reduction_ms(KNOWN_MIB * model.MIB, config, trial_nodes.kind, trial_nodes.ranks) / 1e3
        )
        return RankReport(
            rank=0,
            entered_at=self._entered_at,
            build_s=self._build_s,
            peak_memory_mib=1024 * model.host_memory_gib(config),
            parameters=round(1e6 * model.parameters_m(config)),
            flops=model.flops(config),
            decode_threads=model.decode_threads(config, max(trial_nodes.ranks), trial_nodes.cores),
            allreduce_mib_per_s=0.0 if is_alone else KNOWN_MIB / known_s,
            read_mib=read,
            **figures,
        )

    def _level(self, ms: float) -> float:
        return ms * math.exp(LEVEL * self._trial_nodes.noise * float(self._rng.standard_normal()))

    def _scattered(self, seconds: float) -> float:
        return float(self._noisy(seconds, 1)[0])

    def _noisy(self, mean: float, n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Log-normal, so that none is zero; its mean is the one given."""
        import numpy as np

        sigma = self._trial_nodes.noise
        drawn: np.ndarray[Any, np.dtype[np.float64]] = mean * np.exp(
            sigma * self._rng.standard_normal(n) - sigma**2 / 2
        )
        return drawn


def until_enough(config: TrialConfig, trace: list[float], earlier: Known | None = None) -> tuple[list[float], Window]:
    """Return the steps that a trial takes of these, and its window, as a real trial's `throughput.measure` goes about
    it."""
    from workers.measure import steady, watching

    earlier = earlier or steady.NOTHING
    if config.measured_steps:
        return trace, watching.windowed(config, trace, False, earlier)
    rule = watching.steady_rule(config)
    look = steady.next_look(0, rule, earlier)
    while look < rule.max_steps and steady.decide(trace[:look], rule, earlier).kind != "stop":
        look = steady.next_look(look, rule, earlier)
    taken = trace[: min(look + ASKING, rule.max_steps)]
    return taken, watching.windowed(config, taken, look < rule.max_steps, earlier)
