"""The throughput protocol: how fast a trial trains once its steps are steady.

Steps that don't count until they are steady, then steps until their mean is sure enough; or exactly `warmup_steps` and
`measured_steps`. A step is input, forward, backward, reduction over all ranks and update, and ends when its loss is
known. Steps run back to back: nothing is exchanged between them and nobody is waited for. Rank 0 looks at its own times
on a thread beside the steps; when they suffice, it says so in its next step, whose reduction tells every rank that this
step is the last.

An input's buffers fill up while the first step is built. Steps would be fed from them for a while, faster than an input
can that is slower than they are: 17 batches ahead last for 170 steps if it is slower by a tenth. So halfway through the
steps that don't count, what was made ahead is passed over (`_as_in_the_long_run`). It takes 3 such steps at least.

The window's time is the wall clock from the end of the step before it to a barrier after it, whatever lies between. No
rank ends a step before every rank has given its gradients: the end of a step is a barrier too, right to a part of a
step. Of the ranks' times the longest counts.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from typing import Literal

import numpy as np

from workers.contract import imagenet
from workers.contract.messages import RankReport, StepRecord, TrialConfig, Window
from workers.frameworks.tensorflow import memory
from workers.inputs import storage
from workers.measure import earlier_windows, steady
from workers.workloads.images import step_shares
from workers.workloads.images.work import Work

EPOCHS = 90  # of a schedule that has none of its own, each of ImageNet


def measure(work: Work, history: str = "") -> RankReport:
    """`history`: the file in which the cell's trials leave what their windows have shown."""
    config, ring, learner = work.config, work.ring, work.learner
    feed = step_shares.Feed(work.source.stream())
    losses: list[float] = []

    def step() -> bool:
        """Whether it is the last, as rank 0 has said."""
        epoch = work.steps * config.global_batch / imagenet.TRAIN_IMAGES
        learner.set_rate(work.schedule.rate(epoch, EPOCHS, config.global_batch))
        learnt = learner.learn(*next(feed))
        losses.append(learnt.loss)
        work.steps += 1
        work.voice.beat("step", work.steps)
        return learnt.is_last

    ends = [time.perf_counter()]  # of the steps, behind the begin of the first
    step()
    work.is_built()
    ring.barrier()
    ends.append(time.perf_counter())
    earlier = earlier_windows.load(history) if ring.rank == 0 else steady.NOTHING
    watch = Watch(steady_rule(config), earlier) if ring.rank == 0 and not config.measured_steps else None
    is_last = False
    while not is_last and work.steps < config.steps:
        if work.steps == max(2, config.warmup_steps // 2) < config.warmup_steps:
            _as_in_the_long_run(feed, work, float(np.median(np.diff(ends[1:]))))
        is_last = step()
        ends.append(time.perf_counter())
        if watch and watch.is_enough(ends):
            learner.ask_to_stop()
    ring.barrier()
    ended, ended_at = time.perf_counter(), time.time()

    read_mib = storage.read_mib() - work.read_before_mib
    step_ms = [1e3 * (after - before) for before, after in itertools.pairwise(ends)]
    window = windowed(config, step_ms, is_last, earlier) if ring.rank == 0 else None
    warmup = int(ring.total(np.array([window.warmup_steps if window else 0]))[0])
    peak_device_memory_mib = memory.device_peak_mib()  # before steps are taken that only explain
    without_ms = step_shares.timed(
        config, step_ms, ring, learner, feed, lambda n: work.voice.beat("explain", n), work.burst
    )
    work.source.check()
    if window and history:
        earlier_windows.save(history, steady.learnt(earlier, step_ms, warmup))
    counted = list(zip(step_ms, losses, strict=True))[warmup:]
    window_s = ended - ends[warmup]
    return work.report(
        window_at=(ended_at - window_s, ended_at),
        read_mib=read_mib,
        peak_device_memory_mib=peak_device_memory_mib,
        window=window,
        without_ms=without_ms,
        images=len(counted) * config.batch_size,
        window_s=window_s,
        steps=tuple(StepRecord(step=n, step_ms=ms, loss=loss) for n, (ms, loss) in enumerate(counted)),
    )


def _as_in_the_long_run(feed: step_shares.Feed, work: Work, step_s: float) -> None:
    """Leave nothing in an input's buffers that was made ahead. One that keeps up is soon ahead again; of one that does
    not, a batch takes half a step or more to make: how long it takes while ranks compute can't be told yet."""
    if not work.source.ahead:
        return
    is_slow = feed.pass_over(work.source.ahead, step_s / 2)
    work.ring.barrier()
    if is_slow:
        feed.pass_over(work.source.ahead, step_s / 2)  # what was made while others still passed theirs over


class Watch:
    """Looks at a growing trace on a thread of its own, so that no step waits for it."""

    def __init__(self, rule: steady.Rule, earlier: steady.Known) -> None:
        self._rule, self._earlier = rule, earlier
        self._traces: queue.SimpleQueue[list[float]] = queue.SimpleQueue()
        self._next_look = steady.next_look(0, rule, earlier)
        self._is_enough = False
        threading.Thread(target=self._look, daemon=True).start()

    def is_enough(self, ends: list[float]) -> bool:
        """Whether a look so far has found enough in the steps that ended then; now and then has it look again."""
        taken = len(ends) - 1
        if taken >= self._next_look:
            self._traces.put(ends.copy())
            self._next_look = steady.next_look(taken, self._rule, self._earlier)
        return self._is_enough

    def _look(self) -> None:
        while not self._is_enough:
            step_ms = 1e3 * np.diff(self._traces.get())
            self._is_enough = steady.decide(step_ms, self._rule, self._earlier).kind == "stop"


def steady_rule(config: TrialConfig) -> steady.Rule:
    return steady.Rule(
        ci=config.ci, max_steps=config.max_steps, min_warmup=config.warmup_steps, min_window=config.min_window
    )


def windowed(
    config: TrialConfig, step_ms: Sequence[float], was_enough: bool, earlier: steady.Known = steady.NOTHING
) -> Window:
    """Which of a trial's steps count, and what is known of them."""
    if config.measured_steps:
        found = steady.fixed(step_ms[config.warmup_steps :], earlier)
    else:
        found = steady.estimate(step_ms, config.warmup_steps, earlier)
    by_itself: Literal["interval", "max_steps"] = "interval" if was_enough else "max_steps"
    return Window(
        warmup_steps=config.warmup_steps if config.measured_steps or not found else found.start,
        stopped_by="steps" if config.measured_steps else by_itself,
        half_width_ms=found.half_width_ms if found else None,
        withheld=found.why_not if found else "too few steps",
    )
