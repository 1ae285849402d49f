"""Student's t: the one quantile behind every interval, in ranks and in the control plane.

SciPy's special functions take 0.2 s to import, `scipy.stats` four times as long. The fork server imports this module
before it forks, so no rank pays; the control plane imports it inside the functions that need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import stdtrit


def quantile(freedom: Any, confidence: float = 0.95) -> Any:
    """Return half the interval of this confidence, in standard errors; of a number, or of each of an array."""
    found = stdtrit(np.asarray(freedom, float), (1 + confidence) / 2)
    return found if found.ndim else float(found)
