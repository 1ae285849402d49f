"""`sweep plan`, `run`, `resume`, `retry`: a sweep foreseen, or to its table; here, on a cluster, on a simulated one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sweeps import errors
from sweeps.cluster import driver_log
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.record import ledger
from sweeps.record.ledger import SweepFacts, SweepRecord, TrialRecord
from sweeps.run import forecast
from sweeps.run.progress import SweepProgress, explained
from sweeps.scheduling import asha, search
from sweeps.scheduling.asha import Arrival, Rungs
from sweeps.scheduling.baselines import Bases
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.changes import Sameness
from sweeps.scheduling.engine import NODES_MAY_COME_BACK_S, Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.search import Strategy
from sweeps.simulator import cluster as simulated
from sweeps.simulator import evidence
from sweeps.spec import arrangements, plan, space
from sweeps.spec.arrangements import Node
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import Plan
from sweeps.spec.reading import read
from sweeps.spec.sweep_file import parse
from sweeps.text import caller, screen, tables
from workers.contract import messages, quota
from workers.contract.messages import WITHOUT_JPEGS, TrialConfig

if TYPE_CHECKING:
    from sweeps.analysis.findings.next_steps import Stopped
    from sweeps.cluster.ray_cluster import Site
    from sweeps.run.tracker import Tracker

SOME = 200  # cells of a search that stand for all
NAMED = 8  # cells that the budget does not hold
SHARDS = "-*-of-*"  # as the files of a split are named
AGAIN = ("lost", "cancelled")  # outcomes that say nothing of the trial
STORE_ANSWERS_WITHIN_S = 20.0  # what earlier sweeps have measured, or a sweep has its name before that is known


@dataclasses.dataclass(frozen=True)
class Terms:
    """How a sweep is run, beside what its file says."""

    address: str | None = None  # of a Ray cluster; else this machine
    simulate: str = ""  # the shape of a cluster that is made up
    is_fresh: bool = False  # measure again what earlier sweeps have measured
    skips_impossible: bool = False
    budget: float | None = None  # GPU-hours of the whole sweep; else the file's


@dataclasses.dataclass(frozen=True)
class _Before:
    """What a sweep had come to when its driver stopped."""

    done: Sequence[TrialRecord] = ()
    attempts: Sequence[TrialRecord] = ()  # that did not count
    arrivals: Sequence[Arrival] = ()  # at rungs
    spent: float = 0.0  # GPU-hours, of all drivers before
    kept: Sequence[TrialRecord] = ()  # beside what is to be done now
    stops_hopeless: bool = True  # where the search does
    leaves: int = 0  # trials that are not to be done now, and have not ended


NOTHING = _Before()


def drive(
    file: Path, overrides: tuple[str, ...], terms: Terms, begun: Callable[[str], object] = lambda name: None
) -> int:
    """Run a sweep and say what was found; the exit code. `begun` is told the name that the sweep has."""
    text = read(file)
    spec = parse(text, str(file), overrides)
    planned = plan.plan(spec, str(file))
    _check(spec, str(file), terms)
    _budget(spec, terms)
    console = screen.beside()
    console.print(screen.named(spec.name, plan.summary(planned)))
    with _earlier(terms) as earlier, _site(terms, console) as site, contextlib.ExitStack() as stack:

        def begin() -> ledger.Ledger:
            made = stack.enter_context(contextlib.closing(ledger.create(planned, text, overrides, terms.simulate)))
            _named(made, console)
            begun(made.facts.name)
            return made

        book = begin() if _waits_for_nodes(planned, site) else None  # that may take long: its name is wanted now
        try:
            _await_nodes(planned, site, console)
            planned = _for_nodes(planned, site.nodes, str(file), console)
            found = earlier({trial.cell for trial in planned.trials})
            planned = _possible(planned, site, terms, str(file), console)
            with contextlib.suppress(TimeoutError):
                found.result(STORE_ANSWERS_WITHIN_S)
            book = book or begin()
            known = Cache(found.result())
        except BaseException:
            if book:
                _given_up(book, console)
            raise
        book.plan(planned)
        strategy = functools.partial(search.strategy, planned)
        return _conduct(planned, strategy, NOTHING, known, book, site, terms, console, file)


def _given_up(book: ledger.Ledger, console: Console) -> None:
    """Nothing of it has run. A new one in a terminal leaves nothing; any other is as it was before, or stopped."""
    if book.is_blank:
        book.discard()
        return
    if book.is_new:
        console.print(f"{book.facts.name} ends before its first trial; to go on: {_resumes(book.facts.name)}")
    _ended(book, "complete" if book.is_still_complete else "stopped")  # what it refuses hides no other reason


def _named(book: ledger.Ledger, console: Console) -> None:
    """Whoever submitted it reads its name there, and takes it to have begun."""
    driver_log.into(book.paths.logs)
    console.print(f"results in {book.paths.folder}", style="dim")


def _for_nodes(sketch: Plan, nodes: Sequence[Node], place: str, console: Console) -> Plan:
    """The plan with its ranks arranged on the nodes that there are."""
    planned = plan.plan(sketch.spec, place, nodes)
    if planned.left_out != sketch.left_out:
        count = f"{planned.most} trials on {arrangements.described(nodes)}"
        console.print(f"{count}; {plan.left_out(planned)}")
    return planned


def resume(name: str, terms: Terms) -> int:
    """Run what a sweep that stopped has not measured yet; the exit code."""
    with contextlib.closing(ledger.reopen(name)) as book:
        return _resume(book, terms)


def _resume(book: ledger.Ledger, terms: Terms) -> int:
    record, facts = book.before, book.facts
    planned = Plan(facts.spec, facts.trials, nodes=facts.nodes)
    done = [trial for trial in record.trials if trial.outcome.status not in AGAIN]
    console, file = screen.beside(), Path(f"results/{facts.name}")
    driver_log.into(book.paths.logs)
    is_over = _is_over(record, done)
    console.print(screen.named(facts.name, _left(planned, done, is_over)))
    terms = dataclasses.replace(terms, simulate=facts.simulated)
    _budget(facts.spec, terms)
    if is_over:
        _named(book, console)
        refusals = _brought(record)
        if not record.is_complete:  # its driver was killed before it could say so
            book.end("complete")
        return _summarize(planned, book, refusals, file, "", console, terms)
    with _site(terms, console) as site:
        if does_wait := _waits_for_nodes(planned, site):
            _named(book, console)
        _await_nodes(planned, site, console)
        if not (facts.nodes or record.trials or record.attempts):  # its driver has gone while it waited for nodes
            planned = _for_nodes(planned, site.nodes, facts.name, console)
            book.plan(planned)
        planned = _possible(planned, site, terms, facts.name, console, is_begun=True)
        if not does_wait:
            _named(book, console)
        strategy = functools.partial(search.strategy, planned)
        arrivals = [asha.arrival(noted) for noted in record.rungs]
        before = _Before(done, record.attempts, arrivals, record.spent)
        same = Sameness(record.nodes, done, arrivals)
        return _conduct(planned, strategy, before, Cache(), book, site, terms, console, file, same)


def _brought(record: SweepRecord) -> list[RefusedError]:
    """Have the store know what a driver that was killed at the very end could not tell it any more; why it does not."""
    from sweeps.store import tracking

    try:
        tracking.sync(dataclasses.replace(record, is_complete=True), only_missing=True)
    except RefusedError as refusal:
        return [refusal]
    return []


def _is_over(record: SweepRecord, done: Sequence[TrialRecord]) -> bool:
    """Nothing of it is left to run. Of a search that proposes its own trials only its driver could say so."""
    if not record.facts.trials:
        return record.is_complete and len(done) == len(record.trials)
    return len(done) >= len(record.facts.trials) and not _are_bases_left(record.facts.spec, done)


def _left(planned: Plan, done: Sequence[TrialRecord], is_over: bool) -> str:
    if is_over:  # who follows a submitted driver goes by these words
        return f"{driver_log.NOTHING_TO_RUN}: all {len(done)} trials have ended"
    if not planned.trials:
        return f"{len(done)} trials are done, and the search goes on"
    if left := planned.most - len(done):
        return f"{left} of {planned.most} trials are left"
    return "all that is left are trials on one GPU, which the efficiency of others needs"


def retry(name: str, statuses: Sequence[str], terms: Terms) -> int:
    """Run exactly the trials again that ended so, or, where no way is named, that failed or were lost; the exit
    code."""
    with contextlib.closing(ledger.reopen(name)) as book:
        return _retry(book, statuses, terms)


def _retry(book: ledger.Ledger, statuses: Sequence[str], terms: Terms) -> int:
    record, facts = book.before, book.facts
    console, file = screen.beside(), Path(f"results/{facts.name}")
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
        nothing = f"{driver_log.NOTHING_TO_RUN}: no trial failed or was lost (ended: {ended})"
        console.print(screen.named(facts.name, nothing))
        _named(book, console)
        return errors.DONE
    console.print(screen.named(facts.name, f"{len(again)} trials once more"))
    terms = dataclasses.replace(terms, simulate=facts.simulated)
    _budget(facts.spec, terms)
    with _site(terms, console) as site:
        planned = Plan(facts.spec, again, nodes=facts.nodes)
        if does_wait := _waits_for_nodes(planned, site):
            _named(book, console)
        _await_nodes(planned, site, console)
        planned = _possible(planned, site, terms, facts.name, console, is_begun=True)
        if not does_wait:
            _named(book, console)
        return _conduct(
            planned,
            lambda _: search.Listed(planned.trials),
            _Before(
                arrivals=arrivals,
                spent=record.spent,
                kept=kept,
                stops_hopeless="pruned" not in meant,
                leaves=_unended(record, anew),
            ),
            Cache(),
            book,
            site,
            terms,
            console,
            file,
            Sameness(record.nodes, kept, arrivals),
        )


def _unended(record: SweepRecord, anew: Collection[str]) -> int:
    """Trials of a sweep that have not ended, beside those that are to be done anew; at least one of a search that has
    not come to its end."""
    if record.is_complete:
        return 0
    ended = {one.config.trial for one in record.trials if one.outcome.status != "cancelled"} | {*anew}
    return len({config.trial for config in record.facts.trials} - ended) if record.facts.trials else 1


def _budget(spec: SweepSpec, terms: Terms) -> float:
    """GPU-hours that all its drivers may spend together."""
    if terms.budget is None:
        return (spec.budget and spec.budget.gpu_hours) or math.inf
    if not terms.budget > 0:
        raise InputError("--budget", [Mistake("", "must be GPU-hours, more than 0", terms.budget)])
    return terms.budget


def preview(file: Path, overrides: tuple[str, ...], terms: Terms, form: tables.Format) -> int:
    """Show what a sweep would run, and what it would cost on the cluster named; the exit code."""
    spec = parse(read(file), str(file), overrides)
    is_named = bool(terms.simulate or terms.address)
    nodes = _nodes(spec, terms)
    planned = plan.plan(spec, str(file), nodes if is_named else ())  # of no cluster, a placement is a word
    varied = [*planned.axes] or ["batch_size", "gpus"]
    written = space.shown if form == "table" else lambda point: point
    rows = [
        {
            "cell": cell,
            **{axis: written(plan.value(trial, axis)) for axis in varied},
            **({"nodes x ranks": messages.arranged(trial.arrangement) or "–"} if is_named else {}),
            "repeats": spec.repeats,
        }
        for cell, trial in planned.cells.items()
    ]
    trials = planned.trials or _some(planned)
    refused = arrangements.check_capacity(trials, nodes, spec.max_nodes) if nodes else {}
    if is_named and refused and not terms.skips_impossible:
        raise InputError(str(file), impossible(refused))
    tables.show_rows(rows, form)
    if form != "table":
        return errors.DONE
    print(f"\n{spec.name}: {plan.summary(planned)}")
    for line in [*plan.schedules_drawn(planned), *_cost(planned, nodes, refused, terms)]:
        print(line)
    return errors.DONE


def _nodes(spec: SweepSpec, terms: Terms) -> Sequence[Node]:
    """Of the cluster named, else of this machine; none where that is surely not meant."""
    if terms.simulate:
        return simulated.parse(terms.simulate).nodes
    if terms.address:
        with _site(terms, screen.beside()) as site:
            return site.nodes
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return [Node("here", quota.cores(), gpus)] if gpus or spec.device == "cpu" else []


def _cost(planned: Plan, nodes: Sequence[Node], refused: dict[str, list[TrialConfig]], terms: Terms) -> Iterator[str]:
    if not nodes:
        yield "to see what it would cost, and how it fits: --simulate nodes=8,gpus=4,gpu=v100, or --address"
        return
    for why, those in refused.items():
        yield f"! {len(those)} trials can't run here: {why}"
    if not planned.trials:
        yield f"a search chooses its trials as it goes: at most {planned.most}"
        return
    machine = simulated.parse(terms.simulate) if terms.simulate else simulated.like(nodes)
    yield from forecast.summary_lines(
        planned.spec, planned.trials, nodes, forecast.learned(machine, is_real=not terms.simulate)
    )
    yield from _evidence(planned.trials, terms)


def _evidence(trials: Sequence[TrialConfig], terms: Terms) -> Iterator[str]:
    """Where published figures bear out what is simulated."""
    if terms.simulate:
        yield from evidence.summary_lines(trials, simulated.parse(terms.simulate).gpu, evidence.rows())


@contextlib.contextmanager
def _earlier(terms: Terms) -> Iterator[Callable[[Collection[str]], Future[list[dict[str, Any]]]]]:
    """Looks up what earlier sweeps have measured of cells. What that needs is loaded while Ray starts."""

    def look(cells: Collection[str]) -> list[dict[str, Any]]:
        if terms.is_fresh or terms.simulate:
            return []
        from sweeps.store import query

        return query.finished(cells)

    with ThreadPoolExecutor(1) as aside:
        aside.submit(look, ())
        yield lambda cells: aside.submit(look, cells)


@contextlib.contextmanager
def _site(terms: Terms, console: Console) -> Iterator[Site]:
    """Where the trials run. Ray starts in any case: a simulated cluster's trials are Tune's as well."""
    if terms.address:
        console.print(f"connecting to Ray at {terms.address} …", style="dim")
        # A cluster asks for its token since Ray 2.60; a client sends it if told so before it imports Ray.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    else:
        console.print("starting Ray on this machine …", style="dim")
    from sweeps.cluster import ray_cluster

    if terms.simulate:
        with ray_cluster.connected(None, cpus=1):
            yield ray_cluster.Simulated(simulated.parse(terms.simulate).nodes)
    else:
        with ray_cluster.connected(terms.address) as site:
            yield site


def _waits_for_nodes(planned: Plan, site: Site) -> bool:
    return bool(planned.spec.wait_for_nodes_min and _refused(planned, site))


def _refused(planned: Plan, site: Site) -> dict[str, list[TrialConfig]]:
    """What the nodes that are there can't hold, by the reason."""
    return arrangements.check_capacity(planned.trials or _some(planned), site.nodes, planned.spec.max_nodes)


