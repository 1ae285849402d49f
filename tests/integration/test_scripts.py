"""A user's own script as a trial's ranks: started, joined, measured and ended, in real processes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.integration.gangs import gang
from workers.contract.messages import Script
from workers.launch.supervisor import RankEnd

ENTRY = "workers.workloads.script.run:run"
pytestmark = pytest.mark.usefixtures("fork_server")


def ended(folder: Path, text: str, size: int = 1, run: str = "python {file}", **fields: object) -> list[RankEnd]:
    """How the ranks of a gang end that run a script of this text."""
    file = folder / "script.py"
    file.write_text(textwrap.dedent(text))
    own = {"ranks": "none", "items": 0, "unit": "items", "fork": True, "lines": "", "lengths": ()}
    asked = {name: fields.pop(name, value) for name, value in own.items()}
    script = Script(run=run.replace("{file}", str(file)), **asked)  # type: ignore[arg-type]
    return gang(size, folder, ENTRY, script=script, isolation="shared", **fields)


BUSY = """
    import sys, time
    import sweeps

    def batches():
        while True:
            yield None

    for _ in sweeps.steps(batches(), items=4):
        time.sleep({ms} / 1e3)
"""


@pytest.mark.parametrize("fork", [True, False])
@pytest.mark.parametrize("size", [1, 2])
def test_a_loop_is_measured_in_the_window_that_is_asked_for(tmp_path: Path, size: int, fork: bool) -> None:
    ends = ended(tmp_path, BUSY.format(ms=5), size, fork=fork, warmup_steps=10, measured_steps=40)
    assert [end.what for end in ends] == ["measured"] * size, ends
    for end in ends:
        assert end.report
        assert end.report.images == 4 * 40
        assert len(end.report.steps) == 40
        assert end.report.measured_by == "sweeps.steps"
        assert end.report.window_s >= 40 * 5e-3
        assert sum(step.step_ms for step in end.report.steps) / 1e3 <= end.report.window_s * 1.001


def test_python_is_the_one_that_runs_the_rank_whatever_is_activated(tmp_path: Path) -> None:
    """A shell that has activated no environment finds another Python, or none."""
    (end,) = ended(tmp_path, BUSY.format(ms=5), fork=False, warmup_steps=5, measured_steps=30, env={"PATH": "/usr/bin"})
    assert end.what == "measured", end


def test_ranks_end_at_the_same_step_when_the_interval_is_narrow_enough(tmp_path: Path) -> None:
    ends = ended(
        tmp_path, BUSY.format(ms=5), 2, measured_steps=0, max_steps=2000, ci=0.05, min_window=40, explain=False
    )
    assert [end.what for end in ends] == ["measured"] * 2, ends
    first, second = (end.report for end in ends)
    assert first
    assert second
    assert first.window
    assert first.window.stopped_by == "interval"
    assert len(first.steps) == len(second.steps) < 1900


def test_lines_that_a_program_prints_are_its_steps(tmp_path: Path) -> None:
    text = """
        import time
        for n in range(10_000):
            time.sleep(0.005)
            print("step", n)
    """
    (end,) = ended(tmp_path, text, lines=r"^step \d+", items=32, warmup_steps=5, measured_steps=30)
    assert end.what == "measured", end
    assert end.report
    assert end.report.images == 30 * 32
    assert end.report.measured_by == "lines that it prints"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("print('hello')", "no steps", "sweeps.steps"),
        ("raise ValueError('no such layer')", "raised", "ValueError: no such layer"),
        ("import sys; sys.exit(3)", "exited", "exit code 3"),
        ("import sweeps\nfor _ in sweeps.steps(range(4), items=2): pass", "too few steps", "after 4"),
        ("import sweeps\nfor _ in sweeps.steps(range(400), items=0.5): pass", "items", "0.5"),
    ],
)
def test_what_a_script_does_wrong_is_said(tmp_path: Path, text: str, kind: str, said: str) -> None:
    (end,) = ended(tmp_path, text, warmup_steps=5, measured_steps=30)
    assert (end.what, end.kind) == ("failed", kind), end
    assert said in end.message


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    (end,) = ended(tmp_path, "", run="no-such-program --x", fork=False)
    assert (end.what, end.kind) == ("failed", "no program")
    assert "no-such-program" in end.message


@pytest.mark.parametrize("fork", [True, False])
def test_an_edited_script_has_another_fingerprint(tmp_path: Path, fork: bool) -> None:
    """So has a script whose module was edited; the same one has the same."""
    text = "import helper, sweeps\nfor _ in sweeps.steps([None] * helper.STEPS, items=2): pass"
    found = []
    for steps, comment in ((40, ""), (40, ""), (40, "# edited"), (41, "")):
        (tmp_path / "helper.py").write_text(f"STEPS = {steps}")
        (end,) = ended(tmp_path, f"{text}  {comment}", fork=fork, warmup_steps=5, measured_steps=30, explain=False)
        assert end.report, end
        found.append(end.report.software)
    first, again, edited_script, edited_module = found
    assert first == again
    assert len({first, edited_script, edited_module}) == 3


FIT = """
    import keras
    import numpy as np

    x, y = np.random.rand(512, 8), np.random.randint(0, 3, 512)
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=32, epochs=50, verbose=0, validation_data=(x, y))
"""


def test_a_script_that_trains_by_fit_is_measured_as_it_is(tmp_path: Path) -> None:
    """Over several epochs: 16 steps each, and a validation between two that belongs to no step."""
    (end,) = ended(tmp_path, FIT, items=32, warmup_steps=10, measured_steps=40)
    assert end.what == "measured", end
    assert end.report
    assert end.report.measured_by == "Keras' fit"
    assert (len(end.report.steps), end.report.images) == (40, 40 * 32)
    (end,) = ended(tmp_path, FIT, warmup_steps=10, measured_steps=40)
    assert (end.what, end.kind) == ("failed", "items")


def test_a_reduction_that_the_loop_can_leave_out_has_its_share(tmp_path: Path) -> None:
    """Half of a step computes, half reduces: both sleep, so that a busy machine adds to both."""
    text = """
        import time
        import sweeps

        for _ in sweeps.steps([None] * 10_000, items=4):
            time.sleep(0.02)
            if not sweeps.alone():
                time.sleep(0.02)
    """
    ends = ended(tmp_path, text, 2, warmup_steps=5, measured_steps=80)
    assert [end.what for end in ends] == ["measured"] * 2, ends
    for end in ends:
        assert end.report
        whole, bare = (sum(map(sum, end.report.without_ms[part])) for part in ("nothing", "comm"))  # type: ignore[index]
        assert 1 - bare / whole == pytest.approx(0.5, abs=0.1)


def test_horovod_joins_the_ranks_of_a_script(tmp_path: Path) -> None:
    text = """
        import horovod.tensorflow as hvd
        import tensorflow as tf
        import sweeps

        hvd.init()
        weights = tf.ones([1000])
        for batch in sweeps.steps([tf.ones([1000])] * 100, items=8):
            mean = hvd.allreduce(weights * batch, op=hvd.Average).numpy()
        assert hvd.size() == 2
    """
    ends = ended(tmp_path, text, 2, ranks="horovod", warmup_steps=5, measured_steps=30)
    assert [end.what for end in ends] == ["measured"] * 2, ends
