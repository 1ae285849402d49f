"""`sweep run`, `resume`, `retry`: a sweep from its file, or from where its driver stopped, to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sweeps import errors
from sweeps.cluster import driver_log
from sweeps.cluster.site import Simulated
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.record import ownership
from sweeps.record.ledger import Ledger, SweepRecord, TrialRecord
from sweeps.run import ending, executor, forecast, preflight, preview, terms
from sweeps.run.progress import SweepProgress
from sweeps.run.terms import Setting, Terms
from sweeps.scheduling import asha, search
from sweeps.scheduling.asha import Arrival, Rungs
from sweeps.scheduling.baselines import Bases
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.changes import Sameness
from sweeps.scheduling.engine import NODES_MAY_COME_BACK_S, Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.spec import arrangements, own_code, plan
from sweeps.spec.keys import RANK, SweepSpec
from sweeps.spec.plan import Plan
from sweeps.spec.reading import read
from sweeps.spec.sweep_file import parse
from sweeps.text import caller, screen
from workers.contract.messages import TrialConfig

if TYPE_CHECKING:
    from sweeps.analysis.findings.next_steps import Stopped
    from sweeps.run.status import StatusWriter
    from sweeps.run.tracker import Tracker

NOTHING_TO_RUN = "nothing is left to run"
AGAIN = ("lost", "cancelled")  # outcomes that say nothing of the trial
SOON_S = 2.0  # nobody asks what is waited for


@dataclasses.dataclass(frozen=True)
class _Before:
    """What a sweep had come to when its driver stopped, and what is known without measuring."""

    done: Sequence[TrialRecord] = ()
    attempts: Sequence[TrialRecord] = ()  # that did not count
    arrivals: Sequence[Arrival] = ()  # at rungs
    spent: float = 0.0  # GPU-hours, of all drivers before
    kept: Sequence[TrialRecord] = ()  # beside what is to be done now
    unjudged: Collection[str] = ()  # trials that go to their end, whatever the search says
    leaves: int = 0  # trials that are not to be done now, and have not ended
    is_listed: bool = False  # exactly the plan's trials are to be done, whatever the search would do
    known: Cache = dataclasses.field(default_factory=Cache)  # by earlier sweeps
    same: Sameness | None = None  # with what it was measured


def drive(
    file: Path, overrides: tuple[str, ...], asked: Terms, begun: Callable[[str], object] = lambda name: None
) -> int:
    """Run a sweep and say what was found; the exit code. `begun` is told the name that the sweep has."""
    text, named = read(file), caller.named(file)
    spec = parse(text, named, overrides)
    planned = plan.plan(spec, named)
    preflight.check(spec, named, asked)
    own_code.check(planned, named, is_whole=not (asked.machine or asked.address))
    asked.gpu_hours(spec)
    console = screen.beside()
    console.print(screen.named(spec.name, plan.summary(planned)))
    earlier = _earlier(asked)
    books: list[Ledger] = []  # its own, once it has its name
    with terms.open_site(asked, console) as site, contextlib.ExitStack() as stack:
        setting = Setting(asked, site, console, named, named if caller.is_kept(file) else "")

        def begin() -> None:
            """As soon as it is known to run, or before that, where this takes long: its name is wanted."""
            if books:
                return
            code = own_code.files(spec, Path.cwd()) if caller.current().is_afar else None
            new = ownership.create(
                planned,
                text,
                overrides,
                asked.simulate,
                is_fresh=asked.is_fresh,
                skips_impossible=asked.skips_impossible,
            )
            stack.enter_context(contextlib.closing(new))
            with _given_up_if_it_ends(new, console):
                if code:  # it was sent along and goes with the job, and a resumed sweep needs it
                    code.copy_to(new.paths.code)
                _named(new, console)
                begun(new.facts.name)
            books.append(new)

        try:
            with site.guarded(functools.partial(_abandoned, books, None, console, asked)):
                if preflight.waits_for_nodes(planned, setting):
                    begin()
                preflight.await_nodes(planned, setting)
                planned = _for_nodes(planned, setting)
                found = earlier(_reusable(planned.trials))
                planned = preflight.possible(planned, setting, late=begin)
                known = _known_earlier(found, console, begin)
                begin()
                (book,) = books
                book.plan(planned)
        except BaseException:
            for one in books:
                ending.given_up(one, console)
            raise
        return _conduct(planned, book, setting, _Before(known=Cache(known)))


def _reusable(trials: Iterable[TrialConfig]) -> set[str]:
    """Return the cells of which earlier results may stand. Of a user's own code nobody knows what it reads and
    imports."""
    return {trial.cell for trial in trials if not trial.own_code}


def _earlier(asked: Terms) -> Callable[[Collection[str]], Future[list[dict[str, Any]]]]:
    """Return what looks up what earlier sweeps have measured of cells. What that needs is loaded while Ray starts."""

    def look(cells: Collection[str]) -> list[dict[str, Any]]:
        if asked.is_fresh or asked.machine:
            return []
        from sweeps.store import query

        return query.finished(cells)

    def aside(cells: Collection[str], after: Future[Any] | None = None) -> Future[list[dict[str, Any]]]:
        """Ask in a thread that nobody waits for at a driver's end: a store may take minutes to say nothing."""
        answer: Future[list[dict[str, Any]]] = Future()

        def answers() -> None:
            if after:
                after.exception()  # waits for it
            try:
                answer.set_result(look(cells))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=answers, daemon=True).start()
        return answer

    loaded = aside(())
    return lambda cells: aside(cells, loaded)