def _await_nodes(planned: Plan, site: Site, console: Console) -> None:
    """Wait for what its trials need, as long as the file says."""
    if not _waits_for_nodes(planned, site):
        return
    give_up = time.monotonic() + 60 * (planned.spec.wait_for_nodes_min or 0)
    lacking = [config for trials in _refused(planned, site).values() for config in trials]
    largest = _largest(lacking)
    console.print(f"waiting for nodes that hold {len(largest)} ranks …", style="dim")
    while _refused(planned, site) and time.monotonic() < give_up:
        site.ask_for(largest)  # again and again: whoever keeps it may have been lost
        time.sleep(1.0)


def _largest(trials: Sequence[TrialConfig]) -> list[dict[str, float]]:
    """What each rank of the largest of them needs."""
    config = max(trials, key=lambda config: config.gpus)
    return [{"GPU": 1.0} if config.device == "gpu" else {"CPU": float(config.cores_per_worker)}] * config.gpus


def _possible(planned: Plan, site: Site, terms: Terms, place: str, console: Console, is_begun: bool = False) -> Plan:
    """The plan without the trials that the cluster can never hold; raises unless they may be skipped, and where its
    data or a variable isn't. Of a sweep that has begun, the nodes that a trial was planned for may come back: it waits
    for them."""
    refused = _refused(planned, site)
    _check_data(planned.spec, site, place)
    _check_variables(planned.spec, site, place)
    if not refused:
        return planned
    if is_begun and planned.nodes and not terms.skips_impossible and _held(planned, planned.nodes):
        for why, those in refused.items():
            line = f"! {len(those)} trials wait for nodes to come back: {why}"
            console.print(line, style="yellow")
        return planned
    if not terms.skips_impossible:
        raise InputError(place, impossible(refused))
    for why, those in refused.items():
        console.print(f"! {len(those)} trials are skipped: {why}", style="yellow")
    out = {config.trial for those in refused.values() for config in those}
    left = tuple(config for config in planned.trials if config.trial not in out)
    if planned.trials and not left:
        raise InputError(place, impossible(refused, "no trial is left: give it a cluster, or --set device=cpu"))
    if planned.spec.wait_for_nodes_min and left:
        site.ask_for(_largest(left))  # what did not come is wanted no more
    return dataclasses.replace(planned, trials=left)


