"""What a rank works with, whatever its protocol, and what it reports of it."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from workers import inputs, knobs, models, schedules, storage
from workers.contract import RankReport, TrialConfig
from workers.learner import Learner
from workers.rank import Voice
from workers.ring import Ring, speed


class Work:
    def __init__(self, config: TrialConfig, ring: Ring, voice: Voice, cores: inputs.Cores, pins: str = "") -> None:
        self.entered_at, self._began = time.time(), time.perf_counter()
        self.config, self.ring, self.voice = config, ring, voice
        self.learner = Learner(config, ring)
        self.source = inputs.open_source(
            config, ring, cores, voice.beat
        )  # what it reads to count is neither cold nor told
        voice.beat("build")
        storage.prepare(config, ring, voice)
        self.read_before_mib = storage.read_mib()
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