def _known_earlier(
    found: Future[list[dict[str, Any]]], console: Console, late: Callable[[], object]
) -> list[dict[str, Any]]:
    """Return what earlier sweeps have measured. Where the store takes long to say, whoever follows knows what the sweep
    waits for, and its name."""
    with contextlib.suppress(TimeoutError):
        return found.result(SOON_S)
    late()
    console.print("looking up what earlier sweeps have measured …", style="dim")
    return found.result()


def _named(book: Ledger, console: Console, is_over: bool = False) -> None:
    """Tell where the results are, and whoever submitted the sweep its name, who takes it to have begun."""
    driver_log.into(book.paths.logs)
    console.print(f"results in {book.paths.folder}", style="dim")
    driver_log.name_sweep(book.paths.folder.name, is_over)


def _for_nodes(sketch: Plan, setting: Setting) -> Plan:
    """Return the plan with its ranks arranged on the nodes that there are."""
    nodes = setting.site.nodes
    planned = plan.plan(sketch.spec, setting.place, nodes)
    if planned.left_out != sketch.left_out:
        count = f"{planned.most} trials on {arrangements.described(nodes)}"
        setting.console.print(f"{count}; {plan.left_out(planned)}")
    return planned


def resume(name: str, asked: Terms) -> int:
    """Run what a sweep that stopped has not measured yet; the exit code."""
    with contextlib.closing(ownership.reopen(name)) as book:
        return _resume(book, asked)


def _resume(book: Ledger, asked: Terms) -> int:
    record, facts = book.before, book.facts
    planned = Plan(facts.spec, facts.trials, nodes=facts.nodes)
    done = [one for one in record.trials if one.outcome.status not in AGAIN and one.config.trial not in record.due]
    console = screen.beside()
    driver_log.into(book.paths.logs)
    is_over = _is_over(record, done)
    console.print(screen.named(facts.name, _what_is_left(planned, done, is_over)))
    asked = dataclasses.replace(asked, simulate=facts.simulated, is_fresh=facts.is_fresh)
    asked.gpu_hours(facts.spec)
    if is_over:
        _named(book, console, is_over)
        refusals = _brought(record, console)
        if not record.is_complete:  # its driver was killed before it could say so
            book.end("complete")
        return ending.summarize(planned, book, Setting(asked, Simulated(()), console, facts.name), refusals)
    earlier = _earlier(asked)
    with terms.open_site(asked, console) as site:
        setting = Setting(asked, site, console, facts.name)
        with _goes_on(planned, book, setting) as late:
            preflight.await_nodes(planned, setting)
            is_planned = bool(facts.nodes or record.trials or record.attempts)
            if not is_planned:  # its driver has gone while it waited for nodes
                planned = _for_nodes(planned, setting)
            # Nor is what was to be measured anew, by a `retry` that stopped.
            not_asked = {one.config.trial for one in done} | record.due.keys()
            found = earlier(_reusable(trial for trial in planned.trials if trial.trial not in not_asked))
            planned = preflight.possible(planned, setting, facts, late)
            rows = _known_earlier(found, console, late)
        known = Cache(row for row in rows if row["trial"] not in not_asked)
        if not is_planned:
            book.plan(planned)
        arrivals = [one for noted in record.rungs if (one := asha.arrival(noted)).trial not in record.due]
        same = Sameness(record.nodes, done, arrivals)
        unjudged = [trial for trial, is_unjudged in record.due.items() if is_unjudged]
        before = _Before(done, record.attempts, arrivals, record.spent, unjudged=unjudged, known=known, same=same)
        return _conduct(planned, book, setting, before)


