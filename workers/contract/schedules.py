"""Learning-rate schedules as a small language, with value objects behind it. Pure; standard library only.

    0.4;10;0.04;60;0.004     0.4 before epoch 10, 0.04 before epoch 60, 0.004 from there on
    0.1  or  constant: 0.1   one rate throughout
    cosine: 0.4              half a cosine from 0.4 down to `end` (0)
    poly: 0.4                down to `end` (0) as the part of the run that is left, to the `power` (2)
    step: 0.1                times `factor` (0.1) after `every` (30) epochs, again and again

Options follow as name=value. Every form takes `warmup`, and `scale` (linear or sqrt) with `base` (256):

    cosine: 0.4 end=0.001 warmup=5 scale=linear base=512

Epochs count from 0 and may be fractions. Warm-up is linear from 0 at epoch 0 to the schedule's own rate at the
epoch at which it ends. Cosine and poly then run over the epochs that remain; rates by epoch and steps count from
epoch 0 with or without it. Scaling multiplies the whole schedule by global batch / base, or its square root.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable
from typing import Any, Literal, get_args

from workers.contract.rule import RuleError
from workers.contract.spelling import did_you_mean

Scale = Literal["none", "linear", "sqrt"]
SCALES: tuple[Scale, ...] = get_args(Scale)
BASE = 256
LARGEST_BASE = 1_000_000_000
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
RULES = {
    "rate": "a rate must be a finite number more than 0",
    "epoch": "an epoch must be a finite number more than 0",
    "last": "a schedule must end with a rate, not with an epoch",
    "end": "end must be a finite number of 0 or more",
    "power": "power must be a finite number more than 0",
    "every": "every must be a finite number of epochs more than 0",
    "factor": "factor must be a number between 0 and 1",
    "warmup": "warmup must be a finite number of epochs of 0 or more",
    "scale": f"scale must be one of {', '.join(SCALES)}",
    "base": f"base must be a whole number from 1 to {LARGEST_BASE}",
}


@dataclasses.dataclass(frozen=True)
class Piecewise:
    """A rate before the first of the epochs, one from each epoch to the next, and the last from there on."""

    rates: tuple[float, ...]
    epochs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(len(self.rates) == len(self.epochs) + 1, RULES["last"], self)
        for rate in self.rates:
            require(0 < rate < math.inf, RULES["rate"], rate)
        for epoch in self.epochs:
            require(0 < epoch < math.inf, RULES["epoch"], epoch)
        for before, after in itertools.pairwise(self.epochs):
            require(before < after, "epochs must increase", f"{plain(after)} after {plain(before)}")

    def at(self, epoch: float, begin: float, epochs: float) -> float:
        return self.rates[bisect.bisect_right(self.epochs, epoch)]

    def __str__(self) -> str:
        pairs = itertools.zip_longest(self.rates, self.epochs)
        return ";".join(plain(number) for pair in pairs for number in pair if number is not None)


@dataclasses.dataclass(frozen=True)
class Cosine:
    rate: float
    end: float = 0.0

    def __post_init__(self) -> None:
        require_fall(self.rate, self.end)

    def at(self, epoch: float, begin: float, epochs: float) -> float:
        weight = (1 + math.cos(math.pi * progress(epoch, begin, epochs))) / 2
        return weight * self.rate + (1 - weight) * self.end

    def __str__(self) -> str:
        return f"cosine: {plain(self.rate)}{options(self)}"


@dataclasses.dataclass(frozen=True)
class Poly:
    rate: float
    power: float = 2.0
    end: float = 0.0

    def __post_init__(self) -> None:
        require_fall(self.rate, self.end)
        require(0 < self.power < math.inf, RULES["power"], self.power)

    def at(self, epoch: float, begin: float, epochs: float) -> float:
        weight = float((1 - progress(epoch, begin, epochs)) ** self.power)
        return weight * self.rate + (1 - weight) * self.end

    def __str__(self) -> str:
        return f"poly: {plain(self.rate)}{options(self)}"


@dataclasses.dataclass(frozen=True)
class Step:
    rate: float
    every: float = 30.0  # epochs
    factor: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.rate < math.inf, RULES["rate"], self.rate)
        require(0 < self.every < math.inf, RULES["every"], self.every)
        require(0 < self.factor < 1, RULES["factor"], self.factor)

    def at(self, epoch: float, begin: float, epochs: float) -> float:
        return self.rate * float(self.factor ** (epoch // self.every))

    def __str__(self) -> str:
        return f"step: {plain(self.rate)}{options(self)}"


Shape = Piecewise | Cosine | Poly | Step
FORMS: dict[str, type[Cosine | Poly | Step]] = {"cosine": Cosine, "poly": Poly, "step": Step}
NAMES = ("constant", *FORMS)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A shape, how it warms up and what it is multiplied by. Its text is canonical: no option at its default."""

    shape: Shape
    warmup: float = 0.0  # epochs
    scale: Scale = "none"
    base: int = BASE

    def __post_init__(self) -> None:
        require(0 <= self.warmup < math.inf, RULES["warmup"], self.warmup)
        require(self.scale in SCALES, RULES["scale"], self.scale)
        require(type(self.base) is int and 1 <= self.base <= LARGEST_BASE, RULES["base"], self.base)
        require_use_of_base(self.base != BASE, self.scale, self.base)

    def rate(self, epoch: float, epochs: float, global_batch: int) -> float:
        """Return the rate at an epoch of a run of so many, 0 <= epoch <= epochs."""
        own = self.shape.at(max(epoch, self.warmup), self.warmup, epochs)
        ramp = epoch / self.warmup if epoch < self.warmup else 1.0
        return own * ramp * self._multiplier(global_batch)

    def _multiplier(self, global_batch: int) -> float:
        if self.scale == "none":
            return 1.0
        ratio = global_batch / self.base
        return ratio if self.scale == "linear" else math.sqrt(ratio)

    def __str__(self) -> str:
        return f"{self.shape}{options(self)}"


