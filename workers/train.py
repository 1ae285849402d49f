"""One rank's training, top to bottom, in two protocols.

*Throughput*: `warmup_steps` steps that don't count, a barrier, `measured_steps` steps, a barrier. A step is input,
forward, backward, reduction over all ranks and update, and ends when its loss is known.

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

from workers import checkpoint, explain, inputs, knobs, memory, models, precision, schedules, storage
from workers.contract import EpochRecord, RankReport, StepRecord, TrialConfig
from workers.learner import Learner
from workers.rank import Seat, Voice
from workers.ring import Ring, joined, speed

IMAGENET_IMAGES = 1_281_167  # an epoch of the schedule, where a throughput trial has none of its own
IMAGENET_EPOCHS = 90


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """The work of one rank in a trial."""
    place(config)
    voice.beat("ring")
    with joined(seat, config.compression) as ring, memory.shortage_is_a_finding(config):
        voice.beat("build")
        work = Work(config, ring, voice)
        is_converging = config.protocol == "convergence"
        voice.report(convergence(work, Path(seat.checkpoint)) if is_converging else throughput(work))


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


class Work:
    """What both protocols work with."""

    def __init__(self, config: TrialConfig, ring: Ring, voice: Voice) -> None:
        self.entered_at, self._began = time.time(), time.perf_counter()
        self.config, self.ring, self.voice = config, ring, voice
        self.learner = Learner(config, ring)
        storage.prepare(config, ring, voice)
        self.source = inputs.open_source(config, ring, cores=inputs.cores_here())
        self.schedule = schedules.parse(config.lr_schedule)
        self.steps = 0
        self.build_s = 0.0
        self._window_at, self._read_mib = 0.0, 0.0

    def is_built(self) -> None:
        self.build_s = time.perf_counter() - self._began
        self._window_at, self._read_mib = time.time(), storage.read_mib()

    def window_is_over(self) -> dict[str, Any]:
        """What the system says of the time since all was built."""
        return {"window_at": (self._window_at, time.time()), "read_mib": storage.read_mib() - self._read_mib}

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
            allreduce_mib_per_s=speed(self.ring),
            in_force=knobs.in_force(os.environ, self.config.env),
            **figures,
        )


def throughput(work: Work) -> RankReport:
    config, ring, learner = work.config, work.ring, work.learner
    batches = work.source.stream()

    def step() -> float:
        epoch = work.steps * config.global_batch / IMAGENET_IMAGES
        learner.set_rate(work.schedule.rate(epoch, IMAGENET_EPOCHS, config.global_batch))
        loss = learner.learn(*next(batches)).loss
        work.steps += 1
        work.voice.beat("step", work.steps)
        return loss

    for _ in range(config.warmup_steps):
        step()
    work.is_built()

    ring.barrier()
    start = time.perf_counter()
    ends, losses = [start], []
    for _ in range(config.measured_steps):
        losses.append(step())
        ends.append(time.perf_counter())
    ring.barrier()
    window_s = time.perf_counter() - start
    seen = work.window_is_over()

    without_ms = (
        explain.timed(config, ring, learner, batches, lambda n: work.voice.beat("explain", n)) if config.explain else {}
    )
    work.source.check()
    return work.report(
        **seen,
        without_ms=without_ms,
        images=config.measured_steps * config.batch_size,
        window_s=window_s,
        steps=tuple(
            StepRecord(step=n, step_ms=1e3 * (ends[n + 1] - ends[n]), loss=losses[n])
            for n in range(config.measured_steps)
        ),
    )


def convergence(work: Work, saved: Path) -> RankReport:
    config, ring, learner = work.config, work.ring, work.learner
    history = list(checkpoint.load(saved, learner.variables)) if ring.rank == 0 else []
    learner.spread()
    was_reached = bool(history) and reaches_target(history[-1], config)
    done, is_reached = ring.total(np.array([len(history), was_reached])).tolist()  # only rank 0 has a history
    learner.trace(next(work.source.epoch(0)))
    work.is_built()

    images, window_s = 0, 0.0
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

    seen = work.window_is_over()
    return work.report(**seen, images=images, window_s=window_s, epochs=tuple(history), reached_target=bool(is_reached))


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