@contextlib.contextmanager
def _goes_on(planned: Plan, book: Ledger, setting: Setting) -> Iterator[Callable[[], object]]:
    """Within the block it is found out whether a sweep that stopped can go on. Behind it the sweep is named, or before
    that: where it waits for nodes, and whenever what is yielded is called."""
    name = functools.cache(functools.partial(_named, book, setting.console))  # once
    with setting.site.guarded(functools.partial(_abandoned, [book], None, setting.console, setting.terms)):
        if preflight.waits_for_nodes(planned, setting):
            name()
        yield name
        name()


def _brought(record: SweepRecord, console: Console) -> list[RefusedError]:
    """Have the store know what a driver that was killed at the very end could not tell it any more; why it does not."""
    from sweeps.store import late_runs, tracking

    try:
        late = tracking.sync(dataclasses.replace(record, is_complete=True), only_missing=True)
    except RefusedError as refusal:
        return [refusal]
    if late:
        console.print(late_runs.words(late, record.facts.name), style="yellow")
    return []


def _is_over(record: SweepRecord, done: Sequence[TrialRecord]) -> bool:
    """Say whether nothing of it is left to run. Of a search that proposes its own trials only its driver could say
    so."""
    if not record.facts.trials:
        return record.is_complete and len(done) == len(record.trials)
    return len(done) >= len(record.facts.trials) and not _are_bases_left(record.facts.spec, done)


def _what_is_left(planned: Plan, done: Sequence[TrialRecord], is_over: bool) -> str:
    if is_over:
        return f"{NOTHING_TO_RUN}: all {len(done)} trials have ended"
    if not planned.trials:
        return f"{len(done)} trials are done, and the search goes on"
    if left := planned.most - len(done):
        return f"{left} of {planned.most} trials are left"
    return f"all that is left are trials on one {RANK[planned.spec.device]}, which the efficiency of others needs"


def retry(name: str, statuses: Sequence[str], asked: Terms) -> int:
    """Run exactly the trials again that ended so, or, where no way is named, that failed or were lost; the exit
    code."""
    with contextlib.closing(ownership.reopen(name)) as book:
        return _retry(book, statuses, asked)


def _retry(book: Ledger, statuses: Sequence[str], asked: Terms) -> int:
    record, facts = book.before, book.facts
    console = screen.beside()
    driver_log.into(book.paths.logs)
    meant = statuses or ("failed", "lost")
    again = tuple(trial.config for trial in record.trials if trial.outcome.status in meant)
    kept = [trial for trial in record.trials if trial.outcome.status not in meant]
    anew = {config.trial for config in again}
    arrivals = [one for noted in record.rungs if (one := asha.arrival(noted)).trial not in anew]
    if not again:
        ended = ", ".join(sorted({trial.outcome.status for trial in record.trials})) or "in no way yet"
        if statuses:
            rule = f"must be how a trial of {facts.name} ended ({ended})"
            raise InputError("retry", [Mistake("--status", rule, ",".join(statuses))])
        nothing = f"{NOTHING_TO_RUN}: no trial failed or was lost (ended: {ended})"
        console.print(screen.named(facts.name, nothing))
        _named(book, console, is_over=True)
        return errors.DONE
    console.print(screen.named(facts.name, f"{len(again)} trials once more"))
    asked = dataclasses.replace(asked, simulate=facts.simulated)
    asked.gpu_hours(facts.spec)
    with terms.open_site(asked, console) as site:
        setting = Setting(asked, site, console, facts.name)
        planned = Plan(facts.spec, again, nodes=facts.nodes)
        with _goes_on(planned, book, setting) as late:
            preflight.await_nodes(planned, setting)
            planned = preflight.possible(planned, setting, facts, late)
        book.again(anew, are_unjudged="pruned" in meant)
        before = _Before(
            arrivals=arrivals,
            spent=record.spent,
            kept=kept,
            unjudged=anew if "pruned" in meant else (),
            leaves=_unended(record, anew),
            is_listed=True,
            same=Sameness(record.nodes, kept, arrivals),
        )
        return _conduct(planned, book, setting, before)


