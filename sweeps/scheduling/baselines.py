"""The one-GPU cells that an `asha` search may not lose: the bases of what it keeps. Pure.

Scaling efficiency is a cell's rate over that of the same cell on one GPU. One-GPU cells are judged among each other, so
that the search may stop the base of a cell on more GPUs that itself comes to its end. A base is therefore *needed* from
the moment such a cell has completed: it is not stopped from then on, and a repeat of it that was stopped before is run
again, to its end (from its checkpoint, where it left one).

Why not spare bases from the start: every one-GPU cell is the base of a cell that still waits or runs, so that none
would ever be stopped, and they last longest. As it is, what is added is at most one cell for each that has come to its
end, and of that the epochs up to where it had been stopped.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sweeps.record.ledger import TrialRecord
from workers.contract.messages import TrialConfig

HOPELESS = "hopeless"  # the kind of an outcome that a search decided
OWN = {"gpus", "placement", "arrangement", "batch_size", "env", "own", "targets", "repeat", "deadlines"}
SAME = [field.name for field in dataclasses.fields(TrialConfig) if field.name not in OWN]

Line = tuple[Any, ...]  # the same for a cell and its base


class Bases:
    """Which one-GPU cells are needed."""

    def __init__(self, is_strong: bool = False) -> None:
        """`is_strong`: a cell and its base have the same batch over all GPUs, and not on each."""
        self._is_strong = is_strong
        self._completed: dict[Line, str] = {}  # a trial on several GPUs
        self._stopped: dict[str, TrialConfig] = {}  # one-GPU trials

    def tell(self, record: TrialRecord) -> None:
        """How a trial ended for good; the last word on it counts."""
        config, outcome = record.config, record.outcome
        self._stopped.pop(config.trial, None)
        if config.gpus > 1 and outcome.status == "completed":
            self._completed.setdefault(self._line(config), config.trial)
        elif config.gpus == 1 and outcome.status == "pruned" and outcome.kind == HOPELESS:
            self._stopped[config.trial] = config

    def needed_for(self, config: TrialConfig) -> str:
        """Return the first trial that needs a cell as its base; empty for one that nothing needs."""
        return self._completed.get(self._line(config), "") if config.gpus == 1 else ""

    def again(self) -> list[TrialConfig]:
        """Return the trials that were stopped and are needed, each once: they are to be run to their end."""
        needed = [config for config in self._stopped.values() if self.needed_for(config)]
        for config in needed:
            del self._stopped[config.trial]
        return needed

    def _line(self, config: TrialConfig) -> Line:
        batch = config.global_batch if self._is_strong else config.batch_size
        named = [*sorted(config.env.items()), *sorted(config.own.items())]
        return (batch, *(getattr(config, name) for name in SAME), *named)
