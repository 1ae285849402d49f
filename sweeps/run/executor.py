"""What carries out a sweep's trials: `ray_tune` on a Ray cluster, `in_process` on one that is made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sweeps.record.ledger import Ledger
from sweeps.run.conductor import Conductor
from sweeps.scheduling.changes import Sameness
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.observer import Observer
from sweeps.spec.keys import SweepSpec
from workers.contract import datafiles, messages


class Executor(Protocol):
    is_virtual: bool  # its trials end at once, on a clock that jumps

    def run(self, conductor: Conductor) -> None:
        """Start what the conductor gives (`next`) and tell it what happens (`begun`, `answered`; of ranks that really
        run `progressed` too, and `judged`, which says what to stop), until it is over or Ctrl-C is pressed. Then
        nothing runs any more, and what had not ended is cancelled (`stopped`)."""


def carry_out(
    engine: Engine,
    book: Ledger,
    executor: Executor,
    observers: Sequence[Observer] = (),
    before: Sameness | None = None,
) -> bool:
    """Run a sweep to its end; False if it was interrupted, or the rest is beyond its budget. `before`: with what it
    was measured so far, where it goes on."""
    conductor = Conductor(engine, book, observers, executor.is_virtual, before)
    executor.run(conductor)
    if conductor.error:
        raise conductor.error
    return engine.is_over and not engine.beyond


def folders(spec: SweepSpec) -> dict[str, tuple[str, ...]]:
    """Return the folders that a sweep's trials read, each with the splits."""
    splits = datafiles.SPLITS[spec.protocol]
    return {data: splits for data in spec.data.points() if messages.has_jpegs(data)}
