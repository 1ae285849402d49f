"""What the axes of a sweep are worth: which of them explains most, and each number format and framework over the first.

Shares and ratios are given with their intervals, and called what these show: an axis explains the most where its whole
interval lies above all others'; a format is faster where the interval of its ratio leaves 1. The intervals of all
shares hold together (`analysis.effects`), and so do those of all ratios (Bonferroni; `analysis.joint`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from sweeps import analysis
from sweeps.analysis import CONFIDENCE, alike, joint
from sweeps.analysis.findings.finding import Finding, Sureness
from sweeps.spec.plan import HOROVOD

if TYPE_CHECKING:
    import pandas as pd

    from sweeps.analysis.study import Study

Rated = Literal["precision", "framework"]  # axes whose values are held against the first of them
FIRST: dict[Rated, tuple[str, ...]] = {"precision": ("fp32", "tf32"), "framework": ("tensorflow",)}
MOST_NAMED = 3  # axes, and pairs of them
MOST_RATED = 6  # ratios that are said, each of cells with other settings of one framework alone
CLEARLY = 0.01  # of the variance, that an axis or a pair explains


def findings(study: Study) -> Iterator[Finding]:
    if found := explained(study):
        yield found
    for axis in FIRST:
        yield from rated(study, axis)


def explained(study: Study) -> Finding | None:
    """Which axis explains most of the differences between the cells; None where there are no two, or where none
    explains anything that others don't, as where each value of an axis was tried once."""
    if study.effects.empty:
        return None
    shares = study.effects.drop_duplicates("axis").sort_values("share", ascending=False, kind="stable")
    first, rest = shares.iloc[0], shares.iloc[1:]
    figure = "top-1" if study.is_convergence else "throughput"
    named = [f"{study.word(row['axis'])} {_share(row)}" for row in shares[:MOST_NAMED].to_dict("records")]
    if left := len(shares) - len(named):
        named.append(f"{left} other{'s' * (left > 1)} less")
    sureness: Sureness = "open"
    if (first["share_low"], first["share_high"]) == (0, 1):
        says = f"Which axis matters is open: the cells differ in {figure} by no more than their repeats do."
        return Finding(rule="what matters", severity="note", sureness=sureness, says=says, evidence=_shares(shares))
    if first["share"] <= CLEARLY:
        return None
    if not _is_known(first):
        sureness = "estimated"
        says = (
            f"By means, what axes explain by themselves of the differences in {figure} between the cells is"
            f" {', '.join(named)}; cells with a single repeat leave open how much of that is noise."
        )
    elif rest.empty or first["share_low"] > rest["share_high"].max():
        sureness = "shown"
        says = (
            f"Of the differences in {figure} between the cells, **{study.word(first['axis'])}** explains the most by"
            f" itself: {', '.join(named)}."
        )
    else:
        says = f"Which axis explains most of the differences in {figure} is open: {', '.join(named)}."
    says += "".join(_together(study))
    return Finding(rule="what matters", severity="note", sureness=sureness, says=says, evidence=_shares(shares))


def _together(study: Study) -> Iterator[str]:
    """Yield the pairs of axes that explain something beyond each by itself, as far as repeats show it."""
    pairs = study.interactions
    least = pairs["share_low"].where(pairs["share_low"].notna(), pairs["share"])
    strong = pairs[least > CLEARLY].head(MOST_NAMED)
    if len(strong):
        words = ", ".join(
            f"{study.word(row['axis'])} with {study.word(row['other'])} {_share(row)}"
            for row in strong.to_dict("records")
        )
        yield f" Together, beyond each by itself: {words}."


def _share(row: Any) -> str:
    within = f" ({row['share_low']:.0%} to {row['share_high']:.0%})" if _is_known(row) else ""
    return f"{row['share']:.0%}{within}"


def _is_known(row: Any) -> bool:
    return bool(row["share_low"] == row["share_low"])


def _shares(shares: pd.DataFrame) -> dict[str, float]:
    ends = ("share", "share_low", "share_high")
    return {f"{row['axis']}_{end}": float(row[end]) for row in shares.to_dict("records") for end in ends}


@dataclasses.dataclass(frozen=True)
class Gain:
    """One cell's throughput over that of a cell which differs in this axis alone, and in what goes along with it."""

    at: str  # on the axis
    own: tuple[tuple[str, ...], tuple[str, ...]]  # what goes along, in words: of the cell, of the one below
    cell: str
    ratio: float
    low: float  # of an interval that holds together with all others; NaN where a side has a single repeat
    high: float


def points(study: Study, axis: Rated) -> list[str]:
    """Return what of an axis was measured, first the one that others are held against; empty of fewer than two."""
    if axis not in study.axes or study.is_convergence:
        return []
    measured = {*study.measured[axis]}
    found = [str(at) for at in study.values(axis) if at in measured]
    base = next((at for at in FIRST[axis] if at in found), found[0] if found else "")
    return [base, *(at for at in found if at != base)] if len(found) > 1 else []


