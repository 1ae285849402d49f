"""What limits a trial or a cell: how much of a step its input, its communication and its computing expose, and which of
them may be named.

A share is what a step loses when the part is taken away, over the step itself: input_share = (T − T without input) / T,
comm_share = (T − T without reduction) / T, compute_share = T without both / T. Shares below zero are noise and shown as
they are. Gradients that are reduced beside the backward pass cost only what of it sticks out.

Whole steps and steps without input end together, so all ranks' times count alike in them. Steps without reduction each
rank takes alone, and those of the slowest rank count, since the others would wait for it. Which rank that is, noise
hides: the longest of 32 equal means of 12 steps that scatter by 3% is 1.8% too long, and communication would seem so
much smaller. See `slowest`.

overlap_share is computing with the reduction beside it: what the reduction takes alone less what of it sticks out, over
T. What sticks out is looked for in steps without input, where there is one: what hides behind a wait for input hides
behind no computing. A step loses more than that when its reduction is taken away: its ranks no longer wait for each
other, which comm_share holds and overlap_share must not. So here a step without reduction is as long as that of the
slowest rank, step by step, as if ranks still waited. What ranks do together, each ends when the last has come: there
the mean over the ranks counts, since the longest times would be too long by what single steps of theirs scatter.

T and the times without a part are taken by turns, in rounds (`step_shares`). What all of a round share, such as the
pace of the machine, falls out of the ratio; a share's 95% interval is a t-interval of what the rounds differ by.

A part is named when its interval says so: see `verdict`. The sentence of a trial, the cell of a table and the words of
the report all come from there.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from workers.contract.messages import Measurement, TrialConfig, Without

Part = Literal["input", "comm", "compute"]
NAMES: dict[Part, str] = {"input": "input", "comm": "communication", "compute": "computing"}
CLEARLY = 0.1  # a wait worth a name
AT_LEAST = CLEARLY / 2  # of a step, for sure, before a wait has a name
NEARLY_ALL = 0.99  # of a step: how many threads would do is not known
ALONE: tuple[Without, ...] = ("comm", "both")  # steps that each rank takes without waiting for the others
Rounds = Sequence[Sequence[float]]  # milliseconds of each step of each round's block
Means = Sequence[float]  # milliseconds of a step, by round


@dataclasses.dataclass(frozen=True)
class Share:
    """Of a step, with half of its 95% interval: NaN where nothing says how sure it is."""

    value: float
    half_width: float

    @property
    def low(self) -> float:
        return self.value - self._within

    @property
    def high(self) -> float:
        return self.value + self._within

    @property
    def _within(self) -> float:
        return math.inf if math.isnan(self.half_width) else self.half_width

    def leaves_behind(self, other: Share) -> bool:
        """Whether this interval lies above the other. Then their difference is above zero for sure, however the two go
        together: computing falls where a wait grows, and repeats may wait now for the one and now for the other."""
        return self.low > other.high


NOTHING = Share(0.0, 0.0)
UNKNOWN = Share(math.nan, math.nan)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shares:
    input: Share
    comm: Share
    compute: Share
    overlap: Share = NOTHING  # a part of computing


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The part that limits, or nothing and the parts that it may be; the largest first."""

    part: Part | None
    shares: tuple[tuple[Part, Share], ...]


