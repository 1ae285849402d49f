"""The convergence protocol: how long a trial takes to an accuracy.

`epochs` epochs, the whole validation set after every `evaluate_every` of them, until the target is reached; after every
`checkpoint_every` a checkpoint, from which a trial that was cut short goes on.

An epoch's time is told in three parts: training, validation, and the checkpoint before it. The last checkpoint belongs
to no epoch. A trial that goes on has the epochs until its checkpoint as they were timed then; what an earlier attempt
did after that checkpoint is lost, and its time is in no figure.

It goes on only where it runs as the earlier attempt did: the same code and software on every rank, the same files,
hardware and arrangement. Else it begins anew, and says so. Rank 0 alone reads and writes checkpoints, and so decides
for all, by what all ranks run and read.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np

from workers.contract.messages import EpochRecord, RankReport, reaches_target
from workers.contract.ranks import Seat
from workers.inputs import storage
from workers.workloads.images import checkpoint
from workers.workloads.images.work import Work
from workers.workloads.script import code


def converge(work: Work, seat: Seat) -> RankReport:
    config, ring, learner = work.config, work.ring, work.learner
    saved, made = Path(seat.checkpoint), checkpoint.of_gang(ring, seat.made, seat.local_rank)
    began = time.perf_counter()
    history, begun_anew = _gone_on(work, saved, made) if ring.rank == 0 else ([], "")
    learner.spread()
    checkpoint_s = time.perf_counter() - began if history else 0.0
    was_reached = bool(history) and reaches_target(history[-1], config)
    done, is_reached = ring.total(np.array([len(history), was_reached])).tolist()  # only rank 0 has a history
    learner.trace(next(work.source.epoch(0)))
    work.is_built()
    for record in history:  # whoever follows the trial may not have heard of them
        work.voice.epoch(record)

    own_code = code.of_cells(config, Path.cwd())
    gone_on_from, was_all_done = int(done), done >= config.epochs or is_reached
    images, window_s, began_at = 0, 0.0, time.time()
    while done < config.epochs and not is_reached:
        done += 1
        record, own_images = train_epoch(work, done, checkpoint_s)
        checkpoint_s = 0.0
        images, window_s = images + own_images, window_s + record.train_s
        is_last = done == config.epochs
        if is_last or done % config.evaluate_every == 0:
            record = evaluated(work, record)
        work.source.check()
        record = dataclasses.replace(record, code=own_code)
        history.append(record)
        is_reached = reaches_target(record, config)
        if ring.rank == 0:
            work.voice.epoch(record)
        if config.checkpoint_every and (is_last or is_reached or done % config.checkpoint_every == 0):
            began = time.perf_counter()
            learner.agree()
            if ring.rank == 0:
                checkpoint.save(saved, learner.state(), history, made)
                checkpoint_s = time.perf_counter() - began

    if was_all_done:  # by an earlier attempt, as this one would have: its figures are those of its epochs
        images, window_s = sum(epoch.images for epoch in history), sum(epoch.train_s for epoch in history)
    return work.report(
        images=images,
        window_s=window_s,
        window_at=(began_at, time.time()),
        read_mib=storage.read_mib() - work.read_before_mib,
        peak_device_memory_mib=work.framework.device_peak_mib(),
        epochs=tuple(history),
        reached_target=bool(is_reached),
        begun_anew=begun_anew,
        gone_on_from=gone_on_from,
    )


def _gone_on(work: Work, saved: Path, made: checkpoint.Made) -> tuple[list[EpochRecord], str]:
    """Return the epochs of the checkpoint that the trial goes on from; why it goes on from none, where one lies
    there."""
    epochs, why = checkpoint.load(saved, work.learner.restore, made)
    if why:
        print(why)
        work.voice.note(why)
    return list(epochs), why


def train_epoch(work: Work, epoch: int, checkpoint_s: float = 0.0) -> tuple[EpochRecord, int]:
    """Every training image once, over all ranks; the epoch, and how many of its images were this rank's.

    `checkpoint_s` is what rank 0 took for a checkpoint before it, while the others waited at the barrier.
    """
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

    all_losses, all_images, waited_s = ring.total(np.array([sum_of_losses, images, checkpoint_s])).tolist()
    record = EpochRecord(
        epoch=epoch,
        images=int(all_images),
        loss=all_losses / all_images,
        rate=rate,
        train_s=train_s,
        checkpoint_s=waited_s,
    )
    return record, images


def evaluated(work: Work, record: EpochRecord) -> EpochRecord:
    """Return the epoch with its accuracies over the whole validation set, each image judged once by one rank."""
    start = time.perf_counter()
    work.learner.agree()
    hits = np.zeros(3)
    for n, batch in enumerate(work.source.validation()):
        work.voice.beat("evaluate", work.steps + n)
        hits += work.learner.judge(*batch)
    top1, top5, images = work.ring.total(hits)
    evaluate_s = time.perf_counter() - start
    return dataclasses.replace(record, evaluate_s=evaluate_s, top1=float(top1 / images), top5=float(top5 / images))
