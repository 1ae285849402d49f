"""Never twice: a trial that an earlier sweep has measured on such nodes, with such software, is not run again."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workers.contract import Cached, TrialConfig, TrialOutcome

Fingerprints = tuple[str, str]  # of the hardware and the software of a node, or of several joined by `+`


def joined(nodes: Iterable[Fingerprints]) -> Fingerprints:
    """Of a trial that runs on these nodes."""
    hardware, software = zip(*nodes, strict=True)
    return "+".join(sorted(set(hardware))), "+".join(sorted(set(software)))


class Cache:
    """What earlier sweeps have measured of the cells of this one."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Rows of completed trials as `sweeps.trials` has them; of equal ones the last is taken."""
        self._found: dict[tuple[str, Fingerprints], Mapping[str, Any]] = {
            (row["trial"], (row["hardware"], row["software"])): row for row in rows
        }
        self._trials = {trial for trial, _ in self._found}

    def __len__(self) -> int:
        return len(self._found)

    def outcome(self, config: TrialConfig, nodes: Sequence[Fingerprints]) -> TrialOutcome | None:
        """What the trial came to on such nodes, whichever of them."""
        if config.trial not in self._trials or not nodes:
            return None
        row = self._found.get((config.trial, joined(nodes)))
        return _again(row) if row else None


def _again(row: Mapping[str, Any]) -> TrialOutcome:
    date = datetime.datetime.fromtimestamp(row["started_at"], datetime.UTC).date()
    return TrialOutcome(
        status="completed",
        kind="cached",
        message=f"cached (measured {date}, {row['sweep']})",
        cached=Cached(
            sweep=row["sweep"],
            measured_at=row["started_at"],
            hardware=row["hardware"],
            software=row["software"],
            limited_by=row["limited_by"],
            why_withheld=row.get("why_withheld", ""),  # of a store of earlier versions
            figures=row["figures"],
        ),
    )
