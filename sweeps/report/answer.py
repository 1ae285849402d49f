"""The first screen: the question answered in words and four numbers, and what to be careful of."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from sweeps import claims, findings, limits, rows, tables
from sweeps.report.study import LEFT_OUT, Study
from workers.contract import Status

if TYPE_CHECKING:
    import pandas as pd

CLEARLY_CHEAPER = 0.02


@dataclasses.dataclass(frozen=True)
class Number:
    says: str
    value: str
    unit: str
    beside: str


@dataclasses.dataclass(frozen=True)
class Answer:
    kicker: str
    headline: str
    lines: tuple[str, ...]
    numbers: tuple[Number, ...]
    cares: tuple[str, ...]


def of(study: Study) -> Answer:
    kicker = _kicker(study)
    cares = tuple(_cares(study))
    if study.measured.empty:
        return Answer(kicker, f"No trial of {study.name} measured anything", (_ends(study),), (), cares)
    if study.is_convergence:
        return _learning(study, kicker, cares)
    return _speed(study, kicker, cares)


def markdown(answer: Answer) -> str:
    """As the note of a run."""
    numbers = [
        f"- {n.says}: **{' '.join(filter(None, [n.value, n.unit]))}**{f' ({n.beside})' if n.beside else ''}"
        for n in answer.numbers
    ]
    cares = [f"- {care}" for care in answer.cares]
    parts = [f"## {answer.headline}", *answer.lines, "\n".join(numbers)]
    parts += ["**Read with care**", "\n".join(cares)] if cares else []
    return "\n\n".join(filter(None, [*parts, answer.kicker]))


def fastest(study: Study) -> Any:
    """The cell with the highest throughput."""
    return study.measured.loc[study.measured["images_per_s"].idxmax()]


def _kicker(study: Study) -> str:
    spec = study.facts.spec
    day = datetime.datetime.fromtimestamp(study.facts.created_at, datetime.UTC).strftime("%-d %B %Y")
    models = ", ".join(map(str, dict.fromkeys(study.trials["model"]))) if len(study.trials) else str(spec.model)
    return f"**{study.name}** · {models}, {spec.protocol} · {day} · {_ends(study)}"


def _ends(study: Study) -> str:
    counts = collections.Counter(study.trials["outcome"])
    if not counts:
        return "no trial has ended"
    ends = ", ".join(f"{counts[status]} {status}" for status in get_args(Status) if counts[status])
    cells = study.cells["cell"].nunique()
    return f"{len(study.trials)} trials of {cells} cell{'' if cells == 1 else 's'}: {ends}"


def _speed(study: Study, kicker: str, cares: tuple[str, ...]) -> Answer:
    top = fastest(study)
    settings = study.described(top)
    rate, interval = _rounded(top["images_per_s"], top["images_per_s_ci"])
    headline = f"It trains {rate} images/s"
    if settings:
        is_sure = ties(study, top).empty and (study.measured["n"] > 1).all()
        verb = "trains fastest" if is_sure else "leads, if not clearly"
        headline = f"{_upper(settings)} {verb}: {rate} images/s"
    return Answer(kicker, headline, tuple(_told(study, top)), tuple(_numbers(study, top, rate, interval)), cares)


def _told(study: Study, top: Any) -> Iterator[str]:
    sentences = []
    if top["gpus"] > 1 and top["efficiency"] == top["efficiency"]:
        speed_up = top["efficiency"] * top["gpus"]
        sentences.append(
            f"That is **{speed_up:.3g}×** one {study.rank} at the same settings,"
            f" **{tables.percent(top['efficiency'], top['efficiency_ci'])}** of linear scaling."
        )
    if verdict := limits.of_cell(top):
        told = limits.sentence(verdict, int(top["gpus"]))
        sentences.append(f"It is {told}." if verdict.part else f"What limits it is {told}.")
    if sentences:
        yield " ".join(sentences)
    more = [*_ties(study, top), *_cheaper(study, top)]
    if more:
        yield " ".join(more)


def _cheaper(study: Study, top: Any) -> Iterator[str]:
    cost = "gpu_hours_per_epoch"
    cheapest = study.measured.loc[study.measured[cost].idxmin()]
    saved = 1 - cheapest[cost] / top[cost]
    if saved > CLEARLY_CHEAPER:
        yield (
            f"An epoch of ImageNet is cheapest with {study.described(cheapest)}:"
            f" {cheapest[cost]:.3g} {study.rank}-hours instead of {top[cost]:.3g}, **{saved:.0%} less**,"
            f" at {tables.cell(float(cheapest['images_per_s']))} images/s."
        )


def ties(study: Study, top: Any) -> pd.DataFrame:
    """The other cells whose difference from the best is within the interval of that difference."""
    others = study.measured[study.measured["cell"] != top["cell"]]
    apart = top["images_per_s"] - others["images_per_s"]
    interval = (others["images_per_s_ci"] ** 2 + top["images_per_s_ci"] ** 2) ** 0.5
    return others[apart <= interval]


def _ties(study: Study, top: Any) -> Iterator[str]:
    same = ties(study, top)
    if len(same) == 1:
        yield f"**{_upper(study.described(same.iloc[0]))}** can't be told from it at 95%."
    elif len(same) > 1:
        nearest = study.described(same.loc[same["images_per_s"].idxmax()])
        count = f"{len(same)} of the {len(study.measured) - 1} other cells"
        yield f"**{count}** can't be told from it at 95%, {nearest} first."


def _numbers(study: Study, top: Any, rate: str, interval: str) -> Iterator[Number]:
    yield Number("Throughput", rate, "images/s", f"{interval}{_repeats(top)}")
    if study.cells["gpus"].max() > 1 and top["gpus"] > 1 and top["efficiency"] == top["efficiency"]:
        beside = f"± {100 * top['efficiency_ci']:.2g} points, on {top['gpus']} {study.rank}s against one"
        yield Number("Scaling efficiency", f"{top['efficiency']:.0%}", "", _known(top["efficiency_ci"], beside))
    else:
        each = tables.cell(float(top["images_per_s"] / top["gpus"]))
        yield Number(f"For each {study.rank}", each, "images/s", f"on {study.said('gpus', top['gpus'])}")
    cost, within = top["gpu_hours_per_epoch"], top["gpu_hours_per_epoch_ci"]
    beside = f"{_known(within, f'± {within:.2g}, ')}1,281,167 images"
    yield Number("An epoch of ImageNet", f"{cost:.3g}", f"{study.rank}-hours", beside)
    if top["compute_share"] == top["compute_share"]:
        waits = max(top["input_share"], 0) + max(top["comm_share"], 0)
        comm, feed = (tables.percent(top[name], top[f"{name}_ci"]) for name in ("comm_share", "input_share"))
        beside = f"{comm} communication, {feed} input"
        yield Number("A step waits for", f"{waits:.0%}", "of its time", beside)
    else:
        batch = tables.cell(float(top["batch_size"] * top["gpus"]))
        yield Number("A step", f"{top['step_ms']:.3g}", "ms", f"of {batch} images")


def _learning(study: Study, kicker: str, cares: tuple[str, ...]) -> Answer:
    sure = study.measured[(study.measured["reached"] == study.measured["n"])]
    same = study.measured.iloc[:0]
    if not sure.empty:
        top = sure.loc[sure["hours_to_target"].idxmin()]
        took = tables.duration(3600 * top["hours_to_target"])
        headline = f"{_upper(study.described(top)) or 'It'} reaches the target soonest: in {took}"
    else:
        top = study.measured.loc[study.measured["top1"].fillna(-1).idxmax()]
        same = _as_accurate(study, top)
        verb = "learns best" if same.empty else "leads, if not clearly"
        headline = f"{_upper(study.described(top)) or 'It'} {verb}: {tables.accuracy(top['top1'], math.nan)} top-1"
    lines = tuple(_learned(study, len(same)))
    return Answer(kicker, headline, lines, tuple(_learning_numbers(study, top)), cares)


def _as_accurate(study: Study, top: Any) -> pd.DataFrame:
    others = study.measured[study.measured["cell"] != top["cell"]]
    interval = (others["top1_ci"] ** 2 + top["top1_ci"] ** 2) ** 0.5
    return others[top["top1"] - others["top1"] <= interval]


def _learned(study: Study, same: int) -> Iterator[str]:
    target = study.facts.spec.target
    goals = [f"top-{n} {at:.1%}" for n, at in ((1, target.top1), (5, target.top5)) if at]
    if goals:
        reached, of_all = int(study.measured["reached"].sum()), int(study.measured["n"].sum())
        yield f"{reached} of {of_all} trials reached the target of {' and '.join(goals)}."
    if same:
        yield f"**{same} of the {len(study.measured) - 1} other cells** can't be told from it in top-1 at 95%."


def _learning_numbers(study: Study, top: Any) -> Iterator[Number]:
    within = _known(top["top1_ci"], f"± {100 * top['top1_ci']:.2g} points")
    yield Number("Top-1", tables.accuracy(top["top1"], math.nan), "", f"{within}{_repeats(top)}")
    if top["reached"]:
        hours = tables.duration(3600 * top["hours_to_target"]).split(" ")
        yield Number("Time to the target", hours[0], hours[1], f"{top['reached']} of {top['n']} repeats reached it")
        yield Number("Epochs to it", f"{top['epochs_to_target']:.3g}", "", f"of {study.facts.spec.epochs} at most")
    else:
        yield Number("Trained for", f"{study.facts.spec.epochs}", "epochs", "no repeat reached a target")
        rank_hours = f"{study.rank}-hours"
        yield Number("An epoch of ImageNet", f"{top['gpu_hours_per_epoch']:.3g}", rank_hours, "1,281,167 images")
    rate, interval = _rounded(top["images_per_s"], top["images_per_s_ci"])
    yield Number("Throughput", rate, "images/s", interval)


def _cares(study: Study) -> Iterator[str]:
    """What a reader must know before the figures are used."""
    trials, done = study.trials, study.trials[study.trials["outcome"] == "completed"]
    if study.stored is not None:
        yield f"Made from the tracking store alone. **Left out**, for only the sweep's ledger holds it: {LEFT_OUT}."
    if not study.is_complete:
        planned = f" of {len(study.facts.trials)} planned" if study.facts.trials else ""
        yield f"The sweep did not come to its end: {len(trials)} trials{planned} are here."
    for claim in [] if study.is_convergence else claims.check(trials, study.is_strong):
        rule = "simulated" if study.facts.simulated and claim.rule == "mixed sources" else claim.rule
        yield f"**{_upper(rule)}**: {claim.says}."
    if withheld := findings.withheld(trials):
        yield f"{withheld}."
    loose = done[done["is_pinned"] == 0]
    if len(loose):
        told = [str(words).removeprefix(rows.NOT_PINNED) for words in loose["pinned"] if words]  # not by cached trials
        why = f": {told[0]}" if told else ""
        yield f"In {len(loose)} of {len(done)} trials the ranks had no cores of their own{why}."
    wide = study.measured[study.measured["images_per_s_ci"] > 0.1 * study.measured["images_per_s"]]
    if len(wide) and not study.is_convergence:
        yield f"{len(wide)} of {len(study.measured)} cells have an interval wider than ±10%: repeat them before use."
    bad = int(trials["outcome"].isin(["failed", "lost"]).sum())
    if bad:
        yield f"{bad} trials failed or were lost: see “What stands out”."
    slow = [probe for probe in study.probes if probe.get("slow")]
    if slow:
        nodes = ", ".join(sorted({str(probe["node"]) for probe in slow}))
        yield f"Self-tests found {nodes} slower than its peers, or than itself before."


def _repeats(top: Any) -> str:
    begin = " · " if top["images_per_s_ci"] == top["images_per_s_ci"] else ""
    return f"{begin}{top['n']} repeat{'' if top['n'] == 1 else 's'}"


def _known(number: float, text: str) -> str:
    return text if number == number else ""


def _rounded(value: float, half_width: float) -> tuple[str, str]:
    """A figure and its interval."""
    text = tables.cell(float(value))
    within = f"± {half_width:,.0f}" if value >= 100 else f"± {half_width:.2g}"
    return text, "" if math.isnan(half_width) else within


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
