"""The throughput protocol: how fast a trial trains once its steps are steady.

Steps that don't count until they are steady, then steps until their mean is sure enough; or exactly `warmup_steps` and
`measured_steps`. A step is input, forward, backward, reduction over all ranks and update, and ends when its loss is
known. Steps run back to back: nothing is exchanged between them and nobody is waited for. Rank 0 looks at its own times
on a thread beside the steps; when they suffice, it says so in its next step, whose reduction tells every rank that this
step is the last.

An input's buffers fill up while the first step is built. Steps would be fed from them for a while, faster than an input
can that is slower than they are: 17 batches ahead last for 170 steps if it is slower by a tenth. So halfway through the
steps that don't count, what was made ahead is passed over (`Feed.empty`). It takes 3 such steps at least.

The window's time is the wall clock from the end of the step before it to a barrier after it, whatever lies between. No
rank ends a step before every rank has given its gradients: the end of a step is a barrier too, right to a part of a
step. Of the ranks' times the longest counts.
"""

from __future__ import annotations

import itertools
import time

import numpy as np

from workers.contract import imagenet
from workers.contract.messages import RankReport, StepRecord
from workers.inputs import storage
from workers.measure import earlier_windows, steady, step_shares
from workers.measure.watching import Watch, steady_rule, windowed
from workers.workloads.images.work import Work

EPOCHS = 90  # of a schedule that has none of its own, each of ImageNet


def measure(work: Work, history: str = "") -> RankReport:
    """`history`: the file in which the cell's trials leave what their windows have shown."""
    config, ring, learner = work.config, work.ring, work.learner
    feed = step_shares.Feed(work.source.stream())
    losses: list[float] = []

    def step() -> bool:
        """Take a step; say whether it is the last, as rank 0 has said."""
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
        if work.source.ahead and work.steps == max(2, config.warmup_steps // 2) < config.warmup_steps:
            step_s = float(np.median(np.diff(ends[1:])))
            feed.empty(work.source.ahead, step_s, ring, lambda: work.voice.beat("step", work.steps))
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
    peak_device_memory_mib = work.framework.device_peak_mib()  # before steps are taken that only explain
    without_ms = step_shares.timed(
        config,
        step_ms,
        ring,
        learner,
        feed,
        lambda n: work.voice.beat("explain", n),
        burst=work.burst,
        ahead=work.source.ahead,
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
