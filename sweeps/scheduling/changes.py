"""Whether what a sweep measures now is of the same code and data as what it has measured before. Pure.

Trials of other code, or on other files, are never pooled: their figures stand in rows of their own. Nor do they decide
about others: what ran out of memory rules out nothing, who was stopped or stood at a rung stops nobody. Here is what
the user is told of it, a line for each thing that has changed, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.asha import Arrival
from workers.contract.messages import Granted

AT_RUNG = "at rung"
SILENT = {"infeasible": "infeasible", "pruned": "stopped by the search", AT_RUNG: "places at rungs"}
FATES = ("completed", "infeasible", "pruned")  # of trials whose end says something of others
BY_THEMSELVES = ("digest", "project")  # facts of the software that are no part of its fingerprint
CURE = "to have all measured alike: run the file again, as a sweep of its own"


class Sameness:
    """What the trials of a sweep were measured with, so far."""

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]] = (),
        trials: Iterable[TrialRecord] = (),
        arrivals: Iterable[Arrival] = (),
    ) -> None:
        """Nodes and trials of the sweep before it went on, and who stood at its rungs."""
        self._facts = {node["software"]["digest"]: node["software"] for node in nodes}
        self._measured: dict[str, Counter[str]] = {"": Counter()}  # trials by fingerprint: of files, by folder; "" is
        # the software's
        self._fates: dict[str, Counter[str]] = {"": Counter()}  # likewise: how often something ended how
        for record in trials:
            self._count(record)
        for arrival in arrivals:
            self._count_arrival(arrival)
        self._met: dict[str, dict[str, str]] = {"": {}}  # likewise: the node that has it, since the sweep goes on
        self._reported: set[tuple[str, str]] = set()

    def met(self, node: Mapping[str, Any]) -> list[str]:
        """What to say of a node that has just said what it is made of."""
        name, software = str(node["node"]), node["software"]
        lines = self._news("", software["digest"], self._changed(software), name)
        self._facts[software["digest"]] = software
        self._met[""].setdefault(software["digest"], name)
        for folder, files in node.get("data", {}).items():
            lines += self._news(folder, files, f"the data in {folder}", name)
            known = self._met.setdefault(folder, {})
            if known and files not in known:
                first = next(iter(known.values()))
                lines.append(
                    f"{folder} must hold the same files on every node, but their names, sizes or times differ on"
                    f" {first} and {name}: what is measured on one is not pooled with the other; copy them with their"
                    " times, as rsync -a does"
                )
            known.setdefault(files, name)
        return lines

    def ended(self, record: TrialRecord) -> list[str]:
        """What to say of a trial that has ended: its ranks may have found other files than its nodes told of."""
        lines = []
        if record.outcome.status == "completed" and not record.outcome.cached:
            for place in record.outcome.granted:
                lines += self._strange("", place.software, "the code in workers/", record, place)
                folder = record.config.data
                lines += self._strange(folder, place.data_files, f"the data in {folder}", record, place)
        self._count(record)
        return lines

    def _count(self, record: TrialRecord) -> None:
        cached, places, status = record.outcome.cached, record.outcome.granted, record.outcome.status
        if status not in FATES or record.outcome.inferred_from:
            return
        software = rows.digests(cached.software) if cached else [place.software for place in places]
        files = rows.digests(cached.data_files) if cached else [place.data_files for place in places]
        for kind, found in (("", software), (record.config.data, files)):
            if known := {*found} - {""}:
                self._add(kind, known, status)

    def _count_arrival(self, arrival: Arrival) -> None:
        made, folder = arrival.equals, arrival.equals.asked_for("data")
        if arrival.is_at_rung:
            self._add("", {*rows.digests(made.software)} - {""}, AT_RUNG)
            self._add(folder, {*rows.digests(made.data_files)} - {""}, AT_RUNG)

    def _add(self, kind: str, digests: set[str], fate: str) -> None:
        self._measured.setdefault(kind, Counter()).update(digests)
        self._fates.setdefault(kind, Counter())[fate] += bool(digests)

    def _news(self, kind: str, now: str, what: str, node: str) -> list[str]:
        """Of a node on which nothing is as it was when trials were measured before."""
        before = self._measured.get(kind)
        if not before or now in before or not self._is_new(kind, now):
            return []
        count = sum(self._fates[kind][status] for status in FATES)
        were = ", ".join(digest for digest, _ in before.most_common(2))
        since = f"{count} of this sweep's trials were" if count else "this sweep began"
        return [
            f"trials that are pooled or judged must have been measured alike, but {what} has changed since {since}"
            f" (then {were}; now {now or 'none'}, on {node}): {self._fate(kind)}; {CURE}"
        ]

    def _fate(self, kind: str) -> str:
        """What becomes of what was measured before."""
        fates = self._fates[kind]
        kept = f"{fates['completed']} completed stay in rows of their own" if fates["completed"] else ""
        silent = [f"{fates[fate]} {words}" for fate, words in SILENT.items() if fates[fate]]
        said = f"{', '.join(silent)} decide nothing about trials from here on" if silent else ""
        return ", ".join(filter(None, (kept, said)))

    def _strange(self, kind: str, now: str, what: str, record: TrialRecord, place: Granted) -> list[str]:
        """Of a rank that ran or read what no node had when it was met."""
        met = self._met.get(kind)
        if not now or not met or now in met or not self._is_new(kind, now):
            return []
        return [
            f"trials that are pooled must have been measured alike, but {what} was changed while the sweep ran, before"
            f" {record.config.trial} started on {place.node} (then {next(iter(met)) or 'none'}; now {now}): it stays"
            f" in a row of its own; {CURE}"
        ]

    def _is_new(self, kind: str, now: str) -> bool:
        is_new = (kind, now) not in self._reported
        self._reported.add((kind, now))
        return is_new

    def _changed(self, now: Mapping[str, Any]) -> str:
        """What of the software is not as it was with the most trials."""
        usual = self._measured[""].most_common(1)
        before = self._facts.get(usual[0][0], {}) if usual else {}
        names = [name for name in {**before, **now} if name not in BY_THEMSELVES and before.get(name) != now.get(name)]
        if not before or not names:
            return "the software"
        return " and ".join("the code in workers/" if name == "code" else name.replace("_", " ") for name in names)
