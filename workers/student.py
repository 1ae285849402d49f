"""Student's t: the one quantile behind every interval, in ranks and in the control plane. SciPy's special functions only.

Importing them takes 0.2 s, of `scipy.stats` four times as long: the fork server imports this module before it forks, so
no rank pays; the control plane imports it inside the functions that need it.
"""

from __future__ import annotations

from typing import Any

from scipy.special import stdtrit


def quantile(freedom: Any, confidence: float = 0.95) -> Any:
    """Half the width of the interval of this confidence, in standard errors; of a number, or of each of an array."""
    found = stdtrit(freedom, (1 + confidence) / 2)
    return found if getattr(found, "ndim", 0) else float(found)
