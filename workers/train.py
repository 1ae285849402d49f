"""One rank's training, top to bottom, in two protocols.

*Throughput*: steps that don't count until they are steady, then steps until their mean is sure enough; or exactly
`warmup_steps` and `measured_steps`. A step is input, forward, backward, reduction over all ranks and update, and ends
when its loss is known. The window begins at a barrier and holds whole blocks.

*Convergence*: `epochs` epochs, the whole validation set after every `evaluate_every` of them, until the target is
reached; a checkpoint after every `checkpoint_every`, from which a trial that was interrupted goes on.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from workers import checkpoint, explain, inputs, knobs, memory, models, pinning, precision, schedules, steady, storage
from workers.contract import EpochRecord, RankReport, StepRecord, TrialConfig, Window
from workers.learner import Learner
from workers.rank import Seat, Voice
from workers.ring import Ring, joined, speed

IMAGENET_IMAGES = 1_281_167  # an epoch of the schedule, where a throughput trial has none of its own
IMAGENET_EPOCHS = 90


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """The work of one rank in a trial."""
    cores, pins = pinned(config, seat)
    place(config)
    voice.beat("ring")
    with joined(seat, config.compression) as ring, memory.shortage_is_a_finding(config):
        voice.beat("build")
        work = Work(config, ring, voice, cores, pins)
        is_converging = config.protocol == "convergence"
        voice.report(convergence(work, Path(seat.checkpoint)) if is_converging else throughput(work))


def pinned(config: TrialConfig, seat: Seat) -> tuple[inputs.Cores, str]:
    """Keep this rank to cores of its own where there are enough; what is left to decoding, and a word on both."""
    cores = inputs.cores_here(config, seat.local_size)
    pins = pinning.of_rank(config, seat, cores.usable, cores.decode_threads)
    if pins is None:
        return cores, ""
    os.sched_setaffinity(0, pins.compute)  # and so every thread that is started from here on
    return dataclasses.replace(cores, pinned=pins.decode), str(pins)


def place(config: TrialConfig) -> None:
    """Set TensorFlow to this trial's device and precision, before its first op."""
    import tensorflow as tf

    if config.device == "cpu":
        tf.config.threading.set_intra_op_parallelism_threads(config.cores_per_worker)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        native = precision.native_on_cpu(precision.cpu_flags())
    else:
        gpus = tf.config.list_physical_devices("GPU")
        if not gpus:
            raise RuntimeError("device is gpu, but TensorFlow sees no GPU in this rank")
        tf.config.experimental.set_memory_growth(gpus[0], True)
        native = precision.native_on_gpu(tf.config.experimental.get_device_details(gpus[0])["compute_capability"])
    precision.require(config, native)
    precision.apply(config.precision)


@dataclasses.dataclass
class Block:
    """Steps in a row, and when they began."""

    at: float  # wall clock
    read_mib: float
    step_ms: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)


class Work:
    """What both protocols work with."""

    def __init__(self, config: TrialConfig, ring: Ring, voice: Voice, cores: inputs.Cores, pins: str = "") -> None:
        self.entered_at, self._began = time.time(), time.perf_counter()
        self.config, self.ring, self.voice = config, ring, voice
        self.learner = Learner(config, ring)
        storage.prepare(config, ring, voice)
        self.source = inputs.open_source(config, ring, cores)
        self._decode_threads, self._pins = cores.decode_threads, pins
        self.schedule = schedules.parse(config.lr_schedule)
        self.steps = 0
        self.build_s = 0.0

    def is_built(self) -> None:
        self.build_s = time.perf_counter() - self._began

    def report(self, **figures: Any) -> RankReport:
        self.voice.beat("finish", self.steps)
        return RankReport(
            rank=self.ring.rank,
            entered_at=self.entered_at,
            build_s=self.build_s,
            peak_memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            parameters=self.learner.network.count_params(),
            flops=models.flops(self.learner.network),
            skipped_images=self.source.skipped,
            decode_threads=self._decode_threads,
            pinned=self._pins,
            allreduce_mib_per_s=speed(self.ring),
            in_force=knobs.in_force(os.environ, self.config.env),
            **figures,
        )


