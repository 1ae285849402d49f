"""Student's t: the one quantile behind every interval."""

from __future__ import annotations

from typing import Any


def quantile(freedom: Any, confidence: float = 0.95) -> Any:
    """Half the width of the interval of this confidence, in standard errors; of a number, or of each of an array."""
    from scipy.special import stdtrit  # `scipy.stats` takes four times as long to import

    found = stdtrit(freedom, (1 + confidence) / 2)
    return found if getattr(found, "ndim", 0) else float(found)
