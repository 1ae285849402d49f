"""What a user's script says that it came to, and what it leaves for its next attempt: in real ranks, without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_scripts import ended
from workers.contract.messages import Deadlines
from workers.launch import supervisor, verdict
from workers.launch.bound_log import BoundLog

pytestmark = pytest.mark.usefixtures("fork_server")
STARTS = pytest.mark.parametrize("fork", [True, False], ids=["forked", "started"])
LEARNING = {"protocol": "convergence", "epochs": 3, "measured_steps": 0, "max_steps": 0, "explain": False}
AT_ONCE = Deadlines(build_s=4)  # with what will report nothing


REPORTING = """
    import sweeps, time

    for n, _ in enumerate(sweeps.steps(range(10_000), items=4)):
        time.sleep(0.002)
        if n % 10 == 9:
            sweeps.report(loss=1 / (n + 1), auc=n)
"""


@STARTS
def test_reports_of_a_timed_window_come_with_it(tmp_path: Path, fork: bool) -> None:
    """Those of the steps from which a part was taken away, behind the window, do not."""
    ends = ended(tmp_path, REPORTING, 2, fork=fork, warmup_steps=5, measured_steps=45)
    assert [end.what for end in ends] == ["measured"] * 2, ends
    first, second = (end.report for end in ends)
    assert first
    assert second
    assert first.without_ms
    assert [(one.epoch, one.own["auc"]) for one in first.epochs] == [(n + 1, 10 * n + 9) for n in range(5)]
    assert first.epochs[-1].loss == pytest.approx(1 / 50)
    assert not second.epochs


LEARNS = """
    import sweeps, time

    for epoch in range(1, 4):
        for _ in sweeps.steps([None] * 20, items=4):
            time.sleep(0.002)
        time.sleep(0.2)  # a validation
        sweeps.report(loss=1 / epoch, top1=0.3 * epoch, epoch=epoch)
    print("came to its end")
"""


@STARTS
@pytest.mark.parametrize("size", [1, 2])
def test_a_convergence_trial_runs_to_the_script_s_own_end(tmp_path: Path, size: int, fork: bool) -> None:
    ends = ended(tmp_path, LEARNS, size, fork=fork, **LEARNING)
    assert [end.what for end in ends] == ["measured"] * size, ends
    first = ends[0].report
    assert first
    assert [(one.epoch, one.top1) for one in first.epochs] == [(1, 0.3), (2, 0.6), (3, pytest.approx(0.9))]
    assert first.images == 59 * 4, "all steps but the first"
    assert first.window_s < 3 * 0.2, "time between two loops is in no rate"
    assert all(one.train_s >= 0.2 for one in first.epochs)
    assert "came to its end" in (tmp_path / "rank-0.log").read_text()


@STARTS
def test_a_convergence_trial_without_a_report_is_said(tmp_path: Path, fork: bool) -> None:
    (end,) = ended(tmp_path, "import sweeps\nfor _ in sweeps.steps(range(20), items=2): pass", fork=fork, **LEARNING)
    assert (end.what, end.kind) == ("failed", "no reports"), end
    assert "sweeps.report" in end.message


@STARTS
def test_a_report_that_can_t_be_one_is_said(tmp_path: Path, fork: bool) -> None:
    (end,) = ended(tmp_path, "import sweeps\nsweeps.report(top1=76)", fork=fork, **LEARNING)
    assert (end.what, end.kind) == ("failed", "report"), end
    assert "share from 0 to 1" in end.message


def test_a_program_that_is_timed_by_its_lines_reports_too(tmp_path: Path) -> None:
    text = """
        import sweeps, time
        for n in range(10_000):
            time.sleep(0.005)
            print("step", n)
            if n == 20:
                sweeps.report(loss=0.5)
    """
    (end,) = ended(tmp_path, text, lines=r"^step \d+", items=32, warmup_steps=5, measured_steps=30)
    assert end.what == "measured", end
    assert end.report
    assert [one.loss for one in end.report.epochs] == [0.5]


TO_A_TARGET = """
    import sweeps

    for epoch in range(1, 10):
        sweeps.report(loss=1 / epoch)
    print("came to its end")
