"""One row a cell: the mean over its repeats with a 95% t-interval, given as its half-width; one repeat has none."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from sweeps.analysis import noise
from sweeps.analysis.alike import APART, FINGERPRINTS, UnlikeWarning, named, unlike
from workers.contract.messages import ROUNDS

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95
SHARES = ("input_share", "comm_share", "compute_share", "overlap_share")
TO_TARGET = ("epochs_to_target", "hours_to_target", "train_hours_to_target")
ENERGY = ("joules_per_image", "cpu_joules_per_image", "gpu_joules_per_image")
COSTS = ("gpu_hours_per_epoch", *ENERGY)
MEMORY = ("peak_memory_mib", "peak_device_memory_mib")
FIGURES = ("images_per_s", "step_ms_mean", *COSTS, "top1", "loss", *TO_TARGET, *SHARES, *MEMORY)


def half_width(spread: Any, n: Any) -> Any:
    """Half of the t-interval of a mean of `n` values with this standard deviation; of numbers or of columns."""
    import numpy as np

    from workers.measure import student_t

    n = np.asarray(n, float)
    several = np.where(n > 1, n, 2)
    found = np.where(n > 1, student_t.quantile(several - 1, CONFIDENCE) * np.asarray(spread) / several**0.5, np.nan)
    return found if found.ndim else float(found)


def parameters(trials: pd.DataFrame) -> list[str]:
    """Return the columns that tell cells apart."""
    from sweeps.record import rows

    return [name for name in trials if name != "repeat" and (name in rows.PARAMS or name.startswith(rows.NAMED))]


def figures(trials: pd.DataFrame) -> list[str]:
    """Return the columns that have means: those of every trial, and those that a user's program adds."""
    from sweeps.record import rows

    return [*FIGURES, *(name for name in trials if rows.is_of_script(name))]


def plain(trials: pd.DataFrame) -> pd.DataFrame:
    """Turn categories into their values, so that grouping makes no empty groups."""
    kinds = {name: kind.categories.dtype for name, kind in trials.dtypes.items() if kind == "category"}
    return trials.astype(kinds) if kinds else trials


def varied(trials: pd.DataFrame) -> list[str]:
    """Return the parameters that have more than one value."""
    return [name for name in parameters(trials) if trials[name].nunique(dropna=False) > 1]


