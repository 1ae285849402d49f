"""The framework that does a trial's arithmetic, as a workload knows it.

Each is a package here with a module `body`, which is imported in the ranks of its own trials and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from workers.contract.messages import AXES_OF, Framework, Phase, Strategy, TrialConfig
from workers.contract.ranks import Fault, Seat
from workers.frameworks.learning import Learner
from workers.inputs.source import Cores, Source
from workers.strategies.ring import Ring


class FrameworkBody(Protocol):
    """What a module `body` has."""

    def place(self, config: TrialConfig) -> None:
        """Set the framework to this trial's device, threads and precision, before its first op."""

    def joined(self, seat: Seat, config: TrialConfig) -> AbstractContextManager[Ring]:
        """Stand in the trial's ring until the block ends."""

    def shortage_is_a_finding(self, config: TrialConfig) -> AbstractContextManager[None]:
        """Turn an error into a finding where memory ran out."""

    def learner(self, config: TrialConfig, ring: Ring) -> Learner:
        """Return the trial's network, the same at every rank."""

    def open_source(self, config: TrialConfig, ring: Ring, cores: Cores, beat: Callable[[Phase, int], None]) -> Source:
        """Return the trial's data, with batches for its learner."""

    def device_peak_mib(self) -> float:
        """Return the most that this rank had of its GPU's memory so far; 0 without one."""

    def readback(self) -> dict[str, str]:
        """Return what this process has in force, asked of the framework."""


STRATEGIES: dict[Framework, tuple[Strategy, ...]] = {"tensorflow": ("horovod",), "torch": ("ddp",)}


def of_trial(config: TrialConfig) -> FrameworkBody:
    """Return the trial's framework, imported; refuse what it does not have."""
    for axis, owner in AXES_OF.items():
        if getattr(config, axis) and config.framework != owner:
            rule = f"{axis} is an axis of {owner} alone"
            raise Fault("not of this framework", f"{rule}, but framework is {config.framework}: leave {axis} out")
    if config.joined_by not in STRATEGIES[config.framework]:
        rule = f"ranks of {config.framework} are joined by {', '.join(STRATEGIES[config.framework])}"
        raise Fault("not of this framework", f"{rule}, but strategy is {config.strategy}")
    if config.framework == "torch":
        from workers.frameworks.torch import body as torch

        return torch
    from workers.frameworks.tensorflow import body as tensorflow

    return tensorflow
