"""What the control plane and the data plane say to each other. Standard library only.

`TrialConfig` goes down to the ranks; `Measurement` and `TrialOutcome` come back. Each is a frozen value with a
JSON form (`to_json`, `from_json`), because that is how they cross processes, hosts and days.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

Device = Literal["cpu", "gpu"]
Placement = Literal["pack", "spread"]
Model = Literal["tiny", "resnet50"]
Precision = Literal["fp32", "tf32", "fp16", "bf16"]
DecodeThreads = int | Literal["auto"]
Status = Literal["completed", "infeasible", "failed", "lost", "pruned", "cancelled"]

# A rank's life, in order. A rank that stays in one phase longer than the phase's deadline is stalled.
Phase = Literal["start", "ring", "build", "step", "finish"]
PHASES: tuple[Phase, ...] = ("start", "ring", "build", "step", "finish")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deadlines:
    """How long a gang may stand still before its trial is given up, in seconds."""

    nursery_s: float = 300.0  # until the node's nursery answers: it imports TensorFlow from a cold disk, once
    ring_s: float = 60.0  # until every rank has joined the ring
    build_s: float = 600.0  # until the first step is done: tracing and compiling
    step_s: float = 60.0  # between two steps, and for reporting

    def for_phase(self, phase: Phase) -> float:
        return {"start": self.ring_s, "ring": self.ring_s, "build": self.build_s}.get(phase, self.step_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """All that a gang of ranks needs to know about its trial."""

    model: Model
    data: str  # `synthetic`, or a folder of ImageNet-convention TFRecords
    device: Device
    gpus: int  # ranks; on the CPU each is a slot of `cores_per_worker` cores
    batch_size: int  # per rank
    precision: Precision
    decode_threads: DecodeThreads  # per node, shared by the node's ranks
    placement: Placement
    image_size: int
    classes: int
    cores_per_worker: int
    learning_rate: float
    warmup_steps: int
    measured_steps: int
    seed: int
    repeat: int = 0
    deadlines: Deadlines = Deadlines()

    @property
    def cell(self) -> str:
        """The content of the cell, as a short name: equal for the repeats of one cell and for nothing else."""
        content = {k: v for k, v in to_json(self).items() if k not in ("repeat", "deadlines")}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @property
    def trial(self) -> str:
        return f"{self.cell}-{self.repeat}"

    @property
    def label(self) -> str:
        """A short telling name for charts and tables."""
        return f"b{self.batch_size} ×{self.gpus} {self.precision} t{self.decode_threads}"

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.gpus

    @property
    def steps(self) -> int:
        return self.warmup_steps + self.measured_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One measured step of one rank."""

    step: int
    step_ms: float
    loss: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank measured. `window_s` runs from a barrier of all ranks to the next."""

    rank: int
    images: int
    window_s: float
    steps: tuple[StepRecord, ...]
    entered_at: float  # wall clock, when the rank stood in the loop with TensorFlow and its ring ready
    build_s: float
    peak_memory_mib: float
    parameters: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a completed trial measured, over all its ranks."""

    ranks: tuple[RankReport, ...]

    @property
    def images(self) -> int:
        return sum(report.images for report in self.ranks)

    @property
    def window_s(self) -> float:
        """The slowest rank counts."""
        return max(report.window_s for report in self.ranks)

    @property
    def images_per_s(self) -> float:
        return self.images / self.window_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Granted:
    """Where one rank really ran."""

    rank: int
    node: str
    gpu: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """How a trial ended. A failure is a value: rank, last step, kind, message, log."""

    status: Status
    kind: str = ""  # of a failure or an infeasibility, in two or three words
    message: str = ""
    rank: int | None = None
    step: int | None = None
    log: str = ""
    measurement: Measurement | None = None
    granted: tuple[Granted, ...] = ()


def to_json(value: Any) -> dict[str, Any]:
    return dataclasses.asdict(value)


def trial_config(data: Mapping[str, Any]) -> TrialConfig:
    return TrialConfig(**{**data, "deadlines": Deadlines(**data["deadlines"])})


def rank_report(data: Mapping[str, Any]) -> RankReport:
    return RankReport(**{**data, "steps": tuple(StepRecord(**step) for step in data["steps"])})


def trial_outcome(data: Mapping[str, Any]) -> TrialOutcome:
    measured = data.get("measurement")
    reports = tuple(rank_report(report) for report in measured["ranks"]) if measured else ()
    return TrialOutcome(
        **{
            **data,
            "measurement": Measurement(ranks=reports) if measured else None,
            "granted": tuple(Granted(**place) for place in data.get("granted", ())),
        }
    )