def _held(planned: Plan, nodes: Sequence[Node]) -> bool:
    return not arrangements.check_capacity(planned.trials or _some(planned), nodes, planned.spec.max_nodes)


def _some(planned: Plan) -> tuple[TrialConfig, ...]:
    """Of a search that proposes its own trials."""
    spec, nodes = planned.spec, planned.nodes
    return tuple(plan.grid(spec, nodes) if plan.is_enumerable(spec) else plan.sample(spec, SOME, nodes))


def impossible(
    refused: dict[str, list[TrialConfig]], cure: str = "leave these out, or skip them with --skip-impossible"
) -> list[Mistake]:
    """What the cluster can't hold, a mistake for each reason."""

    def asked(trials: list[TrialConfig]) -> str:
        shapes = dict.fromkeys((trial.gpus, trial.placement) for trial in trials)
        return ", ".join(f"{gpus} {placement}" for gpus, placement in sorted(shapes))

    return [Mistake("space.gpus", f"{why}; {cure}", asked(trials)) for why, trials in refused.items()]


def _conduct(
    planned: Plan,
    strategy: Callable[[Callable[[TrialConfig], bool]], Strategy],
    before: _Before,
    known: Cache,
    book: ledger.Ledger,
    site: Site,
    terms: Terms,
    console: Console,
    file: Path,
    same: Sameness | None = None,
) -> int:
    """Run what the strategy proposes, and say what was found; the exit code. Raises if the ledger or the store
    refused before the first trial.

    The ledger stays its caller's until then: the tracker makes runs and the report goes to the sweep's own, and the
    next driver would do the same beside them."""
    from sweeps.run import ray_tune
    from sweeps.run.metrics import Meter
    from sweeps.run.status import StatusWriter
    from sweeps.run.tracker import Tracker
    from sweeps.store import tracking

    spec = planned.spec
    machine = simulated.parse(terms.simulate) if terms.simulate else simulated.like(site.nodes)
    engine = Engine(
        strategy,
        forecast.learned(machine, is_real=not terms.simulate),
        Feasibility(spec.seed),
        known,
        budget_gpu_hours=_budget(spec, terms),
        wait_for_nodes_s=NODES_MAY_COME_BACK_S if spec.wait_for_nodes_min is None else 60 * spec.wait_for_nodes_min,
        max_nodes=spec.max_nodes,
        rungs=_rungs(spec) if before.stops_hopeless else None,
        bases=_bases(spec),
    )
    engine.resumed(before.done, before.attempts, before.arrivals, before.spent, before.kept)
    progress = SweepProgress(planned.most, plan.namer(spec), console, forecast.unit(spec), before.done)
    tracker = Tracker(book.facts)
    status_writer = StatusWriter(book.facts, book.paths, engine, before.done, before.kept)
    # A Ray of our own exports no metrics, and what is simulated would spoil those of what is real.
    meters = [Meter(book.facts, engine)] if terms.address and not terms.simulate else []
    for line in _evidence(planned.trials or _some(planned), terms):
        console.print(line, style="dim")
    refusals: list[RefusedError] = []
    is_over = is_complete = False
    try:
        with progress, site.guarded(functools.partial(_abandoned, tracker, console, book, terms)):
            is_complete = ray_tune.run(
                engine, spec, book, site, [progress, tracker, status_writer, *meters], before=same
            )
        is_over = True
    except RefusedError as refusal:
        refusals.append(refusal)
    finally:  # a Ctrl-C before the first trial comes by here too
        for meter in meters:
            meter.close()
        is_whole = book.is_still_complete or (is_complete and not before.leaves)
        is_discarded = book.is_blank
        left = tracker.close(is_whole, is_discarded)
        if is_over and not is_discarded:
            refusals += _ended(book, "complete" if is_whole else "stopped")
        elif not book.has_run:
            _given_up(book, console)
        status_writer.close()  # from here on the ledger tells how it stands
    if refusals and not progress.done:
        raise refusals[0]
    if left:
        count = f"{left} of {progress.done} trials"
        refusals.append(tracking.refused(f"take every trial ({count} stand in the ledger only)", tracker.refusal))
    elif not tracker.is_closed and not is_discarded:
        refusals.append(tracking.refused("hear that the sweep is over (its run is open there)", tracker.refusal))
    spent = engine.spent()
    console.print(f"spent {spent.gpu_hours:.3g} {forecast.unit(spec)}", style="dim")
    why: Stopped = "" if is_complete else "interrupted"
    if engine.is_over and engine.beyond:
        why = "nothing else fits in the budget"
        for line in _beyond(engine, spec):
            console.print(f"! {line}", style="yellow")
    if before.leaves:
        console.print(f"others of its trials have not run yet: {_resumes(book.facts.name)}")
    return _summarize(planned, book, refusals, file, why, console, terms, spent.expected)


