"""`sweep run` and `sweep resume`: one sweep to its table, on this machine or on a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from sweeps import errors, ledger, shape, tables
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.ledger import TrialRecord
from sweeps.plan import Plan, namer, plan, summary
from sweeps.progress import Progress, explained
from sweeps.reading import read
from sweeps.shape import Node
from sweeps.spec import SweepSpec, parse
from workers.contract import WITHOUT_JPEGS

INTERRUPTED = 130
AGAIN = ("lost", "cancelled")  # outcomes that say nothing of the trial


def drive(file: Path, overrides: tuple[str, ...], address: str | None, me: str) -> int:
    """Run a sweep and say what was found; the exit code."""
    text = read(file)
    spec = parse(text, str(file), overrides)
    planned = plan(spec, str(file))
    if not address:
        _check_data(spec, str(file), me)
    console = Console(stderr=True)
    console.print(f"[bold]{spec.name}[/]: {escape(summary(planned))}", highlight=False)

    with _cluster(address, console) as nodes:
        shape.check_capacity(planned, nodes, str(file))
        book = ledger.create(planned, text, overrides)
        records, refusals = _measure(planned, [], book, nodes, console)
    return _told(planned, records, refusals, book.facts.name, file, console, me)


def resume(name: str, address: str | None, me: str) -> int:
    """Run what a sweep that stopped has not measured yet; the exit code."""
    record = ledger.read(name)
    facts = record.facts
    planned = Plan(parse(facts.file, name, facts.overrides), facts.trials)
    done = [trial for trial in record.trials if trial.outcome.status not in AGAIN]
    known = {trial.config.trial for trial in done}
    left = Plan(planned.spec, tuple(trial for trial in facts.trials if trial.trial not in known))
    console = Console(stderr=True)
    console.print(f"[bold]{name}[/]: {len(left.trials)} of {len(facts.trials)} trials are left", highlight=False)
    file = Path(f"results/{name}")
    if not left.trials:
        return _told(planned, done, [], name, file, console, me)
    with _cluster(address, console) as nodes:
        shape.check_capacity(left, nodes, name)
        records, refusals = _measure(left, done, ledger.reopen(record), nodes, console)
    return _told(planned, records, refusals, name, file, console, me)


@contextlib.contextmanager
def _cluster(address: str | None, console: Console) -> Iterator[list[Node]]:
    console.print(f"[dim]connecting to Ray at {address} …[/]" if address else "[dim]starting Ray on this machine …[/]")
    if address:  # a cluster asks for its token since Ray 2.60; a client sends it if told so before it imports Ray
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    from sweeps import runner

    with runner.cluster(address) as nodes:
        yield nodes


def _told(
    planned: Plan,
    records: list[TrialRecord],
    refusals: list[RefusedError],
    name: str,
    file: Path,
    console: Console,
    me: str,
) -> int:
    """Say what was found, and what went wrong; the exit code."""
    if records:
        _conclude(planned, records, name, file, me)
    for refusal in refusals:
        console.print(f"[red]{refusal}[/]", highlight=False, soft_wrap=True)
    if refusals:
        console.print(f"  once that is mended: {me} sync {name}", highlight=False)
        return errors.REFUSED
    ended = [record for record in records if record.outcome.status != "cancelled"]
    if len(ended) < len(planned.trials):
        console.print(f"stopped after {len(ended)} of {len(planned.trials)} trials", highlight=False)
        console.print(f"  to go on: {me} resume {name}", highlight=False)
        return INTERRUPTED
    is_sound = all(record.outcome.status in ("completed", "infeasible") for record in records)
    return errors.DONE if is_sound else errors.SOME_FAILED


def _measure(
    planned: Plan, done: list[TrialRecord], book: ledger.Ledger, nodes: Sequence[Node], console: Console
) -> tuple[list[TrialRecord], list[RefusedError]]:
    """The trials that ended, those before among them, and what refused to take them; raises if that was so before
    the first."""
    from sweeps import runner, tracking

    refusals: list[RefusedError] = []
    progress = Progress(planned.trials, namer(planned.spec), console)
    tracker = tracking.Tracker(book.facts)
    for record in done:  # a driver that was killed may not have told the store of its last trials
        tracker.ended(record)
    is_complete = False
    try:
        with progress:
            is_complete = runner.run(planned, book, nodes, [progress, tracker])
        book.end("complete" if is_complete else "stopped")
    except RefusedError as refusal:
        refusals.append(refusal)
    finally:  # a Ctrl-C before the first trial comes by here too
        left = tracker.close(is_complete)
        if not progress.records and not done:
            book.discard()
    if refusals and not progress.records:
        raise refusals[0]
    if left:
        count = f"{left} of {len(progress.records)} trials"
        refusals.append(tracking.refused(f"take every trial ({count} stand in the ledger only)", tracker.refusal))
    return [*done, *progress.records], refusals


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
