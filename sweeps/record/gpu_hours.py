"""What a sweep has spent: the GPU-hours that attempts at its trials have held, whoever they were for. Pure.

These are all that its placement group has: of an exclusive trial every GPU of its nodes, whatever its ranks; on CPUs
slots, as many ranks as its cores could hold.

An attempt holds its GPUs from when its placement group is there until it ends; while it waits for that, for minutes
where nodes are busy or have yet to come, it costs nothing. Its launch and the test of its nodes are paid for, and so is
an attempt that was lost, cancelled, or whose trial has been tried again since. A result that is used again held
nothing. An attempt without an end was cut off with its driver: it counts until that driver said that it stops; of one
that was killed until it was last heard, and `UNHEARD_S` more, for which it may have held its GPUs unheard. So none that
has held them counts nothing.

A gang holds its GPUs too while it waits for its next trial, and until it is gone. That is no attempt, and counts once
it is over. Of a driver that is killed meanwhile it is lost: seconds (`private_tune.IDLE_GANG_S`).
"""

from __future__ import annotations

UNHEARD_S = 2.0  # at most, between two words of a driver: a thread says once a second that it is there


def heard_until(last: float, now: float) -> float:
    """Return until when a driver counts that was last heard then. One that has gone counts the same at any later time;
    one that goes on never counts ahead of the clock."""
    return max(last, min(now, last + UNHEARD_S))


class Hours:
    """The sum over the lines of a ledger, told in their order."""

    def __init__(self) -> None:
        self.heard_at = 0.0  # the latest time that a line tells
        self._ended = 0.0
        self._open: dict[str, tuple[int, float]] = {}  # by trial: its GPUs, and since when they are held

    def started(self, trial: str, gpus: int, at: float) -> None:
        self._open[trial] = gpus, at
        self.heard_at = max(self.heard_at, at)

    def ended(self, trial: str, gpu_hours: float, at: float) -> None:
        self._open.pop(trial, None)
        self._ended += gpu_hours
        self.heard_at = max(self.heard_at, at)

    def waited(self, gpus: int, since: float, at: float) -> None:
        """Count what a gang has held for no trial."""
        self._ended += gpus * max(0.0, at - since) / 3600
        self.heard_at = max(self.heard_at, at)

    def cut_off(self, heard_at: float) -> None:
        """Close what is open: the driver was last heard then, and with it what ran has gone."""
        self._ended = self.spent(heard_at)
        self._open.clear()

    def spent(self, heard_at: float = 0.0) -> float:
        """Return the GPU-hours held until the driver was last heard: then, or when its latest line says."""
        until = max(heard_at, self.heard_at)
        return self._ended + sum(gpus * max(0.0, until - since) for gpus, since in self._open.values()) / 3600
