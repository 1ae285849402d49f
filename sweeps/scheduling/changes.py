"""Whether what a sweep measures now is of the same code and data as what it has measured before. Pure.

Trials of other code, or on other files, are never pooled: their figures stand in rows of their own. Nor do they decide
about others: what ran out of memory rules out nothing, who was stopped or stood at a rung stops nobody. Here is what
the user is told of it, a line for each thing that has changed, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.asha import Arrival
from workers.contract import messages
from workers.contract.messages import Granted

AT_RUNG = "at rung"
SILENT = {"infeasible": "infeasible", "pruned": "stopped by the search", AT_RUNG: "places at rungs"}
FATES = ("completed", "infeasible", "pruned")  # of trials whose end says something of others
OF_TORCH = "software of torch"  # among the kinds of what trials are measured with; that of TensorFlow is ""
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
        self._facts = {software["digest"]: software for node in nodes for _, software in _software(node)}
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
        """Return what to say of a node that has just said what it is made of."""
        name, lines = str(node["node"]), []
        for kind, software in _software(node):
            lines += self._news(kind, software["digest"], self._changed(kind, software), name)
            self._facts[software["digest"]] = software
            self._met.setdefault(kind, {}).setdefault(software["digest"], name)
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
        """Return what to say of a trial that has ended: its ranks may have found other files than its nodes told of."""
        lines = []
        if record.outcome.status == "completed" and not record.outcome.cached:
            for place in {(one.node, one.software, one.data_files): one for one in record.outcome.granted}.values():
                if record.config.own_code:
                    lines += self._edited(record, place)
                else:
                    ours = _kind("", record.config.framework)
                    lines += self._strange(ours, place.software, "the code in workers/", record, place)
                folder = record.config.data
                lines += self._strange(folder, place.data_files, f"the data in {folder}", record, place)
        self._count(record)
        return lines

    def _count(self, record: TrialRecord) -> None:
        cached, places, status = record.outcome.cached, record.outcome.granted, record.outcome.status
        if status not in FATES or record.outcome.inferred_from:
            return
        software = messages.digests(cached.software) if cached else [place.software for place in places]
        files = messages.digests(cached.data_files) if cached else [place.data_files for place in places]
        of_code = _kind(record.config.own_code, record.config.framework)
        for kind, found in ((of_code, software), (record.config.data, files)):
            if known := {*found} - {""}:
                self._add(kind, known, status)

    def _count_arrival(self, arrival: Arrival) -> None:
        made, folder = arrival.equals, arrival.equals.asked_for("data")
        if arrival.is_at_rung:
            self._add(_kind("", arrival.framework), {*messages.digests(made.software)} - {""}, AT_RUNG)
            self._add(folder, {*messages.digests(made.data_files)} - {""}, AT_RUNG)

    def _add(self, kind: str, digests: set[str], fate: str) -> None:
        self._measured.setdefault(kind, Counter()).update(digests)
        self._fates.setdefault(kind, Counter())[fate] += bool(digests)

    def _news(self, kind: str, now: str, what: str, node: str) -> list[str]:
        """Say what is new of a node on which nothing is as it was when trials were measured before."""
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
        """Return what becomes of what was measured before."""
        fates = self._fates[kind]
        kept = f"{fates['completed']} completed stay in rows of their own" if fates["completed"] else ""
        silent = [f"{fates[fate]} {words}" for fate, words in SILENT.items() if fates[fate]]
        said = f"{', '.join(silent)} decide nothing about trials from here on" if silent else ""
        return ", ".join(filter(None, (kept, said)))

    def _strange(self, kind: str, now: str, what: str, record: TrialRecord, place: Granted) -> list[str]:
        """Say what a rank ran or read that no node had when it was met."""
        met = self._met.get(kind)
        if not now or not met or now in met or not self._is_new(kind, now):
            return []
        return [
            f"trials that are pooled must have been measured alike, but {what} was changed while the sweep ran, before"
            f" {record.config.trial} started on {place.node} (then {next(iter(met)) or 'none'}; now {now}): it stays"
            f" in a row of its own; {CURE}"
        ]

    def _edited(self, record: TrialRecord, place: Granted) -> list[str]:
        """Of a trial whose user's code, or what that runs on, is not what earlier trials were measured with."""
        kind = _kind(record.config.own_code, record.config.framework)
        before = self._measured.get(kind)
        if not before or place.software in before or not self._is_new(kind, place.software):
            return []
        what = "your own code, or the code and software that it runs on, was changed"
        return [
            f"trials that are pooled must have been measured alike, but {what} before {record.config.trial} started on"
            f" {place.node} (now {place.software}): it stays in a row of its own"
        ]

    def _is_new(self, kind: str, now: str) -> bool:
        is_new = (kind, now) not in self._reported
        self._reported.add((kind, now))
        return is_new

    def _changed(self, kind: str, now: Mapping[str, Any]) -> str:
        """Return what of the software is not as it was with the most trials."""
        usual = self._measured.get(kind, Counter()).most_common(1)
        before = self._facts.get(usual[0][0], {}) if usual else {}
        names = [name for name in {**before, **now} if name not in BY_THEMSELVES and before.get(name) != now.get(name)]
        if not before or not names:
            return "the software"
        return " and ".join(_words(name, before.get(name), now.get(name)) for name in names)


def _kind(own_code: str, framework: str) -> str:
    """Return the kind of a trial's software: each framework has its own, of a user's own code too."""
    return f"{own_code} {OF_TORCH}".lstrip() if framework == "torch" else own_code


def _software(node: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the software that a node has, by kind: ranks of each framework load their own."""
    return [("", node["software"]), *([(OF_TORCH, node["torch_software"])] if "torch_software" in node else [])]


def _words(name: str, before: Any, now: Any) -> str:
    """Return what a fact of the software is about, where it is not as it was."""
    if name == "code":
        return "the code in workers/"
    if name != "package_contents":
        return name.replace("_", " ")
    if not before:  # an earlier version did not look
        return "what a fingerprint tells of packages"
    return "what is installed of " + ", ".join(
        of for of in {**before, **(now or {})} if before.get(of) != (now or {}).get(of)
    )
