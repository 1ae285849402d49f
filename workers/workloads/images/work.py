"""What a rank works with, whatever its protocol, and what it reports of it."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from workers.contract import environment, schedules
from workers.contract.messages import RankReport, TrialConfig
from workers.contract.ranks import Voice
from workers.frameworks.tensorflow import models, readback
from workers.frameworks.tensorflow.learner import Learner
from workers.inputs import opening, storage
from workers.inputs.source import GROUP, Cores
from workers.node import pinning
from workers.strategies.ring import Ring, speed


class Work:
    def __init__(self, config: TrialConfig, ring: Ring, voice: Voice, cores: Cores) -> None:
        self.entered_at, self._began = time.time(), time.perf_counter()
        self.config, self.ring, self.voice = config, ring, voice
        self.learner = Learner(config, ring)
        self.source = opening.open_source(config, ring, cores, voice.beat)  # counting is neither cold nor told
        voice.beat("build")
        storage.prepare(config, ring, voice)
        self.read_before_mib = storage.read_mib()
        self._cores = cores
        self.schedule = schedules.parse(config.lr_schedule)
        self.steps = 0
        self.build_s = 0.0

    @property
    def burst(self) -> int:
        """Batches that the input makes side by side; 1 where nothing is decoded."""
        threads = self._cores.decode_threads
        return -(-(threads + 1) * GROUP // self.config.batch_size) if threads else 1

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
            decode_threads=self._cores.decode_threads * self.ring.local_size,
            pinned=str(self._pins()) if self._cores.is_pinned else "",
            pinning_note=self._cores.pinning_note,
            allreduce_mib_per_s=speed(self.ring),
            in_force=environment.in_force(os.environ, self.config),
            runs=readback.of_tensorflow() | self.learner.runs(),
            **figures,
        )

    def _pins(self) -> pinning.Pins:
        """As the kernel has them: of the threads that decode, and of all others."""
        decoders = self.source.decoders
        return pinning.Pins(pinning.affinity(pinning.threads_here() - decoders.threads), decoders.affinity())
