"""What a rank works with, whatever its protocol, and what it reports of it."""

from __future__ import annotations

import functools
import os
import resource
import time
from pathlib import Path
from typing import Any

from workers.contract import environment, schedules
from workers.contract.messages import RankReport, TrialConfig
from workers.contract.ranks import Voice
from workers.frameworks import framework
from workers.inputs import storage
from workers.inputs.source import GROUP, Cores
from workers.node import pinning, precedence
from workers.strategies.ring import Ring, speed
from workers.workloads.script import code


class Work:
    def __init__(self, config: TrialConfig, ring: Ring, voice: Voice, cores: Cores) -> None:
        self.entered_at, self._began = time.time(), time.perf_counter()
        self.config, self.ring, self.voice = config, ring, voice
        if config.own_code:
            voice.own_code = functools.partial(code.digest, (), Path.cwd())
        self.framework = framework.of_trial(config)
        self.learner = self.framework.learner(config, ring)
        self.source = self.framework.open_source(config, ring, cores, voice.beat)  # counting is neither cold nor told
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
        config = self.config
        self.voice.beat("finish", self.steps)
        return RankReport(
            rank=self.ring.rank,
            entered_at=self.entered_at,
            build_s=self.build_s,
            peak_memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            parameters=self.learner.parameters,
            flops=self.learner.flops,
            skipped_images=self.source.skipped,
            decode_threads=self._cores.decode_threads * self.ring.local_size,
            pinned=str(self._pins()) if self._cores.is_pinned else "",
            pinning_note=self._cores.pinning_note,
            allreduce_mib_per_s=speed(self.ring),
            in_force=environment.in_force(os.environ, config),
            software=self.voice.own_code(),
            runs=self.framework.readback() | precedence.in_force() | self.learner.runs(),
            **figures,
        )

    def _pins(self) -> pinning.Pins:
        """Return the cores as the kernel has them: of the threads that decode, and of all others."""
        decoders = self.source.decoders
        return pinning.Pins(pinning.affinity(pinning.threads_here() - decoders.threads), decoders.affinity())
