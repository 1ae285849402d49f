"""The rank that ended for a reason of its own is the cause; what the others say is an echo."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract.messages import Granted, RankReport, StepRecord
from workers.launch import rank, verdict
from workers.launch.supervisor import RankEnd


def end(rank: int, what: str, kind: str = "", **more: object) -> RankEnd:
    return RankEnd(rank=rank, what=what, kind=kind, **more)  # type: ignore[arg-type]


def measured(rank: int) -> RankEnd:
    report = RankReport(
        rank=rank,
        images=100,
        window_s=2.0 + rank,
        steps=(StepRecord(step=0, step_ms=1.0, loss=1.0),),
        entered_at=0,
        build_s=0,
        peak_memory_mib=0,
        parameters=1,
        flops=1,
    )
    return end(rank, "measured", report=report)


def test_a_gang_that_measured_completes_and_its_slowest_rank_counts() -> None:
    granted = (Granted(rank=0, node="a"), Granted(rank=1, node="b"))
    outcome = verdict.outcome([measured(1), measured(0)], granted)
    assert outcome.status == "completed"
    assert outcome.granted == granted
    assert outcome.measurement is not None
    assert [report.rank for report in outcome.measurement.ranks] == [0, 1]
    assert outcome.measurement.images_per_s == 200 / 3.0


def test_the_killed_rank_is_the_cause_and_not_those_whose_ring_broke() -> None:
    ends = [end(0, "echo", "ring broken", at=1.0), end(1, "failed", "killed", step=7, at=2.0, log="/log", message="m")]
    outcome = verdict.outcome(ends, ())
    assert (outcome.status, outcome.rank, outcome.step, outcome.kind, outcome.log) == ("failed", 1, 7, "killed", "/log")


def test_the_stopped_process_explains_the_stalled_ones() -> None:
    ends = [
        end(0, "failed", "stalled", phase="step", step=5, at=1.0),
        end(1, "failed", "stalled", phase="step", step=5, at=2.0, message="the process is stopped (SIGSTOP)"),
    ]
    assert verdict.outcome(ends, ()).rank == 1


def test_of_two_that_miss_the_ring_the_one_that_came_less_far_is_named() -> None:
    ends = [end(0, "failed", "no rendezvous", phase="ring"), end(1, "failed", "no rendezvous", phase="start")]
    assert verdict.outcome(ends, ()).rank == 1


def test_an_infeasible_rank_makes_the_trial_infeasible() -> None:
    ends = [end(0, "echo"), end(1, "infeasible", "device memory", message="OOM")]
    outcome = verdict.outcome(ends, ())
    assert (outcome.status, outcome.kind) == ("infeasible", "device memory")


def test_a_lost_node_outweighs_what_its_loss_caused() -> None:
    ends = [end(0, "failed", "raised"), end(1, "lost", "node lost"), end(2, "echo")]
    assert verdict.outcome(ends, ()).status == "lost"


def test_a_gang_stopped_from_outside_is_cancelled() -> None:
    assert verdict.outcome([end(0, "stopped"), measured(1)], ()).status == "cancelled"


ends = st.lists(
    st.builds(
        end,
        st.integers(0, 31),
        st.sampled_from(["infeasible", "failed", "lost", "echo", "stopped"]),
        st.sampled_from(["killed", "raised", "stalled", "no rendezvous", "exited", "ring broken"]),
        step=st.integers(0, 9),
        at=st.floats(0, 9),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda made: made.rank,
)


@given(ends, st.randoms())
def test_the_outcome_does_not_depend_on_the_order_of_the_ends(made: list[RankEnd], random: object) -> None:
    first = verdict.outcome(made, ())
    shuffled = sorted(made, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert verdict.outcome(shuffled, ()) == first
    assert first.status != "completed"


@pytest.mark.parametrize(
    "error",
    [
        type("HorovodInternalError", (RuntimeError,), {})("Connection closed by peer"),
        type("UnknownError", (Exception,), {})(
            "{{function_node __inference_<lambda>_807}} [/src/third_party/compatible17_gloo/gloo/transport/tcp/"
            "pair.cc:589] Read error [127.0.0.1]:50395: Connection reset by peer"
        ),
        type("UnknownError", (Exception,), {})("ncclCommGetAsyncError failed: remote process exited"),
        RuntimeError("Horovod has been shut down. This was caused by an exception on one of the ranks"),
    ],
)
def test_that_another_rank_has_gone_is_no_fault_of_this_one(error: Exception) -> None:
    assert rank.describe(error)["what"] == "echo"


def test_a_rank_that_stalled_is_the_cause_though_the_others_heard_its_connections_break() -> None:
    said = rank.describe(type("UnknownError", (Exception,), {})("[gloo/gloo/transport/tcp/pair.cc:589] reset by peer"))
    ends = [end(0, "failed", "stalled", step=8), end(1, said["what"], said["kind"], step=8, message=said["message"])]
    assert verdict.outcome(ends, []).kind == "stalled"


def test_what_a_rank_says_can_be_written_whatever_files_are_named() -> None:
    """No tracking store takes half of a character: it would take none of the trials behind it either."""
    said = rank.describe(FileNotFoundError(2, "No such file", b"/data/caf\xe9".decode(errors="surrogateescape")))
    assert said["message"].encode() == b"FileNotFoundError: [Errno 2] No such file: '/data/caf\\udce9'"
    assert rank.describe(OSError("caf\udce9"))["message"] == "OSError: caf?"
