"""What ran out of memory, and which trials that rules out without running them. Pure.

Memory needed never falls with the batch, all else equal: activations grow with it, and nothing shrinks. Nor does it
fall with more ranks: every rank holds the whole network and its own batch, and the ring adds buffers. The other way
round nothing follows: what was short on eight GPUs may have been the ring's buffers, which one GPU does without. So
a trial that ran out of memory is a *witness* against every trial with at least its batch on at least its GPUs, in
the same placement (a single GPU has none: its witness holds for all), if nothing else that touches memory differs.

All of it is said of the same code, data and hardware only: what ran out of memory with other code, or on other nodes,
says nothing of trials here, neither in one sweep nor after `sweep resume`.

Where the argument fails, a witness rules out its own cell's repeats only, as do other reasons to be infeasible: unlike
nodes in one gang, and host memory that neighbours use too. Where JPEGs are decoded, host memory says nothing of
other GPU counts: the ranks of a node share its decode threads, and what these hold.

An argument isn't a measurement, so a few of the trials that are ruled out run all the same. A witness stands as long
as nothing that it rules out has completed, in whatever order the news comes.
"""

from __future__ import annotations

import dataclasses
import operator
import random
from typing import Any

from sweeps.record.ledger import TrialRecord
from sweeps.scheduling import cache
from sweeps.scheduling.cache import Fingerprints
from workers.contract.messages import WITHOUT_JPEGS, TrialConfig, TrialOutcome, nodes_by_ranks

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
OF_NAMES = ("env", "own", "targets")  # each holds several by name; the last is no matter of memory
# What must be equal for a witness of this kind to count; a cell's own repeats are ruled out whatever the kind.
UNEQUAL = {
    "cell": OF_THE_REPEAT,
    "device memory": WEIGHTLESS | COMPARED | OF_THE_HOST,
    "host memory": WEIGHTLESS | COMPARED,
}
EQUAL = {
    kind: operator.attrgetter(*(name for name in FIELDS if name not in OF_NAMES and name not in unequal))
    for kind, unequal in UNEQUAL.items()
}

Key = tuple[Any, ...]
NOWHERE: Fingerprints = ("", "", "")  # where nothing is known of nodes


