"""The axes of a sweep as value objects. Each yields its points in the order a user would read them."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol


class Axis(Protocol):
    def points(self) -> list[Any]: ...


@dataclasses.dataclass(frozen=True)
class Choice:
    """The values listed."""

    values: tuple[Any, ...]

    def points(self) -> list[Any]:
        return list(self.values)


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
    """From `low` to `high`, both among them if the step allows."""

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


LARGEST = 1 << 20


def axis(raw: Any) -> Axis:
    """An axis as a sweep file writes it: one value, a list, `{log2: [low, high]}`, `{range: [low, high, step]}`."""
    if isinstance(raw, (Choice, Log2, Range)):
        return raw
    if isinstance(raw, list):
        if not raw:
            raise AxisError("must hold at least one value", "an empty list")
        repeated = [value for n, value in enumerate(raw) if value in raw[:n]]
        if repeated:
            raise AxisError("must not hold a value twice", repeated[0])
        return Choice(tuple(raw))
    if isinstance(raw, dict):
        return _rule(raw)
    return Choice((raw,))


def _rule(raw: dict[Any, Any]) -> Axis:
    if len(raw) != 1 or next(iter(raw)) not in ("log2", "range"):
        raise AxisError("must be a value, a list, {log2: [low, high]} or {range: [low, high, step]}", raw)
    ((name, bounds),) = raw.items()
    most = 2 if name == "log2" else 3
    if not isinstance(bounds, list) or not 2 <= len(bounds) <= most or any(type(b) is not int for b in bounds):
        raise AxisError(f"{name} must hold 2 {'' if most == 2 else 'or 3 '}whole numbers", bounds)
    low, high, *step = bounds
    if not 1 <= low <= high <= LARGEST:
        raise AxisError(f"{name} must hold 1 <= low <= high <= {LARGEST}", bounds)
    if step and step[0] < 1:
        raise AxisError("range must have a step of at least 1", step[0])
    made = Log2(low, high) if name == "log2" else Range(low, high, *step)
    if not made.points():
        raise AxisError("log2 must hold a power of two between its ends", bounds)
    return made
