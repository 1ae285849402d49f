"""A table of published figures against the trials that repeated it, row by row. Pure.

Each row makes up to two claims: its rate, and its relative figure, which is its speed-up (or, where all rows have as
many GPUs, its rate) over a row of the same table. Rates are of one machine; relative figures may hold on another.

A claim is judged by measured ÷ published. Its interval holds for all claims of a kind together at 95% (Bonferroni);
variances are shared between cells as far as they are alike (`analysis.noise`), and put together as `sweep diff` does
(`analysis.joint`). With the tolerance t and half of the last printed digit u, relative to the figure:

    holds           the whole interval lies within 1 ± (t + u)
    differs         it lies wholly outside
    open            it reaches over an end of that: more repeats would tell; or there is no interval
    not comparable  it is of other files of data, or otherwise on nodes, than the table states or than its base is
    not measured    there is no figure

That a figure holds is a finding as that it differs is one, and asks for as much: an interval that merely touches what
is allowed has not refuted it, and a figure that is 13% off could be within it.

A published figure that comes without an interval of its own is taken as it stands.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sweeps.analysis import APART, FINGERPRINTS, STUDIED_BY, joint, noise
from sweeps.analysis.comparison import WORDS
from sweeps.analysis.publication import PublishedRow, PublishedTable, usual
from sweeps.errors import shown
from sweeps.record.rows import SIMULATED
from sweeps.spec import plan
from sweeps.spec.arrangements import Node
from sweeps.spec.keys import RANK, SweepSpec
from sweeps.spec.space import Uniform
from workers.contract.messages import TrialConfig

Verdict = Literal["holds", "differs", "open", "not comparable", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("holds", "differs", "open", "not comparable", "not measured")
CONFIDENCE = 0.95
APART_IN_WORDS = {
    "hardware": "hardware fingerprints",
    "software": "software fingerprints",
    "data_files": "sets of files",
    "arrangement": "arrangements on nodes",
}
NEVER_ANOTHER = ("model", "gpus")  # a figure of another network, or of another number of GPUs, is another figure


@dataclasses.dataclass(frozen=True)
class Spread:
    """The variance of a mean's logarithm, and its degrees of freedom; none of a figure that is taken as it stands."""

    variance: float = 0.0
    df: float = math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """What the repeats of a cell measured; `why` says it where there is no figure."""

    config: TrialConfig
    mean: float = math.nan
    half_width: float = math.nan  # of its own 95% interval
    spread: Spread | None = None
    nodes: int | None = None
    hardware: tuple[str, ...] = ()
    software: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    arrangement: tuple[str, ...] = ()
    why: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FigureCheck:
    """A figure as printed and as measured."""

    printed: float
    measured: float = math.nan
    half_width: float = math.nan
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    verdict: Verdict = "not measured"
    why: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """One row, judged."""

    row: PublishedRow
    cell: Cell | None
    why: str  # it has no figure
    rate: FigureCheck | None
    relative: FigureCheck | None
    over: str = ""  # what the relative figure is over


@dataclasses.dataclass(frozen=True)
class _Asked:
    """A claim before its interval: what it takes to find that."""

    printed: float
    rounding: float  # relative
    spreads: tuple[Spread, ...] = ()
    measured: float = math.nan
    half_width: float = math.nan
    why: str = ""
    verdict: Verdict = "not measured"  # where `why` says it
    has_interval: bool = True


def cell_of(settings: Mapping[str, Any], spec: SweepSpec, nodes: Sequence[Node] = ()) -> TrialConfig | str:
    """Return the cell of a sweep, planned for these nodes, that answers these settings; or why there is none.

    Where the sweep holds an axis to one other value, that value stands in, and counts as a difference.
    """
    point: dict[str, Any] = {}
    for name, axis in spec.axes.items():
        wanted = settings.get(name, usual(name))
        if name == "global_batch":
            wanted = settings["batch_size"] * settings["gpus"]
        points = axis.points()
        is_there = axis.settled(wanted) == wanted if isinstance(axis, Uniform) else wanted in points
        is_left_alone = wanted is None and axis.when  # a variable: its condition says that it is not set there
        if is_there:
            point[name] = wanted
        elif is_left_alone or (len(points) == 1 and name not in NEVER_ANOTHER):
            point[name] = points[0]
        else:
            return f"the sweep leaves out {name} {shown(wanted)}"
    made = plan.cell_at(spec, point, nodes)
    return f"the sweep leaves it out: {made}" if isinstance(made, str) else made


