"""The cell to train with, and how sure that is: the answer, and the notes that belong to it.

With `protocol: throughput` it is the cell with the most images/s. With `protocol: convergence` it is the one that takes
least time to the target, of those whose every repeat came to it; where there is none, the one with the best top-1.
`analysis.best_cell` says when a cell may be called the best, `analysis.alike` among which cells that may be said.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sweeps import analysis
from sweeps.analysis import Pick
from sweeps.analysis.best_cell import NOT_SHOWN
from sweeps.analysis.findings.finding import Finding, Rule
from sweeps.record import bottleneck, rows
from sweeps.text import tables

if TYPE_CHECKING:
    import pandas as pd

    from sweeps.analysis.study import Study

Figure = str  # a column: one of these, or the figure of a user's script that its search goes by
VERBS: dict[Figure, str] = {
    "images_per_s": "trains fastest",
    "hours_to_target": "reaches the target soonest",
    "epochs_to_target": "needs the fewest epochs to the target",
    "top1": "is most accurate",
}
ALONE: dict[Figure, str] = {"images_per_s": "trains", "hours_to_target": "reaches the target", "top1": "learns:"}
RULES: dict[Figure, Rule] = {"epochs_to_target": "fewest epochs", "top1": "most accurate"}
AHEAD = {"images_per_s": "faster", "hours_to_target": "sooner", "epochs_to_target": "fewer", "top1": "better"}
MOST_REPEATS = 30  # that are worth asking for
FEWEST_REPEATS = 3
ROUNDING = 12**-0.5  # standard deviation of what is lost when a figure is rounded to whole numbers
CLEARLY_CHEAPER = 0.02
MANIFOLD = 1000  # percent: a larger end of an interval says no more


@dataclasses.dataclass(frozen=True)
class Best:
    """The best cell of a table by one figure."""

    figure: Figure
    table: pd.DataFrame  # a row each of those that were compared
    pick: Pick
    unlike: tuple[str, ...] = ()  # in what they were not measured alike, so that a lead may be that of something else

    @property
    def is_shown(self) -> bool:
        """True where it is the best for sure, and by itself."""
        return self.pick.is_shown and not self.unlike

    @property
    def caption(self) -> str:
        """What a caption that names it adds; empty where nothing is to be said."""
        if self.unlike:
            return f" (by means; the cells have {self.measured_with})"
        return "" if self.is_shown or self.is_alone else f" ({NOT_SHOWN})"

    @property
    def measured_with(self) -> str:
        """Those sides of which there are several among the cells, where it should be one."""
        return analysis.named(self.table, self.unlike)

    @property
    def top(self) -> Any:
        return self.table.iloc[self.pick.top]

    @property
    def rivals(self) -> pd.DataFrame:
        """The cells that it is not told from, the nearest first."""
        return self.table.iloc[[*self.pick.rivals]]

    @property
    def is_alone(self) -> bool:
        return len(self.table) == 1

    @property
    def repeats(self) -> int:
        """How many repeats each cell should have to tell the best from the nearest other; 0 where that asks for more
        than is worth it, or would not tell since cells are unlike, or it is told."""
        if self.is_alone or self.pick.is_shown or self.unlike:
            return 0
        if self.pick.singles:
            return FEWEST_REPEATS
        return math.ceil(self.pick.enough) if self.pick.enough <= MOST_REPEATS else 0


def find(study: Study) -> Best | None:
    """Return the sweep's best cell; None where nothing was measured."""
    if study.measured.empty:
        return None
    if goal := study.own_goal:
        return by(study, goal) or by(study, "images_per_s")
    if not study.is_convergence:
        return by(study, "images_per_s")
    return by(study, "hours_to_target") or by(study, "top1") or by(study, "images_per_s")


def by(study: Study, figure: Figure) -> Best | None:
    """Return the best cell by a figure; what it took to get to the target counts where every repeat got there."""
    table = study.measured
    if figure in analysis.TO_TARGET:
        table = table[(table["reached"] == table["n"]) & ~table["cell"].isin(_short_of_an_end(study)["cell"])]
    table = table[table[figure].notna()]
    if table.empty:
        return None
    spread = ROUNDING * study.facts.spec.evaluate_every if figure == "epochs_to_target" else 0.0
    picked = analysis.pick(
        analysis.repeats(study.trials, table, figure),
        is_ratio=figure != "top1" and not _is_own(figure),
        is_more_better=figure in ("images_per_s", "top1") or (figure == study.own_goal and not study.is_less_better),
        least_spread=spread,
    )
    return Best(figure, table, picked, tuple(analysis.unlike(table)))


def _is_own(figure: Figure) -> bool:
    return figure not in AHEAD and figure != "gpu_hours_per_epoch"


def _name(figure: Figure) -> str:
    """Return a figure of a script by the name that the script has for it."""
    return figure.removeprefix(rows.REPORTED)


