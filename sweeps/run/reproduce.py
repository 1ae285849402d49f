"""`sweep reproduce TABLE`: a table as a sweep file, the sweep that it is, and which of its rows hold.

TABLE is one of references/ (`sweep reproduce` lists them), a CSV file of one's own, or an earlier sweep of this
project, whose cells are then measured once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps import errors
from sweeps.analysis import publication, recipe, reproduction, setups
from sweeps.analysis.publication import PublishedTable
from sweeps.analysis.reproduction import FigureCheck, Held
from sweeps.errors import InputError, Mistake
from sweeps.run import earlier_table
from sweeps.simulator import cluster as simulated
from sweeps.simulator import evidence
from sweeps.spec import arrangements, expression, plan, space
from sweeps.spec.arrangements import Node
from sweeps.spec.keys import SweepSpec
from sweeps.spec.sweep_file import parse
from sweeps.text import caller, tables
from workers.contract import quota
from workers.contract.paths import results_root
from workers.contract.spelling import did_you_mean

if TYPE_CHECKING:
    from sweeps.run.terms import Terms

ALLOWANCES = {"emulate"}  # what a cell may do, not what it does


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """What is asked of a table."""

    table: str
    system: str = ""
    overrides: tuple[str, ...] = ()
    repeats: int = 3
    tolerance: float = 0.05
    only_plan: bool = False
    measured: str = ""  # a sweep that has measured it
    export: Path | None = None
    form: tables.Format = "table"


def tolerance(text: str) -> float:
    """`5%` or 0.05."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        rule = "must be at least 0% and less than 100%, such as 5%"
        raise InputError("reproduce", [Mistake("--tolerance", rule, text)])
    return share


def answer(ask: Ask, terms: Terms) -> int:
    """Do what is asked; the exit code."""
    if not ask.table:
        return _list(ask.form)
    table = find(ask.table)
    if ask.system:
        table = table.system(ask.system)
    if ask.export:
        return _export(table, ask.export)
    if ask.measured:
        return _compare(table, ask, ask.measured)
    _ = terms.machine  # its mistakes before anything is written
    text = recipe.text(table, ask.repeats)
    _require_plan(table, text, ask)
    if ask.only_plan:
        return _plan(table, text, ask, terms)
    return _run(table, text, ask, terms)


def _require_plan(table: PublishedTable, text: str, ask: Ask) -> None:
    """Refuse a table, or what is set over it, in the words of who wrote it: the sweep file is ours."""
    _require(text, (), table.place)
    if ask.overrides:
        _require(text, ask.overrides, f"{table.name} with --set {' '.join(ask.overrides)}")


def _require(text: str, overrides: Sequence[str], place: str) -> None:
    try:
        spec = parse(text, place, overrides)
        points = math.prod(len(axis.points()) for axis in spec.axes.values())
        if points > plan.MOST_POINTS:
            rule = f"its columns must have at most {plan.MOST_POINTS:,} combinations of their values: split it by one"
            raise InputError(place, [Mistake("", rule, f"{points:,}")])
        plan.plan(spec, place)
    except InputError as error:
        if not error.mistakes or (overrides and any(not one.key for one in error.mistakes)):
            raise  # an override that can't be read says so itself
        mistakes = (_in_words_of_a_table(one, bool(overrides)) for one in error.mistakes)
        raise InputError(place, list(dict.fromkeys(mistakes))) from None


def _in_words_of_a_table(mistake: Mistake, is_set: bool) -> Mistake:
    if mistake.key == "repeats" and not is_set:
        return dataclasses.replace(mistake, key="--repeats")
    if not is_set and (mistake.key.startswith("where") or mistake.key.endswith(".when")):
        rule = (
            f"its rows must be told apart in conditions of {expression.LONGEST} characters each: split it by a column"
        )
        return Mistake("", rule, mistake.got)
    return dataclasses.replace(mistake, key=publication.column(mistake.key))