def reproduce(
    table: PublishedTable,
    spec: SweepSpec,
    trials: Iterable[Mapping[str, Any]],
    planned: Collection[str],
    tolerance: float,
    nodes: Sequence[Node] = (),
) -> tuple[Held, ...]:
    """Each row judged by the trials, rows as `rows.row` makes them, of a sweep planned for these nodes; `planned` are
    the cells that had a place."""
    configs = [cell_of(row.settings, spec, nodes) for row in table.rows]
    alone = [cell_of(row.alone, spec, nodes) if row.figure == "speedup" else "" for row in table.rows]
    needed = {config.cell: config for config in (*configs, *alone) if isinstance(config, TrialConfig)}
    measured = _measured(needed, trials, planned)
    found = [_cell_of(config, measured) for config in configs]
    by_line = {row.line: cell for row, cell in zip(table.rows, found, strict=True)}
    bases = [table.baseline(row) if row.figure == "images_per_s" else None for row in table.rows]
    under = [
        by_line[base.line] if base else _cell_of(one, measured) if one else None
        for base, one in zip(bases, alone, strict=True)
    ]
    rates = [
        _rate(table, row, cell) if row.figure == "images_per_s" else None
        for row, cell in zip(table.rows, found, strict=True)
    ]
    relatives = [
        _relative(table, row, cell, below, base) if below is not None else None
        for row, cell, below, base in zip(table.rows, found, under, bases, strict=True)
    ]
    judged = zip(table.rows, found, _judged(rates, tolerance), _judged(relatives, tolerance), strict=True)
    return tuple(
        Held(
            row=row,
            cell=None if isinstance(cell, str) else cell,
            why=cell if isinstance(cell, str) else cell.why,
            rate=rate,
            relative=relative,
            over=_over(table, row),
        )
        for row, cell, rate, relative in judged
    )


def _cell_of(config: TrialConfig | str, measured: Mapping[str, Cell]) -> Cell | str:
    return config if isinstance(config, str) else measured[config.cell]


def _over(table: PublishedTable, row: PublishedRow) -> str:
    """Return what a row's relative figure is over, in short."""
    if row.figure == "speedup":
        return "1 GPU"
    base = table.baseline(row)
    if base is None:
        return ""
    if base.settings["gpus"] != row.settings["gpus"]:
        return f"{base.settings['gpus']} GPU{'s' * (base.settings['gpus'] > 1)}"
    unlike = [name for name in base.settings if base.settings[name] != row.settings.get(name)]
    return ", ".join(shown(base.settings[name]) for name in unlike) or f"line {base.line}"


def _measured(
    needed: Mapping[str, TrialConfig], trials: Iterable[Mapping[str, Any]], planned: Collection[str]
) -> dict[str, Cell]:
    """Return the cells that rows ask for, with variances that borrow from each other."""
    by_cell: dict[str, list[Mapping[str, Any]]] = collections.defaultdict(list)
    for trial in trials:
        by_cell[trial["cell"]].append(trial)
    cells = {cell: _cell(config, by_cell[cell], cell in planned) for cell, config in needed.items()}
    known = [cell for cell, one in cells.items() if one.spread]
    own = [spread for cell in known if (spread := cells[cell].spread)]
    repeats = [sum(_has_rate(trial) for trial in by_cell[cell]) for cell in known]
    of_means = noise.of_means([spread.variance for spread in own], [spread.df for spread in own], repeats)
    for cell, variance, df in zip(known, *of_means, strict=True):
        cells[cell] = dataclasses.replace(cells[cell], spread=Spread(float(variance), float(df)))
    return cells


def _has_rate(trial: Mapping[str, Any]) -> bool:
    return bool(trial["outcome"] == "completed" and trial.get("images_per_s", 0) > 0)


