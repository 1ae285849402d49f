"""Horovod's reductions in a script that knows nothing of shares: we leave them out of its last steps where we can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_scripts import ended
from workers.launch.supervisor import RankEnd

pytestmark = pytest.mark.usefixtures("fork_server")
WINDOW = {"ranks": "horovod", "warmup_steps": 5, "measured_steps": 60}

# A step sleeps, and reduces: long or short.
BEGIN = """
    import time
    import horovod.tensorflow as hvd
    import numpy as np
    import tensorflow as tf
    import sweeps

    hvd.init()
    LONG, SHORT = 1 << 23, 16
"""
EAGER = """
    weights = tf.ones([{size}])
    try:
        for _ in sweeps.steps([None] * 10_000, items=4):
            time.sleep(0.02)
            hvd.allreduce(weights, op=hvd.Sum)[0].numpy()
    finally:
        assert hvd.allreduce(tf.ones([1]), op=hvd.Sum).numpy()[0] == 2
        print("reduces again")
"""
TRACED = """
    weights = tf.Variable(tf.ones([{size}]))

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * weights)
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
        return gradient[0]

    for _ in sweeps.steps([None] * 10_000, items=4):
        time.sleep(0.02)
        train().numpy()
"""
TAPE = """
    weights = tf.Variable(tf.ones([{size}]))
    for _ in sweeps.steps([None] * 10_000, items=4):
        time.sleep(0.02)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * weights)
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
        gradient[0].numpy()
"""


def lost(ends: list[RankEnd]) -> float:
    """The part of a step that is lost without its reduction, in the mean over the ranks."""
    assert [end.what for end in ends] == ["measured"] * 2, ends
    shares = []
    for end in ends:
        assert end.report
        assert not end.report.why_no_comm
        whole, bare = (sum(map(sum, end.report.without_ms[part])) for part in ("nothing", "comm"))  # type: ignore[index]
        shares.append(1 - bare / whole)
    return sum(shares) / 2


@pytest.mark.parametrize(
    ("text", "fork"), [(EAGER, True), (EAGER, False), (TRACED, True), (TRACED, False), (TAPE, True)]
)
def test_a_reduction_that_we_leave_out_has_its_share(tmp_path: Path, text: str, fork: bool) -> None:
    """Of 32 MiB it is about half of a step; of 64 bytes, less, though on a busy machine a third."""
    found = {
        size: lost(ended(tmp_path, BEGIN + text.format(size=size), 2, fork=fork, **WINDOW))
        for size in ("LONG", "SHORT")
    }
    assert found["LONG"] > 0.35, found
    assert found["SHORT"] < found["LONG"] - 0.15, found


def test_behind_the_steps_without_them_reductions_are_as_ever(tmp_path: Path) -> None:
    assert [end.what for end in ended(tmp_path, BEGIN + EAGER.format(size="SHORT"), 2, **WINDOW)] == ["measured"] * 2
    assert "reduces again" in (tmp_path / "rank-1.log").read_text()


GATHERS = """
    for _ in sweeps.steps([None] * 10_000, items=4):
        time.sleep(0.005)
        hvd.allreduce(tf.ones([4]), op=hvd.Sum).numpy()
        hvd.allgather(tf.ones([4])).numpy()
"""
CONCRETE = """
    reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum)).get_concrete_function(tf.TensorSpec([4]))
    for _ in sweeps.steps([None] * 10_000, items=4):
        time.sleep(0.005)
        reduce(tf.ones([4])).numpy()
"""
NONE = """
    for _ in sweeps.steps([None] * 10_000, items=4):
        time.sleep(0.005)
"""
ASSERTS = """
    for _ in sweeps.steps([None] * 10_000, items=4):
        time.sleep(0.005)
        assert hvd.allreduce(tf.ones([4]), op=hvd.Sum).numpy()[0] == 2
"""
EXITS = ASSERTS.replace("assert", "if not").replace("== 2", "== 2: raise SystemExit(3)")
BREAKS = ASSERTS.replace("assert", "if not").replace("== 2", "== 2: break")


UNSEEN = "no reduction of horovod.tensorflow was seen"
IN_A_STEP = "in a step without its reductions"


@pytest.mark.parametrize(
    ("text", "why", "has_input", "fork"),
    [
        (CONCRETE, "a graph that was traced before", True, True),
        (CONCRETE, UNSEEN, True, False),  # Horovod comes with the script: before its first step nobody notices
        *((GATHERS, "by hvd.allgather too", True, fork) for fork in (True, False)),
        *((NONE, UNSEEN, True, fork) for fork in (True, False)),
        *((text, IN_A_STEP, False, fork) for text in (ASSERTS, EXITS, BREAKS) for fork in (True, False)),
    ],
)
def test_where_they_can_t_be_left_out_the_window_stands_and_says_why(
    tmp_path: Path, text: str, why: str, has_input: bool, fork: bool
) -> None:
    ends = ended(tmp_path, BEGIN + text, 2, fork=fork, **WINDOW)
    assert [end.what for end in ends] == ["measured"] * 2, ends
    for end in ends:
        assert end.report
        assert len(end.report.steps) == 60
        assert "comm" not in end.report.without_ms
        assert ("input" in end.report.without_ms) == has_input
    assert ends[0].report
    assert why in ends[0].report.why_no_comm


def test_a_loop_that_asks_for_itself_is_left_to_it(tmp_path: Path) -> None:
    """Its reduction is twice as long as what it leaves out: the rest stays."""
    text = """
    weights = tf.ones([LONG])
    for _ in sweeps.steps([None] * 10_000, items=4):
        if not sweeps.alone():
            time.sleep(0.005)
        hvd.allreduce(weights, op=hvd.Sum)[0].numpy()
    """
    assert lost(ended(tmp_path, BEGIN + text, 2, **WINDOW)) < 0.5