def curve(schedule: Schedule, epochs: float, global_batch: int, points: int) -> list[float]:
    """Return the rates in the middle of so many equal parts of the run."""
    return [schedule.rate((n + 0.5) * epochs / points, epochs, global_batch) for n in range(points)]


def progress(epoch: float, begin: float, epochs: float) -> float:
    """Return how far the run is, from 0 at its begin to 1 at its end; 0 where warm-up takes all of it."""
    return min((epoch - begin) / (epochs - begin), 1.0) if begin < epochs else 0.0


def parse(text: str) -> Schedule:
    head, *words = re.split(r"\s+(?=\w+\s*=)", text.strip())  # an option begins at each `name=`
    require(bool(head), "a schedule must hold a rate", "an empty text")
    name, colon, rest = (part.strip() for part in head.partition(":"))
    require(not colon or name in NAMES, f"a form must be one of {', '.join(NAMES)}{did_you_mean(name, NAMES)}", name)
    require(bool(colon) or head.split()[0] not in NAMES, "a form must have a colon before its rate", head)
    form = FORMS.get(name) if colon else None
    given = read_options(words, form, head)
    common = {key: given.pop(key) for key in option_names(Schedule) if key in given}
    if form:
        return Schedule(form(read_number(rest, "rate"), **given), **common)
    return Schedule(Piecewise((read_number(rest, "rate"),)) if colon else read_pieces(head), **common)


def read_pieces(text: str) -> Piecewise:
    pieces = [piece.strip() for piece in text.split(";")]
    require(all(pieces) or len(pieces) == 1, "every semicolon must stand between a rate and an epoch", text)
    require(len(pieces) % 2 == 1, RULES["last"], text)
    rates = tuple(read_number(piece, "rate") for piece in pieces[::2])
    return Piecewise(rates, tuple(read_number(piece, "epoch") for piece in pieces[1::2]))


def read_options(words: Iterable[str], form: type[Shape] | None, head: str) -> dict[str, Any]:
    """Return the options as values, each known to the form and given once."""
    own = option_names(form) if form else []
    known = own + option_names(Schedule)
    given: dict[str, Any] = {}
    for word in words:
        name, _, value = (part.strip() for part in word.partition("="))
        owners = [other for other in FORMS if name in option_names(FORMS[other])]
        require(name in known or not owners, f"{name} must follow {' or '.join(owners)}", f"{word} after {head}")
        require(name in known, f"an option must be one of {', '.join(known)}{did_you_mean(name, known)}", word)
        require(name not in given, f"{name} must be given once", f"{word} too")
        given[name] = value if name == "scale" else read_number(value, name)
    if "base" in given:
        require_use_of_base(True, given.get("scale", "none"), given["base"])
        require(given["base"].is_integer(), RULES["base"], given["base"])
        given["base"] = int(given["base"])
    return given


def read_number(text: str, what: str) -> float:
    require(bool(NUMBER.fullmatch(text)), RULES[what], text)
    return float(text)


def require(holds: bool, rule: str, got: object) -> None:
    if not holds:
        raise RuleError(rule, plain(got) or "nothing")


def require_fall(rate: float, end: float) -> None:
    require(0 < rate < math.inf, RULES["rate"], rate)
    require(0 <= end < math.inf, RULES["end"], end)
    require(end < rate, "end must be less than the rate it falls from", f"{plain(end)} after {plain(rate)}")


def require_use_of_base(is_given: bool, scale: str, base: float) -> None:
    require(not is_given or scale != "none", "base must come with scale=linear or scale=sqrt", f"base={plain(base)}")


def plain(value: object) -> str:
    return str(value).removesuffix(".0")


def option_names(form: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(form) if field.default is not dataclasses.MISSING]


def options(value: Any) -> str:
    """Return the options that are not at their defaults."""
    fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
    optional = [(f.name, given) for f, given in fields if f.default is not dataclasses.MISSING and given != f.default]
    return "".join(f" {name}={plain(given)}" for name, given in optional)