"""


@STARTS
@pytest.mark.parametrize("size", [1, 2])
def test_a_rank_that_is_alone_ends_at_its_target_and_others_go_on(tmp_path: Path, size: int, fork: bool) -> None:
    ends = ended(tmp_path, TO_A_TARGET, size, fork=fork, targets={"loss": "<= 0.25"}, **LEARNING)
    assert [end.what for end in ends] == ["measured"] * size, ends
    assert ends[0].report
    assert ends[0].report.reached_target
    assert len(ends[0].report.epochs) == (4 if size == 1 else 9)
    assert ("came to its end" in (tmp_path / "rank-0.log").read_text()) == (size > 1)


def test_a_fit_that_is_alone_ends_at_its_target(tmp_path: Path) -> None:
    (end,) = ended(tmp_path, FITS, targets={"val_loss": "<= 1000"}, **LEARNING)
    assert end.report, end
    assert end.report.reached_target
    assert len(end.report.epochs) == 1


RESUMING = """
    import sys
    import sweeps

    kept = sweeps.checkpoint_dir() / "epoch"
    done = int(kept.read_text()) if kept.exists() else 0
    for epoch in range(done + 1, 4):
        sweeps.report(loss=1 / epoch, epoch=epoch)
        kept.write_text(str(epoch))
        if epoch == 2 and not done:
            sys.exit(7)
"""


@STARTS
def test_the_next_attempt_finds_what_the_one_before_has_left(tmp_path: Path, fork: bool) -> None:
    (first,) = ended(tmp_path, RESUMING, fork=fork, **LEARNING)
    assert (first.what, first.kind, first.exit_code) == ("failed", "exited", 7), first
    (second,) = ended(tmp_path, RESUMING, fork=fork, **LEARNING)
    assert second.what == "measured", second
    assert second.report
    assert [one.epoch for one in second.report.epochs] == [3]
    assert not second.report.begun_anew
    assert first.report is None
    assert second.report.gone_on_from == 2
    (edited,) = ended(tmp_path, f"{RESUMING}\n    print('edited')", fork=fork, **LEARNING)
    assert edited.exit_code == 7, "another version of the script begins anew"


@STARTS
def test_an_edited_script_begins_anew_and_that_is_said(tmp_path: Path, fork: bool) -> None:
    text = "import sweeps\n(sweeps.checkpoint_dir() / 'x').write_text('x')\nsweeps.report(loss=1)"
    for edited in ("", "# edited"):
        (end,) = ended(tmp_path, text + edited, fork=fork, **LEARNING)
        assert end.report, end
        assert ("begins anew" in end.report.begun_anew) == bool(edited)


@STARTS
def test_a_bad_end_has_its_exit_code_and_its_last_lines(tmp_path: Path, fork: bool) -> None:
    text = """
        import sys
        for n in range(100):
            print("line", n)
        print("password=hunter2hunter2")
        sys.exit(3)
    """
    (end,) = ended(tmp_path, text, fork=fork)
    assert (end.what, end.kind, end.exit_code) == ("failed", "exited", 3), end
    assert end.last_lines[-2:] == ("line 99", "password=***")
    assert len(end.last_lines) == 8


@STARTS
def test_an_error_of_a_script_is_in_the_last_lines(tmp_path: Path, fork: bool) -> None:
    (end,) = ended(tmp_path, "layers = {}\nlayers['conv7']", fork=fork)
    assert end.what == "failed", end
    assert end.last_lines[-1] == "KeyError: 'conv7'"


@STARTS
@pytest.mark.parametrize(
    "text",
    ["import numpy\nnumpy.ones([1 << 44])", "raise MemoryError", "raise RuntimeError('CUDA out of memory. Tried')"],
)
def test_memory_that_ran_out_is_infeasible_whoever_s_code_it_was(tmp_path: Path, text: str, fork: bool) -> None:
    (end,) = ended(tmp_path, text, fork=fork)
    assert end.what == "infeasible", end
    assert end.kind == ("device memory" if "CUDA" in text else "host memory")


def test_what_a_script_has_started_counts_for_its_memory(tmp_path: Path) -> None:
    text = """
        import time
        held = bytearray(400 << 20)
        for n in range(0, len(held), 4096):
            held[n] = 1
        time.sleep(60)
    """
    (end,) = ended(tmp_path, text, fork=False, worker_memory_gib=0.5)
    assert (end.what, end.kind) == ("infeasible", "host memory"), end
    assert "worker_memory_gib" in end.message


LENGTHS = """
    import sys, time
    import sweeps
    time.sleep(4)  # to start takes as long as two times the 100 steps
    for _ in range(int(sys.argv[1])):
        time.sleep(0.02)
    sweeps.report(loss=int(sys.argv[1]))
