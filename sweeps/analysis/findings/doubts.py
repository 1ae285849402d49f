"""What a table or report must not claim without saying so: reasons to doubt its cells, from their trials alone.

of either protocol
  single repeat   a figure without an interval
  wide interval   a figure that is known too loosely to be used
  mixed sources   simulated or cached figures among fresh ones
  pooled          cells that were not measured alike (`analysis.alike`): on several machines, with several programs, or
                  on several sets of files in one folder
  mixed nodes     repeats of a cell, or cells that were placed alike, whose ranks sat on nodes in different ways
of throughput
  mixed scaling   some GPU counts keep the batch of a GPU and others that of all: neither weak nor strong scaling
  untuned base    a speed-up over one GPU at a setting that is not its best, shown or by means, or the only one tried
of convergence
  missed target   repeats that did not come to the target, so that a cell's time to it is that of the others
  pruned          repeats that the search stopped, so that a cell's figures are those of what went on
of a simulation
  simulated       where the model misses published figures, and what of its trials no published figure judges
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sweeps.analysis import apart, cells, named, pick, plain, repeats, scaling, varied
from sweeps.analysis.best_cell import NOT_SHOWN
from sweeps.analysis.comparison import CACHED
from sweeps.analysis.findings.finding import Finding, doubt
from sweeps.record.rows import SIMULATED
from sweeps.simulator import cluster as simulated
from sweeps.simulator import evidence
from workers.contract.messages import TrialConfig

if TYPE_CHECKING:
    import pandas as pd

CLEARLY = 0.02  # that another setting of one GPU is faster by
WORKLOAD = ("model", "data", "device", "precision", "image_size", "classes")  # what a fair base has in common
CONDITIONS = ("hardware", "software", "data_files")  # and was measured on
WIDE = 0.1  # half of an interval, of its figure
WIDE_POINTS = 0.01  # of an accuracy


def of_throughput(
    trials: pd.DataFrame, is_strong: bool = False, rate: str = "images/s", rank: str = "rank"
) -> list[Finding]:
    """Return what is doubtful about these trials' table of cells, scaling and best cell."""
    measured = _measured(trials)
    if measured.empty:
        return []
    table = cells(measured)
    return [
        *_common(measured, table),
        *_scaling_kinds(measured, table, rank),
        *_bases(measured, is_strong, rank),
        *_wide(table, "images_per_s", rate),
    ]


def of_convergence(trials: pd.DataFrame, has_target: bool) -> list[Finding]:
    """Return what is doubtful about these trials' accuracies, and about what it took to get to the target."""
    measured = _measured(trials)
    if measured.empty:
        return [*_pruned(plain(trials))]
    table = cells(measured)
    return [
        *_common(measured, table),
        *(_missed(table) if has_target else ()),
        *_pruned(plain(trials)),
        *_wide(table, "hours_to_target", "time to the target"),
        *_wide(table, "epochs_to_target", "epochs to the target"),
        *_wide_accuracy(table),
    ]


def of_simulation(trials: Sequence[TrialConfig], where: str) -> list[Finding]:
    """Return what is doubtful about what these trials came to on a cluster that is not there."""
    kind = simulated.parse(where).gpu
    return [doubt("simulated", says) for says in evidence.doubts(trials, kind, evidence.rows())]


def _measured(trials: pd.DataFrame) -> pd.DataFrame:
    trials = plain(trials)
    has_figure = (trials["images_per_s"] > 0) | trials["loss"].notna()  # a script may have told no steps
    return trials[(trials["outcome"] == "completed") & has_figure]


def _common(measured: pd.DataFrame, table: pd.DataFrame) -> Iterator[Finding]:
    yield from _pooled(table)
    yield from _nodes(measured, table)
    yield from _sources(measured)
    yield from _single(table)


def _pooled(table: pd.DataFrame) -> Iterator[Finding]:
    for side in apart(table):
        if side != "arrangement":
            both = _several(table, side)
            how = f"; {len(both)} cells have figures of several" if both else ", each with cells of its own"
            yield doubt("pooled", f"{named(table, [side])}{how}: a difference may come from that", both)