def gains(study: Study, axis: Rated) -> list[Gain]:
    """Each measured cell that has one of the axis' first beside it."""
    import numpy as np

    known = points(study, axis)
    if not known:
        return []
    table = study.measured.reset_index(drop=True)
    pairs = []
    for _, group in table.groupby(same(study, axis) or (lambda row: 0), sort=False, dropna=False):
        at = {name: list(group.index[group[axis] == name]) for name in known}
        pairs += [(one, first) for name in known[1:] for one in at[name] for first in at[known[0]]]
    if not pairs:
        return []
    rates = table["images_per_s"].to_numpy(float)
    variances, freedom = analysis.log_spread(study.trials, table, "images_per_s")
    both: Any = np.array(pairs).T
    half = joint.half_width(variances[both], freedom[both], 1 - (1 - CONFIDENCE) / len(pairs))
    ratios = rates[both[0]] / rates[both[1]]
    owns = {place: own(study, axis, table.loc[place]) for pair in pairs for place in pair}
    return [
        Gain(
            str(table[axis][place]),
            (owns[place], owns[first]),
            table["cell"][place],
            ratio,
            ratio / math.exp(by),
            ratio * math.exp(by),
        )
        for (place, first), ratio, by in zip(pairs, ratios.tolist(), half.tolist(), strict=True)
    ]


def same(study: Study, axis: Rated) -> list[str]:
    """Return the other axes that cells must have in common to be held against each other on this one."""
    goes_along = alike.along(axis, study.axes)
    return [one for one in study.axes if one not in (axis, *goes_along)]


def own(study: Study, axis: Rated, cell: Any) -> tuple[str, ...]:
    """Return what of a cell goes along with an axis, in words: settings of its framework alone that are not as nobody
    asked for them, and what it was measured with where that was more than one thing."""
    words, spec = [], study.facts.spec
    for name in alike.along(axis, study.cells):
        if name in alike.APART:
            is_told = study.measured.loc[study.measured["cell"] == cell["cell"], name].nunique() > 1
        else:
            is_told = cell[name] != ("" if name.startswith(HOROVOD) else spec.default(name))
        if is_told:
            words.append(study.said(name, getattr(cell[name], "item", lambda at=cell[name]: at)()))
    return tuple(words)


def rated(study: Study, axis: Rated) -> Iterator[Finding]:
    """Yield what each value of an axis is worth over the first, and what goes along with it; where that is much, what
    the fewest settings go along with."""
    found = gains(study, axis)
    kinds = sorted(dict.fromkeys((gain.at, gain.own) for gain in found), key=lambda kind: sum(map(len, kind[1])))
    for name, goes_along in kinds[:MOST_RATED]:
        those = sorted((gain for gain in found if (gain.at, gain.own) == (name, goes_along)), key=lambda one: one.ratio)
        ends = [those[0]] if len(those) == 1 else [those[0], those[-1]]
        words = " to ".join(f"**{gain.ratio:.2f}×**{_within(gain)}" for gain in ends)
        known = [gain for gain in those if gain.low == gain.low]
        faster, slower = sum(gain.low > 1 for gain in known), sum(gain.high < 1 for gain in known)
        says = _said(name, points(study, axis)[0], goes_along, words)
        if known and len(those) > 1:
            says += f": faster in {faster}, slower in {slower} and not told apart in {len(known) - faster - slower}"
            says += f" of {len(those)} settings"
        elif known and not faster + slower:
            says += ", which is not told apart"
        if unknown := len(those) - len(known):
            says += f"; by means, as {unknown} of {len(those)} ratios rest{'s' * (unknown == 1)} on single repeats"
        sureness: Sureness = "shown" if len(those) in (faster, slower) else "open" if known else "estimated"
        yield Finding(
            rule=axis,
            severity="note",
            sureness=sureness,
            says=f"{says}.",
            cells=tuple(gain.cell for gain in ends),
            evidence={"lowest": those[0].ratio, "lowest_low": those[0].low, "lowest_high": those[0].high}
            | {"highest": those[-1].ratio, "highest_low": those[-1].low, "highest_high": those[-1].high}
            | {"faster": float(faster), "slower": float(slower), "compared": float(len(those))},
        )


def _said(name: str, first: str, goes_along: tuple[tuple[str, ...], tuple[str, ...]], words: str) -> str:
    if not any(goes_along):
        return f"All else equal, {name} trains {words} as fast as {first}"
    of_it, of_first = (f" with {' and '.join(own)}" if own else "" for own in goes_along)
    return f"{name}{of_it}, against {first}{of_first}, trains {words} as fast"


def _within(gain: Gain) -> str:
    return f" ({gain.low:.2f} to {gain.high:.2f})" if gain.low == gain.low else ""