def find(name: str) -> PublishedTable:
    """Return the table that a name means: a file, one of references/, or an earlier sweep."""
    from sweeps.record import ledger

    path = Path(name)
    if path.suffix == ".csv" or path.is_file():
        return publication.load(path)
    known = [one.name for one in publication.listed()]
    sweeps = ledger.names()
    if name in known or (name not in sweeps and publication.slug(name) in known):
        return publication.published(publication.slug(name))
    if name in sweeps:
        return earlier_table.table(name)
    hint = did_you_mean(name, [*known, *sweeps], cutoff=0.5)
    rule = f"must be a table that sweep reproduce lists, a CSV file, or a sweep in {results_root()}{hint}"
    raise InputError("reproduce", [Mistake("TABLE", rule, name)])


def _export(table: PublishedTable, path: Path) -> int:
    """Write an earlier sweep's table to a file, to carry to another machine."""
    if Path(table.place).is_file():
        rule = f"must be a sweep that was measured here: this table lies in {table.place} already"
        raise InputError("--export", [Mistake("TABLE", rule, table.name)])
    try:
        path.write_text(earlier_table.text(table.name))
    except OSError as error:
        raise InputError(
            "--export", [Mistake(str(path), "must be a file that can be written", error.strerror)]
        ) from None
    print(path)
    if named := table.settings.get("env_from"):
        print(f"! no column says env_from: run it with --set env_from=[{','.join(named)}]", file=sys.stderr)
    return errors.DONE


def _list(form: tables.Format) -> int:
    here = Node("here", quota.cores(), len(list(Path("/dev").glob("nvidia[0-9]*"))))
    rows: list[dict[str, Any]] = []
    for one in publication.listed():
        if one.why_not:
            rows.append(_line(one.name, "", "", f"no: {one.why_not}", ""))
            continue
        whole = publication.published(one.name)
        for system in whole.systems:
            table = whole.system(system)
            rows.append(_line(one.name, system, str(len(table.rows)), _room(table, here), _cluster_like(table)))
    tables.show_rows(rows, form)
    if form == "table":
        print(f"\nthen: {caller.command('reproduce', 'TABLE', '--simulate', 'SHAPE')}, or --set device=cpu")
        print("a CSV file or an earlier sweep is a table too")
    return errors.DONE


def _line(name: str, system: str, rows: str, here: str, shape: str) -> dict[str, Any]:
    return {"table": name, "system": system, "rows": rows, "fit here": here, "simulate": shape}


def _room(table: PublishedTable, node: Node) -> str:
    """How many of its rows this machine has room for."""
    if node.gpus:
        return str(_fitting(table, node, ()))
    return f"no GPU; {_fitting(table, node, ('device=cpu',))} with device=cpu"


def _fitting(table: PublishedTable, node: Node, overrides: Sequence[str]) -> int:
    spec = parse(recipe.text(table, 1), table.name, overrides)
    cells = [reproduction.cell_of(row.settings, spec) for row in table.rows]
    return sum(not isinstance(cell, str) and not arrangements.impossible(cell, [node]) for cell in cells)


def _cluster_like(table: PublishedTable) -> str:
    """Return a simulated cluster like the one that was measured."""
    from sweeps.simulator.model import KINDS

    kind = evidence.KIND.get(table.systems[0], "")
    if not kind:
        return ""
    each = KINDS[kind].gpus
    nodes = max(row.nodes or math.ceil(row.settings["gpus"] / each) for row in table.rows)
    return f"nodes={nodes},gpu={kind}"


def _plan(table: PublishedTable, text: str, ask: Ask, terms: Terms) -> int:
    """Print the sweep file on stdout, so that `> mine.yaml` keeps it, and what it would run beside it."""
    from sweeps.run import preview

    print(f"# with --set {' '.join(ask.overrides)}\n{text}" if ask.overrides else text, end="")
    sys.stdout.flush()
    with _kept(table, text) as file, contextlib.redirect_stdout(sys.stderr):
        preview.preview(file, ask.overrides, dataclasses.replace(terms, skips_impossible=True), "table")
    return errors.DONE