def _short_of_an_end(study: Study) -> pd.DataFrame:
    """Return the trials that failed, were lost, pruned or infeasible: they did not come to the target either."""
    trials = analysis.plain(study.trials)
    return trials[~trials["outcome"].isin(["completed", "cancelled"])]


def findings(study: Study, best: Best) -> Iterator[Finding]:
    """Yield the answer, then its notes."""
    yield _answer(study, best)
    if not best.is_alone:
        yield _apart(study, best)
    if study.is_convergence:
        yield from _target(study)
        yield from _others(study, best)
        return
    top = best.top
    yield from _speed_up(study, top)
    if verdict := bottleneck.of_cell(top):
        words = bottleneck.sentence(verdict, int(top["gpus"]))
        says = f"It is {words}." if verdict.part else f"What limits it is {words}."
        is_shown: Literal["shown", "open"] = "shown" if verdict.part else "open"
        yield Finding(rule="limit", severity="note", sureness=is_shown, says=says, cells=(top["cell"],))
    yield from _cheaper(study, best)


def _answer(study: Study, best: Best) -> Finding:
    top, figure = best.top, best.figure
    named = _upper(study.described(top)) or "It"
    open_ = "leads cells that were not measured alike" if best.unlike else "leads, but not clearly"
    best_word = f"has the best {_name(figure)}"
    verb = f"{VERBS.get(figure, best_word) if best.is_shown else open_}:"
    if best.is_alone:
        is_one_of_several = len(study.measured) > 1 and figure == "hours_to_target"
        verb = "alone reached the target with every repeat:" if is_one_of_several else ALONE.get(figure, "comes to")
    return Finding(
        rule="best",
        severity="answer",
        sureness="shown" if best.is_shown else "estimated" if best.is_alone else "open",
        says=f"{named} {verb} {_value(study, top, figure)}",
        cells=(top["cell"],),
        evidence=_evidence(best),
    )


def _value(study: Study, top: Any, figure: Figure) -> str:
    value, within = float(top[figure]), float(top[f"{figure}_ci"])
    if figure == "images_per_s":
        return f"{tables.plus_minus(value, within)} {study.rate}"
    if figure == "hours_to_target":
        return f"in {tables.duration(3600 * value, 3600 * within)}"
    if figure == "top1":
        return f"{tables.accuracy(value, within)} top-1"
    if _is_own(figure):
        return f"{_name(figure)} {tables.plus_minus(value, within)}"
    return f"{tables.plus_minus(value, within)} epochs"


def _apart(study: Study, best: Best) -> Finding:
    """Say whether the best cell is told from the others: by how much it leads at least, or what is open."""
    pick, figure = best.pick, best.figure
    cells: tuple[str, ...] = ()
    if best.is_shown:
        says = f"It is at least {_lead(pick.low, figure)} {AHEAD.get(figure, 'better')} than any other cell."
    else:
        says = " ".join(_open(study, best))
        cells = (best.top["cell"], *best.rivals["cell"])
    return Finding(
        rule="told apart",
        severity="note",
        sureness="shown" if best.is_shown else "open",
        says=says,
        cells=cells,
        evidence=_evidence(best),
    )


def _open(study: Study, best: Best) -> Iterator[str]:
    pick, rivals, others = best.pick, best.rivals, len(best.table) - 1
    if best.unlike:
        yield f"Which cell is best is open: the cells have **{best.measured_with}**, and a lead may come from that."
    if len(pick.singles) == len(best.table):
        yield "Which cell is best is open: **every cell has a single repeat**, and no interval."
    elif pick.top in pick.singles:
        yield "Which cell is best is open: this one has a single repeat, and no interval."
    elif pick.singles:
        alone = f"{len(pick.singles)} of the {others} other cells"
        yield f"It can't be compared with **{alone}**, which have a single repeat."
    if len(rivals):
        nearest = _upper(study.described(rivals.iloc[0]))
        is_each = len(rivals) == others > 1
        several = f"**{'None' if is_each else len(rivals)} of the {others} other cells**"
        who = f"**{nearest}**" if len(rivals) == 1 else several
        first = "" if len(rivals) == 1 else f", {study.described(rivals.iloc[0])} first"
        counts = sorted({int(best.top["n"]), *map(int, rivals["n"])})
        each = f"{counts[0]} repeats each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} repeats each"
        ends = f"{_percent(pick.low, best.figure)} to {_percent(pick.high, best.figure)}"
        can = "can" if is_each else "can't"
        yield f"{who} {can} be told from it at 95%{first}: {each}, and its lead is {ends}."
    if best.repeats:
        reason = "" if pick.singles else ", if its lead is what it seems"
        yield f"{'At least' if pick.singles else 'About'} {best.repeats} repeats would tell{reason}."
    elif len(rivals) and not best.unlike:
        yield f"Even {MOST_REPEATS} repeats would not tell: they are too near to each other, or scatter too much."


