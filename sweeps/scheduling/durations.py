"""How long a trial will take, from those that have ended; from a model where none like it has. Pure but for `earlier`.

A cell's repeats take what the cell took. Another cell takes what the model says times what like trials took over what
the model said of them, and each kind of likeness is believed as far as it has been seen: a ratio is that of the wider
kind until there are trials of its own, of which the first counts half, three count three quarters. What ended lately
counts more, since a folder's trials may come from more than one machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal

from sweeps.errors import SweepError
from sweeps.record import ledger
from sweeps.record.ledger import TrialRecord
from sweeps.record.rows import SIMULATED
from workers.contract import messages
from workers.contract.messages import TrialConfig

LEARNT = ("completed", "infeasible")  # outcomes whose time says what the next such trial takes
LATELY = 10  # trials that a mean remembers
NEWEST_MIB = 64  # of ledgers, that are read for earlier trials
IS_TRIAL = b'{"kind":"trial"'


@dataclasses.dataclass(frozen=True)
class Predicted:
    seconds: float
    source: Literal["trials", "model"]


@dataclasses.dataclass
class _Mean:
    """A mean of what came, the latest more."""

    value: float = 0.0
    n: int = 0

    def add(self, value: float) -> None:
        self.n += 1
        self.value += (value - self.value) / min(self.n, LATELY)


class Durations:
    """Learns from trials as they end; each call takes microseconds, however many there were."""

    def __init__(self, model: Callable[[TrialConfig], float]) -> None:
        self._model = model
        self._modelled: dict[str, float] = {}  # by trial: a packing asks again and again of all that waits and runs
        self._cells: dict[str, _Mean] = {}  # seconds
        self._ratios: dict[Hashable, _Mean] = {}  # logarithms of what was taken over what the model says

    def learn(self, record: TrialRecord) -> None:
        """Trials that were cut short, or never ran, teach nothing; nor do those that went on from a checkpoint: how
        long another takes from its start, nobody has seen."""
        taken_s = record.ended_at - record.started_at
        is_inferred = bool(record.outcome.inferred_from)
        if record.outcome.status not in LEARNT or is_inferred or taken_s <= 0 or _has_gone_on(record):
            return
        self._cells.setdefault(record.config.cell, _Mean()).add(taken_s)
        if record.outcome.status == "completed":
            ratio = math.log(taken_s / self._by_model(record.config))
            for likeness in _likenesses(record.config):
                self._ratios.setdefault(likeness, _Mean()).add(ratio)

    def predict(self, config: TrialConfig) -> Predicted:
        if known := self._cells.get(config.cell):
            return Predicted(known.value, "trials")
        ratio, seen = 0.0, 0
        for likeness in _likenesses(config):
            if alike := self._ratios.get(likeness):
                weight = alike.n / (alike.n + 1) if seen else 1.0
                ratio += weight * (alike.value - ratio)
                seen += alike.n
        return Predicted(self._by_model(config) * math.exp(ratio), "trials" if seen else "model")

    def _by_model(self, config: TrialConfig) -> float:
        if config.trial not in self._modelled:
            self._modelled[config.trial] = self._model(config)
        return self._modelled[config.trial]


def _has_gone_on(record: TrialRecord) -> bool:
    """Say whether an earlier attempt, or an earlier start in this one, has done some of its epochs."""
    measured = record.outcome.measurement
    return measured is not None and measured.ranks[0].gone_on_from > 0


def _likenesses(config: TrialConfig) -> Iterator[Hashable]:
    """Yield its likenesses, from the widest to the closest. Models and protocols are never mixed up with devices that
    they did not run on, nor with a framework."""
    widest = config.protocol, config.device, config.framework
    task = (*widest, config.model, config.data, config.image_size)
    settings = (*task, config.precision, config.xla, config.compile, config.channels_last)
    yield widest
    yield task
    yield settings
    yield (*settings, config.gpus)


def earlier(simulated: bool = False) -> Iterator[TrialRecord]:
    """Trials of this folder's sweeps that completed from their start, the oldest first, without what they measured;
    simulated ones, or real ones. Of many, the newest; what can't be read is left out."""
    room = NEWEST_MIB << 20
    chosen = []
    for name in reversed(ledger.names()):
        with contextlib.suppress(OSError, SweepError):
            path = ledger.paths(name).ledger
            room -= path.stat().st_size
            if room < 0:
                break
            chosen.append(path)
    for path in reversed(chosen):
        with contextlib.suppress(OSError), path.open("rb") as lines:
            for line in lines:
                if line.startswith(IS_TRIAL) and (record := _record(line)) and _is_simulated(record) == simulated:
                    yield record


def _record(line: bytes) -> TrialRecord | None:
    """Return the record in a line. A torn line, or one of another version, holds none; nor does one of a trial that
    went on from a checkpoint."""
    try:
        entry: dict[str, Any] = json.loads(line)
        measured = entry["outcome"].get("measurement")
        if measured and measured["ranks"][0].get("gone_on_from"):
            return None
        return TrialRecord(
            config=messages.trial_config(entry["config"]),
            outcome=messages.trial_outcome({**entry["outcome"], "measurement": None}),
            started_at=float(entry["started_at"]),
            ended_at=float(entry["ended_at"]),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _is_simulated(record: TrialRecord) -> bool:
    return any(place.software == SIMULATED for place in record.outcome.granted)