@contextlib.contextmanager
def _kept(table: PublishedTable, text: str) -> Iterator[Path]:
    """Keep the file, within the block, in a folder that goes: of what is only planned nothing stays."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{recipe.name(table)}.yaml"
        file.write_text(text)
        yield file


def _run(table: PublishedTable, text: str, ask: Ask, terms: Terms) -> int:
    """Measure it, as any sweep, and say which rows hold. What was measured before never stands in for it."""
    from sweeps.run import driver

    file = results_root() / f"{recipe.name(table)}.yaml"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise errors.RefusedError(
            f"the results folder must be writable, but the system says: {error.strerror}\n"
            f"  {file.parent}\n  choose another one with SWEEP_RESULTS=folder"
        ) from None
    print(f"the sweep file: {_near(file)}", file=sys.stderr)
    begun: list[str] = []
    terms = dataclasses.replace(terms, is_fresh=True, skips_impossible=True)
    with contextlib.redirect_stdout(sys.stderr):
        code = driver.drive(_near(file), ask.overrides, terms, begun.append)
    from sweeps.record import ledger

    if begun and begun[-1] in ledger.names():
        _compare(table, ask, begun[-1])
    return code


def _near(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _compare(table: PublishedTable, ask: Ask, name: str) -> int:
    """Compare the table with what a sweep has measured."""
    from sweeps.record import ledger, rows

    record = ledger.read(name)
    spec, where = record.facts.spec, record.facts.simulated
    if spec.protocol != "throughput":
        raise InputError("--measured", [Mistake(name, "must be a sweep with protocol: throughput", spec.protocol)])
    trials = [rows.row(trial) for trial in record.trials if not trial.outcome.cached]
    planned = {trial.cell for trial in record.facts.trials}
    held = reproduction.reproduce(table, spec, trials, planned, ask.tolerance, record.facts.nodes)
    cluster = simulated.parse(where) if where else None
    unlike = list(setups.aspects(table, held, spec, record.nodes, cluster))
    departures = [_departures(table, one, spec) for one in held]
    fit = list(_fit(held, departures, where))
    made = list(reproduction.records(table, held, where))
    for row, (is_in, left_out), departed in zip(made, fit, departures, strict=True):
        row |= {"in_sample": is_in if where else None, "left_out_error": left_out}
        row |= {"unlike": None, "not_stated": None} if departed is None else departed.columns
    if ask.form == "json":
        said = {"table": table.name, "sweep": name, "simulated": where, "tolerance": ask.tolerance}
        print(json.dumps({**said, "rows": made, "setup": [vars(one) for one in unlike]}, indent=2))
    elif ask.form == "csv":
        tables.show_rows(made, "csv")
    else:
        _show(table, held, unlike, fit, departures, name, where, ask.tolerance)
    return errors.DONE


@dataclasses.dataclass(frozen=True)
class Departures:
    """How a row's cell is not what was printed."""

    unlike: Sequence[str]  # stated, and otherwise here
    not_stated: Mapping[str, str]  # not stated, and not here as it is where nobody sets it

    @property
    def columns(self) -> dict[str, str]:
        return {
            "unlike": ", ".join(self.unlike),
            "not_stated": ", ".join(f"{name} {here}" for name, here in self.not_stated.items()),
        }


def _departures(table: PublishedTable, one: Held, spec: SweepSpec) -> Departures | None:
    """Return how a run departs from a row; None for a row that has no figure."""
    if one.why or not one.cell:
        return None
    return Departures(setups.unlike(table, one, spec), setups.unstated(table, one))


def _fit(
    held: Sequence[Held], departures: Sequence[Departures | None], where: str
) -> Iterator[tuple[bool, float | None]]:
    """Yield whether the simulator was fitted to a row; and how far it misses it when it is left out, if this run's cell
    and kind of node are the row's."""
    kind = simulated.parse(where).gpu if where else ""
    for one, departed in zip(held, departures, strict=True):
        unit = "speed-up" if one.row.figure == "speedup" else "images/s"
        row = one.row
        found = evidence.fitted_to(row.system, row.framework, row.settings, unit, row.value) if where else None
        is_alike = found and found.kind == kind and departed and not departed.unlike
        is_usual = departed and not departed.not_stated.keys() - ALLOWANCES
        yield found is not None, found.left_out if found and is_alike and is_usual else None