def _unended(record: SweepRecord, anew: Collection[str]) -> int:
    """Trials of a sweep that have not ended, beside those that are to be done anew; at least one of a search that has
    not come to its end."""
    if record.is_complete:
        return 0
    ended = {one.config.trial for one in record.trials if one.outcome.status != "cancelled"} - record.due.keys() | {
        *anew
    }
    return len({config.trial for config in record.facts.trials} - ended) if record.facts.trials else 1


def _conduct(planned: Plan, book: Ledger, setting: Setting, before: _Before) -> int:
    """Run what its search proposes, and say what was found; the exit code. Raises if the ledger or the store refused
    before the first trial.

    The ledger stays its caller's until then: the tracker makes runs and the report goes to the sweep's own, and the
    next driver would do the same beside them."""
    spec, asked, console = planned.spec, setting.terms, setting.console
    with _given_up_if_it_ends(book, console):  # reading how long earlier trials took may last
        from sweeps.run.metrics import Meter
        from sweeps.run.status import StatusWriter
        from sweeps.run.tracker import Tracker
        from sweeps.store import access, late_runs

        engine = _engine(planned, setting, before)
        progress = SweepProgress(planned.most, plan.namer(spec), console, forecast.unit(spec), before.done)
        status_writer = StatusWriter(book.facts, book.paths, engine, before.done, before.kept)
        # A Ray of our own exports no metrics, and what is simulated would spoil those of what is real.
        meters = [Meter(book.facts, engine)] if asked.address and not asked.machine else []
        for line in preview.borne_out(planned.trials or preflight.some(planned), asked):
            console.print(line, style="dim")
        refusals: list[RefusedError] = []
        is_over = is_complete = False
        tracker = Tracker(book.facts)
    try:
        gone = functools.partial(_abandoned, [book], tracker, console, asked, status_writer=status_writer)
        with progress, setting.site.guarded(gone):
            observers = [progress, tracker, status_writer, *meters]
            is_complete = executor.carry_out(engine, book, setting.executor(book), observers, before.same)
        is_over = True
    except RefusedError as refusal:
        refusals.append(refusal)
    finally:  # a Ctrl-C before the first trial comes by here too
        for meter in meters:
            meter.close()
        is_whole = book.is_still_complete or (is_complete and not before.leaves)
        is_discarded = book.is_blank
        try:
            left = tracker.close(is_whole, is_discarded)
        finally:  # a second Ctrl-C, while it waits for the store
            if is_over and not is_discarded:
                refusals += ending.ended(book, "complete" if is_whole else "stopped")
            elif not book.has_run:
                ending.given_up(book, console, access.store_address() if tracker.leaves_run else "")
            else:  # cut short, by a second Ctrl-C or whatever went wrong: why, is told already
                ending.ended(book, "stopped")
            # From here on the ledger tells how it stands, if it could be written.
            status_writer.close(is_told=book.has_ended or not book.has_run)
    if refusals and not progress.done:
        raise refusals[0]
    if left:
        count = f"{left} of {progress.done} trials"
        refusals.append(access.refused(f"take every trial ({count} stand in the ledger only)", tracker.refusal))
    elif not tracker.is_closed and not is_discarded:
        refusals.append(access.refused("hear that the sweep is over (its run is open there)", tracker.refusal))
    spent = engine.spent()
    console.print(f"spent {spent.gpu_hours:.3g} {forecast.unit(spec)}", style="dim")
    why: Stopped = "" if is_complete else "interrupted"
    if engine.is_over and engine.beyond:
        why = "nothing else fits in the budget"
        for line in ending.beyond(engine, spec):
            console.print(f"! {line}", style="yellow")
    if before.leaves:
        console.print(f"others of its trials have not run yet: {ending.resumes(book.facts.name)}")
    code = ending.summarize(planned, book, setting, refusals, why, spent.expected)
    if tracker.late and not refusals:  # whose cure is the same
        console.print(late_runs.words(tracker.late, book.facts.name), style="yellow")
    return code