def _cell(config: TrialConfig, trials: Sequence[Mapping[str, Any]], is_planned: bool) -> Cell:
    from workers.measure.student_t import quantile

    done = [trial for trial in trials if _has_rate(trial)]
    if not done:
        return Cell(config=config, why=_why_none(config, trials, is_planned))
    rates = [float(trial["images_per_s"]) for trial in done]
    machines = {side: tuple(sorted({str(trial.get(side) or "") for trial in done} - {""})) for side in APART}
    mean, n = statistics.fmean(rates), len(rates)
    nodes = {int(trial["nodes"]) for trial in done if trial.get("nodes")}
    made = Cell(
        config=config,
        mean=mean,
        nodes=nodes.pop() if len(nodes) == 1 else None,
        hardware=machines["hardware"],
        software=machines["software"],
        data_files=machines["data_files"],
        arrangement=machines["arrangement"],
    )
    if several := [side for side, prints in machines.items() if len(prints) > 1]:
        why = f"its repeats ran with {len(machines[several[0]])} {APART_IN_WORDS[several[0]]}: not averaged"
        return dataclasses.replace(made, mean=math.nan, why=why)
    if n < 2:
        return made
    half_width = float(quantile(n - 1, CONFIDENCE)) * statistics.stdev(rates) / math.sqrt(n)
    variance = statistics.variance([math.log(rate) for rate in rates])
    return dataclasses.replace(made, half_width=half_width, spread=Spread(variance, n - 1))


def _why_none(config: TrialConfig, trials: Sequence[Mapping[str, Any]], is_planned: bool) -> str:
    if trials:
        first = trials[0]
        words = f"{first['outcome']}: {first['kind']}" if first["kind"] else str(first["outcome"])
        return f"{words}: {first['message']}" if first["message"] else words
    if is_planned:
        return "not run yet"
    what = f"{RANK[config.device]}s"
    form = "" if config.placement in ("pack", "spread") else f" as {config.placement} (nodes x {what} on each)"
    return f"needs {config.gpus} {what if config.gpus > 1 else what[:-1]}{form}, for which there is no room here"


def unlike(table: PublishedTable, row: PublishedRow, cell: Cell) -> list[str]:
    """Return what a row's cell was measured with that is not what the row states, though nothing that it would follow
    from was set otherwise (`analysis.alike`): other files of the same name, or as many ranks otherwise on nodes.
    Machines and programs may differ, since they are what a table is tried on; and what is simulated reads no files."""
    sides = [side for side in APART if side not in FINGERPRINTS]
    stated = {side: (getattr(row, side), *getattr(cell, side)) for side in sides}
    settings = {**table.settings, **row.settings}
    return [
        side
        for side, (theirs, *ours) in stated.items()
        if theirs
        and ours
        and ours != [theirs]
        and SIMULATED not in (theirs, *ours)
        and all(
            plan.value(cell.config, name) == settings.get(name, plan.value(cell.config, name))
            for name in STUDIED_BY[side]
        )
    ]


def _not_as_stated(table: PublishedTable, row: PublishedRow, cell: Cell) -> str:
    """Return the same in words; empty where it was measured as the row states."""
    return " and ".join(
        f"other {WORDS[side]}: {getattr(row, side)} in the table, {', '.join(getattr(cell, side))} here"
        for side in unlike(table, row, cell)
    )


def _rate(table: PublishedTable, row: PublishedRow, cell: Cell | str) -> _Asked:
    rounding = row.rounding / row.value
    if isinstance(cell, str) or cell.mean != cell.mean:
        return _Asked(row.value, rounding, why=cell if isinstance(cell, str) else cell.why)
    if why := _not_as_stated(table, row, cell):
        return _Asked(
            row.value,
            rounding,
            measured=cell.mean,
            half_width=cell.half_width,
            why=why,
            verdict="not comparable",
        )
    spreads = [cell.spread] if cell.spread else []
    return _Asked(
        row.value,
        rounding,
        (*spreads, _published(row)),
        cell.mean,
        cell.half_width,
        has_interval=bool(spreads),
    )


def _published(row: PublishedRow) -> Spread:
    """Return what a table's own interval says of its figure."""
    if math.isnan(row.half_width):
        return Spread()
    from workers.measure.student_t import quantile

    error = row.half_width / float(quantile(row.repeats - 1, CONFIDENCE)) / row.value
    return Spread(error**2, row.repeats - 1)


def _relative(
    table: PublishedTable, row: PublishedRow, cell: Cell | str, under: Cell | str, base: PublishedRow | None
) -> _Asked:
    """Return a row's figure over its baseline's; without a base row it is printed as such."""
    printed = row.value / base.value if base else row.value
    rounding = row.rounding / row.value + (base.rounding / base.value if base else 0.0)
    for one, whose in ((cell, ""), (under, "its base: ")):
        if isinstance(one, str) or one.mean != one.mean:
            return _Asked(printed, rounding, why=f"{whose}{one if isinstance(one, str) else one.why}")
    assert isinstance(cell, Cell)
    assert isinstance(under, Cell)
    why = _not_as_stated(table, row, cell)
    if not why and base and (of_base := _not_as_stated(table, base, under)):
        why = f"its base: {of_base}"
    if not why and (sides := _unlike_base(cell, under)):
        why = f"its base was measured with other {sides}"
    if why:
        return _Asked(printed, rounding, why=why, verdict="not comparable")
    ratio = cell.mean / under.mean
    spreads = [one.spread for one in (cell, under) if one.spread]
    published = [_published(row), *([_published(base)] if base else [])]
    half_width = ratio * math.hypot(cell.half_width / cell.mean, under.half_width / under.mean)
    return _Asked(printed, rounding, (*spreads, *published), ratio, half_width, has_interval=len(spreads) == 2)