def _show(
    table: PublishedTable,
    held: Sequence[Held],
    unlike: Sequence[setups.Aspect],
    fit: Sequence[tuple[bool, float | None]],
    departures: Sequence[Departures | None],
    name: str,
    where: str,
    within: float,
) -> None:
    marked = f" SIMULATED on {where}: nothing was measured" if where else ""
    print(f"{table.name} against {name}{marked}")
    named = _names(table)
    for word, claims in (("images/s", [one.rate for one in held]), (_word(held), [one.relative for one in held])):
        if counted := reproduction.counted(claims):
            shown = [
                named[one.row.line] | ({} if claim is one.rate else {"over": one.over}) | _claimed(claim)
                for one, claim in zip(held, claims, strict=True)
                if claim
            ]
            tables.show_rows(shown, "table", f"\n{word}: {counted}")
    print(
        "\n"
        f"a row holds if its ratio's whole 95% interval lies within 1 ± {100 * within:.3g}% and half of the last"
        " printed digit, differs if it lies outside, and else is open; these intervals hold for all rows together"
    )
    for line in (*_as_printed(departures), *(_in_sample(table, fit, within) if where else ())):
        print(line)
    print("\nset-up")
    lines = [one for one in unlike if one.what != setups.ALL_ELSE]
    tables.show_rows(
        [{"": one.what, "published": one.published, "here": one.here, "is": one.likeness} for one in lines], "table"
    )
    for one in unlike:
        if one.what == setups.ALL_ELSE:
            print(f"not stated there, and at its default here: {one.here}")


def _as_printed(departures: Sequence[Departures | None]) -> Iterator[str]:
    """How many of the rows that have a figure ran as the table states them, and what was otherwise."""
    measured = [one for one in departures if one]
    for what, names in (
        ("ran otherwise than the table states", [one.unlike for one in measured]),
        ("ran with what the table does not state", [list(one.not_stated) for one in measured]),
    ):
        if departed := [own for own in names if own]:
            said = ", ".join(dict.fromkeys(name for own in departed for name in own))
            yield f"{len(departed)} of {len(measured)} measured rows {what}: {said}, see the set-up"


def _word(held: Sequence[Held]) -> str:
    is_speedup = any(one.row.figure == "speedup" or "GPU" in one.over for one in held)
    return "speed-up" if is_speedup else "relative to one row"


def _in_sample(table: PublishedTable, fit: Sequence[tuple[bool, float | None]], within: float) -> Iterator[str]:
    """Say that the simulator has seen these rows, and how it does on those that it has not."""
    seen = sum(is_in for is_in, _ in fit)
    if not seen:
        yield "the simulator was fitted to none of these rows"
        return
    yield (
        f"the simulator was fitted to {seen} of these {len(fit)} rows: that these are met shows the fit, not the model"
    )
    misses = [abs(error) for _, error in fit if error is not None]
    if misses:
        met = sum(error <= within for error in misses)
        yield (
            f"left out of the fit (references/simulator.csv), the {len(misses)} of this kind of node are missed by"
            f" {statistics.median(misses):.1%} (median), {max(misses):.1%} (worst): {met} of {len(misses)} within"
            f" {100 * within:.3g}%"
        )


def _names(table: PublishedTable) -> dict[int, dict[str, str]]:
    """Return what tells a row from the others, by its line."""
    axes = list(dict.fromkeys(name for row in table.rows for name in row.settings))
    columns = {name: [_in_words(row.settings.get(name)) for row in table.rows] for name in axes}
    if "nodes" not in columns and "placement" in columns:
        columns["nodes"] = [_in_words(row.nodes) for row in table.rows]
        del columns["placement"]
    words = {name: [getattr(row, name) for row in table.rows] for name in ("system", "framework")}
    kept = {name: values for name, values in {**words, **columns}.items() if len(set(values)) > 1}
    kept = kept or {name: columns[name] for name in ("model", "gpus")}
    return {row.line: {name: values[n] for name, values in kept.items()} for n, row in enumerate(table.rows)}


def _in_words(value: Any) -> str:
    return "–" if value is None else str(space.shown(value))


def _claimed(claim: FigureCheck) -> dict[str, str]:
    ratio = tables.cell(claim.ratio)
    if claim.low == claim.low:
        ratio = f"{ratio} ({tables.cell(claim.low)} to {tables.cell(claim.high)})"
    return {
        "published": tables.cell(claim.printed),
        "here": tables.plus_minus(claim.measured, claim.half_width),
        "here ÷ published": ratio,
        "verdict": f"{claim.verdict}: {claim.why}" if claim.why else claim.verdict,
    }
