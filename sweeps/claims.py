"""What a table or report must not claim without saying so. Pure.

mixed scaling   some GPU counts keep the batch of a GPU and others that of all: neither weak nor strong scaling
single repeat   a figure without an interval
wide interval   the fastest cell can't be told from others
untuned base    a speed-up over one GPU at a setting that is not its best, or the only one that was tried
mixed sources   simulated or cached figures among fresh ones
pooled          more than one machine, or more than one software, or a cell with more than one set of files
mixed nodes     repeats of a cell whose ranks sat on nodes in different ways
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from sweeps.analysis import FINGERPRINTS, cells, parameters, plain, scaling, varied
from sweeps.comparison import CACHED

if TYPE_CHECKING:
    import pandas as pd

Rule = Literal[
    "mixed scaling", "single repeat", "wide interval", "untuned base", "mixed sources", "pooled", "mixed nodes"
]
SIMULATED = "simulated"  # begins the fingerprint of a machine that was made up
CLEARLY = 0.02  # that another setting of one GPU is faster by
WORKLOAD = ("model", "data", "device", "precision", "image_size", "classes")  # what a fair base has in common


@dataclasses.dataclass(frozen=True)
class Claim:
    """A reason to doubt."""

    rule: Rule
    says: str
    cells: tuple[str, ...] = ()  # that it is about; none: all

    def __str__(self) -> str:
        return f"{self.rule}: {self.says}"


def check(trials: pd.DataFrame, is_strong: bool = False) -> list[Claim]:
    """What is doubtful about these trials' table of cells, scaling and best cell."""
    trials = plain(trials)
    measured = trials[(trials["outcome"] == "completed") & (trials["images_per_s"] > 0)]
    if measured.empty:
        return []
    table = cells(measured)
    return [
        *_pooled(table),
        *_nodes(measured, table),
        *_sources(measured),
        *_scaling_kinds(measured, table),
        *_bases(measured, is_strong),
        *_single(table),
        *_best(table),
    ]


def _pooled(table: pd.DataFrame) -> Iterator[Claim]:
    for side in FINGERPRINTS:
        prints = sorted({*table[side]} - {""})
        if len(prints) > 1:
            shown = ", ".join(print_[:12] for print_ in prints[:4]) + ("…" if len(prints) > 4 else "")
            several = table.groupby("cell")[side].nunique()
            both = tuple(several[several > 1].index)
            how = f"; {len(both)} cells have figures of several" if both else ", each with cells of its own"
            yield Claim("pooled", f"{len(prints)} {side} fingerprints ({shown}){how}: a difference may be theirs", both)
    several = table.groupby("cell")["data_files"].nunique()
    if those := tuple(several[several > 1].index):
        folders = ", ".join(sorted({*table.loc[table["cell"].isin(those), "data"]}))
        says = f"{len(those)} cells have figures of several sets of files in {folders}: a difference may be theirs"
        yield Claim("pooled", says, those)


def _nodes(measured: pd.DataFrame, table: pd.DataFrame) -> Iterator[Claim]:
    """Stores of earlier versions tell no arrangement; there `spread` took the nodes that were left."""
    ways = table.groupby("cell")["arrangement"].unique()
    ways = ways[ways.map(len) > 1]
    if len(ways):
        says = f"the repeats of {len(ways)} cells sat on nodes in several ways, and are not pooled"
        first = " and ".join(way or "one not known" for way in ways.iloc[0])
        yield Claim("mixed nodes", f"{says} ({first}, such as {ways.index[0]})", tuple(ways.index))
        return
    if "nodes" not in measured:
        return
    several = measured.groupby("cell")["nodes"].agg(["min", "max"])
    several = several[several["min"] < several["max"]]
    if len(several):
        first = several.iloc[0]
        says = f"the repeats of {len(several)} cells ran on different numbers of nodes"
        counts = f"{first['min']:.0f} and {first['max']:.0f}, such as {several.index[0]}"
        yield Claim("mixed nodes", f"{says} ({counts}): placement N×M would hold them to one", tuple(several.index))


