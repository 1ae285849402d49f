"""What ran out of memory, and which trials that rules out without running them. Pure.

Memory needed never falls with the batch, all else equal: activations grow with it, and nothing shrinks. Nor does it
fall with more ranks: every rank holds the whole network and its own batch, and the ring adds buffers. The other way
round nothing follows: what was short on eight GPUs may have been the ring's buffers, which one GPU does without. So
a trial that ran out of memory is a *witness* against every trial with at least its batch on at least its GPUs, in
the same placement (a single GPU has none: its witness holds for all), if nothing else that touches memory differs.

Where that argument fails, a witness rules out its own cell's repeats only, as do other reasons to be infeasible: nodes
that are not alike, and host memory that neighbours use too. Where JPEGs are decoded, host memory says nothing of
other GPU counts: the ranks of a node share its decode threads, and what these hold.

An argument isn't a measurement, so a few of the trials that are ruled out run all the same. A witness stands as long
as nothing that it rules out has completed, in whatever order the news comes.
"""

from __future__ import annotations

import dataclasses
import operator
import random
from typing import Any

from sweeps.ledger import TrialRecord
from workers.contract import WITHOUT_JPEGS, TrialConfig, TrialOutcome, nodes_by_ranks

INFERRED = " (inferred)"  # ends the kind of an outcome that nobody measured
ONE_IN = 8  # cells that are ruled out and run all the same
MOST_CHECKS = 3  # of these in a sweep

OF_THE_REPEAT = frozenset({"repeat", "deadlines"})
# No tensor's size depends on these. Whatever is not named is taken to touch memory.
WEIGHTLESS = OF_THE_REPEAT | {
    *("lr_schedule", "momentum", "beta2", "trust", "weight_decay", "cycle_ms", "seed"),
    *("warmup_steps", "measured_steps", "ci", "max_steps", "min_window"),
    *("epochs", "evaluate_every", "checkpoint_every", "target_top1", "target_top5"),
}
COMPARED = frozenset({"batch_size", "gpus", "placement", "arrangement"})
OF_THE_HOST = frozenset({"decode_threads", "cache", "isolation", "cores_per_worker", "worker_memory_gib"})
FIELDS = [field.name for field in dataclasses.fields(TrialConfig)]
# What must be equal for a witness of this kind to count; a cell's own repeats are ruled out whatever the kind.
UNEQUAL = {
    "cell": OF_THE_REPEAT,
    "device memory": WEIGHTLESS | COMPARED | OF_THE_HOST,
    "host memory": WEIGHTLESS | COMPARED,
}
EQUAL = {
    kind: operator.attrgetter(*(name for name in FIELDS if name != "env" and name not in unequal))
    for kind, unequal in UNEQUAL.items()
}

Key = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Inference:
    """Why a trial need not run."""

    trial: str  # the witness
    kind: str
    message: str


def outcome(inference: Inference) -> TrialOutcome:
    """How a trial ends that was ruled out."""
    message = f"inferred from {inference.trial}: {inference.message}"
    return TrialOutcome(status="infeasible", kind=f"{inference.kind}{INFERRED}", message=message)


def is_inferred(outcome: TrialOutcome) -> bool:
    return outcome.kind.endswith(INFERRED)


