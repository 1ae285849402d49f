"""`sweep run`: one sweep from its file to its table, on this machine or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sweeps import errors, ledger, shape, tables
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.ledger import TrialRecord
from sweeps.plan import Plan, plan, summary
from sweeps.progress import Progress, explained
from sweeps.shape import Node
from sweeps.spec import SweepSpec, parse, read

if TYPE_CHECKING:
    import pandas as pd

INTERRUPTED = 130


def drive(file: Path, overrides: tuple[str, ...], address: str | None, me: str) -> int:
    """Run a sweep and say what was found; the exit code."""
    text = read(file)
    spec = parse(text, str(file), overrides)
    planned = plan(spec, str(file))
    if not address:
        _check_data(spec, str(file), me)
    console = Console(stderr=True)
    console.print(f"[bold]{spec.name}[/]: {summary(planned)}", highlight=False)
    console.print(f"[dim]connecting to Ray at {address} …[/]" if address else "[dim]starting Ray on this machine …[/]")

    if address:  # a cluster asks for its token since Ray 2.60; a client sends it if told so before it imports Ray
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    from sweeps import runner

    with runner.cluster(address) as nodes:
        shape.check_capacity(planned, nodes, str(file))
        book = ledger.create(planned, text, overrides)
        records, refusals = _measure(planned, book, nodes, console)
    if records:
        _conclude(planned, records, book.facts.name, file, me)
    for refusal in refusals:
        console.print(f"[red]{refusal}[/]", highlight=False, soft_wrap=True)
    if refusals:
        console.print(f"  once that is mended: {me} sync {book.facts.name}", highlight=False)
        return errors.REFUSED
    if len(records) < len(planned.trials) or any(record.outcome.status == "cancelled" for record in records):
        console.print(f"stopped after {len(records)} of {len(planned.trials)} trials", highlight=False)
        return INTERRUPTED
    is_sound = all(record.outcome.status in ("completed", "infeasible") for record in records)
    return errors.DONE if is_sound else errors.SOME_FAILED


def _measure(
    planned: Plan, book: ledger.Ledger, nodes: Sequence[Node], console: Console
) -> tuple[list[TrialRecord], list[RefusedError]]:
    """The trials that ended, and what refused to take them; raises if that was so before the first."""
    from sweeps import runner, tracking

    refusals: list[RefusedError] = []
    progress = Progress(len(planned.trials), console)
    tracker = tracking.Tracker(book.facts)
    is_complete = False
    try:
        with progress:
            is_complete = runner.run(planned, book, nodes, [progress, tracker])
        book.end("complete" if is_complete else "stopped")
    except RefusedError as refusal:
        refusals.append(refusal)
    finally:  # a Ctrl-C before the first trial comes by here too
        left = tracker.close(is_complete)
        if not progress.records:
            book.discard()
    if refusals and not progress.records:
        raise refusals[0]
    if left:
        count = f"{left} of {len(progress.records)} trials"
        refusals.append(tracking.refused(f"take every trial ({count} stand in the ledger only)", tracker.refusal))
    return progress.records, refusals


def _check_data(spec: SweepSpec, place: str, me: str) -> None:
    if spec.data != "synthetic" and not any(Path(spec.data).glob("train-*-of-*")):
        made = f"{me} data make {spec.data} --images 512 --shards 4 --classes {spec.classes}"
        rule = f"must be synthetic or a folder of TFRecords named train-*-of-* (to make one: {made})"
        raise InputError(place, [Mistake("data", rule, spec.data)])


def _conclude(planned: Plan, records: list[TrialRecord], name: str, file: Path, me: str) -> None:
    from sweeps import analysis, query, rows

    found = analysis.scaling(query.frame([rows.row(record) for record in records]))
    tables.show(_findings(found, planned), "table", f"\n{name}: what was found")
    for record in [r for r in records if r.outcome.status in ("failed", "lost")][:10]:
        print(explained(record))
    if (found["n"] > 0).any():
        top = found.loc[found["images_per_s"].idxmax()]
        fastest = tables.plus_minus(top["images_per_s"], top["images_per_s_ci"])
        print(
            f"\nFastest: batch {top['batch_size']} × {top['gpus']}, {top['precision']}, "
            f"{top['decode_threads']} decode threads: {fastest} images/s"
        )
    print(f"\n  look    {me} ui")
    print(f"  query   {me} trials {name} --format csv")
    print(f"  next    {me} run {file} --set batch_size=[64,256] repeats=5\n")


def _findings(found: pd.DataFrame, planned: Plan) -> pd.DataFrame:
    """The axes that vary and what was measured, for a screen."""
    table = found[[*planned.axes]].copy()
    table["images/s"] = [
        tables.plus_minus(mean, ci) for mean, ci in zip(found["images_per_s"], found["images_per_s_ci"], strict=True)
    ]
    if "gpus" in planned.axes:
        table["efficiency"] = [
            tables.percent(value, ci) for value, ci in zip(found["efficiency"], found["efficiency_ci"], strict=True)
        ]
    table["repeats"] = found["n"]
    table["outcome"] = [
        f"{outcomes}: {message}" if message else outcomes
        for outcomes, message in zip(found["outcomes"], found["message"], strict=True)
    ]
    return table
