"""A trial's state after an epoch, as one file that is there whole or not at all.

It says with what its epochs were measured (`made`): the software and the files of all ranks, the hardware of their
nodes, their arrangement. A gang goes on from a checkpoint of the same only, and begins anew where anything differs:
the figures of a trial are of one code, on one set of files, on one kind of nodes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.contract import messages
from workers.contract.messages import EpochRecord
from workers.contract.paths import written_whole
from workers.contract.ranks import Fault
from workers.strategies.ring import Ring, gathered

Made = Mapping[str, str]
Array = npt.NDArray[Any]
OF_A_RANK = ("software", "data_files")  # each rank has its own
WORDS = {
    "software": "software or code in workers/",
    "data_files": "files of data",
    "hardware": "hardware of the nodes",
    "arrangement": "nodes x ranks",
}


@dataclasses.dataclass(frozen=True)
class Kept:
    """What a checkpoint says of itself."""

    epochs: tuple[EpochRecord, ...]
    made: Made | None  # None: written by a version that did not say

    def is_beyond(self, before: Kept | None) -> bool:
        """Say whether an attempt has left this one that found the other: more epochs of the same, or its own first
        ones."""
        return before is None or self.made != before.made or len(self.epochs) > len(before.epochs)


def joined(ranks: Iterable[tuple[Hashable, str]]) -> str:
    """Return what ranks have, each given with its node: a digest alone where all have the same; else each with its
    nodes x ranks, so that 3 + 1 ranks on unlike nodes are not 1 + 3."""
    return messages.joined((digest, count) for (_, digest), count in Counter(ranks).items())


def of_gang(ring: Ring, own: Made, local_rank: int) -> Made:
    """Return with what a gang measures, the same at every rank. Ranks sit node by node."""
    words = gathered(ring, json.dumps([local_rank, *(own.get(name, "") for name in OF_A_RANK)]))
    places, *sides = zip(*(json.loads(word) for word in words), strict=True)
    nodes = [*itertools.accumulate(place == 0 for place in places)]
    joint = {name: joined(zip(nodes, side, strict=True)) for name, side in zip(OF_A_RANK, sides, strict=True)}
    return {**own, **joint}


def save(path: Path, state: Sequence[Array], epochs: Sequence[EpochRecord], made: Made) -> None:
    header = {"made": dict(made), "epochs": [messages.to_json(epoch) for epoch in epochs]}
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, np.array(json.dumps(header)), *state)


def kept(path: Path) -> Kept | None:
    """Return what a checkpoint says of itself; None where there is none. Reads nothing of its state."""
    if not path.exists():
        return None
    try:
        with np.load(path) as saved:
            header = json.loads(str(saved["arr_0"]))
        is_signed = isinstance(header, dict)
        epochs = tuple(EpochRecord(**epoch) for epoch in (header["epochs"] if is_signed else header))
        return Kept(epochs, header["made"] if is_signed else None)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise _not_ours(path, error) from error


def peek(path: Path) -> Kept | None:
    """Return what lies there, for who only looks: a file that is no checkpoint is for the ranks to refuse."""
    try:
        return kept(path)
    except Fault:
        return None


def load(path: Path, restore: Callable[[Sequence[Array]], None], made: Made) -> tuple[tuple[EpochRecord, ...], str]:
    """Restore what was saved, and give back the epochs until then; none where nothing was saved.

    None either where that was not measured with what runs now, and then in words why: the gang begins anew.
    """
    found = kept(path)
    if found is None:
        return (), ""
    if why := unlike(found, made):
        return (), f"{why}: the trial begins anew, and its {len(found.epochs)} epochs there count in no figure ({path})"
    try:
        with np.load(path) as saved:
            values = [saved[f"arr_{n}"] for n in range(1, len(saved.files))]
        restore(values)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _not_ours(path, error) from error
    return found.epochs, ""


def unlike(found: Kept, made: Made) -> str:
    """Say why a gang must not go on from a checkpoint; nothing where it may."""
    rule = "a trial goes on from a checkpoint of the same software, data, hardware and arrangement only, but it"
    if found.made is None:
        return f"{rule} was written by an earlier version, which did not say of what it was"
    others = [name for name in WORDS if found.made.get(name, "") != made.get(name, "")]
    differing = [f"{WORDS[name]} (then {found.made.get(name) or '–'}, now {made.get(name) or '–'})" for name in others]
    return f"{rule} is of other {', other '.join(differing)}" if differing else ""


def _not_ours(path: Path, error: Exception) -> Fault:
    return Fault("checkpoint", f"{path} must be this trial's checkpoint, but {error}: remove it")
