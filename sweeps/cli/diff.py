"""`sweep diff A B`: what A and B name, what came out in words, and whether that is a reason to fail.

NAME              a sweep, as `sweep trials` knows it
NAME@DIGEST       its trials on one machine: the beginning of a hardware or software fingerprint
reference:SYSTEM  published figures, by the beginning of the system's name
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from sweeps import errors
from sweeps.analysis import FINGERPRINTS, comparison, plain, references
from sweeps.analysis.comparison import Comparison, Verdict
from sweeps.errors import InputError, Mistake, shown
from sweeps.text import tables

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = "reference:"
MOST_NAMED = 5  # crossovers
MOST_DIGITS = 12  # of a ratio


@dataclasses.dataclass(frozen=True)
class Gate:
    """`slower:3%`: fails where a cell is slower for sure, and by at least so much at best estimate."""

    verdict: Verdict
    least: float


def gate(text: str) -> Gate:
    found = re.fullmatch(r"(slower|faster)(?::([0-9]+(?:\.[0-9]+)?)%)?", text.strip())
    if not found:
        rule = "must be slower:PERCENT or faster:PERCENT, such as slower:3%"
        raise InputError("diff", [Mistake("--fail-if", rule, text)])
    (verdict,) = (known for known in get_args(Verdict) if known == found[1])
    return Gate(verdict, float(found[2] or 0) / 100)


def trials(name: str, store: str = "") -> pd.DataFrame:
    """Return the trials that one side of a diff names."""
    from sweeps.store import query

    if name.startswith(REFERENCE):
        return references.trials(name.removeprefix(REFERENCE))
    sweep, at, digest = name.partition("@")
    found = plain(query.trials(sweep, store=store))
    return on_machine(found, digest, name) if at else found


def on_machine(found: pd.DataFrame, digest: str, place: str) -> pd.DataFrame:
    """Those with a fingerprint that begins so, and those that never ran anywhere."""
    here = {side: found[side].astype(str).str.startswith(digest) & (found[side] != "") for side in FINGERPRINTS}
    known = {side: sorted({*found[side].dropna()} - {""}) for side in FINGERPRINTS}
    chosen = [side for side in FINGERPRINTS if here[side].any()] if digest else []
    fits = [print_ for side in chosen[:1] for print_ in known[side] if print_.startswith(digest)]
    if digest in fits:  # that of unlike nodes may begin with it
        fits, here = [digest], {side: found[side] == digest for side in FINGERPRINTS}
    if len(fits) != 1:
        words = "; ".join(f"{side}: {', '.join(prints) or 'none'}" for side, prints in known.items())
        raise InputError("diff", [Mistake(place, f"must begin one fingerprint of the sweep ({words})", digest)])
    return found[here[chosen[0]] | (found[chosen[0]] == "")]


def diff(a: str, b: str, figure: str = "", *, store: Sequence[str] = ()) -> Comparison:
    """B against A, two names; of another tracking store, or of two: A's and B's."""
    its = {0: ("", ""), 1: (*store, *store), 2: tuple(store)}.get(len(store))
    if not its:
        raise InputError("diff", [Mistake("--store", "must be one for both sides, or A's and B's", len(store))])
    sides = trials(a, its[0]), trials(b, its[1])
    return comparison.compare(*sides, figure or comparison.usual_figure(*sides))


def show(found: Comparison, names: tuple[str, str], form: tables.Format) -> None:
    """Print the cells; as a table with words around it."""
    if form != "table":
        tables.show(found.cells, form)
        return
    a, b = names
    print(f"B against A, {found.figure}\n  A  {a}\n  B  {b}")
    for name, (mine, its) in found.differs.items():
        print(f"  {name}: {mine} | {its}")
    for side, words in found.unlike.items():
        print(f"  {side}'s cells have {words}: differences among them may come from that")
    both = found.cells[~found.cells["why"].isin(comparison.ONLY_IN.values())]
    if len(both):
        tables.show(_written(both, found.axes), "table")
    print(f"\n{summary(found)}")
    for side, why in comparison.ONLY_IN.items():
        if alone := int((found.cells["why"] == why).sum()):
            print(f"{alone} of them are in {side} alone, and not shown; --format csv has them")
    for one in found.crossovers[:MOST_NAMED]:
        print(f"crossover: {one}")
    if len(found.crossovers) > MOST_NAMED:
        print(f"and {len(found.crossovers) - MOST_NAMED} crossovers more")


def _written(cells: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    made = cells[[*axes]].map(lambda value: "–" if value != value else shown(value))
    for side in "ab":
        made[side.upper()] = [tables.cell(value) for value in cells[side]]
    made["B ÷ A"] = [_interval(row) for row in cells.to_dict("records")]
    verdicts = zip(cells["verdict"], cells["why"], strict=True)
    made["verdict"] = [f"{verdict}: {why}" if why else verdict for verdict, why in verdicts]
    return made


def _interval(row: dict[str, float]) -> str:
    if row["ratio"] != row["ratio"]:
        return "–"
    if row["ratio_low"] != row["ratio_low"]:
        return f"{row['ratio']:.3f}"
    low, high = row["ratio_low"], row["ratio_high"]
    is_kept = (n for n in range(3, MOST_DIGITS) if _side(round(low, n), round(high, n)) == _side(low, high))
    digits = next(is_kept, MOST_DIGITS)
    return f"{row['ratio']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _side(low: float, high: float) -> int:
    """Return the side of 1 that an interval lies on, 0 where it holds 1: rounded, it must not change sides."""
    return (low > 1) - (high < 1)


def summary(found: Comparison) -> str:
    """Say how many are what: `Of 88 cells, 3 are faster, …`."""
    counts = ", ".join(f"{n} {verdict}" for verdict in get_args(Verdict) if (n := found.count(verdict)))
    level = "; verdicts and intervals hold for all of them together at 95%" if found.compared > 1 else ""
    return f"{len(found.cells)} cells: {counts or 'none'}{level}"


def failure(found: Comparison, asked: Gate) -> str:
    """Why a gate fails; empty where it holds. One that could judge nothing fails: it would never say anything."""
    if not found.compared:
        return "no cell could be compared"
    beyond = found.beyond(asked.verdict, asked.least)
    words = []
    if len(beyond):
        words.append(f"{len(beyond)} of {found.compared} cells {asked.verdict} by {100 * asked.least:g}% or more")
    if asked.verdict == "slower" and found.lost:
        words.append(f"{found.lost} cells of A have no figure in B, where they were tried")
    return "; ".join(words)


def exit_code(found: Comparison, asked: Gate | None) -> int:
    return errors.SOME_FAILED if asked and failure(found, asked) else errors.DONE