@contextlib.contextmanager
def _given_up_if_it_ends(book: Ledger, console: Console) -> Iterator[None]:
    """Give the sweep up if the block ends by a signal, or whatever goes wrong, before the first trial."""
    try:
        yield
    except BaseException:
        ending.given_up(book, console)
        raise


def _engine(planned: Plan, setting: Setting, before: _Before) -> Engine:
    """Return what decides which trial runs next, with what is known so far."""
    spec, asked = planned.spec, setting.terms
    engine = Engine(
        (lambda _: search.Listed(planned.trials)) if before.is_listed else functools.partial(search.strategy, planned),
        forecast.learned(setting.machine, is_real=not asked.machine),
        Feasibility(spec.seed),
        before.known,
        budget_gpu_hours=asked.gpu_hours(spec),
        wait_for_nodes_s=NODES_MAY_COME_BACK_S if spec.wait_for_nodes_min is None else 60 * spec.wait_for_nodes_min,
        max_nodes=spec.max_nodes,
        rungs=_rungs(spec),
        bases=_bases(spec),
        unjudged=before.unjudged,
    )
    engine.resumed(before.done, before.attempts, before.arrivals, before.spent, before.kept)
    return engine


def _bases(spec: SweepSpec) -> Bases:
    return Bases(is_strong="global_batch" in spec.axes)


def _are_bases_left(spec: SweepSpec, records: Sequence[TrialRecord]) -> bool:
    """Every trial has ended, but a search has stopped one that another needs as its base."""
    bases = _bases(spec)
    for record in records:
        bases.tell(record)
    return _rungs(spec) is not None and bool(bases.again())


def _rungs(spec: SweepSpec) -> Rungs | None:
    """Return what stops hopeless trials, where the search does that."""
    if spec.search.method != "asha" or not spec.epochs:
        return None
    return Rungs(spec.search.grace, spec.search.reduction, spec.epochs, spec.evaluate_every, spec.goals[0])


def _abandoned(
    books: Sequence[Ledger],
    tracker: Tracker | None,
    console: Console,
    asked: Terms,
    why: str,
    status_writer: StatusWriter | None = None,
) -> None:
    """Ray's head has gone, and with it all that runs: end here, since nothing that waits for Ray will. Of `books` there
    is none yet where the sweep has no name, and neither tracker nor status writer until it begins."""
    from sweeps.store import access, late_runs

    kept = [ending.resumes(book.facts.name) for book in books if not book.is_blank]
    goes_on = next(iter(kept), "the same command once more")
    if asked.address:
        console.print(why, style="red")
        console.print(f"  once it is back, or with another head's address: {goes_on}")
    else:
        console.print("the Ray that this command had started on this machine has ended before it", style="red")
        console.print(
            f"  by a signal to all processes of the command, or by hand, or for lack of memory\n  to go on: {goes_on}"
        )
    for book in books:
        if tracker:
            tracker.close(book.is_still_complete, book.is_blank)
            if tracker.late and book.has_run:  # else it is said with what has been given up
                console.print(late_runs.words(tracker.late, book.facts.name), style="yellow")
        if not book.has_run:
            ending.given_up(book, console, access.store_address() if tracker and tracker.leaves_run else "")
    if status_writer:  # nothing is written where a run ends so, and hours count until it was last heard
        status_writer.still_there()
    os._exit(errors.REFUSED)
