"""How a sweep ends: what was found and what went wrong are said, the page is written, and the ledger told."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sweeps import errors
from sweeps.errors import InputError, RefusedError
from sweeps.record import ledger
from sweeps.record.discarded import OpenRun
from sweeps.record.ledger import TrialRecord
from sweeps.run import forecast
from sweeps.run.progress import explained
from sweeps.run.terms import Setting
from sweeps.scheduling.engine import Engine
from sweeps.spec import plan
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import Plan
from sweeps.text import caller, tables
from workers.contract.redact import masked

if TYPE_CHECKING:
    from sweeps.analysis.findings.next_steps import Stopped

NAMED = 8  # cells that the budget does not hold


def summarize(
    planned: Plan,
    book: ledger.Ledger,
    setting: Setting,
    refusals: list[RefusedError],
    stopped: Stopped = "",
    expected: float = 0.0,
) -> int:
    """Say what was found, and what went wrong; the exit code. `expected` GPU-hours the whole sweep takes."""
    facts = book.facts
    try:
        records = ledger.read(facts.name).trials
    except InputError:  # discarded: nothing was measured
        records = ()
    if records:
        _conclude(planned, book, records, setting, refusals, stopped, expected)
    for refusal in refusals:
        setting.console.print(str(refusal), style="red")
    if refusals:
        setting.console.print(f"  once that is mended: {caller.command('sync', facts.name)}")
        return errors.REFUSED
    ended = [record for record in records if record.outcome.status != "cancelled"]
    if stopped:
        setting.console.print(f"stopped after {len(ended)} trials: {stopped}")
        return errors.INTERRUPTED
    is_sound = all(record.outcome.status in ("completed", "infeasible", "pruned") for record in records)
    return errors.DONE if is_sound else errors.SOME_FAILED


def _conclude(
    planned: Plan,
    book: ledger.Ledger,
    records: Sequence[TrialRecord],
    setting: Setting,
    refusals: list[RefusedError],
    stopped: Stopped,
    expected: float,
) -> None:
    from sweeps import analysis, report
    from sweeps.analysis import findings, overview, study
    from sweeps.analysis.findings import next_steps
    from sweeps.record import rows

    facts = book.facts
    trials = analysis.frame([rows.row(record) for record in records])
    where = f" on a simulated cluster ({facts.simulated})" if facts.simulated else ""
    tables.show(overview.table(trials, planned), "table", f"\n{facts.name}: what was found{where}")
    if planned.spec.search.method == "frontier":
        title = f"\nthe largest {planned.spec.frontier_word} that fits"
        tables.show(overview.frontier(trials, planned), "table", title)
    for record in [r for r in records if r.outcome.status in ("failed", "lost")][:10]:
        print(explained(record))
    done = study.read(facts.name)
    found = findings.find(done)
    print()
    for line in [*found.lines(), *overview.front(trials, planned)]:
        print(line)
    page = report.written(done, book.paths.folder / "report.html", found=found)
    if not refusals:
        try:
            if late := report.attach(facts.name, page, report.concluded(done, found)):
                setting.console.print(late, style="yellow")
        except RefusedError as refusal:
            refusals.append(refusal)
    situation = next_steps.Situation(
        caller=caller.current(),
        file=setting.file,
        is_on_cluster=bool(setting.terms.address),
        is_stored=not refusals,
        stopped=stopped,
        expected=expected,
        report=str(_here(page)),
    )
    print("\n" + "\n".join(next_steps.lines(next_steps.suggest(done, found, situation))) + "\n")


def given_up(book: ledger.Ledger, console: Console, open_in: str = "") -> None:
    """Clean up after a sweep of which nothing has run. A new one in a terminal leaves nothing, any other is as it was
    before, or stopped: but for a run that may be open in a store."""
    if book.is_blank:
        run = OpenRun(book.facts.id, masked(open_in), time.time()) if open_in else None
        with contextlib.suppress(OSError):  # else the sweep itself stays, and tells of its run
            book.discard(run)
            if run:
                console.print(
                    f"! {book.facts.name} leaves nothing, but its run may be open in the tracking store\n"
                    f"  {run.store}\n  once that answers: {caller.command('gc', '--yes')}",
                    style="yellow",
                )
            return
    if book.is_new:
        console.print(f"{book.facts.name} ends before its first trial; to go on: {resumes(book.facts.name)}")
    if open_in:
        console.print(
            f"! the run of {book.facts.name} may be open in the tracking store\n"
            f"  {masked(open_in)}\n  once that answers: {caller.command('sync', book.facts.name)}",
            style="yellow",
        )
    ended(book, "complete" if book.is_still_complete else "stopped")  # what it refuses hides no other reason


def ended(book: ledger.Ledger, why: str) -> list[RefusedError]:
    """Say so in its ledger: after the tracker has brought what it could, so that whoever goes on looks for the rest."""
    try:
        book.end(why)
    except RefusedError as refusal:
        return [refusal]
    return []


def resumes(name: str) -> str:
    return caller.command("resume", name, is_submitted=ledger.JOB in os.environ)


def beyond(engine: Engine, spec: SweepSpec) -> Iterator[str]:
    """Yield what was not run since the budget does not hold it, cell by cell, the cheapest first."""
    left, unit, name = engine.budget - engine.spent().gpu_hours, forecast.unit(spec), plan.namer(spec)
    trials = sorted(engine.beyond, key=engine.predicted_gpu_hours)
    rest = f"{max(0.0, left):.3g} of {engine.budget:g} {unit}"
    yield f"not run, since each of these needs more than the budget has left, {rest}:"
    cells = Counter(config.cell for config in trials)
    firsts = {config.cell: config for config in reversed(trials)}
    for cell in [*cells][:NAMED]:
        config = firsts[cell]
        yield f"  {name(config)}  {cells[cell]} × about {engine.predicted_gpu_hours(config):.3g} {unit}"
    if len(cells) > NAMED:
        yield f"  and {len(cells) - NAMED} more cells"


def _here(path: Path) -> Path:
    """Return a path as one would name it from the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
