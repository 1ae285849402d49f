"""One sweep against another, cell by cell. Pure.

Cells match where all parameters agree that vary on either side. What each side holds to one value, but not to the same
one, is the difference under study. So are hardware and software where no fingerprint is on both sides. Cells that were
not measured alike otherwise (`analysis.alike`), as where a side has the other's software in some cells only, are not
compared: on other hardware, with other software, with their ranks otherwise on nodes, or on other files of the same
name, unless placement, GPUs or data are what is under study.

A ratio is B ÷ A of the means of logarithms; its interval holds for all cells together at 95% (Bonferroni). The interval
is the verdict: faster or slower where it leaves 1, no difference seen where it holds 1. A procedure in steps, such as
Holm's, would see a little more, but would leave its own intervals. `p` is corrected in the same way. Each side has its
own variances: one may be noisier, or repeated more often. They are shared between the cells of a side as far as these
are alike (`analysis.noise`), and the two sides' put together in `analysis.joint`.

A published figure is one number that nobody gives an interval for: it is taken as it stands. It states few of the
parameters, and is compared with every cell that agrees in those, on as many nodes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sweeps.analysis import (
    APART,
    CONFIDENCE,
    FINGERPRINTS,
    STUDIED_BY,
    cells,
    joint,
    named,
    noise,
    parameters,
    plain,
    unlike,
    varied,
)
from sweeps.analysis.references import PUBLISHED
from sweeps.errors import InputError, Mistake, shown

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["faster", "slower", "no difference seen", "not comparable"]
FIGURES = {  # is more of it better?
    "images_per_s": True,
    "step_ms_mean": False,
    "step_ms_p50": False,
    "step_ms_p95": False,
    "gpu_hours_per_epoch": False,
    "epochs_to_target": False,
    "hours_to_target": False,
    "train_hours_to_target": False,
}
CACHED = "cached"  # the kind of a trial that was not run, since an earlier one stands for it
WORDS = {"hardware": "hardware", "software": "software", "data_files": "files of data", "arrangement": "nodes x ranks"}
ONLY_IN = {side: f"only in {side}" for side in "AB"}
SPREAD = ("var_a", "df_a", "var_b", "df_b")  # of one repeat's logarithm, by the side's own repeats
OWN = ("a", "b", "n_a", "n_b", "ratio", "ratio_low", "ratio_high", "p", "verdict", "why")


@dataclasses.dataclass(frozen=True)
class Crossover:
    """Along an axis, with all else equal, the better side changes."""

    axis: str
    below: Any  # the last value at which `first` is the verdict on B
    above: Any  # the first at which it is the opposite
    first: Verdict
    then: Verdict
    at: dict[str, Any]  # the other parameters that vary

    def __str__(self) -> str:
        rest = ", ".join(f"{name} {shown(value)}" for name, value in self.at.items())
        where = f" at {rest}" if rest else ""
        return f"B is {self.first} up to {self.axis} {self.below:g}, {self.then} from {self.above:g}{where}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    figure: str
    axes: tuple[str, ...]  # by which cells matched, those that vary
    cells: pd.DataFrame  # the axes, then OWN
    differs: dict[str, tuple[str, str]]  # what each side holds to a value of its own
    unlike: dict[str, str]  # side to what its cells have several of, where that is under study
    crossovers: tuple[Crossover, ...]
    lost: int  # cells that have a figure in A, and were tried in B without one

    def count(self, verdict: Verdict) -> int:
        return int((self.cells["verdict"] == verdict).sum())

    @property
    def compared(self) -> int:
        return len(self.cells) - self.count("not comparable")

    def beyond(self, verdict: Verdict, least: float) -> pd.DataFrame:
        """Return the cells with a verdict whose figure is, at best estimate, by at least so much (0.03: 3%) off A's
        rate."""
        found = self.cells[self.cells["verdict"] == verdict]
        rate = found["ratio"] if FIGURES[self.figure] else 1 / found["ratio"]
        return found[(rate - 1).abs() >= least - 1e-12]


def usual_figure(a: pd.DataFrame, b: pd.DataFrame) -> str:
    """Return the figure to compare if nobody says: images/s, or the time to the target where both sides have some."""
    reached = all(len(side) and side["hours_to_target"].notna().any() for side in (a, b))
    return "hours_to_target" if reached else "images_per_s"


def compare(a: pd.DataFrame, b: pd.DataFrame, figure: str = "images_per_s") -> Comparison:
    """B against A, two frames of trials."""
    import pandas as pd

    if figure not in FIGURES:
        raise InputError("diff", [Mistake("figure", f"must be one of {', '.join(FIGURES)}", figure)])
    a, b = _with_variables(plain(a), plain(b))
    keys, differs = _matched(a, b)
    of_a, of_b = _side(a, keys, figure), _side(b, keys, figure)
    shared = [name for name in keys if name in of_a and name in of_b]
    if shared:
        merged = of_a.merge(of_b, on=shared, how="outer", suffixes=("_a", "_b"), sort=False)
    else:
        merged = of_a.merge(of_b, how="cross", suffixes=("_a", "_b"))
    axes = [name for name in keys if name in merged]
    under_study = {side for side in APART if side in differs or {*STUDIED_BY[side]} & {*differs}}
    rows = [_row(cell, under_study) for cell in merged.to_dict("records")]
    table = pd.concat([merged[axes], pd.DataFrame(rows, columns=[*OWN, *SPREAD], index=merged.index)], axis=1)
    _judge(table, FIGURES[figure])
    lost = int(((table["n_a"] > 0) & (table["n_b"] == 0) & table["why"].str.startswith("B: ")).sum())
    table["made"] = [
        str([cell[f"{name}_{side}"] for name in FINGERPRINTS for side in "ab"]) for cell in merged.to_dict("records")
    ]
    table = table.sort_values(axes, kind="stable", key=_sortable).reset_index(drop=True)
    crossovers = tuple(_crossovers(table, axes))
    mixed = {name: words for name, side in (("A", a), ("B", b)) if (words := _mixed(side, under_study))}
    return Comparison(figure, tuple(axes), table[[*axes, *OWN]], differs, mixed, crossovers, lost)


def _mixed(side: pd.DataFrame, under_study: Collection[str]) -> str:
    """Return what the cells of a side have several of, though it is what is compared with the other side's."""
    several = [name for name in under_study if name in side and side[name].nunique() > 1]
    table = cells(side) if several else side
    return named(table, [name for name in unlike(table) if name in several]) if several else ""