def _resumes(name: str) -> str:
    return caller.command("resume", name, is_submitted=ledger.JOB in os.environ)


def _ended(book: ledger.Ledger, why: str) -> list[RefusedError]:
    """Say so in its ledger: after the tracker has brought what it could, so that whoever goes on looks for the rest."""
    try:
        book.end(why)
    except RefusedError as refusal:
        return [refusal]
    return []


def _beyond(engine: Engine, spec: SweepSpec) -> Iterator[str]:
    """What was not run since the budget does not hold it, cell by cell, the cheapest first."""
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


def _bases(spec: SweepSpec) -> Bases:
    return Bases(is_strong="global_batch" in spec.axes)


def _are_bases_left(spec: SweepSpec, records: Sequence[TrialRecord]) -> bool:
    """Every trial has ended, but a search has stopped one that another needs as its base."""
    bases = _bases(spec)
    for record in records:
        bases.tell(record)
    return _rungs(spec) is not None and bool(bases.again())


def _rungs(spec: SweepSpec) -> Rungs | None:
    """What stops hopeless trials, where the search does that."""
    if spec.search.method != "asha" or not spec.epochs:
        return None
    return Rungs(spec.search.grace, spec.search.reduction, spec.epochs, spec.evaluate_every)


def _abandoned(tracker: Tracker, console: Console, book: ledger.Ledger, terms: Terms, why: str) -> None:
    """Ray's head has gone, and with it all that runs: end here, since nothing that waits for Ray will."""
    resumes = _resumes(book.facts.name)
    if terms.address:
        console.print(why, style="red")
        console.print(f"  once it is back, or with another head's address: {resumes}")
    else:
        console.print("the Ray that this command had started on this machine has ended before it", style="red")
        console.print(
            f"  by a signal to all processes of the command, or by hand, or for lack of memory\n  to go on: {resumes}"
        )
    tracker.close(book.is_still_complete)
    os._exit(errors.REFUSED)


