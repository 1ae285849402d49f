"""`sweep run`: one sweep from its file to its table, on this machine or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sweeps import errors, ledger, shape, tables
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.ledger import TrialRecord
from sweeps.plan import Plan, plan, summary
from sweeps.progress import Progress, explained
from sweeps.reading import read
from sweeps.shape import Node
from sweeps.spec import SweepSpec, parse
from workers.contract import WITHOUT_JPEGS

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
    progress = Progress(planned.trials, console)
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
    """A sweep on this machine can tell at once that its images aren't there."""
    mistakes = []
    for data in spec.data.points():
        needed = ["train"] if spec.protocol == "throughput" else ["train", "validation"]
        for split in needed if data not in WITHOUT_JPEGS else []:
            if not any(Path(data).glob(f"{split}-*-of-*")):
                classes = 1000 if spec.classes == "auto" else spec.classes
                made = f"{me} data make {data} --images 512 --shards 4 --classes {classes} --split {split}"
                rule = f"must be synthetic, digits or a folder of TFRecords named {split}-*-of-* (to make one: {made})"
                mistakes.append(Mistake("data", rule, data))
    if mistakes:
        raise InputError(place, mistakes)


def _conclude(planned: Plan, records: list[TrialRecord], name: str, file: Path, me: str) -> None:
    from sweeps import findings, query, rows

    trials = query.frame([rows.row(record) for record in records])
    tables.show(findings.table(trials, planned), "table", f"\n{name}: what was found")
    for record in [r for r in records if r.outcome.status in ("failed", "lost")][:10]:
        print(explained(record))
    if best := findings.best(trials, planned):
        print(f"\n{best}")
    print(f"\n  look    {me} ui")
    print(f"  query   {me} trials {name} --format csv")
    more = "repeats=10" if planned.spec.protocol == "convergence" else "batch_size=[64,256] repeats=5"
    print(f"  next    {me} run {file} --set {more}\n")