def _with_variables(a: pd.DataFrame, b: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Set a variable of the environment that one side never sets to nothing there, unless that side is published."""
    names = {name for side in (a, b) for name in side if str(name).startswith("env.")}

    def filled(side: pd.DataFrame) -> pd.DataFrame:
        missing = [] if _is_published(side) else sorted(names - set(side))
        return side.assign(**dict.fromkeys(missing, ""))

    return filled(a), filled(b)


def _is_published(side: pd.DataFrame) -> bool:
    return bool(len(side)) and bool(side["hardware"].astype(str).str.startswith(PUBLISHED).all())


def _matched(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Return the parameters to match by, and what each side holds to a value of its own."""
    both = [name for name in parameters(a) if name in b]
    is_varied = {*varied(a), *varied(b)}
    keys = [name for name in parameters(a) if name in is_varied]
    keys += [name for name in parameters(b) if name in is_varied and name not in keys]
    if _is_published(a) != _is_published(b) and all(side["nodes"].notna().any() for side in (a, b)):
        keys.append("nodes")
    differs = {}
    for name in (*both, *FINGERPRINTS):
        mine, its = (sorted({shown(value) for value in side[name].dropna()} - {""}) for side in (a, b))
        is_held = not {*mine} & {*its} if name in FINGERPRINTS else name not in is_varied and mine != its
        if is_held and (mine or its):
            differs[name] = ", ".join(mine) or "none", ", ".join(its) or "none"
    for name, of in ((side, STUDIED_BY[side]) for side in APART if side not in FINGERPRINTS):
        mine, its = (sorted({*side[name]} - {""}) if name in side else [] for side in (a, b))
        if len(mine) == len(its) == 1 and mine != its and any(one in differs for one in of):
            differs[name] = mine[0], its[0]
    return keys, differs


def _side(trials: pd.DataFrame, keys: list[str], figure: str) -> pd.DataFrame:
    """Return a row for each cell: the logarithms of its figures, and what may keep it from being compared."""
    import numpy as np
    import pandas as pd

    own = [name for name in keys if name in trials]
    rows = []
    is_published = _is_published(trials)
    placed = _placed(trials) if "nodes" in own else trials
    for at, cell in placed.groupby(own, sort=False, dropna=False) if own else [((), placed)]:
        known = cell[(cell["outcome"] == "completed") & (cell[figure] > 0)]
        rows.append(
            dict(zip(own, at, strict=True))
            | {
                "logs": np.log(known[figure].to_numpy(float)),
                "outcomes": _outcomes(cell),
                **{name: _kinds(known, name) for name in APART},
                "is_cached": bool((known["kind"] == CACHED).any()),
                "is_published": is_published,
            }
        )
    further = ("logs", "outcomes", *APART, "is_cached", "is_published")
    return pd.DataFrame(rows, columns=[*own, *further])


def _kinds(known: pd.DataFrame, name: str) -> list[str]:
    """Return what the trials of a cell were measured with; a machine that is not known is none."""
    found = {*known[name]} if name in known else set()
    return sorted(found - {""} if name in FINGERPRINTS else found)


def _placed(trials: pd.DataFrame) -> pd.DataFrame:
    """Trials that never ran count with the others of their cell, on as many nodes."""
    return trials.assign(nodes=trials["nodes"].fillna(trials.groupby("cell")["nodes"].transform("first")))


def _outcomes(cell: pd.DataFrame) -> str:
    """`2 failed, 1 lost`: why there is no figure."""
    counts = cell["outcome"].value_counts()
    kinds = [kind for kind in cell["kind"].unique() if kind and kind != CACHED]
    words = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    return f"{words} ({', '.join(kinds)})" if kinds else words


def _row(cell: dict[str, Any], under_study: Collection[str]) -> dict[str, Any]:
    """Return the ratio, with what is needed to judge it; a published side has no variance."""
    import numpy as np

    logs = [cell[f"logs_{side}"] for side in "ab"]
    n = [len(found) if isinstance(found, np.ndarray) else 0 for found in logs]
    means = [float(found.mean()) if count else math.nan for found, count in zip(logs, n, strict=True)]
    made: dict[str, Any] = {"n_a": n[0], "n_b": n[1], "ratio": math.exp(means[1] - means[0]) if min(n) else math.nan}
    made |= {
        side: float(f"{math.exp(mean):.10g}") if mean == mean else math.nan
        for side, mean in zip("ab", means, strict=True)
    }
    made["why"] = _obstacle(cell, n, under_study)
    if made["why"]:
        return made | {"verdict": "not comparable"}
    for side, found, count in zip("ab", logs, n, strict=True):
        made[f"df_{side}"] = 0 if cell[f"is_published_{side}"] else count - 1
        made[f"var_{side}"] = float(found.var(ddof=1)) if made[f"df_{side}"] else math.nan
    return made


def _obstacle(cell: dict[str, Any], n: list[int], under_study: Collection[str]) -> str:
    """Why a cell can't be compared; empty where it can."""
    for side, other in ("aB", "bA"):
        if not isinstance(cell[f"outcomes_{side}"], str):
            return ONLY_IN[other]
    for side, count in zip("ab", n, strict=True):
        if not count:
            return f"{side.upper()}: {cell[f'outcomes_{side}']}, no figure"
    if why := _unlike(cell, under_study):
        return why
    if (cell["is_cached_a"] or cell["is_cached_b"]) and {*cell["logs_a"]} & {*cell["logs_b"]}:
        return "the same measurement on both sides, from the cache: run with --fresh"
    if cell["is_published_a"] and cell["is_published_b"]:
        return "published figures have no intervals"
    for side, count in zip("ab", n, strict=True):
        if count == 1 and not cell[f"is_published_{side}"]:
            return f"a single repeat in {side.upper()} has no interval"
    return ""


def _unlike(cell: dict[str, Any], under_study: Collection[str]) -> str:
    """Why the two sides were not measured alike; empty where they were, as far as is known of either."""
    is_published = cell["is_published_a"] or cell["is_published_b"]
    for name in FINGERPRINTS if is_published else APART:
        sides = {side: cell[f"{name}_{side}"] for side in "ab"}
        for side, found in sides.items():
            if len(found) > 1 and name in FINGERPRINTS:
                return f"{side.upper()} has {len(found)} {name} fingerprints: choose with @{found[0]}"
            if len(found) > 1:
                ways = " and ".join(way or "unknown" for way in found)
                return f"{side.upper()} has several {WORDS[name]}: {ways}"
        if sides["a"] != sides["b"] and name not in under_study and not is_published:
            mine, its = ((found[0] if found else "") or "unknown" for found in sides.values())
            return f"other {WORDS[name]}: {mine} in A, {its} in B"
    return ""


def _judge(table: pd.DataFrame, more_is_better: bool) -> None:
    """Intervals and verdicts of the cells that can be compared, in place."""
    import numpy as np

    table["verdict"] = table["verdict"].astype(object)
    at = table.index[table["why"] == ""]
    if at.empty:
        return
    known = table.loc[at]
    sides = [noise.of_means(*(known[f"{name}_{side}"].to_numpy(float) for name in ("var", "df", "n"))) for side in "ab"]
    low, high, p = judged(np.log(known["ratio"].to_numpy(float)), sides)
    up, down = ("faster", "slower") if more_is_better else ("slower", "faster")
    table.loc[at, "ratio_low"], table.loc[at, "ratio_high"], table.loc[at, "p"] = low, high, p
    table.loc[at, "verdict"] = np.where(low > 1, up, np.where(high < 1, down, "no difference seen"))


def judged(log: Any, sides: Sequence[tuple[Any, Any]]) -> tuple[Any, Any, Any]:
    """Return both ends of the intervals of ratios with these logarithms, and p, for all of them together. Each side
    gives the variances of its means and their degrees of freedom. The cells of a comparison lie along the last axis."""
    import numpy as np

    variances, freedom = (np.stack(of_both) for of_both in zip(*sides, strict=True))
    cells = np.shape(log)[-1]
    half = joint.half_width(variances, freedom, 1 - (1 - CONFIDENCE) / cells)
    return np.exp(log - half), np.exp(log + half), np.minimum(cells * joint.chance(log, variances, freedom), 1.0)


def _sortable(column: pd.Series) -> pd.Series:
    kinds = {type(value) for value in column.dropna()}
    return column if len(kinds) <= 1 or all(issubclass(kind, (int, float)) for kind in kinds) else column.astype(str)


def _crossovers(table: pd.DataFrame, axes: list[str]) -> Iterator[Crossover]:
    """Yield where the verdict turns along an axis of numbers; cells without a clear one are stepped over."""
    import pandas as pd

    clear = table[table["verdict"].isin(("faster", "slower"))]
    for axis in axes:
        numbers = pd.to_numeric(clear[axis], errors="coerce")
        if pd.api.types.is_bool_dtype(clear[axis]) or numbers.nunique() < 2:
            continue
        others = [name for name in axes if name != axis and not (axis in ("gpus", "nodes") and name == "nodes")]
        others.append("made")  # else what changes sides may be the machine
        lines = clear.assign(**{axis: numbers}).dropna(subset=[axis])
        for _, line in lines.groupby(others, sort=False, dropna=False):
            steps = line.sort_values(axis).to_dict("records")
            for low, high in itertools.pairwise(steps):
                if low["verdict"] != high["verdict"]:
                    at = {name: low[name] for name in others[:-1] if table[name].nunique(dropna=False) > 1}
                    yield Crossover(axis, low[axis], high[axis], low["verdict"], high["verdict"], at)