def shares(measured: Measurement, config: TrialConfig) -> Shares | None:
    """Return the shares of a trial's step; None where nobody asked, or the trial was too short to look for them."""
    taken = measured.ranks[0].without_ms
    can_wait = config.gpus > 1 or config.data != "synthetic" or config.script is not None
    if not config.explain or (can_wait and not taken):
        return None
    ranks = [rank.without_ms for rank in measured.ranks]
    if all(one is taken for one in ranks):  # simulated: each rank's steps are one another's
        ranks = [taken]
    times = {part: (slowest if part in ALONE else together)([of[part] for of in ranks]) for part in taken}
    whole = times.get("nothing", [])
    bare = times.get("both") or times.get("comm") or times.get("input")
    if config.gpus > 1 and "comm" not in times:  # a script that can't leave out its reduction
        return Shares(input=_lost(whole, times["input"]), comm=UNKNOWN, compute=UNKNOWN, overlap=UNKNOWN)
    return Shares(
        input=_lost(whole, times["input"]) if "input" in times else NOTHING,
        comm=_lost(whole, times["comm"]) if "comm" in times else NOTHING,
        compute=_share(bare, whole) if bare else Share(1.0, 0.0),
        overlap=_overlap(ranks) if "compute" in times else NOTHING,
    )


def slowest(ranks: Sequence[Rounds]) -> Means:
    """Of the rank that takes longest: the others wait for it.

    In every second round that is the rank that took longest in the rounds between: what made it seem slow there says
    nothing of its noise here. So equal ranks give their mean, and one that is clearly slower gives its own. One that is
    slower by little more than noise is not always picked, and the mean is too short: with 12 steps that scatter by 3%,
    where one rank is 2% slower, by 0.5% of 4 ranks and by 1.2% of 32.
    """
    means = [[statistics.fmean(block) for block in rounds] for rounds in ranks]
    picked = [max(means, key=lambda rounds: sum(rounds[1 - half :: 2])) for half in (0, 1)]
    return [picked[nth % 2][nth] for nth in range(len(means[0]))]


def together(ranks: Sequence[Rounds]) -> Means:
    """Of what ranks do together, over all of them."""
    return [statistics.fmean(itertools.chain(*blocks)) for blocks in zip(*ranks, strict=True)]


def waiting(ranks: Sequence[Rounds]) -> Means:
    """Of steps that ranks take alone, if each waited for the others at the end of each step."""
    return [statistics.fmean(map(max, zip(*blocks, strict=True))) for blocks in zip(*ranks, strict=True)]


def _overlap(ranks: Sequence[Mapping[Without, Rounds]]) -> Share:
    def rounds_of(part: Without) -> list[Rounds]:
        return [times[part] for times in ranks]

    has_input = "both" in ranks[0]
    alone, reduced = together(rounds_of("compute")), together(rounds_of("input" if has_input else "nothing"))
    bare = waiting(rounds_of("both" if has_input else "comm"))
    hidden = [one - (step - without) for one, step, without in zip(alone, reduced, bare, strict=True)]
    return _share(hidden, together(rounds_of("nothing")))


def _share(parts: Means, wholes: Means) -> Share:
    """Return a ratio of means; each round's residual from it is a value of the t-interval."""
    from workers.measure.student_t import quantile

    step_ms = statistics.fmean(wholes)
    ratio = statistics.fmean(parts) / step_ms
    n = len(wholes)
    if n < 2:
        return Share(ratio, math.nan)
    residuals = [(part - ratio * one) / step_ms for one, part in zip(wholes, parts, strict=True)]
    return Share(ratio, quantile(n - 1) * statistics.stdev(residuals) / math.sqrt(n))


def _lost(wholes: Means, without: Means) -> Share:
    return _share([whole - part for whole, part in zip(wholes, without, strict=True)], wholes)


def verdict(found: Shares) -> Verdict:
    """Say what the intervals allow to be said.

    Input and communication are waits: time that a step could do without. The larger one is named if it is a tenth of
    a step or more, its whole interval lies above a twentieth, and it leaves the other one behind. Above zero would not
    do: who reads the name adds threads or changes the network, and of a wait of 11% ± 10.5% that may gain nothing. With
    a twentieth even the low end is half of what is worth a name. Computing is what a step can't do without: it is named
    only where both waits are less than a tenth for sure, and it leaves them behind. Everything else is open: between
    the waits that may be a tenth or more, or between all parts where none is.
    """
    waits: list[tuple[Part, Share]] = sorted(
        [("input", found.input), ("comm", found.comm)], key=lambda wait: wait[1].value, reverse=True
    )
    (part, first), (_, second) = waits
    if first.value >= CLEARLY and first.low >= AT_LEAST and first.leaves_behind(second):
        return Verdict(part, ((part, first),))
    may_be = tuple(wait for wait in waits if not wait[1].high < CLEARLY)
    if may_be:
        return Verdict(None, may_be)
    compute: tuple[Part, Share] = ("compute", found.compute)
    if found.compute.low > 0 and all(found.compute.leaves_behind(wait) for _, wait in waits):
        return Verdict("compute", (compute,))
    return Verdict(None, (compute, *waits))


