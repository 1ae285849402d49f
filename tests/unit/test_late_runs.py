"""A call for a run that was given up on may make one yet: as long as it may, that is known, and looked for."""

from __future__ import annotations

import traceback

import pytest
import requests
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError, ProtocolError, ReadTimeoutError

from sweeps.store import late_runs, tracking
from sweeps.store.late_runs import LateRuns

pytestmark = pytest.mark.unit

LATE_S = 20.0
POOL = HTTPConnectionPool("server")
TIMED_OUT = TimeoutError("no answer")


def runs(late_s: float = LATE_S) -> tuple[LateRuns, list[float]]:
    now = [100.0]
    return LateRuns(late_s, lambda: now[0]), now


def raised(reason: Exception) -> BaseException:
    """What MLflow makes of what its HTTP library raises."""
    try:
        try:
            raise requests.ConnectionError(MaxRetryError(POOL, "/runs/create", reason))
        except requests.ConnectionError as error:
            raise RuntimeError(f"API request failed with exception {error}") from None  # its context stays
    except RuntimeError as error:
        return error


def test_a_run_that_came_late_is_missed_no_longer() -> None:
    late, _ = runs()
    late.seen(["a"])
    late.unheard(TIMED_OUT)
    late.heard("b")
    late.unheard(TIMED_OUT)
    assert late.missing == 2
    late.seen(["a", "b"])
    assert late.missing == 2, "those were asked for and answered"
    late.seen(["a", "b", "c"])
    assert late.missing == 1
    late.seen(["a", "b", "c"])
    assert late.missing == 1, "it counts once"
    late.seen(["a", "b", "d"])
    assert late.missing == 0
    late.seen(["e"])
    assert late.missing == 0, "another writer's"


def test_it_is_looked_for_once_it_may_have_come_and_then_less_and_less_often() -> None:
    late, now = runs()
    assert not late.is_due
    late.unheard(TIMED_OUT)
    looks = []
    for second in range(400):
        now[0] = 100.0 + second
        if late.is_due:
            looks.append(second)
            late.seen([])
    assert looks == [20, 40, 80, 160, 320]
    late.seen(["a"])
    now[0] += 10_000
    assert not late.is_due


def test_an_end_waits_as_long_as_one_may_come_as_a_rule() -> None:
    late, now = runs()
    assert late.wait_s is None
    late.unheard(TIMED_OUT)
    now[0] += 5
    assert late.wait_s == LATE_S - 5
    now[0] += 50
    assert late.wait_s == 0
    killed, _ = runs()
    killed.unheard()
    assert (killed.wait_s, killed.missing) == (LATE_S, 0), "an earlier driver may have asked: nobody knows"


@pytest.mark.parametrize(
    ("error", "may_come"),
    [
        (raised(NewConnectionError(POOL, "refused")), 0),  # type: ignore[arg-type]
        (raised(ConnectTimeoutError("no such host answers")), 0),
        (raised(ReadTimeoutError(POOL, "/runs/create", "no answer")), 1),
        (raised(ProtocolError("the connection broke")), 1),
        (RuntimeError("status 504 of what stands between"), 1),
    ],
)
def test_what_never_left_makes_no_run(error: BaseException, may_come: int) -> None:
    late, _ = runs()
    late.unheard(error)
    assert late.missing == may_come


REFUSED = NewConnectionError(POOL, "refused")  # type: ignore[arg-type]
UNANSWERED = ReadTimeoutError(POOL, "/runs/create", "no answer")


def test_a_call_that_was_sent_counts_whatever_an_earlier_one_came_to() -> None:
    late, _ = runs()
    try:
        raise raised(REFUSED)
    except RuntimeError:
        late.unheard(raised(UNANSWERED))  # as of whoever tries again while the first error is being handled
    assert late.missing == 1


def test_a_second_try_has_nothing_of_the_first_ones_error() -> None:
    reasons = iter([REFUSED, UNANSWERED])
    late, _ = runs()

    def begin() -> None:
        try:
            raise raised(next(reasons))
        except RuntimeError as error:
            late.unheard(error)
            raise

    with pytest.raises(RuntimeError) as failed:
        tracking.once_more(begin)
    assert late.missing == 1
    assert "refused" not in "".join(traceback.format_exception(failed.value))


def test_a_server_that_has_answered_and_a_store_that_is_none_make_no_run_later() -> None:
    late, _ = runs()
    late.unheard(TIMED_OUT, is_answered=True)
    file, _ = runs(late_s=0.0)
    file.unheard(TIMED_OUT)
    assert late.missing == file.missing == 0


def test_the_words_name_what_deletes_them() -> None:
    assert "not answered a call for a run" in late_runs.words(1, "x")
    assert "not answered 2 calls for a run" in late_runs.words(2, "x")
    assert late_runs.words(1, "x").endswith("to delete it: sweep sync x")
