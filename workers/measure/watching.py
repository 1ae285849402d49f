"""A trace of steps looked at while it grows, and the window that is found in it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Literal

import numpy as np

from workers.contract.messages import TrialConfig, Window
from workers.measure import steady


class Watch:
    """Looks at a growing trace on a thread of its own, so that no step waits for it."""

    def __init__(self, rule: steady.Rule, earlier: steady.Known) -> None:
        self._rule, self._earlier = rule, earlier
        self._traces: queue.SimpleQueue[list[float]] = queue.SimpleQueue()
        self._next_look = steady.next_look(0, rule, earlier)
        self._is_enough = False
        threading.Thread(target=self._look, daemon=True).start()

    def is_enough(self, ends: list[float]) -> bool:
        """Whether a look so far has found enough in the steps that ended then; now and then has it look again."""
        taken = len(ends) - 1
        if taken >= self._next_look:
            self._traces.put(ends.copy())
            self._next_look = steady.next_look(taken, self._rule, self._earlier)
        return self._is_enough

    def _look(self) -> None:
        while not self._is_enough:
            step_ms = 1e3 * np.diff(self._traces.get())
            self._is_enough = steady.decide(step_ms, self._rule, self._earlier).kind == "stop"


def steady_rule(config: TrialConfig) -> steady.Rule:
    return steady.Rule(
        ci=config.ci, max_steps=config.max_steps, min_warmup=config.warmup_steps, min_window=config.min_window
    )


def windowed(
    config: TrialConfig, step_ms: Sequence[float], was_enough: bool, earlier: steady.Known = steady.NOTHING
) -> Window:
    """Which of a trial's steps count, and what is known of them."""
    if config.measured_steps:
        found = steady.fixed(step_ms[config.warmup_steps :], earlier)
    else:
        found = steady.estimate(step_ms, config.warmup_steps, earlier)
    by_itself: Literal["interval", "max_steps"] = "interval" if was_enough else "max_steps"
    return Window(
        warmup_steps=config.warmup_steps if config.measured_steps or not found else found.start,
        stopped_by="steps" if config.measured_steps else by_itself,
        half_width_ms=found.half_width_ms if found else None,
        withheld=found.why_not if found else "too few steps",
    )
