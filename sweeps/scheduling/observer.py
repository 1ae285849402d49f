"""Who wants to know how a sweep comes along."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sweeps.record.ledger import TrialRecord
from workers.contract.messages import Progress, TrialConfig


@dataclasses.dataclass(frozen=True)
class Spent:
    """GPU-hours that were held so far, and of the whole sweep as far as can be foretold; how many trials that is."""

    gpu_hours: float
    expected: float
    trials: int
    before: float = 0.0  # of `gpu_hours`, those of earlier drivers
    beyond: float = 0.0  # of `expected`, what the budget does not hold: it won't run

    @property
    def part_left(self) -> float | None:
        """What is left, in times of what this driver has held; None while that is nothing."""
        mine = self.gpu_hours - self.before
        return max(0.0, self.expected - self.beyond - self.gpu_hours) / mine if mine > 0 else None


class Observer:
    """Hears of everything after the ledger; listens to what it overrides."""

    def ready(self) -> None:
        """Be ready for the first trial; raise `RefusedError` where results could not be taken."""

    def started(self, config: TrialConfig) -> None: ...
    def progressed(self, config: TrialConfig, progress: Progress) -> None: ...
    def tried_again(self, record: TrialRecord) -> None:
        """Hear of an attempt that ended so and does not count: the trial waits once more."""

    def ended(self, record: TrialRecord) -> None: ...
    def spent(self, so_far: Spent) -> None: ...
    def met(self, node: Mapping[str, Any]) -> None:
        """Hear of a node that has said what it is made of."""

    def warned(self, message: str) -> None: ...
    def passed(self) -> None:
        """Time has; a second of it at most."""
