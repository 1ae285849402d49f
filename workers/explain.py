"""What a step would take without its input, without its reduction, without both: timed after the window.

A part is taken away for a block of steps, rather than timed where it runs, because the parts of a step overlap: what
counts is what the step loses. No step of the window is touched, and the blocks are a quarter of its steps at most.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from workers.contract import TrialConfig, Without
from workers.learner import Learner
from workers.ring import Ring

QUARTER = 0.25
FEWEST = 4  # steps of a block: two to settle, two to count


def parts(config: TrialConfig, size: int) -> list[Without]:
    """What can be taken away. Input goes after communication: while it is away, its buffers fill up."""
    has_input, has_comm = config.data != "synthetic", size > 1
    found: list[Without] = ["comm"] if has_comm else []
    return found + (["input"] if has_input else []) + (["both"] if has_input and has_comm else [])


def block(steps: int, parts: int) -> int:
    """Steps without each part: so many that all together are a quarter of the trial's, or none."""
    each = int(QUARTER * steps) // parts if parts else 0
    return each if each >= FEWEST else 0


def settling(block: int) -> int:
    """The steps of a block that don't count: buffers empty and threads come to rest."""
    return min(block // 2, 3)


def timed(
    config: TrialConfig, steps: int, ring: Ring, learner: Learner, batches: Iterator[Any], beat: Callable[[int], None]
) -> dict[Without, tuple[float, ...]]:
    """Milliseconds of each counted step, by what it went without; nothing where a trial of so many steps does not ask,
    or is too short to spare a quarter of them."""
    taken = parts(config, ring.size)
    steps = block(steps, len(taken))
    found: dict[Without, tuple[float, ...]] = {}
    if not steps or not config.explain:
        return found
    batch = next(batches)
    for n, part in enumerate(taken):
        has_input, is_alone = part == "comm", part != "input"
        learner.take_step(batch, is_alone)  # built before the clock runs
        ring.barrier()
        ends = [time.perf_counter()]
        for m in range(steps):
            if has_input:
                batch = next(batches)
            learner.take_step(batch, is_alone)
            ends.append(time.perf_counter())
            beat(n * steps + m)
        ring.barrier()
        times = [1e3 * (after - before) for before, after in itertools.pairwise(ends)]
        found[part] = tuple(times[settling(steps) :])
    return found
