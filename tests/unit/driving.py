"""A sweep called mine, and a cluster that is as a test says: for tests of how a driver begins and how it ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sweeps.record import ownership
from sweeps.scheduling.observer import Observer
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.unit.records import record
from workers.contract.messages import TrialOutcome

TEXT = "{name: mine, model: tiny, device: cpu, repeats: 1, space: {batch_size: [8, 16], gpus: [1, 2]}}"
WAITS = TEXT.replace("repeats", "wait_for_nodes_min: 0.001, repeats")
FAILED = TrialOutcome(status="failed", kind="killed")


class Place:
    """A cluster of one node with one core, for as long as a test says."""

    def __init__(self, cpus: int = 1) -> None:
        self.nodes = [Node("here", cpus, 0)]
        self.lacking: dict[str, list[str]] = {}
        self.asked: Callable[[], None] = lambda: None
        self.wanted: list[Sequence[dict[str, float]]] = []  # each time that it was asked for nodes
        self.is_late = False  # when it is asked about files
        self.gone: list[Callable[[str], None]] = []  # what is told, now, if the head goes

    def ask_for(self, bundles: Sequence[dict[str, float]]) -> None:
        self.wanted.append(bundles)
        self.asked()

    def without(self, _: object, late: Callable[[], object]) -> dict[str, list[str]]:
        if self.is_late:
            late()
            late()
        self.asked()
        return self.lacking

    @contextlib.contextmanager
    def guarded(self, gone: Callable[[str], None]) -> Iterator[None]:
        self.gone.append(gone)
        yield
        self.gone.pop()


def interrupted(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def terminated(*_: object, **__: object) -> Any:
    sys.exit(15)  # as Ray has SIGTERM end a driver, by which it stops a job


def opens_the_store(_: object, __: object, ___: object, observers: Sequence[Observer], *____: object) -> Any:
    """As a sweep begins; no trial comes."""
    for one in observers:
        one.ready()


def ended(outcomes: Sequence[TrialOutcome | None], text: str = TEXT, why: str = "complete") -> None:
    """A sweep whose first trials have ended so."""
    planned = plan.plan(sweep_file.parse(text, "x"), nodes=[Node("here", 2, 0)])
    with contextlib.closing(ownership.create(planned, text)) as book:
        for config, outcome in zip(planned.trials, outcomes, strict=False):
            book.write(record(config, outcome=outcome) if outcome else record(config))
        book.end(why)