def _several(table: pd.DataFrame, side: str) -> tuple[str, ...]:
    """Return the cells that were measured with more than one."""
    kinds = table.groupby("cell")[side].nunique()
    return tuple(kinds[kinds > 1].index)


def _nodes(measured: pd.DataFrame, table: pd.DataFrame) -> Iterator[Finding]:
    """Yield the doubts about nodes. Stores of earlier versions tell no arrangement; there `spread` took the nodes that
    were left."""
    ways = table.groupby("cell")["arrangement"].unique()
    ways = ways[ways.map(len) > 1]
    if len(ways):
        says = f"the repeats of {len(ways)} cells sat on nodes in several ways, and are not pooled"
        first = " and ".join(way or "one not known" for way in ways.iloc[0])
        yield doubt("mixed nodes", f"{says} ({first}, such as {ways.index[0]})", tuple(ways.index))
        return
    if "arrangement" in apart(table):
        says = f"{named(table, ['arrangement'])}, each with cells of its own: a difference may come from that"
        yield doubt("mixed nodes", says)
    if "nodes" not in measured:
        return
    several = measured.groupby("cell")["nodes"].agg(["min", "max"])
    several = several[several["min"] < several["max"]]
    if len(several):
        first = several.iloc[0]
        says = f"the repeats of {len(several)} cells ran on different numbers of nodes"
        counts = f"{first['min']:.0f} and {first['max']:.0f}, such as {several.index[0]}"
        yield doubt("mixed nodes", f"{says} ({counts}): placement N×M would hold them to one", tuple(several.index))


def _sources(measured: pd.DataFrame) -> Iterator[Finding]:
    is_made_up = measured["software"].astype(str) == SIMULATED
    is_cached = measured["kind"] == CACHED
    if is_made_up.all():
        yield doubt("mixed sources", "every figure is simulated: nothing was measured")
    elif is_made_up.any():
        those = tuple(measured.loc[is_made_up, "cell"].unique())
        yield doubt("mixed sources", f"{is_made_up.sum()} of {len(measured)} figures are simulated", those)
    if is_cached.any() and not is_cached.all():
        those = tuple(measured.loc[is_cached, "cell"].unique())
        yield doubt(
            "mixed sources", f"{is_cached.sum()} of {len(measured)} figures were measured by earlier sweeps", those
        )


def _scaling_kinds(measured: pd.DataFrame, table: pd.DataFrame, rank: str) -> Iterator[Finding]:
    """Yield the doubts about mixed kinds. A line over the GPUs has one cell at each count; a grid of batches has many
    lines, each of its own kind."""
    by = [name for name in (*varied(measured), *CONDITIONS) if name not in ("gpus", "placement", "batch_size")]
    for _, line in table.groupby(by, sort=False, dropna=False):
        batches = line.groupby("gpus")["batch_size"].agg(["min", "max"])
        if len(batches) < 3 or (batches["min"] != batches["max"]).any():
            continue
        batch = batches["min"]
        totals = batch * batch.index
        if batch.nunique() > 1 and totals.nunique() > 1:
            counts = ", ".join(f"{at} on {gpus}" for gpus, at in batch.items())
            says = f"neither the batch of a {rank} nor that of all stays the same ({counts} {rank}s)"
            yield doubt("mixed scaling", says, tuple(line["cell"]))


def _bases(measured: pd.DataFrame, is_strong: bool, rank: str) -> Iterator[Finding]:
    """Each speed-up's one GPU beside the others that did the same work."""
    table = scaling(measured, is_strong)
    compared = table[(table["gpus"] > 1) & table["speedup"].notna()]
    work = [name for name in (*WORKLOAD, *CONDITIONS) if name in table]
    singles = table[table["gpus"] == 1].groupby(work, dropna=False, sort=False)
    slower = {at: found for _, alike in singles for at, found in _slower(measured, alike, work, len(singles)).items()}
    where = [tuple(row) for row in compared[["base", *work]].astype(str).to_numpy()]
    for is_shown in (True, False):
        those = [at in slower and slower[at][1] == is_shown for at in where]
        if any(those):
            most = max(slower[at][0] for at, is_it in zip(where, those, strict=True) if is_it)
            are = "is" if sum(those) == 1 else "are"
            says = f"{sum(those)} of {len(compared)} speed-ups {are} over one {rank} at a setting that is not its best"
            says += f": another one does up to {most:.2f} times as much{'' if is_shown else f' ({NOT_SHOWN})'}"
            yield doubt("untuned base", says, tuple(compared["cell"][those]), "shown" if is_shown else "estimated")
    only = singles["cell"].transform("size") == 1
    bases = {tuple(row) for row in table.loc[only[only].index, ["cell", *work]].astype(str).to_numpy()}
    alone = compared[[at in bases for at in where]]
    if len(alone):
        are = "speed-up is" if len(alone) == 1 else "speed-ups are"
        says = f"{len(alone)} {are} over one {rank} that was measured at one setting only"
        yield doubt("untuned base", says, tuple(alone["cell"]))


