"""Which cells may be compared, by what they were measured with. The one rule for all who compare them, rank them or
draw a line through them.

hardware, software   must be the same for all cells
data_files           for all that read a folder: of a data axis, the folders are what is compared
arrangement          for all on as many GPUs that were placed alike: of these axes, it is what is compared

What is not as it must be tells cells apart (`apart`): there is a mean, a line and a front for each. A ranking across it
is fair where each cell was measured with each: then it is one more axis, and is named with the cell. Where some cells
were measured with one and some with another, their difference may be that of what they were measured with (`unlike`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from sweeps.spec.plan import HOROVOD
from workers.contract import messages

if TYPE_CHECKING:
    import pandas as pd

FINGERPRINTS = ("hardware", "software")
# Trials on unlike machines, of unlike programs, on other files or with their ranks otherwise on nodes are never
# averaged. Each with the parameters that it may go along with: where these are compared, it is what they mean.
STUDIED_BY: dict[str, tuple[str, ...]] = {
    "hardware": (),
    "software": ("framework",),
    "data_files": ("data", "protocol"),
    "arrangement": ("gpus", "placement", "device", "cores_per_worker"),
}
APART = tuple(STUDIED_BY)
MOST_NAMED = 4


class UnlikeWarning(UserWarning):
    """Cells were ranked that were not measured alike."""


def apart(table: pd.DataFrame) -> list[str]:
    """Return what tells a table's cells apart beside their parameters."""
    return [
        side for side in APART if side in table and len(_cells_known(table, side)) and (_kinds(table, side) > 1).any()
    ]


def along(axis: str, columns: Iterable[str]) -> list[str]:
    """Return those of these columns that go along with an axis: what cells were measured with is part of what is
    compared there, and so are the settings that one framework alone has."""
    return [
        name
        for name in columns
        if axis in STUDIED_BY.get(name, ()) or (axis == "framework" and _is_of_one_framework(name))
    ]


def _is_of_one_framework(name: str) -> bool:
    return name in messages.AXES_OF or name in messages.OF_HOROVOD or name.startswith(HOROVOD)


def conditions(table: pd.DataFrame) -> list[str]:
    """Return those of these columns that cells on different numbers of GPUs must have in common too."""
    return [side for side in apart(table) if side != "arrangement"]


def unlike(table: pd.DataFrame) -> list[str]:
    """Say in what the measured cells of a table differ so that a ranking of them would not be fair."""
    measured = table[table["n"] > 0]
    sides = apart(measured)
    found = [side for side in sides if not _is_crossed(measured, [side])]
    return found or ([] if _is_crossed(measured, sides) else sides)


def named(table: pd.DataFrame, sides: Collection[str]) -> str:
    """`2 software fingerprints (ssss, tttt) and 2 sets of files in /images (00, ff)`."""
    words = []
    for side in sides:
        known = _cells_known(table, side)
        known = known[_kinds(known, side) > 1]
        values = sorted({*known[side]})
        shown = ", ".join(value or "unknown" for value in values[:MOST_NAMED])
        what = f"{side} fingerprints"
        if side == "data_files":
            what = f"sets of files in {', '.join(sorted({*known['data']}))}"
        elif side == "arrangement":
            what = "arrangements of as many ranks that were placed alike"
        words.append(f"{len(values)} {what} ({shown}{', …' if len(values) > MOST_NAMED else ''})")
    return " and ".join(words)


def _cells_known(table: pd.DataFrame, side: str) -> pd.DataFrame:
    """Return the cells of which it is known; what is not known of a measured one is like nothing else, but for
    machines."""
    is_known = table[side] != ""
    return table[is_known if side in FINGERPRINTS else is_known | (table["n"] > 0)]


def _kinds(table: pd.DataFrame, side: str) -> pd.Series:
    """How many there are of it, for each cell of which it is known, where there should be one."""
    known = _cells_known(table, side)
    by = [name for name in STUDIED_BY[side] if name in known]
    return known.groupby(by or (lambda row: 0), dropna=False)[side].transform("nunique")


def _is_crossed(table: pd.DataFrame, sides: list[str]) -> bool:
    """Was each cell measured with each combination of these that others were measured with?"""
    by = [name for name in dict.fromkeys(name for side in sides for name in STUDIED_BY[side]) if name in table]
    both = table[sides].astype(str).agg("\n".join, axis=1) if sides else table["cell"]
    groups = [table[name] for name in by] or [both.map(lambda _: 0)]
    of_all = both.groupby(groups, dropna=False).transform("nunique")
    return not sides or bool((both.groupby(table["cell"]).transform("nunique") == of_all).all())
