"""Carries out trials on a cluster that is made up, one after the other in this process: no Ray, and a clock that jumps
to the next event."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator

from sweeps.run.conductor import Conductor
from sweeps.simulator import cluster as simulated
from sweeps.simulator.cluster import SimulatedCluster
from sweeps.simulator.group import SimulatedGroup


class InProcess:
    is_virtual = True

    def __init__(self, machine: SimulatedCluster, folders: Iterable[str] = ()) -> None:
        """`folders`: those that its trials read."""
        self._machine = machine
        self._made = simulated.contents(machine, folders)

    def run(self, conductor: Conductor) -> None:
        conductor.engine.nodes_are(self._machine.nodes, self._made)
        conductor.ready()
        with _interrupts() as is_interrupted:
            try:
                while not (conductor.is_over or is_interrupted()):
                    self._step(conductor)
            finally:
                conductor.stopped()

    def _step(self, conductor: Conductor) -> None:
        engine, start = conductor.engine, conductor.next()
        conductor.passed()
        if not start:
            conductor.let_pass()
            return
        config = start.trial
        conductor.begun(config)
        group = SimulatedGroup(self._machine, start.seats)
        group.start(config, at=conductor.now, attempt=engine.attempts[config.trial])
        conductor.answered(config, group.wait(), group.took_s, group.timeline if engine.is_judging else ())


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Note the first signal to end, so that no write is cut off; the next one interrupts as always."""
    heard: list[int] = []

    def hear(number: int, _: object) -> None:
        heard.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: bool(heard)
    finally:
        signal.signal(signal.SIGINT, before)
