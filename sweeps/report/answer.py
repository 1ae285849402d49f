"""The first screen: a sweep's findings, with four numbers beside them."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterator
from typing import Any

from sweeps.analysis import findings
from sweeps.analysis.findings import Findings, outcomes
from sweeps.analysis.study import Study
from sweeps.record import rows
from sweeps.text import tables
from workers.contract import imagenet

IMAGES = f"{imagenet.TRAIN_IMAGES:,} images"  # beside what an epoch costs


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


def find(study: Study) -> Answer:
    return around(study, findings.find(study))


def around(study: Study, found: Findings) -> Answer:
    """Return the findings with the numbers that belong to them."""
    numbers: tuple[Number, ...] = ()
    if best := found.best:
        of_learning = _script_numbers if study.facts.spec.run else _learning_numbers
        numbers = tuple((of_learning if study.is_convergence else _numbers)(study, best.top))
    lines = (" ".join(note.sentence for note in found.notes),) if found.notes else ()
    cares = tuple(care.sentence for care in found.doubts)
    return Answer(_kicker(study), found.answer.plain, lines, numbers, cares)


def markdown(answer: Answer) -> str:
    """Return it as the note of a run."""
    numbers = [
        f"- {n.says}: **{' '.join(filter(None, [n.value, n.unit]))}**{f' ({n.beside})' if n.beside else ''}"
        for n in answer.numbers
    ]
    cares = [f"- {care}" for care in answer.cares]
    parts = [f"## {answer.headline}", *answer.lines, "\n".join(numbers)]
    parts += ["**Read with care**", "\n".join(cares)] if cares else []
    return "\n\n".join(filter(None, [*parts, answer.kicker]))


def _kicker(study: Study) -> str:
    spec = study.facts.spec
    day = datetime.datetime.fromtimestamp(study.facts.created_at, datetime.UTC).strftime("%-d %B %Y")
    models = ", ".join(map(str, dict.fromkeys(study.trials["model"]))) if len(study.trials) else str(spec.model)
    spent = "" if study.spent is None else f" · {tables.number(study.spent, 3)} {study.rank}-hours spent"
    return f"**{study.name}** · {models}, {spec.protocol} · {day} · {outcomes.ends(study)}{spent}"


def _numbers(study: Study, top: Any) -> Iterator[Number]:
    rate, interval = _rounded(top["images_per_s"], top["images_per_s_ci"])
    yield Number("Throughput", rate, study.rate, f"{interval}{_repeats(top)}")
    if study.cells["gpus"].max() > 1 and top["gpus"] > 1 and top["efficiency"] == top["efficiency"]:
        beside = f"± {100 * top['efficiency_ci']:.2g} points, on {top['gpus']} {study.rank}s against one"
        yield Number("Scaling efficiency", f"{top['efficiency']:.0%}", "", _if_a_number(top["efficiency_ci"], beside))
    else:
        each = tables.cell(float(top["images_per_s"] / top["gpus"]))
        yield Number(f"For each {study.rank}", each, study.rate, f"on {study.said('gpus', top['gpus'])}")
    cost, within = top["gpu_hours_per_epoch"], top["gpu_hours_per_epoch_ci"]
    beside = f"{_if_a_number(within, f'± {within:.2g}, ')}{IMAGES}"
    if cost == cost:
        yield Number("An epoch of ImageNet", tables.number(cost, 3), f"{study.rank}-hours", beside)
    if top["compute_share"] == top["compute_share"]:
        waits = max(top["input_share"], 0) + max(top["comm_share"], 0)
        comm, feed = (tables.percent(top[name], top[f"{name}_ci"]) for name in ("comm_share", "input_share"))
        beside = f"{comm} communication, {feed} input"
        yield Number("A step waits for", f"{waits:.0%}", "of its time", beside)
    else:
        batch = tables.cell(float(top["batch_size"] * top["gpus"]))
        yield Number("A step", f"{top['step_ms']:.3g}", "ms", "" if study.facts.spec.run else f"of {batch} images")


def _script_numbers(study: Study, top: Any) -> Iterator[Number]:
    """Yield what a script has come to, by what its search goes by, and how fast."""
    figure = study.own_goal or study.figure
    if top[figure] == top[figure]:
        value, interval = _rounded(top[figure], top[f"{figure}_ci"])
        yield Number(figure.removeprefix(rows.REPORTED), value, "", f"{interval}{_repeats(top)}")
    yield Number("Trained for", f"{study.facts.spec.epochs}", "epochs", "")
    if top["images_per_s"] == top["images_per_s"]:
        rate, interval = _rounded(top["images_per_s"], top["images_per_s_ci"])
        yield Number("Throughput", rate, study.rate, interval)


def _learning_numbers(study: Study, top: Any) -> Iterator[Number]:
    within = _if_a_number(top["top1_ci"], f"± {100 * top['top1_ci']:.2g} points")
    yield Number("Top-1", tables.accuracy(top["top1"], math.nan), "", f"{within}{_repeats(top)}")
    if top["reached"]:
        hours = tables.duration(3600 * top["hours_to_target"]).split(" ")
        yield Number("Time to the target", hours[0], hours[1], f"{top['reached']} of {top['n']} repeats reached it")
        yield Number("Epochs to it", f"{top['epochs_to_target']:.3g}", "", f"of {study.facts.spec.epochs} at most")
    else:
        yield Number("Trained for", f"{study.facts.spec.epochs}", "epochs", "no repeat reached a target")
        rank_hours = f"{study.rank}-hours"
        yield Number("An epoch of ImageNet", tables.number(top["gpu_hours_per_epoch"], 3), rank_hours, IMAGES)
    rate, interval = _rounded(top["images_per_s"], top["images_per_s_ci"])
    yield Number("Throughput", rate, study.rate, interval)


def _repeats(top: Any) -> str:
    begin = " · " if top["images_per_s_ci"] == top["images_per_s_ci"] else ""
    return f"{begin}{top['n']} repeat{'' if top['n'] == 1 else 's'}"


def _if_a_number(number: float, text: str) -> str:
    return text if number == number else ""


def _rounded(value: float, half_width: float) -> tuple[str, str]:
    """Return a figure and its interval."""
    return tables.number(value), "" if math.isnan(half_width) else tables.within(value, half_width)
