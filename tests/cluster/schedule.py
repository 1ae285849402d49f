"""Which fault happens when, of a soak. Pure."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Literal, get_args

Kind = Literal[
    "host killed",
    "link cut",
    "MLflow killed",
    "PostgreSQL restarted",
    "disk full",
    "clock off",
    "driver killed",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENDS_THE_DRIVER: tuple[Kind, ...] = ("driver killed", "disk full")  # without a ledger nothing can count
EVERY_S = 180.0
SHORTEST_MIN = 4.0
OFF_BY_S = 30.0  # a clock, now ahead and now behind
LASTS_S: dict[Kind, tuple[float, float]] = {  # at least and at most; others are over at once
    "host killed": (5, 30),
    "link cut": (5, 40),
    "PostgreSQL restarted": (5, 20),
    "disk full": (60, 60),
    "clock off": (60, 60),
}


@dataclasses.dataclass(frozen=True)
class Fault:
    at_s: float  # after the first sweep has begun
    kind: Kind
    worker: int  # the host that it concerns, if it concerns one
    lasts_s: float = 0.0
    off_by_s: float = 0.0  # its clock; behind, below zero

    def __str__(self) -> str:
        lasts = f", for {self.lasts_s:.0f} s" if self.lasts_s else ""
        where = f" of node{self.worker + 1}" if self.kind in ("host killed", "link cut", "clock off") else ""
        off = f", {abs(self.off_by_s):.0f} s {'ahead' if self.off_by_s > 0 else 'behind'}" if self.off_by_s else ""
        return f"minute {self.at_s / 60:4.1f}  {self.kind}{where}{off}{lasts}"


def schedule(minutes: float, kinds: Sequence[Kind], workers: int, seed: int) -> list[Fault]:
    """Draw a fault for every three minutes, each kind once before any comes again. A short soak has them closer
    together, and shorter, so that it too has each. Of an odd seed the first clock that is off is ahead, of an even one
    behind; from then on they take turns."""
    draw = random.Random(seed)
    every_s = min(EVERY_S, minutes * 60 / (len(kinds) + 1))
    faults: list[Fault] = []
    round_: list[Kind] = []
    off_by_s = OFF_BY_S if seed % 2 else -OFF_BY_S
    while (at_s := every_s * (len(faults) + 1)) < minutes * 60 - 1e-6:
        round_ = round_ or draw.sample(list(kinds), len(kinds))
        kind = round_.pop()
        lasts_s = min(draw.uniform(*LASTS_S.get(kind, (0, 0))), every_s / 3)
        off = {}
        if kind == "clock off":
            off["off_by_s"], off_by_s = off_by_s, -off_by_s
        faults.append(Fault(at_s, kind, draw.randrange(workers), lasts_s, **off))
    return faults