def _unlike_base(cell: Cell, other: Cell) -> str:
    """Say in what two cells were not measured alike, in words (`analysis.alike`)."""
    configs = cell.config, other.config
    differ = [side for side in ("hardware", "software", "data_files") if getattr(cell, side) != getattr(other, side)]
    return " and ".join(
        side.replace("_", " ")
        for side in differ
        if all(plan.value(configs[0], name) == plan.value(configs[1], name) for name in STUDIED_BY[side])
    )


def _judged(asked: Sequence[_Asked | None], tolerance: float) -> list[FigureCheck | None]:
    count = sum(one is not None and not one.why and one.has_interval for one in asked)
    return [_claim(one, tolerance, count) if one else None for one in asked]


def _claim(asked: _Asked, tolerance: float, count: int) -> FigureCheck:
    """`count` claims are judged together."""
    made = FigureCheck(
        printed=asked.printed,
        measured=asked.measured,
        half_width=asked.half_width,
        verdict=asked.verdict,
        why=asked.why,
    )
    if asked.why:
        return made
    ratio = asked.measured / asked.printed
    made = dataclasses.replace(made, ratio=ratio)
    if not asked.has_interval:
        return dataclasses.replace(made, verdict="open", why="a single repeat has no interval")
    spreads = asked.spreads
    variances, freedom = [one.variance for one in spreads], [one.df for one in spreads]
    half = float(joint.half_width(variances, freedom, 1 - (1 - CONFIDENCE) / count))
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    verdict = judge(low, high, tolerance, asked.rounding)
    why = ""
    if verdict == "differs":
        why = f"{ratio - 1:+.1%}"
    elif verdict == "open":
        why = f"{low - 1:+.1%} to {high - 1:+.1%} reaches over ±{100 * (tolerance + asked.rounding):.3g}%: more repeats"
    return dataclasses.replace(made, low=low, high=high, verdict=verdict, why=why)


def judge(low: float, high: float, tolerance: float, rounding: float) -> Verdict:
    """Judge by the interval of measured ÷ published."""
    allowed = tolerance + rounding
    if low > 1 + allowed or high < 1 - allowed:
        return "differs"
    return "holds" if low >= 1 - allowed and high <= 1 + allowed else "open"


def counted(claims: Iterable[FigureCheck | None]) -> str:
    """`3 of 7 hold, 4 differ`, of the claims that there are; empty where there are none."""
    verdicts = [claim.verdict for claim in claims if claim]
    words = {"holds": "hold", "differs": "differ"}
    parts = [f"{n} {words.get(verdict, verdict)}" for verdict in VERDICTS if (n := verdicts.count(verdict))]
    return f"of {len(verdicts)}, {', '.join(parts)}" if verdicts else ""


def records(table: PublishedTable, held: Sequence[Held], simulated: str) -> Iterator[dict[str, Any]]:
    """Yield a record for each row, for programs."""
    axes = list(dict.fromkeys(name for row in table.rows for name in row.settings))
    for one in held:
        row, cell = one.row, one.cell
        made: dict[str, Any] = {"table": table.name, "line": row.line, "system": row.system, "framework": row.framework}
        made |= {name: row.settings.get(name) for name in axes}
        made |= {
            "nodes": row.nodes,
            "nodes_here": cell.nodes if cell else None,
            "cell": cell.config.cell if cell else "",
        }
        for name, claim in (("rate", one.rate), ("relative", one.relative)):
            made |= {f"{name}_{key}": _finite(value) for key, value in _facts(claim).items()}
            if name == "relative":
                made["relative_over"] = one.over if claim else ""
        yield made | {"simulated": simulated}


def _facts(claim: FigureCheck | None) -> dict[str, Any]:
    names = {"printed": "published", "half_width": "measured_ci"}
    return {
        names.get(field.name, field.name): getattr(claim, field.name) if claim else None
        for field in dataclasses.fields(FigureCheck)
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
