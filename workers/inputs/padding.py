"""How images that don't divide by the batches are weighed, so that every rank takes as many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def steps(images_of_ranks: npt.NDArray[Any], batch_size: int) -> int:
    """How many batches every rank makes: as many as the one with the most images needs."""
    return int(-(-images_of_ranks.max() // batch_size))


def step_weights(images_of_ranks: npt.NDArray[Any], batch_size: int) -> npt.NDArray[np.float32]:
    """Return what a real image weighs in each step. Every rank fills its own batches in order, then tops them up.

    Averaged over the ranks, the weights of a step add up to one.
    """
    before = np.arange(steps(images_of_ranks, batch_size)) * batch_size
    real = np.clip(images_of_ranks - before[:, None], 0, batch_size).sum(axis=1)
    weights: npt.NDArray[np.float32] = (len(images_of_ranks) / real).astype(np.float32)
    return weights