def throughput(work: Work) -> RankReport:
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
        block = Block(time.time(), storage.read_mib())
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
    ended = {"window_at": (counted[0].at, time.time()), "read_mib": storage.read_mib() - counted[0].read_mib}
    without_ms = explain.timed(config, work.steps, ring, learner, batches, lambda n: work.voice.beat("explain", n))
    work.source.check()
    times = [ms for block in counted for ms in block.step_ms]
    losses = [loss for block in counted for loss in block.losses]
    return work.report(
        **ended,
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


def convergence(work: Work, saved: Path) -> RankReport:
    config, ring, learner = work.config, work.ring, work.learner
    history = list(checkpoint.load(saved, learner.variables)) if ring.rank == 0 else []
    learner.spread()
    was_reached = bool(history) and reaches_target(history[-1], config)
    done, is_reached = ring.total(np.array([len(history), was_reached])).tolist()  # only rank 0 has a history
    learner.trace(next(work.source.epoch(0)))
    work.is_built()

    images, window_s, began_at, read_before = 0, 0.0, time.time(), storage.read_mib()
    while done < config.epochs and not is_reached:
        done += 1
        record, own_images = train_epoch(work, done)
        images, window_s = images + own_images, window_s + record.train_s
        is_last = done == config.epochs
        if is_last or done % config.evaluate_every == 0:
            record = evaluated(work, record)
        work.source.check()
        history.append(record)
        is_reached = reaches_target(record, config)
        if ring.rank == 0:
            work.voice.epoch(record)
            if config.checkpoint_every and (is_last or is_reached or done % config.checkpoint_every == 0):
                checkpoint.save(saved, learner.variables, history)

    return work.report(
        images=images,
        window_s=window_s,
        window_at=(began_at, time.time()),
        read_mib=storage.read_mib() - read_before,
        epochs=tuple(history),
        reached_target=bool(is_reached),
    )


def train_epoch(work: Work, epoch: int) -> tuple[EpochRecord, int]:
    """Every training image once, over all ranks; the epoch, and how many of its images were this rank's."""
    config, ring, learner = work.config, work.ring, work.learner
    batches = work.source.epoch(epoch)
    total_images = work.source.train_images
    sum_of_losses, images, rate = 0.0, 0, 0.0

    ring.barrier()
    start = time.perf_counter()
    for n, batch in enumerate(batches):
        at = epoch - 1 + min(n * config.global_batch, total_images) / total_images
        rate = work.schedule.rate(at, config.epochs, config.global_batch)
        learner.set_rate(rate)
        learnt = learner.learn(*batch)
        sum_of_losses, images = sum_of_losses + learnt.sum_of_losses, images + learnt.images
        work.steps += 1
        work.voice.beat("step", work.steps)
    ring.barrier()
    train_s = time.perf_counter() - start

    all_losses, all_images = ring.total(np.array([sum_of_losses, images]))
    mean_loss = float(all_losses / all_images)
    return EpochRecord(epoch=epoch, images=int(all_images), loss=mean_loss, rate=rate, train_s=train_s), images


def evaluated(work: Work, record: EpochRecord) -> EpochRecord:
    """The epoch with its accuracies over the whole validation set, each image judged once by one rank."""
    start = time.perf_counter()
    work.learner.agree()
    hits = np.zeros(3)
    for n, batch in enumerate(work.source.validation()):
        work.voice.beat("evaluate", work.steps + n)
        hits += work.learner.judge(*batch)
    top1, top5, images = work.ring.total(hits)
    evaluate_s = time.perf_counter() - start
    return dataclasses.replace(record, evaluate_s=evaluate_s, top1=float(top1 / images), top5=float(top5 / images))


def reaches_target(record: EpochRecord, config: TrialConfig) -> bool:
    """Validated, and at least as good as every accuracy that was asked for."""
    targets = ((record.top1, config.target_top1), (record.top5, config.target_top5))
    asked = [(got, target) for got, target in targets if target]
    return bool(asked) and all(got is not None and got >= target for got, target in asked)
