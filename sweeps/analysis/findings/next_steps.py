"""What to do now that a sweep has ended, by how it ended. Pure.

Something failed: its log, the others like it, a check of the machine, and how to run them again; never more repeats.
Nothing fits: why, and a smaller batch. Stopped: how to go on. Else one thing that would tell more than is known.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sweeps.analysis.findings import outcomes
from sweeps.errors import InputError
from sweeps.spec import sweep_file
from sweeps.text import tables
from sweeps.text.caller import Caller

if TYPE_CHECKING:
    from sweeps.analysis.findings import Findings
    from sweeps.analysis.study import Study

Stopped = Literal["", "interrupted", "nothing else fits in the budget"]
TOO_SHORT = {"too short to know", "too few steps"}  # for an interval: more steps would do
ENOUGH_STEPS = 300  # of a window whose interval is not withheld for its length
MOST_STEPS_TIMES = 4
NOBODY = Caller()
COLUMNS = "trial,kind,message"  # that tell why a trial failed


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The place from which the sweep was run, as far as the commands depend on it."""

    caller: Caller = NOBODY
    file: str = ""  # the sweep's; empty where it was resumed by its name
    is_on_cluster: bool = False  # it ran on one that was there before
    is_stored: bool = True  # the tracking store took it all
    stopped: Stopped = ""
    expected: float = 0.0  # GPU-hours that the whole sweep takes, as far as can be foretold
    report: str = ""  # where the page lies


@dataclass(frozen=True)
class NextStep:
    """A command or a file, what it is for in a word, and why."""

    word: Literal["report", "look", "query", "log", "which", "check", "retry", "resume", "next"]
    what: str
    why: str = ""


def lines(steps: list[NextStep]) -> list[str]:
    """Return them as a console has them."""
    return [f"  {step.word:<7} {step.what}{f'   ({step.why})' if step.why else ''}" for step in steps]


def suggest(study: Study, found: Findings, at: Situation) -> list[NextStep]:
    """Return the steps that fit how the sweep ended, in the order to take them."""
    return [*_looks(study, found, at), *_after(study, found, at)]


def _looks(study: Study, found: Findings, at: Situation) -> Iterator[NextStep]:
    yield NextStep("report", _call(study, at, "report", study.name) if at.caller.is_afar else at.report)
    if at.is_stored:
        yield NextStep("look", _call(study, at, "ui", study.name))
    if at.is_stored and found.best:
        yield NextStep("query", _call(study, at, "trials", study.name, "--format", "csv"))


def _after(study: Study, found: Findings, at: Situation) -> Iterator[NextStep]:
    outcomes_ = {*study.trials["outcome"]}
    has_failed = bool(outcomes_ & {"failed", "lost"})
    if has_failed:
        yield from _mending(study, at)
    if at.stopped:
        yield _going_on(study, at)
    elif has_failed:
        yield NextStep("retry", _call(study, at, "retry", study.name), "once that is mended")
    elif not found.best and "infeasible" in outcomes_:
        yield from _fitting(study, at)
    elif found.best and at.file:
        yield from _more(study, found, at)


def _mending(study: Study, at: Situation) -> Iterator[NextStep]:
    """Yield what failed, and what may be wrong with where it ran."""
    bad = [record for record in study.records if record.outcome.status in ("failed", "lost")]
    ends = sorted({record.outcome.status for record in bad})
    logs = [record for record in bad if record.outcome.log]
    if logs:
        why = "its end says why the first one failed" if len(bad) > 1 else ""
        if at.caller.is_afar:
            why = f"on the head; {why}".removesuffix("; ")
        yield NextStep("log", f"less +G {shlex.quote(logs[0].outcome.log)}", why)
    if at.is_stored:
        condition = " or ".join(f"outcome == '{end}'" for end in ends)
        yield NextStep("which", _call(study, at, "trials", study.name, "--where", condition, "--columns", COLUMNS))
    if not study.facts.simulated:
        why = "a node was lost" if "lost" in ends else "what is wrong with the machine"
        yield NextStep("check", _doctor(study, at), why)


def _going_on(study: Study, at: Situation) -> NextStep:
    budget, why = [], "runs what is left"
    if at.stopped == "nothing else fits in the budget":
        spent = study.spent or 0.0
        whole = max(at.expected, spent if study.facts.trials else 2 * spent)  # a search chooses as it goes
        budget = ["--budget", _rounded_up(whole)]
        why = f"the whole sweep is predicted to take that; {tables.number(spent, 3)} {study.rank}-hours of it are spent"
    return NextStep("resume", _call(study, at, "resume", study.name, *budget), why)