def _sources(measured: pd.DataFrame) -> Iterator[Claim]:
    is_made_up = measured["hardware"].astype(str).str.startswith(SIMULATED)
    is_cached = measured["kind"] == CACHED
    if is_made_up.all():
        yield Claim("mixed sources", "every figure is simulated: nothing was measured")
    elif is_made_up.any():
        those = tuple(measured.loc[is_made_up, "cell"].unique())
        yield Claim("mixed sources", f"{is_made_up.sum()} of {len(measured)} figures are simulated", those)
    if is_cached.any() and not is_cached.all():
        those = tuple(measured.loc[is_cached, "cell"].unique())
        yield Claim(
            "mixed sources", f"{is_cached.sum()} of {len(measured)} figures were measured by earlier sweeps", those
        )


def _scaling_kinds(measured: pd.DataFrame, table: pd.DataFrame) -> Iterator[Claim]:
    """A line over the GPUs has one cell at each count: a grid of batches has many lines, each of its own kind."""
    by = [name for name in (*varied(measured), *FINGERPRINTS) if name not in ("gpus", "placement", "batch_size")]
    for _, line in table.groupby(by, sort=False, dropna=False):
        batches = line.groupby("gpus")["batch_size"].agg(["min", "max"])
        if len(batches) < 3 or (batches["min"] != batches["max"]).any():
            continue
        batch = batches["min"]
        totals = batch * batch.index
        if batch.nunique() > 1 and totals.nunique() > 1:
            counts = ", ".join(f"{at} on {gpus}" for gpus, at in batch.items())
            says = f"neither the batch of a GPU nor that of all stays the same ({counts} GPUs)"
            yield Claim("mixed scaling", says, tuple(line["cell"]))


def _bases(measured: pd.DataFrame, is_strong: bool) -> Iterator[Claim]:
    """Each speed-up's one GPU beside the best that one GPU did with the same work."""
    table = scaling(measured, is_strong)
    has_speedup = table[(table["gpus"] > 1) & table["speedup"].notna()]
    single = table[table["gpus"] == 1]
    work = [name for name in (*WORKLOAD, *FINGERPRINTS) if name in table]
    tops = single.groupby(work, dropna=False)["images_per_s"].agg(["max", "count"]).reset_index()
    compared = has_speedup.merge(tops, on=work, how="left")
    base = compared["images_per_s"] / compared["speedup"]
    slow = compared[base < compared["max"] / (1 + CLEARLY)]
    if len(slow):
        worst = float((slow["max"] / (slow["images_per_s"] / slow["speedup"])).max())
        says = (
            f"{len(slow)} of {len(compared)} speed-ups are over a single GPU that does up to {worst:.2f} times as much"
        )
        yield Claim("untuned base", f"{says} at another setting", tuple(slow["cell"]))
    alone = compared[compared["count"] == 1]
    if len(alone):
        says = f"{len(alone)} speed-ups are over a single GPU that was measured at one setting only"
        yield Claim("untuned base", says, tuple(alone["cell"]))


def _single(table: pd.DataFrame) -> Iterator[Claim]:
    alone = table[table["n"] == 1]
    if len(alone):
        whose = "every cell has" if len(alone) == len(table) else f"{len(alone)} of {len(table)} cells have"
        yield Claim("single repeat", f"{whose} a single repeat, and no interval", tuple(alone["cell"]))


def _best(table: pd.DataFrame) -> Iterator[Claim]:
    """The fastest cell beside those that it is not told from: whose distance is less than both half-widths allow."""
    if len(table) < 2:
        return
    top = table.loc[table["images_per_s"].idxmax()]
    others = table.drop(index=top.name)
    width = (others["images_per_s_ci"] ** 2 + top["images_per_s_ci"] ** 2) ** 0.5
    near = others[(top["images_per_s"] - others["images_per_s"] <= width) & width.notna()]
    if len(near):
        axes = [name for name in parameters(table) if table[name].nunique(dropna=False) > 1]
        differ = [name for name in axes if (near[name] != top[name]).any()]
        words = f", which differ from it in {', '.join(differ)}" if differ else ""
        says = f"the fastest cell's interval is wider than its lead over {len(near)} others{words}"
        yield Claim("wide interval", says, (top["cell"], *near["cell"]))
