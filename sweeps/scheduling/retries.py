"""What is tried again, where, and which nodes are given no more trials. Pure.

A trial has a budget of retries by cause: three when its node went or lacks what it needs, one when nobody knows why its
ranks ended, none when the trial itself is at fault. It is tried on other nodes, if others can hold it. A node on which
attempts at several trials ended badly, one after the other, is set aside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Literal

from sweeps.record.ledger import TrialRecord
from workers.contract.messages import TrialOutcome

Cause = Literal["node", "unknown", "own"]
RETRIES: dict[Cause, int] = {"node": 3, "unknown": 1, "own": 0}
UNKNOWN = (
    "killed",
    "exited",
    "stalled",
    "ring broken",  # of every rank, and none has a reason of its own: what lies between them did it
    "fork server gone",
    "no fork server",
    "no rendezvous",
    "trial actor lost",
)
OF_ITS_NODE = ("no torch",)  # kinds of failure of which another node may be free
IN_A_ROW = 3  # bad ends of different trials before a node is set aside


def cause(outcome: TrialOutcome) -> Cause:
    """Why a trial did not come to a result."""
    if outcome.kind in UNKNOWN:
        return "unknown"
    return "node" if outcome.status == "lost" or outcome.kind in OF_ITS_NODE else "own"


class Faults:
    """The retries of every trial and the record of every node."""

    def __init__(self) -> None:
        self._retries: dict[str, Counter[Cause]] = defaultdict(Counter)  # by trial
        self._bad: dict[str, list[str]] = defaultdict(list)  # by node: the trials that ended badly there in a row
        self.avoid: dict[str, set[str]] = defaultdict(set)  # by trial: nodes on which it ended badly

    def tell(self, record: TrialRecord, nodes: Collection[str]) -> bool:
        """Take in that an attempt on these nodes has ended; say whether the trial is tried again. The nodes are those
        to blame where they are known, else all that it ran on."""
        trial, outcome = record.config.trial, record.outcome
        if outcome.status not in ("failed", "lost"):
            for node in nodes:
                self._bad.pop(node, None)
            return False
        for node in nodes:
            self._bad[node].append(trial)
        why = cause(outcome)
        if self._retries[trial][why] >= RETRIES[why]:
            return False
        self._retries[trial][why] += 1
        self.avoid[trial] |= set(nodes)
        return True

    def resumed(self, trial: str, outcome: TrialOutcome, nodes: Collection[str]) -> None:
        """Take an attempt into account that was tried again before the driver stopped. Its nodes are avoided, but start
        anew themselves: whoever goes on with a sweep may have mended them."""
        self._retries[trial][cause(outcome)] += 1
        self.avoid[trial] |= set(nodes)

    @property
    def bad_nodes(self) -> dict[str, str]:
        """Nodes that keep failing, and on what."""
        return {
            node: ", ".join(dict.fromkeys(trials[-IN_A_ROW:]))
            for node, trials in self._bad.items()
            if len(set(trials)) > 1 and len(trials) >= IN_A_ROW
        }