def _rounded_up(value: float) -> str:
    """Return a positive figure, to two digits."""
    if value <= 0:
        return "1"
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit) * unit:.6g}"


def _fitting(study: Study, at: Situation) -> Iterator[NextStep]:
    """Yield what is smaller, and why nothing could run."""
    if at.is_stored:
        condition = "outcome == 'infeasible'"
        yield NextStep("which", _call(study, at, "trials", study.name, "--where", condition, "--columns", COLUMNS))
    kinds = study.trials.loc[study.trials["outcome"] == "infeasible", "kind"].astype(str)
    smallest = int(study.trials["batch_size"].min())
    if at.file and not study.is_strong and smallest > 1 and kinds.str.contains("memory").any():
        batches = [batch for batch in (smallest // 4, smallest // 2) if batch]
        yield from _again(study, at, f"batch_size={_list(batches)}", f"{smallest} was the smallest tried")


def _more(study: Study, found: Findings, at: Situation) -> Iterator[NextStep]:
    """One thing: what is most in the way of an answer, first."""
    best = found.best
    assert best
    if study.facts.simulated:
        command = f"{Caller(at.caller.me).command('submit', at.file, *_set(study))} --address cluster.yaml"
        yield NextStep("next", command, "nothing was measured yet")
    elif outcomes.are_all_cached(study):
        yield from _again(study, at, "", "measures it anew: every figure is of an earlier sweep", "--fresh")
    elif why := outcomes.why_all_withheld(study.trials):
        yield from _longer(study, at, why)
    elif best.unlike:
        if "hardware" not in best.unlike:  # else it would run on unlike nodes again
            yield from _again(study, at, "", f"measures all cells alike: these have {best.measured_with}")
    elif best.repeats:
        reason = "its intervals need repeats" if best.pick.singles else "would tell the best from the nearest"
        yield from _again(study, at, f"repeats={max(best.repeats, study.facts.spec.repeats + 1)}", reason)
    elif best.is_alone and int(best.top["n"]) == 1:
        yield from _again(study, at, "repeats=3", "a single repeat has no interval")
    elif best.is_shown and not study.is_convergence:
        yield from _beyond(study, at, int(best.top["batch_size"]))


def _longer(study: Study, at: Situation, why: set[str]) -> Iterator[NextStep]:
    if not why <= TOO_SHORT:
        reasons = ", ".join(sorted(why - TOO_SHORT - {""})) or "unsteady steps"
        yield NextStep("check", _doctor(study, at), f"windows show {reasons}")
        return
    given = study.facts.spec
    if given.steps:
        steps = f"steps.measured={max(ENOUGH_STEPS, 2 * given.steps.measured)}"
    else:
        steps = f"stop.max_steps={MOST_STEPS_TIMES * given.stop.max_steps}"
    yield from _again(study, at, steps, "windows were too short for an interval of their own")


def _beyond(study: Study, at: Situation, batch: int) -> Iterator[NextStep]:
    """Yield a larger batch where the best cell has the largest of several, and no larger one was infeasible."""
    tried = study.trials["batch_size"]
    if tried.nunique() > 1 and batch == int(tried.max()) and not study.is_strong:
        yield from _again(study, at, f"batch_size={_list([batch, 2 * batch])}", "the best has the largest batch tried")


def _again(study: Study, at: Situation, change: str, why: str, *options: str) -> Iterator[NextStep]:
    """Yield the same sweep with a change, where that makes a sweep."""
    changes = [change] if change else []
    try:
        sweep_file.parse(study.facts.file, study.name, (*study.facts.overrides, *changes))
    except InputError:
        return
    verb = "submit" if at.caller.is_afar else "run"
    simulated = ["--simulate", study.facts.simulated] if study.facts.simulated else []
    yield NextStep("next", _call(study, at, verb, at.file, *_set(study, *changes), *options, *simulated), why)


def _set(study: Study, *changes: str) -> list[str]:
    """Return what was put over the file, and what is now; of a key given twice, the last."""
    kept = {change.partition("=")[0]: change for change in (*study.facts.overrides, *changes)}
    return ["--set", *kept.values()] if kept else []


def _doctor(study: Study, at: Situation) -> str:
    return _call(study, at, "doctor", *(["--cluster"] if at.is_on_cluster or at.caller.is_afar else []))


def _call(study: Study, at: Situation, *words: str) -> str:
    """Return the command as its user can copy it; what was simulated needs no cluster."""
    is_of_ray = study.facts.simulated and at.caller.kind == "ray"
    return (Caller(at.caller.me) if is_of_ray else at.caller).command(*words)


def _list(values: list[int]) -> str:
    return f"[{','.join(map(str, values))}]"
