"""What a rank of ours does in `launch`: what the peers' ranks do. It imports no more than a trial's own rank."""

from __future__ import annotations

import time

from workers.contract.messages import RankReport, StepRecord, TrialConfig
from workers.contract.ranks import Seat, Voice
from workers.strategies.horovod import joined


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Run a TensorFlow op and an allreduce, and tell the time."""
    import tensorflow as tf

    voice.beat("ring")
    with joined(seat) as ring:
        tf.zeros([]).numpy()
        ring.barrier()
        voice.report(
            RankReport(
                rank=ring.rank,
                images=config.batch_size,
                window_s=1,
                steps=(StepRecord(step=0, step_ms=1, loss=0),),
                entered_at=time.time(),
                build_s=0,
                peak_memory_mib=0,
                parameters=0,
                flops=0,
            )
        )
