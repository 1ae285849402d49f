"""What limits a trial: how much of a step its input, its communication and its computing expose.

A share is what a step loses when the part is taken away, over the step itself: input_share = (T − T without input) / T,
comm_share = (T − T without reduction) / T, compute_share = T without both / T. What these leave of a step is overlap:
time that two parts hide behind each other, and that taking away only one of them does not save. Shares below zero are
noise and shown as they are.

The time without a part is the mean of one block of steps, so its error is what blocks of that length differ by: that is
seen in the window, whose blocks hold the machine's drift and the steps' dependence. Half-widths are 95%, assume the
same relative spread without a part as with it, and never less than what the steps of the block itself show.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from workers.contract import Measurement, TrialConfig

CLEARLY = 0.1  # a share worth a name
NORMAL = 1.96


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


def shares(measured: Measurement, config: TrialConfig) -> Shares | None:
    """The shares of a trial's step; None where nobody asked, or the trial was too short to spare steps for it."""
    taken = measured.ranks[0].without_ms
    can_wait = config.gpus > 1 or config.data != "synthetic"
    if not config.explain or (can_wait and not taken):
        return None
    whole = slowest([[step.step_ms for step in rank.steps] for rank in measured.ranks])
    times = {part: slowest([rank.without_ms[part] for rank in measured.ranks]) for part in taken}
    bare = times.get("both") or times.get("comm") or times.get("input")
    nothing = Share(0.0, 0.0)
    return Shares(
        input=_lost(whole, times["input"]) if "input" in times else nothing,
        comm=_lost(whole, times["comm"]) if "comm" in times else nothing,
        compute=_kept(whole, bare) if bare else Share(1.0, 0.0),
    )


def slowest(ranks: Sequence[Sequence[float]]) -> Sequence[float]:
    """The steps of the rank that takes longest: the others wait for it."""
    return max(ranks, key=statistics.fmean)


def _kept(whole: Sequence[float], part: Sequence[float]) -> Share:
    ratio = statistics.fmean(part) / statistics.fmean(whole)
    blocks = [statistics.fmean(whole[n : n + len(part)]) for n in range(0, len(whole) - len(part) + 1, len(part))]
    within = statistics.stdev(part) / math.sqrt(len(part)) / statistics.fmean(part) if len(part) > 1 else 0.0
    if len(blocks) < 2:
        return Share(ratio, ratio * NORMAL * within)
    between = statistics.stdev(blocks) / statistics.fmean(blocks)
    return Share(ratio, ratio * quantile(len(blocks) - 1) * max(between, within) * math.sqrt(1 + 1 / len(blocks)))


def _lost(whole: Sequence[float], without: Sequence[float]) -> Share:
    kept = _kept(whole, without)
    return Share(1 - kept.value, kept.half_width)


def quantile(freedom: int) -> float:
    """Student's t at 97.5%."""
    from workers import student

    return float(student.quantile(freedom))


def limiting(input_share: float, comm_share: float) -> Literal["input_share", "comm_share", "compute_share"]:
    """The larger of what a step waits for, if that is worth a name; else computing is what it takes."""
    if max(input_share, comm_share) < CLEARLY:
        return "compute_share"
    return "input_share" if input_share >= comm_share else "comm_share"


def verdict(found: Shares, gpus: int, decode_threads: int) -> str:
    """In words: which part limits the trial, how sure that is, and what would help."""
    by = limiting(found.input.value, found.comm.value)
    if by == "input_share":
        waits = f"input-bound: {_shown(found.input)} of a step waits for"
        if not decode_threads:
            return f"{waits} its input"
        enough = math.ceil(decode_threads / max(1 - found.input.value, 0.01))  # as each would do as much as now
        return f"{waits} {decode_threads} decode thread{'s' * (decode_threads > 1)}; {enough} would do"
    if by == "comm_share":
        return f"communication-bound: {_shown(found.comm)} of a step is reduction over {gpus} ranks"
    return f"compute-bound: {_shown(found.compute)} of a step is computing"


def _shown(share: Share) -> str:
    return f"{share.value:.0%} ± {share.half_width:.0%}"