def _lead(low: float, figure: Figure) -> str:
    """Return a lead that is above zero, with digits enough to stay there."""
    if _is_own(figure):
        return f"{low:.2g}"
    return f"{_hundredths(low, figure):.2g}{' points' if figure == 'top1' else '%'}"


def _percent(end: float, figure: Figure) -> str:
    if _is_own(figure):
        return f"{end:.2g}".replace("-", "−")
    hundredths = _hundredths(end, figure)
    if hundredths > MANIFOLD:  # an interval of few repeats may end anywhere
        return f"more than {MANIFOLD:,}%"
    return f"{hundredths:.1f}{' points' if figure == 'top1' else '%'}".replace("-", "−")


def _hundredths(lead: float, figure: Figure) -> float:
    """Return a lead as one says it: so much more of a rate, so much less of a time, points of an accuracy."""
    if figure == "top1" or _is_own(figure):
        return 100 * lead
    return 100 * (math.expm1(lead) if figure == "images_per_s" else -math.expm1(-lead))


def _evidence(best: Best) -> dict[str, float]:
    top, pick = best.top, best.pick
    ends = {"lead_low": pick.low, "lead_high": pick.high}
    ends = {name: _hundredths(end, best.figure) / 100 for name, end in ends.items()}
    figures = {best.figure: float(top[best.figure]), f"{best.figure}_ci": float(top[f"{best.figure}_ci"])}
    return figures | {"repeats": float(top["n"]), "compared": float(len(best.table))} | ends


def _target(study: Study) -> Iterator[Finding]:
    target = study.facts.spec.target
    goals = [f"top-{n} {at:.1%}" for n, at in ((1, target.top1), (5, target.top5)) if at]
    if goals:
        of_all = int(study.measured["n"].sum()) + len(_short_of_an_end(study))
        reached = int(study.measured["reached"].sum())
        says = f"{reached} of {of_all} trials reached the target of {' and '.join(goals)}."
        yield Finding(rule="target", severity="note", sureness="counted", says=says)


def _others(study: Study, best: Best) -> Iterator[Finding]:
    """Yield a convergence sweep's other figures, each with its best cell."""
    figures: Sequence[Figure] = ("epochs_to_target", "top1")
    for figure in figures:
        other = by(study, figure)
        if figure == best.figure or not other or other.is_alone:
            continue
        named, value = _upper(study.described(other.top)), _value(study, other.top, figure)
        if other.is_shown:
            says = f"{named} {VERBS[figure]}: {value}."
        else:
            says = (
                f"Which cell {VERBS[figure]} is open: {study.described(other.top)} leads with {value}, {_why(other)}."
            )
        yield Finding(
            rule=RULES[figure],
            severity="note",
            sureness="shown" if other.is_shown else "open",
            says=says,
            cells=(other.top["cell"],),
            evidence=_evidence(other),
        )


def _speed_up(study: Study, top: Any) -> Iterator[Finding]:
    if top["gpus"] > 1 and top["efficiency"] == top["efficiency"]:
        speed_up, efficiency = top["efficiency"] * top["gpus"], float(top["efficiency"])
        says = (
            f"That is **{speed_up:.3g}×** one {study.rank} at the same settings,"
            f" **{tables.percent(efficiency, top['efficiency_ci'])}** of linear scaling."
        )
        evidence = {"speedup": float(speed_up), "efficiency": efficiency}
        yield Finding(rule="speed-up", severity="note", sureness="estimated", says=says, evidence=evidence)


def _why(best: Best) -> str:
    """Why it is not shown, as the end of a sentence."""
    if best.unlike:
        return f"but the cells have {best.measured_with}"
    pick, others = best.pick, len(best.table) - 1
    near = others if pick.top in pick.singles else len(pick.rivals) + len(pick.singles)
    return f"not told from {'any' if near == others else near} of the {others} others"


def _cheaper(study: Study, fastest: Best) -> Iterator[Finding]:
    """Yield the cell that costs least, where that is not the fastest one."""
    found = by(study, "gpu_hours_per_epoch")
    if not found:
        return
    top, cost = found.top, found.figure
    saved = 1 - float(top[cost]) / float(fastest.top[cost])
    if saved <= CLEARLY_CHEAPER:
        return
    says = (
        f"{'An' if found.is_shown else 'By means an'} epoch of ImageNet is cheapest with"
        f" {study.described(top)}: {tables.number(top[cost], 3)} {study.rank}-hours"
        f" instead of {tables.number(fastest.top[cost], 3)},"
        f" **{saved:.0%} less**, at {tables.cell(float(top['images_per_s']))} images/s"
    )
    lead = f", and at least {_lead(found.pick.low, cost)} less than any other cell"
    yield Finding(
        rule="cheaper",
        severity="note",
        sureness="shown" if found.is_shown else "open",
        says=f"{says}{lead if found.is_shown else f'; {_why(found)}'}.",
        cells=(top["cell"],),
        evidence={"saved": saved} | _evidence(found),
    )


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
