"""From the ends of a gang's ranks to the outcome of its trial. Pure.

One rank's end takes the others with it, so most of what a failed gang says is an echo. The cause is the rank
that ended for a reason of its own; among several the gravest kind, then the least progress, then the earliest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from workers.contract import messages
from workers.launch.supervisor import RankEnd
from workers.measure import usage

# From the surest cause to the weakest: a rank that stalls may be waiting for another that was killed.
GRAVITY = (
    "lost",
    "infeasible",
    "killed",
    "exited",
    "raised",
    "fork server gone",
    "no fork server",
    "no rendezvous",
    "stalled",
)


def outcome(ends: Sequence[RankEnd], granted: Sequence[messages.Granted]) -> messages.TrialOutcome:
    """Return what a gang whose ranks have all ended amounts to."""
    if all(end.what == "measured" for end in ends):
        reports = tuple(end.report for end in sorted(ends, key=lambda end: end.rank) if end.report)
        return messages.TrialOutcome(
            status="completed",
            measurement=messages.Measurement(ranks=reports),
            granted=tuple(_as_measured(place, reports) for place in granted),
            usage=_used(ends),
        )
    end = culprit(ends)
    if end is None:
        return messages.TrialOutcome(status="cancelled", kind="stopped", granted=tuple(granted))
    granted = [_as_said(place, ends) for place in granted]
    status: messages.Status = end.what if end.what in ("infeasible", "lost") else "failed"
    return messages.TrialOutcome(
        status=status,
        kind=end.kind,
        message=end.message,
        rank=end.rank,
        step=end.step,
        log=end.log,
        exit_code=end.exit_code,
        last_lines=end.last_lines,
        granted=tuple(granted),
    )


def _used(ends: Sequence[RankEnd]) -> dict[str, float]:
    """Return what the trial's nodes did, each told by one of its ranks."""
    of_nodes = [(end.usage, end.host) for end in ends if end.usage is not None]
    return usage.combine([used for used, _ in of_nodes], [host for _, host in of_nodes])


def _as_measured(place: messages.Granted, reports: Sequence[messages.RankReport]) -> messages.Granted:
    """Return a place with what the rank itself says that it ran and read: its node's files may be others by now."""
    return _as_said(place, reports)


def _as_said(place: messages.Granted, said: Sequence[messages.RankReport | RankEnd]) -> messages.Granted:
    own = next((one for one in said if one.rank == place.rank), None)
    if own is None or not own.software:
        return place
    return dataclasses.replace(place, software=own.software, data_files=own.data_files)


def culprit(ends: Sequence[RankEnd]) -> RankEnd | None:
    """Return the rank whose end explains the others'; None if all were stopped from outside."""
    own = [end for end in ends if end.what in ("infeasible", "failed", "lost")]
    if not own:
        own = [end for end in ends if end.what == "echo"]
    return min(own, key=_blame) if own else None


def _blame(end: RankEnd) -> tuple[object, ...]:
    name = end.what if end.what in GRAVITY else end.kind
    gravity = GRAVITY.index(name) if name in GRAVITY else len(GRAVITY)
    explained = "SIGSTOP" not in end.message  # a stopped process is why the others stalled
    return gravity, explained, messages.PHASES.index(end.phase), end.step, end.at, end.rank