"""


@pytest.mark.parametrize("size", [1, 2])
def test_two_lengths_give_the_time_of_a_step_without_the_start(tmp_path: Path, size: int) -> None:
    ends = ended(tmp_path, LENGTHS, size, run="python {file} {steps}", lengths=(10, 110), items=8 * size)
    assert [end.what for end in ends] == ["measured"] * size, ends
    for end in ends:
        assert end.report
        assert end.report.images == 100 * 8
        assert end.report.measured_by == "two lengths"
        step_s = end.report.window_s / 100
        # One start is up to a second longer than the next on a busy machine, which is half of what 100 steps take.
        assert 0.02 * 0.5 < step_s < 0.02 * 1.5, "with its start the longer run would say 0.02 × 2.8"
    assert ends[0].report
    assert ends[0].report.window
    assert ends[0].report.window.withheld
    assert [one.loss for one in ends[0].report.epochs] == [110.0]


def test_ranks_that_horovod_joins_meet_at_each_length(tmp_path: Path) -> None:
    text = """
        import sys, time
        import horovod.tensorflow as hvd
        import tensorflow as tf
        hvd.init()
        for n in range(int(sys.argv[1])):
            time.sleep(0.05)  # so that all steps take longer than a start varies by
            assert hvd.allreduce(tf.ones([4]), op=hvd.Sum).numpy()[0] == 2
    """
    ends = ended(
        tmp_path, text, 2, run="python {file} {steps}", lengths=(5, 250), items=16, ranks="horovod", fork=False
    )
    assert [end.what for end in ends] == ["measured"] * 2, ends


def test_a_length_that_makes_no_difference_is_said(tmp_path: Path) -> None:
    text = "import sys, time\ntime.sleep(1.0 if sys.argv[1] == '10' else 0.1)"
    (end,) = ended(tmp_path, text, run="python {file} {steps}", lengths=(10, 60), items=8)
    assert (end.what, end.kind) == ("failed", "no slope"), end
    assert "60 steps must take longer than 10" in end.message


@STARTS
def test_batches_that_are_not_alike_count_as_they_are_in_a_course(tmp_path: Path, fork: bool) -> None:
    text = """
        import sweeps

        for epoch in range(3):
            for _ in sweeps.steps([range(8), range(8), range(2)], items=len): pass
            sweeps.report(loss=1)
    """
    (end,) = ended(tmp_path, text, fork=fork, **LEARNING)
    assert end.report, end
    assert end.report.images == 3 * 18 - 8, "all steps but the first"


@STARTS
def test_ranks_whose_courses_are_not_alike_are_named(tmp_path: Path, fork: bool) -> None:
    text = """
        import os, sweeps
        for _ in sweeps.steps(range(20 + int(os.environ["SWEEP_RANK"])), items=2): pass
        sweeps.report(loss=1)
    """
    found = verdict.culprit(ended(tmp_path, text, 2, fork=fork, **LEARNING))
    assert found
    assert (found.what, found.kind) == ("failed", "ranks apart"), found
    assert "rank 1 ended its loop after step 21, and rank 0 ended its loop after step 20" in found.message


@STARTS
def test_a_process_that_a_script_forks_reports_nothing(tmp_path: Path, fork: bool) -> None:
    """Its log says why; so does that of one which would take a rank's place."""
    text = """
        import os, sweeps

        sweeps.report(loss=0.5)
        if not os.fork():
            sweeps.report(loss=0.1)
        os.wait()
    """
    (end,) = ended(tmp_path, text, fork=fork, **LEARNING)
    assert end.report, end
    assert [one.loss for one in end.report.epochs] == [0.5]
    log = Path(end.log).read_text()
    assert "but this is a process that it forked" in log
    assert "Traceback" not in log


@STARTS
def test_an_end_that_leaves_nothing_is_none(tmp_path: Path, fork: bool) -> None:
    (end,) = ended(tmp_path, "import os, sweeps\nsweeps.report(loss=1)\nos._exit(0)", fork=fork, **LEARNING)
    assert (end.what, end.kind) == ("failed", "exited"), end


@STARTS
def test_the_first_rank_s_reports_suffice_where_none_takes_steps(tmp_path: Path, fork: bool) -> None:
    text = """
        import os, sweeps, time
        for epoch in range(6):
            time.sleep(1)
            if os.environ["SWEEP_RANK"] == "0":
                sweeps.report(loss=1)
    """
    ends = ended(tmp_path, text, 2, fork=fork, deadlines=AT_ONCE, **LEARNING)
    assert [end.what for end in ends] == ["measured"] * 2, ends
    assert ends[0].report
    assert len(ends[0].report.epochs) == 6


