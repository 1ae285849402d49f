"""What a sweep will cost: the trials packed on a cluster as they would run, each as long as is predicted. Pure."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Sequence

from sweeps.packing import Packing
from sweeps.shape import Node, Seats
from workers.contract import TrialConfig


@dataclasses.dataclass(frozen=True)
class Slot:
    """When a trial runs, and where."""

    config: TrialConfig
    seats: Seats
    begin: float
    end: float


@dataclasses.dataclass(frozen=True)
class Forecast:
    slots: tuple[Slot, ...]

    @property
    def hours(self) -> float:
        return max((slot.end for slot in self.slots), default=0.0) / 3600

    @property
    def gpu_hours(self) -> float:
        return sum(slot.config.gpus * (slot.end - slot.begin) for slot in self.slots) / 3600


def forecast(
    trials: Sequence[TrialConfig], nodes: Sequence[Node], predicted_s: Callable[[TrialConfig], float]
) -> Forecast:
    """Every trial once, none of them failing; those that the cluster can't hold are left out."""
    packing = Packing(nodes)
    for place, config in enumerate(trials):
        packing.add(config, place)
    now, slots, ends = 0.0, [], [(0.0, "")]
    while ends:
        now, ended = heapq.heappop(ends)
        if ended:
            packing.ended(ended, now)
        while start := packing.start(now, predicted_s):
            slot = Slot(start.trial, start.seats, now, now + predicted_s(start.trial))
            slots.append(slot)
            heapq.heappush(ends, (slot.end, start.trial.trial))
    return Forecast(tuple(slots))
