"""What a workload asks of a network that learns, whichever framework it is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from workers.contract.ranks import Fault

Array = npt.NDArray[np.generic]


class Learnt(NamedTuple):
    """What one step at one rank has come to."""

    loss: float  # weighted: its mean over all ranks is the mean over the global batch
    sum_of_losses: float  # of this rank's images, fillers left out
    images: int
    is_last: bool  # a rank has asked to stop


class Judged(NamedTuple):
    """What one validation batch at one rank has come to."""

    top1: int
    top5: int
    images: int


class Learner(Protocol):
    @property
    def parameters(self) -> int:
        """How many numbers the network has."""

    @property
    def flops(self) -> int:
        """Of one image's forward pass: two for each multiplication of convolutions and dense layers; 0: unknown."""

    def state(self) -> list[Array]:
        """Return all that a step changes, in one order, at this rank."""

    def restore(self, state: Sequence[Array]) -> None:
        """Go on from there, at this rank; raises ValueError where that is the state of another network."""

    def spread(self) -> None:
        """Give every rank what rank 0 has. Dropout alone differs from rank to rank."""

    def agree(self) -> None:
        """Go on with the mean of the ranks' statistics of batch norm, which are each rank's own."""

    def trace(self, batch: Any) -> None:
        """Build the step and the judging for batches like this one, without learning from it."""

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""

    def ask_to_stop(self) -> None:
        """Have all ranks know at the end of the next step that it was the last."""

    def learn(self, images: Any, labels: Any, weights: Any) -> Learnt:
        """Take a step; return once its loss is known."""

    def judge(self, images: Any, labels: Any, weights: Any) -> Judged:
        """Return how many of these images are told right."""

    def take_step(self, batch: Any, is_alone: bool, /) -> object:
        """Take a step that is only timed, its gradients reduced over the ring or kept to itself.

        Ranks that have stepped alone no longer agree: nothing is learnt from then on.
        """

    def reduce_alone(self) -> object:
        """Reduce as much as a step does, and nothing else."""

    def runs(self) -> dict[str, str]:
        """Return what of the trial's settings the step has that was taken; nothing where none was."""


def diverged(loss: float, rate: float, scale: float | None) -> Fault:
    """Return what a loss that is no number amounts to; `scale`: of the loss, where it is scaled."""
    scaled = f", its loss scale had come to {scale:g}" if scale is not None else ""
    return Fault(
        "diverged", f"the loss is {loss}: its learning rate was {rate:g}{scaled}; lower lr_schedule, or warm up longer"
    )
