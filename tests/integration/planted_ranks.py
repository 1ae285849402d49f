"""Ranks that learn nothing and tell planted epochs: the trial's batch size says which, the GPU count how fast.

They tell their epochs in bursts, as quickly as a rank can. One that comes to its target leaves time to be stopped
before it gets there; one that is to be stopped waits for that, and completes if nobody does it.
"""

from __future__ import annotations

import time

from workers.contract.messages import EpochRecord, RankReport, TrialConfig, reaches_target
from workers.contract.ranks import Seat, Voice

GOOD, LOW, SLOW = 8, 16, 32  # batch sizes: comes to the target, behind at the rung of epoch 2, best and slow
TOPS = {GOOD: (0.2, 0.4, 0.8), LOW: (0.2, 0.1, 0.1), SLOW: (0.3, 0.5, 0.5)}
EPOCH_S = {GOOD: 10.0, LOW: 10.0, SLOW: 31.0}
GOOD_WAITS_S, WAITS_S = 4.0, 40.0


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    began = time.time()
    voice.beat("step", 1)
    epochs = tuple(planted(config, n) for n in range(len(TOPS[config.batch_size])))
    is_there = reaches_target(epochs[-1], config)
    last = len(epochs) - is_there
    tell(epochs[:last], seat, voice)
    wait(GOOD_WAITS_S if is_there else WAITS_S, voice)
    tell(epochs[last:], seat, voice)
    voice.beat("finish")
    voice.report(
        RankReport(
            rank=seat.rank,
            images=300,
            window_s=1.0,
            window_at=(began, time.time()),
            epochs=epochs,
            reached_target=is_there,
            entered_at=began,
            build_s=0.0,
            peak_memory_mib=1.0,
            parameters=1,
            flops=1,
        )
    )


def tell(epochs: tuple[EpochRecord, ...], seat: Seat, voice: Voice) -> None:
    for epoch in epochs if seat.rank == 0 else ():
        voice.epoch(epoch)


def wait(seconds: float, voice: Voice) -> None:
    for n in range(int(10 * seconds)):
        time.sleep(0.1)
        voice.beat("step", 2 + n)


def planted(config: TrialConfig, n: int) -> EpochRecord:
    """Each more rank makes it a hundred times as fast."""
    top1, train_s = TOPS[config.batch_size][n], EPOCH_S[config.batch_size] * 100.0 ** (1 - config.gpus)
    return EpochRecord(epoch=n + 1, images=100, loss=1.0, rate=0.1, train_s=train_s, top1=top1, top5=top1)
