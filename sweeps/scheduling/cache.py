"""Never twice: a trial that an earlier sweep has measured on such nodes, with such software, on the same files of data
and with its ranks on the nodes in the same way, is not run again."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from workers.contract import messages
from workers.contract.messages import WITHOUT_JPEGS, Cached, TrialConfig, TrialOutcome

# Of a node's hardware and software, and of the files of a trial there; of a gang, each as `rows.joined` has it.
Fingerprints = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class NodeContents:
    """What a node is made of, and what data it has."""

    hardware: str = ""
    software: str = ""
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by folder

    def fingerprints(self, config: TrialConfig) -> Fingerprints:
        """As far as a trial is concerned."""
        return self.hardware, self.software, self.data.get(config.data, "")


def made(node: Mapping[str, Any]) -> NodeContents:
    """As a node says of itself."""
    return NodeContents(node["hardware"]["digest"], node["software"]["digest"], node.get("data", {}))


def joined(nodes: Sequence[tuple[Fingerprints, int]]) -> Fingerprints:
    """Return those of a trial with so many ranks on each of these nodes."""
    hardware, software, files = (rows.joined((of[side], ranks) for of, ranks in nodes) for side in range(3))
    return hardware, software, files


def known(config: TrialConfig, nodes: Sequence[tuple[Fingerprints, int]]) -> Fingerprints | None:
    """Of a trial with so many ranks on each of these nodes; None where one of them has not said what it is made of, or
    nobody knows whether it has the same data."""
    if not nodes or not all(hardware and software for (hardware, software, _), _ in nodes):
        return None
    if config.data not in WITHOUT_JPEGS and not all(files for (_, _, files), _ in nodes):
        return None
    return joined(nodes)


def of_record(record: TrialRecord) -> Fingerprints:
    """Of the nodes that a trial ran on; blank as far as its record does not tell."""
    where = rows.where(record)
    return where["hardware"], where["software"], where["data_files"]


class Cache:
    """What earlier sweeps have measured of the cells of this one."""

    def __init__(self, measured: Iterable[Mapping[str, Any]] = ()) -> None:
        """Rows of completed trials as `sweeps.trials` has them; of equal ones the last is taken."""
        self._found: dict[tuple[str, str, Fingerprints], Mapping[str, Any]] = {
            (row["trial"], row["arrangement"], (row["hardware"], row["software"], row["data_files"])): row
            for row in measured
        }
        self._trials = {trial for trial, _, _ in self._found}

    def __len__(self) -> int:
        return len(self._found)

    def has(self, config: TrialConfig) -> bool:
        """Return whether a trial was measured somewhere."""
        return config.trial in self._trials

    def outcome(self, config: TrialConfig, nodes: Sequence[tuple[Fingerprints, int]]) -> TrialOutcome | None:
        """What the trial came to with so many ranks on each of such nodes, whichever of them."""
        if not self.has(config) or not (here := known(config, nodes)):
            return None
        row = self._found.get((config.trial, messages.arranged(config.arrangement), here))
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
            data_files=row["data_files"],
            arrangement=row["arrangement"],
            limited_by=row["limited_by"],
            why_withheld=row.get("why_withheld", ""),  # of a store of earlier versions
            figures=row["figures"],
        ),
    )
