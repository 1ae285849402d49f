"""The last line of every benchmark: its figures held against its bounds, as one JSON object."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping

HOLDS = {"<=": operator.le, ">=": operator.ge}


def conclude(name: str, figures: Mapping[str, float], bounds: Mapping[str, str]) -> int:
    """Print the verdict; the exit code is 0 if every bound is met. A bound: `>= 0.9`, or `>= 0.9 and <= 1`."""
    met = True
    for figure, bound in bounds.items():
        for part in bound.split(" and "):
            sign, limit = part.split()
            met &= HOLDS[sign](figures[figure], float(limit))
    rounded = {figure: round(value, 4) for figure, value in figures.items()}
    print(json.dumps({"name": name, "figures": rounded, "bounds": dict(bounds), "met": met}))
    return 0 if met else 1
