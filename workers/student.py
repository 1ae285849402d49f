"""Student's t: the one quantile behind every interval, in ranks and in the control plane.

SciPy's special functions take 0.2 s to import, `scipy.stats` four times as long. The fork server imports this module
before it forks, so no rank pays; the control plane imports it inside the functions that need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit


def quantile(freedom: Any, confidence: float = 0.95) -> Any:
    """Return half the interval of this confidence, in standard errors; of a number, or of each of an array."""
    return _plain(stdtrit(np.asarray(freedom, float), (1 + confidence) / 2))


def both_tails(t: Any, freedom: Any) -> Any:
    """Return the chance of a value at least as far from zero as `t`; of a number, or of each of an array."""
    return _plain(2 * stdtr(np.asarray(freedom, float), -np.abs(t)))


def _plain(found: Any) -> Any:
    return found if found.ndim else float(found)
