"""Gangs that train by turns, so that a machine whose speed changes changes it for both alike.

A virtual machine's speed may change by a fifth from one quarter of a minute to the next. Two runs one after the other
would differ by that, whatever they do. So both stand in their loops, and while one trains every rank of the other is
stopped (SIGSTOP).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.integration.gangs import gang
from workers.contract import messages
from workers.contract.ranks import BEAT, Beat, Seat, Voice
from workers.launch.supervisor import RankEnd
from workers.node import pinning

TURN_S = 1.0
STEPS_A_TURN = 8  # at least: a turn's ends cut steps in two
LONGEST_START_S = 120.0


class Seen(Voice):
    """A rank's voice that leaves beside its log how far it has come, and its process."""

    def __init__(self, voice: Voice, seat: Seat) -> None:
        super().__init__(voice._channel, voice._beat)
        folder = Path(seat.checkpoint).parent
        beat = folder / f"beat-{seat.rank}"
        beat.write_bytes(bytes(BEAT.size))
        with beat.open("r+b") as file:
            self._seen = Beat(file.fileno())
        (folder / f"pid-{seat.rank}").write_text(str(os.getpid()))

    def beat(self, phase: messages.Phase, step: int = 0) -> None:
        super().beat(phase, step)
        self._seen.write(phase, step)


class Gang:
    """A gang whose ranks speak through `Seen`, and train while they are let."""

    def __init__(self, size: int, folder: Path, entry: str, **fields: object) -> None:
        folder.mkdir()
        self._folder, self._size = folder, size
        pool = ThreadPoolExecutor(1)
        self._ends = pool.submit(gang, size, folder, entry, **fields)
        pool.shutdown(wait=False)

    def steps(self) -> int:
        """That its first rank has done."""
        with contextlib.suppress(FileNotFoundError, ValueError), (self._folder / "beat-0").open("r+b") as file:
            return Beat(file.fileno()).read()[1]
        return 0

    def train_until(self, steps: int) -> None:
        give_up = time.monotonic() + LONGEST_START_S
        self.signal(signal.SIGCONT)
        while self.steps() < steps:
            assert not self._ends.done(), self._ends.result()
            assert time.monotonic() < give_up, f"{self.steps()} of {steps} steps"
            time.sleep(0.05)

    def pids(self) -> list[int]:
        """Return the processes of its ranks, as far as they have begun."""
        return [int(file.read_text()) for file in sorted(self._folder.glob("pid-*"))]

    def signal(self, number: int) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def ends(self) -> list[RankEnd]:
        """How its ranks have ended, once they have."""
        self.signal(signal.SIGCONT)
        return self._ends.result()

    def end(self) -> None:
        """Now."""
        if not self._ends.done():
            self.signal(signal.SIGKILL)
        self._ends.result()


@dataclasses.dataclass(frozen=True)
class Side:
    """Gangs that train at the same time, each for itself."""

    gangs: Sequence[Gang]

    def train_until(self, steps: int) -> None:
        for one in self.gangs:
            one.train_until(steps)

    def stop(self) -> None:
        for one in self.gangs:
            one.signal(signal.SIGSTOP)

    def keep_to_cores_of(self, other: Side) -> None:
        """Compute where the other does: a rank that decodes nothing would have the cores of the decoders too."""
        for mine, theirs in zip(self._pids(), other._pids(), strict=True):
            threads = [int(task.name) for task in Path(f"/proc/{mine}/task").iterdir()]
            pinning.keep(threads, os.sched_getaffinity(theirs))

    def _pids(self) -> list[int]:
        return [pid for one in self.gangs for pid in one.pids()]

    def turn(self, seconds: float) -> tuple[float, float]:
        """Train for a while, alone; return the seconds that this took, and the steps that a gang did on the mean."""
        steps, began = self._steps(), time.monotonic()
        for one in self.gangs:
            one.signal(signal.SIGCONT)
        time.sleep(seconds)
        self.stop()
        return time.monotonic() - began, (self._steps() - steps)

    def timed(self, seconds: float) -> float:
        """Milliseconds of a step, while nobody else trains."""
        taken_s, steps = self.turn(seconds)
        return 1e3 * taken_s / max(steps, 1)

    def _steps(self) -> float:
        return sum(one.steps() for one in self.gangs) / len(self.gangs)


@contextlib.contextmanager
def side(*gangs: Gang) -> Iterator[Side]:
    """Gangs that are ended with the block."""
    try:
        yield Side(gangs)
    finally:
        for one in gangs:
            one.end()


def step_ms(first: Side, second: Side, steps: int) -> tuple[float, float]:
    """Milliseconds of a step of each, by turns, until the first has come so far that its next turn might pass `steps`.

    The first is then let train on, the second is stopped.
    """
    taken: dict[Side, list[tuple[float, float]]] = {first: [], second: []}
    first.stop()
    second.stop()
    seconds = max(TURN_S, STEPS_A_TURN * max(first.timed(TURN_S), second.timed(TURN_S)) / 1e3)
    longest = 0.0  # steps in a turn of the first
    while first._steps() + 1.5 * longest < steps:
        for one in (second, first):
            taken[one].append(one.turn(seconds))
        longest = max(longest, taken[first][-1][1])
    for one in first.gangs:
        one.signal(signal.SIGCONT)
    return tuple(1e3 * sum(s for s, _ in turns) / sum(n for _, n in turns) for turns in taken.values())  # type: ignore[return-value]
