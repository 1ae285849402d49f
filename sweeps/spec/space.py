"""The axes of a sweep as value objects. Each yields its points in the order a user would read them."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

LARGEST = 1 << 20
FORMS: dict[str, tuple[int, int]] = {"log2": (2, 2), "range": (2, 3), "uniform": (2, 2), "loguniform": (2, 2)}
DRAWN = ("uniform", "loguniform")
WRITTEN = "must be a value, a list, or one of {values: …}, {log2: [low, high]}, {range: [low, high, step]}, " + (
    "{uniform: [low, high]}, {loguniform: [low, high]}"
)
Kind = Literal["whole", "real", "other"]  # of an axis' points


class Axis(Protocol):
    @property
    def when(self) -> str:
        """The condition without which the axis keeps its default; empty: none."""

    @property
    def is_varied(self) -> bool: ...

    def points(self) -> list[Any]:
        """Every point; of a continuous axis its two ends."""

    def draw(self, drawn: random.Random) -> Any: ...

    def settled(self, value: Any) -> Any:
        """Return the point that a value stands for."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The values listed."""

    values: tuple[Any, ...]
    when: str = ""

    @property
    def is_varied(self) -> bool:
        return len(self.values) > 1

    def points(self) -> list[Any]:
        return list(self.values)

    def draw(self, drawn: random.Random) -> Any:
        return drawn.choice(self.values)

    def settled(self, value: Any) -> Any:
        return value

    def __str__(self) -> str:
        return ", ".join(map(shown, self.values)) + _conditional(self.when)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Anything from `low` to `high`: whole numbers, or real ones of four digits, so that a cell has a short name."""

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False
    when: str = ""

    @property
    def is_varied(self) -> bool:
        return self.low < self.high

    def points(self) -> list[Any]:
        return [self.low, self.high]

    def draw(self, drawn: random.Random) -> Any:
        half = 0.5 if self.is_whole else 0.0  # the ends are as likely as the rest
        low, high = self.low - half, self.high + half
        at = math.exp(drawn.uniform(math.log(low), math.log(high))) if self.is_log else drawn.uniform(low, high)
        return self.settled(at)

    def settled(self, value: Any) -> Any:
        within = min(max(value, self.low), self.high)
        return round(within) if self.is_whole else min(max(float(f"{within:.4g}"), self.low), self.high)

    def __str__(self) -> str:
        return f"{shown(self.low)} to {shown(self.high)}{' by its log' * self.is_log}{_conditional(self.when)}"


@dataclasses.dataclass(frozen=True)
class Log2:
    """The powers of two from `low` to `high`, both among them if they are such powers."""

    low: int
    high: int

    def points(self) -> list[int]:
        exponents = range((self.low - 1).bit_length(), self.high.bit_length())
        return [1 << exponent for exponent in exponents]


@dataclasses.dataclass(frozen=True)
class Range:
    """The whole numbers from `low` to `high`, both among them if the step allows."""

    low: int
    high: int
    step: int = 1

    def points(self) -> list[int]:
        return list(range(self.low, self.high + 1, self.step))


class AxisError(ValueError):
    """An axis that can't be: the rule, and the value given."""

    def __init__(self, rule: str, got: object) -> None:
        super().__init__(f"{rule}, but got {got}")
        self.rule, self.got = rule, got


def axis(raw: Any, kind: Kind = "whole") -> Choice | Uniform | Log2 | Range:
    """Return an axis as a sweep file writes it; see `WRITTEN`. Any of the forms may have `when: CONDITION` beside
    it."""
    if isinstance(raw, (Choice, Uniform, Log2, Range)):
        return raw
    if isinstance(raw, list):
        if not raw:
            raise AxisError("must hold at least one value", "an empty list")
        repeated = [value for n, value in enumerate(raw) if value in raw[:n]]
        if repeated:
            raise AxisError("must not hold a value twice", repeated[0])
        return Choice(tuple(raw))
    if isinstance(raw, dict):
        return _form(raw, kind)
    return Choice((raw,))


def _form(raw: Mapping[Any, Any], kind: Kind) -> Choice | Uniform | Log2 | Range:
    forms = {name: value for name, value in raw.items() if name != "when"}
    if len(forms) != 1 or next(iter(forms)) not in ("values", *FORMS):
        raise AxisError(WRITTEN, dict(raw))
    when = raw.get("when", "")
    if not isinstance(when, str) or ("when" in raw and not when.strip()):
        raise AxisError("when must be a condition such as \"optimizer == 'lars'\"", when)
    ((name, value),) = forms.items()
    if name == "values" and isinstance(value, dict):
        raise AxisError("values must hold a value or a list", value)
    made = axis(value, kind) if name == "values" else _between(name, value, kind)
    if isinstance(made, (Log2, Range)):
        return Choice(tuple(made.points()), when) if when else made
    return dataclasses.replace(made, when=when)


def _between(name: str, bounds: Any, kind: Kind) -> Uniform | Log2 | Range:
    is_drawn = name in DRAWN
    if is_drawn and kind == "other":
        raise AxisError(f"must be a list: {name} is for numbers", {name: bounds})
    fewest, most = FORMS[name]
    is_real = is_drawn and kind == "real"
    types = (int, float) if is_real else (int,)
    if not isinstance(bounds, list) or not fewest <= len(bounds) <= most or any(type(b) not in types for b in bounds):
        count = f"{fewest}" if fewest == most else f"{fewest} or {most}"
        raise AxisError(f"{name} must hold {count} {'' if is_real else 'whole '}numbers", bounds)
    if is_drawn:
        return _drawn(name, bounds, kind)
    low, high, *step = bounds
    if not 1 <= low <= high <= LARGEST:
        raise AxisError(f"{name} must hold 1 <= low <= high <= {LARGEST}", bounds)
    if step and step[0] < 1:
        raise AxisError("range must have a step of at least 1", step[0])
    made = Log2(low, high) if name == "log2" else Range(low, high, *step)
    if not made.points():
        raise AxisError("log2 must hold a power of two between its ends", bounds)
    return made


def _drawn(name: str, bounds: Sequence[float], kind: Kind) -> Uniform:
    low, high = bounds
    if not -math.inf < low < high < math.inf:
        raise AxisError(f"{name} must hold low < high", bounds)
    if name == "loguniform" and low <= 0:
        raise AxisError("loguniform must hold 0 < low < high", bounds)
    return Uniform(low, high, name == "loguniform", kind == "whole")


def shown(point: Any) -> str:
    """Return a point as a sweep file writes it."""
    return ("off", "on")[point] if isinstance(point, bool) else str(point)


def _conditional(when: str) -> str:
    return f" when {when}" if when else ""