def _summarize(
    planned: Plan,
    book: ledger.Ledger,
    refusals: list[RefusedError],
    file: Path,
    stopped: Stopped,
    console: Console,
    terms: Terms,
    expected: float = 0.0,
) -> int:
    """Say what was found, and what went wrong; the exit code. `expected` GPU-hours the whole sweep takes."""
    facts = book.facts
    try:
        records = ledger.read(facts.name).trials
    except InputError:  # discarded: nothing was measured
        records = ()
    if records:
        _conclude(facts, planned, records, file, terms, refusals, stopped, expected)
    for refusal in refusals:
        console.print(str(refusal), style="red")
    if refusals:
        console.print(f"  once that is mended: {caller.command('sync', facts.name)}")
        return errors.REFUSED
    ended = [record for record in records if record.outcome.status != "cancelled"]
    if stopped:
        console.print(f"stopped after {len(ended)} trials: {stopped}")
        return errors.INTERRUPTED
    is_sound = all(record.outcome.status in ("completed", "infeasible", "pruned") for record in records)
    return errors.DONE if is_sound else errors.SOME_FAILED


def _check(spec: SweepSpec, place: str, terms: Terms) -> None:
    """What is wrong with running this here."""
    mistakes = [*_missing_data(spec, terms)] if not terms.address and not terms.simulate else []
    if terms.simulate:
        simulated.parse(terms.simulate)
    if mistakes:
        raise InputError(place, mistakes)


