"""Every trial, what did not complete and why, and how to do it again."""

from __future__ import annotations

import collections
import math
import shlex
from typing import TYPE_CHECKING, Any

from sweeps.analysis import frames
from sweeps.analysis.study import Study
from sweeps.report import effects
from sweeps.report.chart import Block, Section, Table, Text
from sweeps.spec import secrecy, space
from sweeps.text import tables

if TYPE_CHECKING:
    import pandas as pd

FIGURES = {  # by column; those that no trial has are left out
    "images_per_s": "images/s",
    "images_per_s_within": "± in its window",
    "top1": "top-1",
    "epochs_to_target": "epochs to target",
    "hours_to_target": "hours to target",
    "step_ms_p50": "step ms, p50",
    "step_ms_p95": "p95",
    "input_share": "input",
    "comm_share": "comm",
    "overlap_share": "overlapped",
    "gpu_hours_per_epoch": "GPU-hours an epoch",
    "joules_per_image": "joules an image",
    "cpu_joules_per_image": "of processors",
    "gpu_joules_per_image": "of GPUs",
    "peak_memory_mib": "host MiB, a rank",
    "peak_device_memory_mib": "GPU MiB, a rank",
    "launch_s": "launch s",
    "trial_s": "trial s",
}
MOST_LISTED = 6


def table(study: Study) -> Section:
    trials = study.trials
    axes = [axis for axis in study.plan.axes if axis in trials] or ["batch_size", "gpus"]
    figures = [name for name in FIGURES if trials[name].notna().any()]
    columns = ("trial", *map(study.word, axes), "repeat", "outcome", *(_word(study, name) for name in figures), "began")
    rows = [
        (
            row["trial"],
            *(space.shown(row[axis]) for axis in axes),
            row["repeat"],
            f"{row['outcome']} (cached)" if row["cached_from"] else row["outcome"],
            *(_figure(name, row[name]) for name in figures),
            row["started_at"].strftime("%m-%d %H:%M:%S"),
        )
        for row in trials.to_dict("records")
    ]
    numbers = {study.word(axis) for axis in axes if trials[axis].dtype.kind in "if"}
    numeric = frozenset({*numbers, "repeat", *(_word(study, name) for name in figures)})
    made = Table("every-trial", "Every trial", columns, tuple(rows), numeric, is_sortable=True)
    lead = "A heading sorts. All columns, as CSV: " + f"`sweep trials {study.name} --format csv`."
    return Section("trials", "Trials", lead, (made,))


def _word(study: Study, figure: str) -> str:
    return study.rate if figure == "images_per_s" else FIGURES[figure].replace("GPU", study.rank)


def _figure(name: str, value: float) -> str:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return (
        f"{value:.1%}" if name in ("top1", "input_share", "comm_share", "overlap_share") else tables.cell(float(value))
    )


def ends(study: Study) -> Section | None:
    """Return what was used again, what can't run, what failed, what was tried again, what does not fit in."""
    frame = study.trials
    blocks: list[Block] = [*_incomplete(frame), *_withheld(study), *_cached(frame), *_retried(study)]
    if study.asides:
        asides = tuple((str(one["node"]), str(one.get("trials", ""))) for one in study.asides)
        blocks.append(Table("ends-aside", "Nodes set aside", ("node", "why"), asides))
    blocks += effects.outliers(study)
    if not blocks:
        return None
    counted = ", ".join(f"{n} {name}" for name, n in frame["outcome"].value_counts().items())
    return Section("ends", "What stands out", f"{len(frame)} trials: {counted}.", tuple(blocks))


def _incomplete(frame: pd.DataFrame) -> list[Block]:
    ended = frame[frame["outcome"] != "completed"]
    reasons = ended.groupby([ended["outcome"], frames.kinds(ended), ended["message"]], sort=False)
    rows = [
        (outcome, kind or "–", len(alike), message or "–", _listed(list(alike["name"])))
        for (outcome, kind, message), alike in reasons
    ]
    columns = ("outcome", "kind", "trials", "why", "which")
    title = "What did not complete"
    return [Table("ends-why", title, columns, tuple(rows), frozenset({"trials"}))] if rows else []


def _withheld(study: Study) -> list[Block]:
    cells = study.cells[study.cells["withheld"] > 0]
    rows = [(study.described(cell) or study.name, cell["withheld"], cell["n"]) for _, cell in cells.iterrows()]
    note = "Steps drifted, held two levels, or were too few. A cell's interval comes from its repeats all the same."
    title = "Windows without an interval of their own"
    columns = ("cell", "withheld", "repeats")
    return [Table("ends-withheld", title, columns, tuple(rows), frozenset(columns[1:]), note)] if rows else []


def _cached(frame: pd.DataFrame) -> list[Block]:
    cached = frame[frame["cached_from"] != ""]
    rows = [(at, len(alike), _listed(list(alike["name"]))) for at, alike in cached.groupby("cached_from")]
    columns = ("measured by", "trials", "which")
    note = (
        "Not measured again, since cell, hardware, software, files and the arrangement on nodes are the same. `--fresh`"
        " measures them anew."
    )
    title = "Taken from earlier sweeps"
    return [Table("ends-cached", title, columns, tuple(rows), frozenset({"trials"}), note)] if rows else []


def _retried(study: Study) -> list[Block]:
    ends = ((one.outcome.status, one.outcome.kind, one.outcome.message) for one in study.attempts)
    rows = [(status, kind, n, why) for (status, kind, why), n in collections.Counter(ends).items()]
    columns = ("ended", "kind", "attempts", "why")
    title = "Attempts that were tried again"
    return [Table("ends-retried", title, columns, tuple(rows), frozenset({"attempts"}))] if rows else []


def _listed(names: list[str]) -> str:
    cells = list(dict.fromkeys(name.rsplit(" #", 1)[0] for name in names))
    more = f" and {len(cells) - MOST_LISTED} more cells" if len(cells) > MOST_LISTED else ""
    return "; ".join(cells[:MOST_LISTED]) + more


def again(study: Study) -> Section:
    """Return the command and the file."""
    facts = study.facts
    file = f"{facts.spec.name}.yaml"
    command = f"sweep run {file}"
    if facts.simulated:
        command += f" --simulate {facts.simulated}"
    if facts.overrides:
        command += f" --set {' '.join(shlex.quote(secrecy.masked(text)) for text in facts.overrides)}"
    if not facts.simulated:
        command += " --fresh"
    blocks: list[Text] = [Text("Command", command), Text(file, secrecy.masked(facts.file).rstrip())]
    commits = {_commit(node) for node in study.nodes} - {""}
    lead = (
        f"Save the file as `{file}` and run the command. Every figure of this page is in"
        f" {'' if study.stored is not None else f'`results/{facts.name}/ledger.jsonl` and, as a table, in '}"
        f"`sweep trials {shlex.quote(facts.name)} --format csv`."
    )
    if commits:
        lead += f" The program was at commit {', '.join(sorted(commits))}."
    return Section("again", "Do it again", lead, tuple(blocks))


def _commit(node: Any) -> str:
    project = (node.get("software") or {}).get("project") or {}
    commit = str(project.get("commit", ""))[:10]
    return f"`{commit}`{' with changes' if project.get('is_dirty') else ''}" if commit else ""
