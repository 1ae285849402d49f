"""The last line of every benchmark: its figures held against its bounds, or why it did not run, as one JSON object."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping

HOLDS = {"<=": operator.le, ">=": operator.ge, ">": operator.gt}


def unmet(figures: Mapping[str, float], bounds: Mapping[str, str]) -> list[str]:
    """Return the figures whose bound does not hold. A bound: `>= 0.9`, or `>= 0.9 and <= 1`."""
    return [figure for figure, bound in bounds.items() if not _holds(figures[figure], bound)]


def _holds(figure: float, bound: str) -> bool:
    parts = [part.split() for part in bound.split(" and ")]
    return all(HOLDS[sign](figure, float(limit)) for sign, limit in parts)


def conclude(name: str, figures: Mapping[str, float], bounds: Mapping[str, str]) -> int:
    """Print the verdict; the exit code is 0 if every bound is met."""
    failed = unmet(figures, bounds)
    rounded = {figure: round(value, 4) for figure, value in figures.items()}
    verdict = {"name": name, "figures": rounded, "bounds": dict(bounds), "met": not failed, "unmet": failed}
    print(json.dumps(verdict))
    return 1 if failed else 0


def skip(why: str) -> int:
    """Print that there is nothing to measure with on this machine; the exit code says that nothing failed."""
    print(json.dumps({"skipped": why}))
    return 0