def _missing_data(spec: SweepSpec, terms: Terms) -> Iterator[Mistake]:
    """A sweep on this machine can tell at once that its images aren't there."""
    for data, split in _images(spec):
        if not any(Path(data).glob(f"{split}{SHARDS}")):
            classes = 1000 if spec.classes == "auto" else spec.classes
            asked = f"--images 512 --shards 4 --classes {classes} --split {split}"
            made = caller.command("data", "make", data, *asked.split())
            cure = f" (to make one: {made})" if spec.labels_from == 1 else ""  # what it makes counts from 1
            rule = f"must be synthetic, digits or a folder of TFRecords named {split}{SHARDS}{cure}"
            yield Mistake("data", rule, data)


def _check_data(spec: SweepSpec, site: Site, place: str) -> None:
    """Any node may be given any trial."""
    needed = {f"{data}/{split}{SHARDS}": data for data, split in _images(spec)}
    lacking = site.without([*needed]) if needed else {}
    mistakes = []
    for pattern, data in needed.items():
        if nodes := [node for node, patterns in lacking.items() if pattern in patterns]:
            files = pattern.removeprefix(f"{data}/")
            mistakes.append(Mistake("data", f"must hold {files} on every node, but not on {', '.join(nodes)}", data))
    if mistakes:
        raise InputError(place, mistakes)