def _slower(
    measured: pd.DataFrame, alike: pd.DataFrame, work: list[str], picks: int
) -> dict[tuple[str, ...], tuple[float, bool]]:
    """Return the single GPUs that do clearly less than the best of them by means: how many times as much that one does,
    and whether it is shown that they are not the best."""
    picked = pick(repeats(measured, alike, "images_per_s"), is_ratio=True, picks=picks)
    best = float(alike["images_per_s"].max())
    open_ = {picked.top, *picked.rivals, *picked.singles} if picked.top not in picked.singles else {*range(len(alike))}
    found = {}
    for place, row in enumerate(alike[["cell", *work]].astype(str).to_numpy()):
        times = best / float(alike["images_per_s"].iloc[place])
        if times > 1 + CLEARLY:
            found[tuple(row)] = times, place not in open_
    return found


def _single(table: pd.DataFrame) -> Iterator[Finding]:
    alone = table[table["n"] == 1]
    if len(alone):
        whose = "every cell has" if len(alone) == len(table) else f"{len(alone)} of {len(table)} cells have"
        yield doubt("single repeat", f"{whose} a single repeat, and no interval", tuple(alone["cell"]))


def _wide(table: pd.DataFrame, figure: str, word: str) -> Iterator[Finding]:
    wide = table[table[f"{figure}_ci"] > WIDE * table[figure]]
    if len(wide):
        says = f"{len(wide)} of {len(table)} cells have an interval of their {word} wider than ±{WIDE:.0%}"
        yield doubt("wide interval", f"{says}: repeat them before use", tuple(wide["cell"]))


def _wide_accuracy(table: pd.DataFrame) -> Iterator[Finding]:
    wide = table[table["top1_ci"] > WIDE_POINTS]
    if len(wide):
        most = 100 * float(wide["top1_ci"].max())
        says = f"{len(wide)} of {len(table)} cells have a top-1 interval of ±1 point or wider, the widest ±{most:.2g}"
        yield doubt("wide interval", f"{says}: repeat them before use", tuple(wide["cell"]))


def _missed(table: pd.DataFrame) -> Iterator[Finding]:
    none, some = table[table["reached"] == 0], table[(table["reached"] > 0) & (table["reached"] < table["n"])]
    if len(none):
        says = f"no repeat of {len(none)} of {len(table)} cells came to the target"
        yield doubt("missed target", f"{says}: nothing is known of the time they would take", tuple(none["cell"]))
    if len(some):
        missed = int((some["n"] - some["reached"]).sum())
        says = f"{missed} of {int(some['n'].sum())} repeats of {len(some)} cells did not come to the target"
        yield doubt("missed target", f"{says}: time and epochs to it are of the others alone", tuple(some["cell"]))


def _pruned(trials: pd.DataFrame) -> Iterator[Finding]:
    stopped = trials[trials["outcome"] == "pruned"]
    if len(stopped):
        pruned = {*stopped["cell"]}
        kept = {*trials[trials["outcome"] == "completed"]["cell"]} & pruned
        says = f"the search stopped {len(stopped)} trials of {len(pruned)} cells before their last epoch"
        rest = f"; {len(kept)} of these cells have figures, which are of the repeats that went on" if kept else ""
        yield doubt("pruned", f"{says}: they are not in the figures{rest}", tuple(sorted(pruned)))
