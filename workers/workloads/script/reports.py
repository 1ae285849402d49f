"""What a user's script says that it came to: `sweeps.report(loss=…, top1=…, epoch=…)`.

Each report is an epoch of the trial: the first rank's count. In a convergence trial whoever follows the trial hears of
it at once, so that a search can stop the trial; in a throughput trial it waits for the end, since nothing is said
between steps that are timed.

What Keras' `fit` says of an epoch counts as a report too, without an edit. It waits until the next epoch begins: what
the script says itself meanwhile is of the same epoch, and wins where both tell the same name. A name that the script
tells somewhere is its own from then on, and is taken out of what `fit` has said before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workers.contract.messages import REPORTED, EpochRecord, TrialConfig
from workers.contract.ranks import Fault, Voice
from workers.workloads.script import code

MOST = 10_000  # of a trial that are kept; of more, the last
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,60}")
SHARES = ("top1", "top5")
RULE = "sweeps.report must be told"


class Reports:
    """The reports of one rank."""

    def __init__(
        self, is_first: bool, tell: Callable[[EpochRecord], None] = lambda record: None, made_by: str = ""
    ) -> None:
        """`tell`: hears of each report of the first rank, as it comes. `made_by`: the code that they come from."""
        self.records: list[EpochRecord] = []
        self.is_open = True  # what comes later is of steps from which a part was taken away
        self._is_first, self._tell, self._made_by, self._pid = is_first, tell, made_by, os.getpid()
        self._since = time.perf_counter()
        self._fit: tuple[int, Mapping[str, Any]] | None = None  # an epoch of `fit`, and what it has said of it
        self.added: Callable[[EpochRecord], None] = lambda record: None  # hears of each that counts, and may end all
        self._by_fit: set[int] = set()  # epochs of which it alone has said anything
        self._own: set[str] = set()  # names that the script tells itself

    def add(self, epoch: int | None, figures: dict[str, Any]) -> None:
        """Take a report; raises `Fault` where it can't be one."""
        if os.getpid() != self._pid:
            rule = "a rank's reports must come from the process that was started for it"
            raise Fault("forked", f"{rule}, but this is a process that it forked")
        known = {name: _number(name, figure) for name, figure in figures.items()}
        own = [one.epoch for one in self.records if one.epoch not in self._by_fit]
        at = self._last + 1 if epoch is None else _whole(epoch)
        if own and at <= own[-1]:
            raise Fault("report", f"{RULE} epochs in their order, but got {at} after {own[-1]}")
        if not known:
            raise Fault("report", f"{RULE} a figure, such as sweeps.report(loss=0.5), but got none")
        if not self._counts:
            return
        while self._last >= at and self.records:
            self._by_fit.discard(self.records.pop().epoch)  # fit counts from 1, and the script perhaps from 0
        self._own |= known.keys()
        self.records = [self._without_own(one) if one.epoch in self._by_fit else one for one in self.records]
        self._add(at, {**self._said_by_fit(), **known})

    def said_by_fit(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Take what Keras' `fit` says of an epoch that it has finished, as far as it can be a report. Callbacks behind
        this one may still change it, so it is read later."""
        self.settle()
        if self._counts:
            self._fit = epoch, logs

    def settle(self, is_last: bool = False) -> None:
        """Report what `fit` has said, if the script has said nothing of that epoch itself."""
        if is_last:
            self.added = lambda record: None
        if not self._fit:
            return
        at = max(self._fit[0], self._last + 1)
        if (known := self._said_by_fit()) and self._counts:
            self._by_fit.add(at)
            self._add(at, known)

    @property
    def _counts(self) -> bool:
        return self._is_first and self.is_open and os.getpid() == self._pid

    @property
    def _last(self) -> int:
        return self.records[-1].epoch if self.records else 0

    def _said_by_fit(self) -> dict[str, float]:
        """Return what waits, but for what the script tells itself; afterwards nothing waits."""
        _, logs = self._fit or (0, {})
        self._fit = None
        known = _figures(logs)
        return {name: figure for name, figure in known.items() if name not in self._own}

    def _without_own(self, record: EpochRecord) -> EpochRecord:
        """Return a record of `fit` without the names that are the script's own by now."""
        kept = {name: figure for name, figure in record.own.items() if name not in self._own}
        gone = {name: math.nan if name == "loss" else None for name in REPORTED if name in self._own}
        return dataclasses.replace(record, own=kept, **gone)  # type: ignore[arg-type]

    def _add(self, epoch: int, known: dict[str, float]) -> None:
        now = time.perf_counter()
        record = EpochRecord(
            epoch=epoch,
            images=0,
            loss=known.pop("loss", math.nan),
            rate=math.nan,
            train_s=now - self._since,
            top1=known.pop("top1", None),
            top5=known.pop("top5", None),
            own=known,
            code=self._made_by,
        )
        self._since = now
        if len(self.records) == MOST:
            self.records.pop()
        self.records.append(record)
        self._tell(record)
        self.added(record)


def of_rank(config: TrialConfig, rank: int, voice: Voice, folder: Path) -> Reports:
    """Return the reports of a rank, told at once where somebody follows them. `folder`: in which it was started."""

    def tell(record: EpochRecord) -> None:
        phase, _ = voice.progress()
        if phase == "build":  # no step tells that it lives
            voice.beat("build", record.epoch)
        voice.epoch(record)

    if config.protocol != "convergence" or rank:
        return Reports(rank == 0)
    return Reports(True, tell, code.of_cells(config, folder))


def _number(name: str, figure: Any) -> float:
    if not NAME.fullmatch(name):
        rule = "figures by names of letters, digits and '_'"
        raise Fault("report", f"{RULE} {rule}, but got {name!r}")
    try:
        value = float(figure)
    except (TypeError, ValueError):
        said = f"{name}={figure!r}"[:100]
        raise Fault("report", f"{RULE} numbers, but got {said}") from None
    if math.isnan(value):  # as a loss that has diverged: told, other than one that never was
        return math.inf
    if name in SHARES and not 0 <= value <= 1:
        raise Fault("report", f"{RULE} {name} as a share from 0 to 1, but got {value:g}")
    return value


def _figures(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return what of the words of `fit` can be a report, by names that a column can have: nobody has chosen these for
    us, so what can't be one is passed over."""
    found = {}
    for said, figure in logs.items():
        name = re.sub(r"\W", "_", str(said), flags=re.ASCII)
        with contextlib.suppress(Fault):
            found[name] = _number(name, figure)
    return found


def _whole(epoch: Any) -> int:
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or epoch < 0:
        raise Fault("report", f"{RULE} epoch as a whole number of at least 0, but got {epoch!r}")
    return int(epoch)
