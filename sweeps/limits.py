"""What limits a trial: how much of a step its input, its communication and its computing expose.

A share is what a step loses when the part is taken away, over the step itself: input_share = (T − T without input) / T,
comm_share = (T − T without reduction) / T, compute_share = T without both / T. What these leave of a step is overlap:
time that two parts hide behind each other, and that taking away only one of them does not save. Shares below zero are
noise and shown as they are. Half-widths are 95%, from the spread between steps, both sides' added in squares; steps
are taken as independent.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from workers.contract import Measurement, TrialConfig

CLEARLY = 0.1  # a share worth a name
T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # Student's, for 1 to 9 degrees of freedom
NORMAL = 1.96


@dataclasses.dataclass(frozen=True)
class Time:
    """A mean step time with its standard error."""

    mean_ms: float
    error_ms: float
    steps: int


@dataclasses.dataclass(frozen=True)
class Share:
    value: float
    half_width: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shares:
    input: Share
    comm: Share
    compute: Share

    @property
    def overlap(self) -> float:
        return 1 - self.input.value - self.comm.value - self.compute.value


def shares(measured: Measurement) -> Shares | None:
    """The shares of a trial's step; None where no part was taken away though one could have been."""
    taken = measured.ranks[0].without_ms
    whole = slowest([[step.step_ms for step in rank.steps] for rank in measured.ranks])
    times = {part: slowest([rank.without_ms[part] for rank in measured.ranks]) for part in taken}
    if not times:
        return None
    bare = times.get("both") or times.get("comm") or times.get("input") or whole
    nothing = Share(0.0, 0.0)
    return Shares(
        input=_lost(whole, times["input"]) if "input" in times else nothing,
        comm=_lost(whole, times["comm"]) if "comm" in times else nothing,
        compute=_ratio(bare, whole),
    )


def slowest(ranks: Sequence[Sequence[float]]) -> Time:
    """The mean step of the rank that takes longest: the others wait for it."""
    return max((_time(times) for times in ranks), key=lambda time: time.mean_ms)


def _time(times: Sequence[float]) -> Time:
    spread = statistics.stdev(times) if len(times) > 1 else math.nan
    return Time(statistics.fmean(times), spread / math.sqrt(len(times)), len(times))


def _ratio(part: Time, whole: Time) -> Share:
    ratio = part.mean_ms / whole.mean_ms
    relative = math.hypot(_interval(part) / part.mean_ms, _interval(whole) / whole.mean_ms)
    return Share(ratio, ratio * relative)


def _lost(whole: Time, without: Time) -> Share:
    kept = _ratio(without, whole)
    return Share(1 - kept.value, kept.half_width)


def _interval(time: Time) -> float:
    freedom = time.steps - 1
    return time.error_ms * (T_975[freedom - 1] if freedom <= len(T_975) else NORMAL)


def verdict(found: Shares, config: TrialConfig, threads: int | None) -> str:
    """In words: which part limits the trial, how sure that is, and what would help. `threads` decode on a node."""
    if found.input.value >= max(CLEARLY, found.comm.value):
        waits = f"input-bound: {_shown(found.input)} of a step waits for "
        if threads is None:
            return waits + "its input"
        enough = math.ceil(threads / (1 - found.input.value)) if found.input.value < 1 else None
        more = f"; {enough} would do" if enough and enough > threads else ""
        return f"{waits}{threads} decode thread{'s' if threads > 1 else ''}{more}"
    if found.comm.value >= CLEARLY:
        return f"communication-bound: {_shown(found.comm)} of a step is reduction over {config.gpus} ranks"
    return f"compute-bound: {_shown(found.compute)} of a step is computing"


def _shown(share: Share) -> str:
    return f"{share.value:.0%} ± {share.half_width:.0%}"