class Feasibility:
    """What a sweep has learned so far, of each code, data and hardware by itself."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._alike: dict[Fingerprints, _Alike] = {}
        self._inferred: dict[str, TrialConfig] = {}  # trials that ended so
        self._is_in_doubt = False  # what was inferred, since a witness fell

    def tell(self, record: TrialRecord) -> None:
        """How a trial ended, whether it ran or not."""
        config, ended = record.config, record.outcome
        if ended.inferred_from:
            self._inferred[config.trial] = config
            self._is_in_doubt |= not self._is_explained(config)
            return
        self._inferred.pop(config.trial, None)
        if ended.status in ("completed", "infeasible"):
            self._is_in_doubt |= self._knowledge(cache.of_record(record)).tell(record)

    def freed(self) -> list[TrialConfig]:
        """Return the trials that ended as inferred from a witness that has fallen since, once: they are to be run."""
        if not self._is_in_doubt:
            return []
        self._is_in_doubt = False
        freed = [config for config in self._inferred.values() if not self._is_explained(config)]
        for config in freed:
            del self._inferred[config.trial]
        return freed

    def is_ruled_out(self, config: TrialConfig, here: Fingerprints = NOWHERE) -> bool:
        """Is this trial infeasible, by what is known? For who proposes trials."""
        return here in self._alike and self._alike[here].witness(config) is not None

    def inferred(self, config: TrialConfig, here: Fingerprints = NOWHERE) -> TrialOutcome | None:
        """How a trial that is about to start on such nodes ends without having run. None also for one that runs as a
        check: ask for no others."""
        witness = self._alike[here].witness(config) if here in self._alike else None
        if witness is None or self._alike[here].is_check(config):
            return None
        return TrialOutcome(
            status="infeasible",
            kind=witness.outcome.kind,
            message=witness.outcome.message,
            inferred_from=witness.config.trial,
        )

    def _knowledge(self, made: Fingerprints) -> _Alike:
        return self._alike.setdefault(made, _Alike(self._seed, are_nodes_alike="+" not in made[0]))

    def _is_explained(self, config: TrialConfig) -> bool:
        """Say whether it was inferred from a witness of its own, whatever its code, data and hardware."""
        return any(alike.witness(config) for alike in self._alike.values())


class _Alike:
    """What is known of trials of one code, on one set of files and one kind of nodes."""

    def __init__(self, seed: int, are_nodes_alike: bool) -> None:
        self._seed = seed
        self._are_nodes_alike = are_nodes_alike
        self._witnesses: dict[str, dict[Key, list[TrialRecord]]] = {kind: {} for kind in EQUAL}
        self._completed: dict[str, dict[Key, list[TrialConfig]]] = {kind: {} for kind in EQUAL}
        self._checks: dict[Key, int] = {}  # a cell that is ruled out and runs all the same: which repeat of it

    def tell(self, record: TrialRecord) -> bool:
        """How a trial ended that ran; whether a witness has fallen with that."""
        if self._is_ruled_out_by_others(record.config):  # it ran, for whatever reason: that checks as much
            self._checks.setdefault(_key("cell", record.config), record.config.repeat)
        return self._complete(record.config) if record.outcome.status == "completed" else self._testify(record)

    def witness(self, config: TrialConfig) -> TrialRecord | None:
        """Return the first trial that rules this one out."""
        for kind, witnesses in self._witnesses.items():
            for witness in witnesses.get(_key(kind, config), ()) if witnesses else ():
                if _rules_out(kind, witness.config, config):
                    return witness
        return None

    def _is_ruled_out_by_others(self, config: TrialConfig) -> bool:
        witness = self.witness(config)
        return witness is not None and _key("cell", witness.config) != _key("cell", config)

    def is_check(self, config: TrialConfig) -> bool:
        """Say whether it is run all the same: the first cell that is ruled out by another, then one in eight; one
        repeat of it."""
        cell = _key("cell", config)
        if cell in self._checks:
            return self._checks[cell] == config.repeat
        if not self._is_ruled_out_by_others(config) or len(self._checks) == MOST_CHECKS:
            return False
        if self._checks and random.Random(f"{self._seed} {config.cell}").randrange(ONE_IN):
            return False
        self._checks[cell] = config.repeat
        return True

    def _testify(self, record: TrialRecord) -> bool:
        kind = record.outcome.kind if self._is_monotone(record) else "cell"
        key = _key(kind, record.config)
        is_refuted = any(_rules_out(kind, record.config, config) for config in self._completed[kind].get(key, ()))
        if not is_refuted:
            self._witnesses[kind].setdefault(key, []).append(record)
        return is_refuted

    def _is_monotone(self, record: TrialRecord) -> bool:
        config, kind = record.config, record.outcome.kind
        has_neighbours = config.isolation == "shared" and not config.worker_memory_gib
        return self._are_nodes_alike and kind in EQUAL and not (kind == "host memory" and has_neighbours)

    def _complete(self, config: TrialConfig) -> bool:
        has_one_fallen = False
        for kind in EQUAL:
            key = _key(kind, config)
            self._completed[kind].setdefault(key, []).append(config)
            before = self._witnesses[kind].get(key, [])
            standing = [witness for witness in before if not _rules_out(kind, witness.config, config)]
            if len(standing) < len(before):
                self._witnesses[kind][key] = standing
                has_one_fallen = True
        return has_one_fallen


def _key(kind: str, config: TrialConfig) -> Key:
    return (*EQUAL[kind](config), *sorted(config.env.items()), *sorted(config.own.items()))


def _rules_out(kind: str, witness: TrialConfig, config: TrialConfig) -> bool:
    """Say whether one trial's lack of memory shows the other's, where their keys are equal."""
    if kind == "cell":
        return True
    if config.script:  # nobody knows what its axes do to its memory
        return False
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