@STARTS
def test_steps_must_be_taken_by_all_ranks_though_the_first_reports(tmp_path: Path, fork: bool) -> None:
    text = """
        import os, sweeps
        if os.environ["SWEEP_RANK"] == "0":
            for _ in sweeps.steps(range(20), items=2): pass
            sweeps.report(loss=1)
    """
    found = verdict.culprit(ended(tmp_path, text, 2, fork=fork, **LEARNING))
    assert found
    assert (found.what, found.kind) == ("failed", "ranks apart"), found
    assert "rank 1 ended its loop after step 0, and rank 0 goes on after step 1" in found.message


FITS = """
    import keras
    import numpy as np

    x, y = np.random.rand(512, 8), np.random.randint(0, 3, 512)
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(x, y, batch_size=32, epochs=3, verbose=0, validation_data=(x, y))
"""


@pytest.mark.parametrize("items", [0, 32])
def test_what_fit_says_of_its_epochs_are_results_without_an_edit(tmp_path: Path, items: int) -> None:
    (end,) = ended(tmp_path, FITS, items=items, **LEARNING)
    assert end.what == "measured", end
    assert end.report
    assert [one.epoch for one in end.report.epochs] == [1, 2, 3]
    own = {f"reported.{name}" for name in ("accuracy", "val_accuracy", "val_loss")}
    assert all(one.figures.keys() == {"loss", *own} for one in end.report.epochs)
    assert end.report.images == items * (3 * 16 - 1), "all steps but the first, where they are counted"


def test_what_fit_says_of_the_epochs_of_a_window_comes_with_it(tmp_path: Path) -> None:
    (end,) = ended(tmp_path, FITS, items=32, warmup_steps=5, measured_steps=30)
    assert end.report, end
    assert [one.epoch for one in end.report.epochs] == [1, 2], "the third was not finished"


def test_what_a_script_reports_itself_goes_before_what_fit_says(tmp_path: Path) -> None:
    text = f"{FITS}\n    import sweeps\n    sweeps.report(loss=9.0)"
    (end,) = ended(tmp_path, text, **LEARNING)
    assert end.report, end
    assert [one.figures.get("loss") for one in end.report.epochs] == [None, None, 9.0]
    assert all("accuracy" in one.own for one in end.report.epochs)


@STARTS
def test_a_script_that_reports_no_further_is_given_up(tmp_path: Path, fork: bool) -> None:
    text = "import sweeps, time\nsweeps.report(loss=1)\ntime.sleep(600)"
    (end,) = ended(tmp_path, text, fork=fork, deadlines=AT_ONCE, **LEARNING)
    assert (end.what, end.kind) == ("failed", "stalled"), end
    assert "must take steps, on all ranks, or report, on the first, but did not for 4 s" in end.message


def test_a_length_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    text = "import sys, time\ntime.sleep(600 if sys.argv[1] == '60' else 0.1)"
    run, lengths = "python {file} {steps}", (10, 60)
    (end,) = ended(tmp_path, text, run=run, lengths=lengths, items=8, deadlines=AT_ONCE)
    assert (end.what, end.kind) == ("failed", "never ended"), end
    assert "within 4 s for each of its lengths" in end.message


def test_a_script_of_two_lengths_that_is_not_there_is_named(tmp_path: Path) -> None:
    (end,) = ended(tmp_path, "", run="python {file}.py {steps}", lengths=(10, 60), items=8)
    assert (end.what, end.kind) == ("failed", "no script"), end


@STARTS
def test_the_last_lines_of_a_log_that_was_cut_are_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: bool
) -> None:
    """Though it was longer when the attempt began than it is now."""
    monkeypatch.setattr(supervisor, "BoundLog", lambda path: BoundLog(path, 1 << 20, 1 << 16))
    (tmp_path / "rank-0.log").write_text(("an earlier attempt" + " " * 981 + "\n") * 1000)
    text = "import sys\nsys.stdout.write(('x' * 99 + '\\n') * 1000)\nprint('no data')\nsys.exit(3)"
    (end,) = ended(tmp_path, text, fork=fork)
    assert end.exit_code == 3, end
    assert end.last_lines[-1] == "no data"
