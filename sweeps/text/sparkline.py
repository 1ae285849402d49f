"""A line of figures as a row of blocks, for a cell of a table."""

from __future__ import annotations

import math
from collections.abc import Iterable

BLOCKS = "▁▂▃▄▅▆▇█"
MIDDLE = BLOCKS[3]
GAP = " "
LOGARITHMIC_ABOVE = 20  # times the smallest: on a linear scale the small ones would all look like nothing


def sparkline(values: Iterable[float]) -> str:
    """One block a value: from 0 to the largest, or logarithmic from the smallest where all are positive and far apart.

    Equal values are drawn at middle height, negative ones lowest, and one that is not finite as a gap.
    """
    drawn = list(values)
    finite = [value for value in drawn if math.isfinite(value)]
    if not finite:
        return GAP * len(drawn)
    low, high = min(finite), max(finite)
    is_logarithmic = low > 0 and high / low > LOGARITHMIC_ABOVE

    def block(value: float) -> str:
        if low == high:
            return MIDDLE
        if is_logarithmic:
            part = (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        else:
            part = max(value, 0) / high if high > 0 else 0
        return BLOCKS[min(int(part * len(BLOCKS)), len(BLOCKS) - 1)]

    return "".join(block(value) if math.isfinite(value) else GAP for value in drawn)