def _check_variables(spec: SweepSpec, site: Site, place: str) -> None:
    """A node without one of them would fail its trials."""
    lacking = site.unset(spec.env_from) if spec.env_from else {}
    mistakes = []
    for name in spec.env_from:
        if nodes := [node for node, unset in lacking.items() if name in unset]:
            rule = f"must be set on every node where Ray is started, but not on {', '.join(nodes)}"
            mistakes.append(Mistake("env_from", rule, name))
    if mistakes:
        raise InputError(place, mistakes)


def _images(spec: SweepSpec) -> Iterator[tuple[str, str]]:
    """The folders that trials read, each with the split."""
    needed = ["train"] if spec.protocol == "throughput" else ["train", "validation"]
    return ((data, split) for data in spec.data.points() if data not in WITHOUT_JPEGS for split in needed)


def _conclude(
    facts: SweepFacts,
    planned: Plan,
    records: Sequence[TrialRecord],
    file: Path,
    terms: Terms,
    refusals: list[RefusedError],
    stopped: Stopped,
    expected: float,
) -> None:
    from sweeps import analysis, report
    from sweeps.analysis import findings, overview, study
    from sweeps.analysis.findings import next_steps
    from sweeps.record import rows

    trials = analysis.frame([rows.row(record) for record in records])
    where = f" on a simulated cluster ({facts.simulated})" if facts.simulated else ""
    tables.show(overview.table(trials, planned), "table", f"\n{facts.name}: what was found{where}")
    if planned.spec.search.method == "frontier":
        tables.show(overview.frontier(trials, planned), "table", "\nthe largest batch that fits")
    for record in [r for r in records if r.outcome.status in ("failed", "lost")][:10]:
        print(explained(record))
    done = study.read(facts.name)
    found = findings.find(done)
    print()
    for line in [*found.lines(), *overview.front(trials, planned)]:
        print(line)
    page = report.written(done, ledger.paths(facts.name).folder / "report.html", found=found)
    if not refusals:
        try:
            report.attach(facts.name, page, report.concluded(done, found))
        except RefusedError as refusal:
            refusals.append(refusal)
    situation = next_steps.Situation(
        caller=caller.current(),
        file=str(file) if file.is_file() else "",  # else it was resumed by its name
        is_on_cluster=bool(terms.address),
        is_stored=not refusals,
        stopped=stopped,
        expected=expected,
        report=str(_here(page)),
    )
    print("\n" + "\n".join(next_steps.lines(next_steps.suggest(done, found, situation))) + "\n")


def _here(path: Path) -> Path:
    """A path as one would name it from the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
