"""The throughput protocol: how fast a trial trains once its steps are steady.

Steps that don't count until they are steady, then steps until their mean is sure enough; or exactly `warmup_steps` and
`measured_steps`. A step is input, forward, backward, reduction over all ranks and update, and ends when its loss is
known. The window begins at a barrier and holds whole blocks; nothing but steps is in it.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from workers import explain, memory, steady, storage
from workers.contract import RankReport, StepRecord, Window
from workers.ring import Ring
from workers.work import Work

IMAGENET_IMAGES = 1_281_167  # an epoch of the schedule, for want of one of its own
IMAGENET_EPOCHS = 90


@dataclasses.dataclass
class Block:
    """Steps in a row, and when they began."""

    at: float  # wall clock
    step_ms: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)


def measure(work: Work) -> RankReport:
    config, ring, learner = work.config, work.ring, work.learner
    batches = work.source.stream()
    blocks: list[Block] = []

    def step() -> float:
        epoch = work.steps * config.global_batch / IMAGENET_IMAGES
        learner.set_rate(work.schedule.rate(epoch, IMAGENET_EPOCHS, config.global_batch))
        loss = learner.learn(*next(batches)).loss
        work.steps += 1
        work.voice.beat("step", work.steps)
        return loss

    def take(steps: int) -> Block:
        """A block of steps that all ranks begin together."""
        ring.barrier()
        block = Block(time.time())
        for _ in range(steps):
            began = time.perf_counter()
            block.losses.append(step())
            block.step_ms.append(1e3 * (time.perf_counter() - began))
        blocks.append(block)
        return block

    take(1)
    work.is_built()
    if config.measured_steps:
        if config.warmup_steps > 1:
            take(config.warmup_steps - 1)
        counted = [take(config.measured_steps)]
        window = fixed_window(together(ring, counted[0].step_ms), config.warmup_steps)
    else:
        rule = steady.Rule(
            ci=config.ci, max_steps=config.max_steps, min_warmup=config.warmup_steps, min_window=config.min_window
        )
        trace = together(ring, blocks[0].step_ms)
        decision = steady.decide(trace, rule)
        while decision.kind == "go on":
            trace += together(
                ring, take(min(rule.block - len(trace) % rule.block, rule.max_steps - len(trace))).step_ms
            )
            decision = steady.decide(trace, rule)
        counted, window = steady_blocks(blocks, decision)

    ring.barrier()
    ended = {"window_at": (counted[0].at, time.time()), "read_mib": storage.read_mib() - work.read_before_mib}
    peak_device_memory_mib = memory.device_peak_mib()  # before steps are taken that only explain
    without_ms = explain.timed(config, work.steps, ring, learner, batches, lambda n: work.voice.beat("explain", n))
    work.source.check()
    times = [ms for block in counted for ms in block.step_ms]
    losses = [loss for block in counted for loss in block.losses]
    return work.report(
        **ended,
        peak_device_memory_mib=peak_device_memory_mib,
        window=window,
        without_ms=without_ms,
        images=len(times) * config.batch_size,
        window_s=sum(times) / 1e3,
        steps=tuple(
            StepRecord(step=n, step_ms=ms, loss=loss) for n, (ms, loss) in enumerate(zip(times, losses, strict=True))
        ),
    )


def together(ring: Ring, own_ms: list[float]) -> list[float]:
    """Each step's mean time over the ranks: the same numbers at all of them, so that they decide alike."""
    means: list[float] = (ring.total(np.array(own_ms)) / ring.size).tolist()
    return means


def fixed_window(step_ms: list[float], warmup_steps: int) -> Window:
    """What is known of steps whose number was given."""
    if len(step_ms) < steady.SHORTEST:
        return Window(warmup_steps=warmup_steps, stopped_by="steps", half_width_ms=None, unsteady="too few steps")
    trace = steady.checked(step_ms)
    return Window(
        warmup_steps=warmup_steps,
        stopped_by="steps",
        half_width_ms=steady.half_width(trace, steady.effective_steps(trace)),
        unsteady=steady.unsteadiness(steady.calmed(trace)),
    )


def steady_blocks(blocks: list[Block], decision: steady.Decision) -> tuple[list[Block], Window]:
    """The blocks that lie wholly behind the warm-up, and what is known of their steps."""
    found = decision.estimate
    assert found  # a stop has one
    steps, counted = 0, list(blocks)
    while steps < found.start:
        steps += len(counted.pop(0).step_ms)
    window = Window(
        warmup_steps=steps,
        stopped_by="interval" if decision.reason == "interval" else "max_steps",
        half_width_ms=found.half_width_ms,
        unsteady=found.why_not,
    )
    return counted, window
