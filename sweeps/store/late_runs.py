"""Runs that a tracking server makes after its client has given up on the call: how many may come yet. Pure.

A call that is given up on may never have arrived, may have been carried out, or may be carried out at any time: then it
leaves a run that says RUNNING for ever, beside the one that the next call made. Whoever lists a sweep's runs deletes
those; as long as fewer have come than were asked for without an answer, somebody must list them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from sweeps.text import caller


class LateRuns:
    """Counts calls without an answer, and what has come of them."""

    def __init__(self, late_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`late_s`: so long after it was given up on a call may be carried out, as a rule; 0 of a store that is no
        server."""
        self._late_s, self._clock = late_s, clock
        self._known: set[str] = set()
        self._unheard_at: float | None = None  # when a run was last asked for without an answer
        self._look_at = 0.0
        self.missing = 0  # calls of which no run has come

    def heard(self, run: str) -> None:
        """Note a run that was asked for, and answered."""
        self._known.add(run)

    def unheard(self, error: BaseException | None = None, is_answered: bool = False) -> None:
        """Note a call that failed; without an error, that an earlier driver was killed, and may have made one. A server
        that has answered, or that could not be reached, makes no run of it later."""
        self._unheard_at = self._clock()
        if self._late_s and error and not is_answered and not _never_left(error):
            self.missing += 1
            self._look_at = self._unheard_at + self._late_s

    def seen(self, runs: Iterable[str]) -> None:
        """Note all runs that there are, with those that are deleted now: of what is new an unheard call was the
        reason."""
        new = {*runs} - self._known
        self._known |= new
        self.missing = max(0, self.missing - len(new))
        if self._unheard_at is not None and self.missing:  # less and less often
            self._look_at = self._clock() + max(self._late_s, self._clock() - self._unheard_at)

    @property
    def is_due(self) -> bool:
        """Whether one may have come by now that nobody has looked for."""
        return self.missing > 0 and self._clock() >= self._look_at

    @property
    def wait_s(self) -> float | None:
        """The seconds until what may come has come, as a rule; none if nothing may."""
        if self._unheard_at is None:
            return None
        return max(0.0, self._unheard_at + self._late_s - self._clock())


def words(calls: int, sweep: str) -> str:
    """Say that runs may come yet, and what deletes them."""
    those = "a call for a run" if calls == 1 else f"{calls} calls for a run"
    return (
        f"! the tracking server has not answered {those}: what it makes of that later stays RUNNING there\n"
        f"  to delete it: {caller.command('sync', sweep)}"
    )


def _never_left(error: BaseException) -> bool:
    """Say whether there was no connection to send a call by, whatever has been raised in place of that. The nearest
    error of the HTTP library is the call's own; one behind it is of an earlier call."""
    from requests import RequestException
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    link: BaseException | None = error
    while link:
        if isinstance(link, RequestException):
            reason = getattr(next(iter(link.args), None), "reason", None)
            return isinstance(reason, NewConnectionError | ConnectTimeoutError)
        link = link.__cause__ or link.__context__
    return False