def cells(trials: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, and one of its own for each machine, program, set of files and arrangement on nodes that its
    trials had: its parameters, each figure's mean with its interval, how many repeats, the outcomes.

    `n` counts the repeats that completed, `reached` those among them that came to the target, `withheld` those whose
    window has no interval or one that means nothing. What it took to get to the target is the mean over those that did:
    read it beside `reached`.
    """
    import pandas as pd

    trials = told_apart(trials)
    key = ["cell", *APART]
    grouped = trials.groupby(key, sort=False)
    table = grouped[parameters(trials)].first()
    completed = trials[trials["outcome"] == "completed"].groupby(key)
    known = figures(trials)
    n = completed[known].count().reindex(table.index, fill_value=0)
    told = [name for name in known if name in ("images_per_s", "top1", "loss") or name not in FIGURES]
    table["n"], table["reached"] = n[told].max(axis=1), n["epochs_to_target"]  # a script may have no rate
    table["withheld"] = _withheld(trials).groupby([trials[name] for name in key], sort=False).sum().astype(int)
    if "nodes" in trials:
        nodes = completed["nodes"]  # of stores of earlier versions, which tell no arrangement, there may be several
        table["nodes"] = nodes.first().where(nodes.nunique() == 1)
    table = pd.concat([table, _with_intervals(completed, n)], axis=1)
    table["outcomes"] = grouped["outcome"].agg(_counted)
    table["message"] = grouped["message"].agg(lambda messages: next((m for m in messages if m), ""))
    return table.reset_index()


def repeats(trials: pd.DataFrame, table: pd.DataFrame, figure: str) -> list[Any]:
    """Return the figures of the completed trials behind each row of a table of cells."""
    import numpy as np

    trials = told_apart(trials)
    key = ["cell", *APART]
    done = trials[(trials["outcome"] == "completed") & trials[figure].notna()]
    found = {at: group[figure].to_numpy(float) for at, group in done.groupby(key, sort=False)}
    return [found.get(at, np.empty(0)) for at in zip(*(table[name] for name in key), strict=True)]


def log_spread(trials: pd.DataFrame, table: pd.DataFrame, figure: str) -> tuple[Any, Any]:
    """Return the variance of the mean logarithm behind each row of a table of cells, and its degrees of freedom. Cells
    share what they know of the noise (`noise`); a single repeat has none, and is NaN."""
    import numpy as np

    with np.errstate(divide="ignore"):  # an accuracy of nothing has no logarithm: such a cell's spread is not known
        logs = [np.log(found) for found in repeats(trials, table, figure)]
    n = np.array([len(found) for found in logs])
    own = [found.var(ddof=1) if len(found) > 1 and np.isfinite(found).all() else np.nan for found in logs]
    shared, freedom = noise.moderated(own, n - 1)
    return np.where(np.isfinite(own), np.maximum(shared, noise.LEAST_VARIANCE) / n, np.nan), freedom


def pooled(of_repeats: Any, own: Any, n: Any) -> Any:
    """Half of the 95% interval of a share's mean over `n` trials: from their t-interval, `of_repeats`, and from their
    own half-widths, of which `own` is the root of the summed squares.

    Repeats differ by what each trial's rounds show, and by what a trial is as a whole (where its ranks ran, how its
    gang met). Only the repeats show the latter, but three of them say little: their t-interval is 4.3 standard errors
    wide, and by chance often near zero. The trials' own intervals stand on more values, but know nothing of the
    latter. So the repeats' spread is believed where it is larger than what the rounds explain, and then the wider of
    both counts; elsewhere the trials' own. One trial has its own interval alone.

    With six rounds a trial this covers the mean of three repeats in 94.8% to 99%, of five in 94.9% to 99%, whatever
    trials differ by; that of two, where trials differ by far more than their rounds show, in 90% (40,000 drawn each,
    trials' own difference of 0 to 4 standard errors).
    """
    import numpy as np

    from workers.measure.student_t import quantile

    of_repeats, own, n = (np.asarray(values, float) for values in (of_repeats, own, n))
    own = own / np.where(n > 0, n, np.nan)
    spread = of_repeats / quantile(np.where(n > 1, n, 2) - 1)
    is_explained = spread <= own / quantile(ROUNDS - 1)
    wider = np.fmax(of_repeats, own)
    return np.where(is_explained | np.isnan(of_repeats), own, wider)


def _with_intervals(completed: Any, n: pd.DataFrame) -> pd.DataFrame:
    """Return each figure's mean and half-width, of trials by cell; `n` says how many there are of each figure."""
    import pandas as pd

    means, spread = (found.reindex(n.index) for found in (completed[[*n]].mean(), completed[[*n]].std()))
    halves = pd.DataFrame(half_width(spread, n), n.index, n.columns)
    shares = [*SHARES]
    own = _roots_of_squares(completed, [f"{name}_ci" for name in shares]).reindex(n.index)
    halves[shares] = pooled(halves[shares], own, n[shares])
    return means.join(halves.add_suffix("_ci"))[[column for name in n for column in (name, f"{name}_ci")]]


def _roots_of_squares(by_cell: Any, columns: list[str]) -> pd.DataFrame:
    """Return the root of the sum of each column's squares; NaN where one of them is NaN."""
    values = by_cell.obj[columns]
    keys = [by_cell.obj[name] for name in by_cell.keys]
    sums = (values**2).groupby(keys).sum()
    return sums.where(~values.isna().groupby(keys).any()) ** 0.5


def _withheld(trials: pd.DataFrame) -> pd.Series:
    """Say whether a completed trial had a window of steps, but its interval is missing or the steps were not steady."""
    is_sure = (trials["is_steady"] == 1) & trials["images_per_s_within"].notna()
    return (trials["outcome"] == "completed") & trials["steps_taken"].notna() & ~is_sure


def told_apart(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials with what tells those of one cell apart, as it counts for `cells`."""
    trials = plain(trials)
    return trials.assign(**{side: _digests(trials, side) for side in APART})


def _digests(trials: pd.DataFrame, side: str) -> pd.Series:
    """Each trial's; one that was inferred has its witness's, but for the arrangement, and another one that never ran
    anywhere counts with the others of its cell. What is not known of a trial that did run is like nothing else."""
    if side not in trials:  # a frame that somebody else has made
        return trials["cell"].map(lambda _: "")
    known = trials[side].where(trials[side] != "")
    if side != "arrangement" and {"trial", "inferred_from"} <= {*trials}:
        are_witnesses = trials["trial"].isin(trials["inferred_from"])
        kinds = known[are_witnesses].groupby(trials.loc[are_witnesses, "trial"].to_numpy()).unique()
        of_witness = {trial: each[0] for trial, each in kinds.items() if len(each) == 1}
        known = known.where(known.notna(), trials["inferred_from"].map(of_witness))
    others = known.groupby(trials["cell"]).transform("first")
    has_run = (trials["outcome"] == "completed") & (side not in FINGERPRINTS)
    filled = known.where(known.notna() | has_run, others)
    return filled.where(filled.notna(), "")


def _counted(outcomes: pd.Series) -> str:
    """`completed`, or `2 completed, 1 failed` where the repeats differ."""
    counts = outcomes.value_counts()
    return counts.index[0] if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())


def best(trials: pd.DataFrame, figure: str = "images_per_s") -> pd.Series:
    """Return the cell with the highest mean figure; whether its lead is shown, `analysis.pick` tells. Warns where the
    cells were not measured alike."""
    table = cells(trials).dropna(subset=[figure])
    if table.empty:
        raise ValueError(f"no trial measured {figure}")
    if sides := unlike(table):
        says = f"cells that are ranked must have been measured alike, but these have {named(table, sides)}"
        warnings.warn(f"{says}: a lead may be theirs; choose one with a condition", UnlikeWarning, stacklevel=2)
    return table.loc[table[figure].idxmax()]