class Feasibility:
    """What a sweep has learned so far."""

    def __init__(self, seed: int = 0, are_nodes_alike: bool = True) -> None:
        self._seed = seed
        self._are_nodes_alike = are_nodes_alike
        self._witnesses: dict[str, dict[Key, list[TrialRecord]]] = {kind: {} for kind in EQUAL}
        self._completed: dict[str, dict[Key, list[TrialConfig]]] = {kind: {} for kind in EQUAL}
        self._inferred: dict[str, TrialConfig] = {}  # trials that ended so
        self._checks: dict[Key, int] = {}  # a cell that is ruled out and runs all the same: which repeat of it
        self._is_in_doubt = False  # what was inferred, since a witness fell

    def told(self, record: TrialRecord) -> None:
        """How a trial ended, whether it ran or not."""
        config, ended = record.config, record.outcome
        if is_inferred(ended):
            self._inferred[config.trial] = config
            self._is_in_doubt |= not self.is_ruled_out(config)
            return
        self._inferred.pop(config.trial, None)
        if ended.status not in ("completed", "infeasible"):
            return
        if self._is_ruled_out_by_others(config):  # it ran, for whatever reason: that checks as much
            self._checks.setdefault(_key("cell", config), config.repeat)
        if ended.status == "completed":
            self._complete(config)
        else:
            self._testify(record)

    def freed(self) -> list[TrialConfig]:
        """The trials that ended as inferred from a witness that has fallen since, once: they are to be run."""
        if not self._is_in_doubt:
            return []
        self._is_in_doubt = False
        freed = [config for config in self._inferred.values() if not self.is_ruled_out(config)]
        for config in freed:
            del self._inferred[config.trial]
        return freed

    def is_ruled_out(self, config: TrialConfig) -> bool:
        """Is this trial infeasible, by what is known? For who proposes trials."""
        return self._witness(config) is not None

    def inferred(self, config: TrialConfig) -> Inference | None:
        """Why a trial that is about to start need not. None also for one that runs as a check: ask for no others."""
        witness = self._witness(config)
        if witness is None or self._is_check(config):
            return None
        return Inference(witness.config.trial, witness.outcome.kind, witness.outcome.message)

    def _witness(self, config: TrialConfig) -> TrialRecord | None:
        """The first that rules a trial out."""
        for kind, witnesses in self._witnesses.items():
            for witness in witnesses.get(_key(kind, config), ()) if witnesses else ():
                if _rules_out(kind, witness.config, config):
                    return witness
        return None

    def _is_ruled_out_by_others(self, config: TrialConfig) -> bool:
        witness = self._witness(config)
        return witness is not None and _key("cell", witness.config) != _key("cell", config)

    def _is_check(self, config: TrialConfig) -> bool:
        """The first cell that is ruled out by another, then one in eight; one repeat of it."""
        cell = _key("cell", config)
        if cell in self._checks:
            return self._checks[cell] == config.repeat
        if not self._is_ruled_out_by_others(config) or len(self._checks) == MOST_CHECKS:
            return False
        if self._checks and random.Random(f"{self._seed} {config.cell}").randrange(ONE_IN):
            return False
        self._checks[cell] = config.repeat
        return True

    def _testify(self, record: TrialRecord) -> None:
        kind = record.outcome.kind if self._is_monotone(record) else "cell"
        key = _key(kind, record.config)
        if any(_rules_out(kind, record.config, config) for config in self._completed[kind].get(key, ())):
            self._is_in_doubt = True
        else:
            self._witnesses[kind].setdefault(key, []).append(record)

    def _is_monotone(self, record: TrialRecord) -> bool:
        config, kind = record.config, record.outcome.kind
        has_neighbours = config.isolation == "shared" and not config.worker_memory_gib
        return self._are_nodes_alike and kind in EQUAL and not (kind == "host memory" and has_neighbours)

    def _complete(self, config: TrialConfig) -> None:
        for kind in EQUAL:
            key = _key(kind, config)
            self._completed[kind].setdefault(key, []).append(config)
            before = self._witnesses[kind].get(key, [])
            standing = [witness for witness in before if not _rules_out(kind, witness.config, config)]
            if len(standing) < len(before):
                self._witnesses[kind][key] = standing
                self._is_in_doubt = True


def _key(kind: str, config: TrialConfig) -> Key:
    return (*EQUAL[kind](config), *sorted(config.env.items()))


def _rules_out(kind: str, witness: TrialConfig, config: TrialConfig) -> bool:
    """Whether one trial's lack of memory shows the other's, where their keys are equal."""
    if kind == "cell":
        return True
    if config.batch_size < witness.batch_size or config.gpus < witness.gpus:
        return False
    if kind == "host memory" and config.data not in WITHOUT_JPEGS and config.gpus > witness.gpus:
        return False
    return witness.gpus == 1 or _is_at_least(config.placement, witness.placement)


def _is_at_least(placement: str, other: str) -> bool:
    """Neither fewer nodes nor fewer ranks on each, at no fewer GPUs: `4x4` beside `2x4`."""
    form, fewer = nodes_by_ranks(placement), nodes_by_ranks(other)
    if form and fewer:
        return form[0] >= fewer[0] and form[1] >= fewer[1]
    return placement == other
