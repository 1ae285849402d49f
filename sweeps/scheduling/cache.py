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
from workers.contract.messages import Cached, TrialConfig, TrialOutcome, has_jpegs

# Of a node's hardware and software, and of the files of a trial there; of a gang, each as `messages.joined` has it.
Fingerprints = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class NodeContents:
    """What a node is made of, and what data it has."""

    hardware: str = ""
    software: str = ""
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by folder
    torch_software: str = ""  # of ranks of torch; empty where it has none

    def fingerprints(self, config: TrialConfig) -> Fingerprints:
        """Return its fingerprints as far as a trial is concerned."""
        software = self.torch_software if config.framework == "torch" else self.software
        return self.hardware, software, self.data.get(config.data, "")


def contents(node: Mapping[str, Any]) -> NodeContents:
    """Return what a node says that it is made of."""
    torch_software = node.get("torch_software", {}).get("digest", "")
    return NodeContents(node["hardware"]["digest"], node["software"]["digest"], node.get("data", {}), torch_software)


def joined(nodes: Sequence[tuple[Fingerprints, int]]) -> Fingerprints:
    """Return those of a trial with so many ranks on each of these nodes."""
    hardware, software, files = (messages.joined((of[side], ranks) for of, ranks in nodes) for side in range(3))
    return hardware, software, files


def fingerprints(config: TrialConfig, nodes: Sequence[tuple[Fingerprints, int]]) -> Fingerprints | None:
    """Return the fingerprints of a trial with so many ranks on each of these nodes; None where one of them has not said
    what it is made of, or nobody knows whether it has the same data."""
    if not nodes or not all(hardware and software for (hardware, software, _), _ in nodes):
        return None
    if has_jpegs(config.data) and not all(files for (_, _, files), _ in nodes):
        return None
    return joined(nodes)


def of_record(record: TrialRecord) -> Fingerprints:
    """Return the fingerprints of the nodes that a trial ran on; blank as far as its record does not tell."""
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
        """Return what the trial came to with so many ranks on each of such nodes, whichever of them."""
        if not self.has(config) or not (here := fingerprints(config, nodes)):
            return None
        row = self._found.get((config.trial, messages.arranged(config.arrangement), here))
        return _again(row) if row else None


def _again(row: Mapping[str, Any]) -> TrialOutcome:
    date = datetime.datetime.fromtimestamp(row["started_at"], datetime.UTC).date()
    estimators, figures = row.get("estimators", ""), row["figures"]  # a store of earlier versions does not tell
    is_whole = estimators == rows.ESTIMATORS or figures.keys().isdisjoint(rows.ESTIMATED)
    left_out = "" if is_whole else "; its shares of a step, which another version has estimated, are left out"
    return TrialOutcome(
        status="completed",
        kind="cached",
        message=f"cached (measured {date}, {row['sweep']}{left_out})",
        cached=Cached(
            sweep=row["sweep"],
            measured_at=row["started_at"],
            hardware=row["hardware"],
            software=row["software"],
            data_files=row["data_files"],
            arrangement=row["arrangement"],
            limited_by=row["limited_by"],
            why_withheld=row.get("why_withheld", ""),  # of a store of earlier versions
            estimators=estimators,
            figures=figures,
        ),
    )