def of_input(found: Share) -> Verdict | None:
    """Say what may be said where the input alone could be taken away: that it is more than all the rest, or nothing."""
    rest = Share(1 - found.value, found.half_width)
    is_named = found.value >= CLEARLY and found.low >= AT_LEAST and found.leaves_behind(rest)
    return Verdict("input", (("input", found),)) if is_named else None


def in_short(found: Verdict) -> str:
    """For a cell of a table: `input 41% ± 3%`, `open: input 11% ± 11%, communication 8% ± 9%`."""
    words = ", ".join(f"{NAMES[part]} {_shown(share)}" for part, share in found.shares)
    return words if found.part else f"open: {words}"


def sentence(found: Verdict, ranks: int, decode_threads: int = 0) -> str:
    """Say the same, with what would help: the threads that would do if each did as much as those of now, which are
    counted by node; from those for the low end of the share to those for its high end."""
    if not found.part:
        return f"{in_short(found)}; more repeats or steps would tell"
    ((_, share),) = found.shares
    if found.part == "compute":
        return f"compute-bound: {_shown(share)} of a step is computing"
    if found.part == "comm":
        return f"communication-bound: {_shown(share)} of a step is reduction over {ranks} ranks"
    waits = f"input-bound: {_shown(share)} of a step waits for"
    if not decode_threads:
        return f"{waits} its input"
    return (
        f"{waits} {decode_threads} decode thread{'s' * (decode_threads > 1)}; {_enough(share, decode_threads)} would do"
    )


def _enough(share: Share, threads: int) -> str:
    """`7`, `7 to 9`, or `7 or more` where the wait may be nearly all of a step."""
    fewest, most = (math.ceil(threads / (1 - min(end, NEARLY_ALL)) - 1e-9) for end in (share.low, share.high))
    if share.high >= NEARLY_ALL:
        return f"{fewest} or more"
    return str(fewest) if fewest == most else f"{fewest} to {most}"


def of_cell(cell: Any) -> Verdict | None:
    """Return the verdict on a row of cells: the mean shares of its repeats. None where they were not looked for."""
    parts = {part: share_of(cell, part) for part in NAMES}
    if not math.isnan(parts["input"].value) and math.isnan(parts["comm"].value):
        return of_input(parts["input"])
    if any(math.isnan(share.value) for share in parts.values()):
        return None
    return verdict(Shares(**parts))


def share_of(cell: Any, part: Part | Literal["overlap"]) -> Share:
    return Share(float(cell[f"{part}_share"]), float(cell[f"{part}_share_ci"]))


def overlapped(share: Share) -> str:
    """For a cell of a table; a number alone only where its interval leaves zero."""
    if math.isnan(share.value):
        return "–"
    is_shown = share == NOTHING or share.low > 0 or share.high < 0
    return _shown(share) if is_shown else f"open: {_shown(share)}"


def _shown(share: Share) -> str:
    """With a digit more where rounding would make an interval touch zero that does not."""
    if math.isnan(share.half_width) or share.half_width == 0:
        return f"{share.value:.0%}"
    digits = 0 if share.low <= 0 or round(100 * share.value) > round(100 * share.half_width) else 1
    return f"{share.value:.{digits}%} ± {share.half_width:.{digits}%}"
