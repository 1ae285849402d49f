"""What a user's script can do wrong: each ends its trial with a line that says so, or is measured all the same, and
leaves nothing behind. In real processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest

from tests.integration.clusters import eventually
from tests.integration.test_scripts import ended
from workers.contract import messages
from workers.launch import supervisor, verdict
from workers.launch.bound_log import BoundLog

pytestmark = pytest.mark.usefixtures("fork_server")
SHORT = {"warmup_steps": 5, "measured_steps": 30, "explain": False}
IMPATIENT = messages.Deadlines(step_s=4)  # with what has taken a step
AT_ONCE = messages.Deadlines(build_s=4)  # with what will take none
BOTH = pytest.mark.parametrize("fork", [True, False])  # in a fork of the fork server, and as a process of its own
LOOP = """
import os, sys, time
import sweeps

for n, _ in enumerate(sweeps.steps([None] * 10_000, items=2)):
    time.sleep(0.002)
"""


@BOTH
@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("print('hello')", "no steps", "sweeps.steps(loader"),
        ("raise ValueError('no such layer')", "raised", "ValueError: no such layer"),
        ("import sys; sys.exit(3)", "exited", "exit code 3"),
        ("import sys; sys.exit('no data')", "exited", "exit code 1"),
        ("import sweeps\nfor _ in sweeps.steps(range(4), items=2): pass", "too few steps", "after 4"),
        ("import sweeps\nfor _ in sweeps.steps([], items=2): pass", "no steps", "shorter than a batch"),
        ("import sweeps\nfor _ in sweeps.steps(range(400), items='many'): pass", "items", "'many'"),
        (f"{LOOP}    if n == 20: sys.exit(0)", "too few steps", "after 20"),
        (f"{LOOP}    if n == 20: os._exit(0)", "exited", ""),
        (f"{LOOP}    if n == 20: raise KeyError('lr')", "raised", "KeyError: 'lr'"),
    ],
)
def test_how_a_script_ended_is_said_however_it_was_started(
    tmp_path: Path, text: str, kind: str, said: str, fork: bool
) -> None:
    (end,) = ended(tmp_path, text, fork=fork, **SHORT)
    if kind == "raised" and not fork:  # its own Python has told the log
        kind, said = "exited", "exit code 1"
    assert (end.what, end.kind) == ("failed", kind), end
    assert said in end.message
    assert "Traceback" not in end.message


@pytest.mark.parametrize(
    ("run", "fork"), [("python {file}.py", True), ("python {file}.py", False), ("python -m jobs.train", True)]
)
def test_a_script_that_is_not_there_is_named(tmp_path: Path, run: str, fork: bool) -> None:
    (end,) = ended(tmp_path, "", run=run, fork=fork)
    assert (end.what, end.kind) == ("failed", "no script"), end
    assert run.split()[-1].replace("{file}", str(tmp_path / "script.py")) in end.message


def test_a_module_that_a_script_lacks_is_its_own_mistake(tmp_path: Path) -> None:
    """And no script that is not there."""
    (tmp_path / "jobs.py").write_text("import no_such_module")
    (end,) = ended(tmp_path, "", run="python -m jobs", env={"PYTHONPATH": str(tmp_path)})
    assert (end.kind, end.message) == ("raised", "ModuleNotFoundError: No module named 'no_such_module'")


@BOTH
def test_what_a_script_says_at_its_end_is_in_its_log(tmp_path: Path, fork: bool) -> None:
    (end,) = ended(tmp_path, "import sys; sys.exit('no data in ./here')", fork=fork)
    assert Path(end.log).read_text().splitlines()[0] == "no data in ./here"


@BOTH
@pytest.mark.parametrize(
    ("text", "deadlines", "kind", "said"),
    [
        ("import time; time.sleep(600)", AT_ONCE, "no steps", "no step within 4 s"),
        (f"{LOOP}    if n == 20: time.sleep(600)", IMPATIENT, "stalled", "after step 20"),
    ],
)
def test_a_script_that_takes_no_further_step_is_given_up(
    tmp_path: Path, text: str, deadlines: messages.Deadlines, kind: str, said: str, fork: bool
) -> None:
    (end,) = ended(tmp_path, text, fork=fork, deadlines=deadlines, **SHORT)
    assert (end.what, end.kind) == ("failed", kind), end
    assert said in end.message


def test_lines_that_never_come_are_said_to_be_missing(tmp_path: Path) -> None:
    for text, said in (("print('hello')", "ended without"), ("import time; time.sleep(600)", "no step within 4 s")):
        (end,) = ended(tmp_path, text, lines=r"^step \d+", items=1, deadlines=AT_ONCE, **SHORT)
        assert (end.what, end.kind) == ("failed", "no steps"), end
        assert said in end.message
        assert "measure.lines" in end.message


CATCHES = """
import time
import sweeps

taken = 0
for epoch in range(1000):
    try:
        for _ in sweeps.steps([None] * 12, items=2):
            time.sleep(0.002)
            taken += 1
    except BaseException:
        pass
"""


@BOTH
def test_a_script_that_catches_its_end_in_every_epoch_is_measured_and_trains_no_further(
    tmp_path: Path, fork: bool
) -> None:
    (end,) = ended(tmp_path, f"{CATCHES}print(taken, 'steps')", fork=fork, deadlines=IMPATIENT, **SHORT)
    assert end.what == "measured", end
    assert "35 steps" in Path(end.log).read_text()


@BOTH
def test_a_script_that_catches_its_end_and_goes_on_is_told_to_end(tmp_path: Path, fork: bool) -> None:
    (end,) = ended(tmp_path, f"{CATCHES}        time.sleep(600)", fork=fork, deadlines=IMPATIENT, **SHORT)
    assert (end.what, end.kind) == ("failed", "never ended"), end
    assert "SystemExit" in end.message


@BOTH
def test_a_script_that_has_closed_its_output_is_measured(tmp_path: Path, fork: bool) -> None:
    (end,) = ended(tmp_path, f"import sys; sys.stdout.close()\n{LOOP}", fork=fork, **SHORT)
    assert end.what == "measured", end


@BOTH
def test_a_log_is_held_to_a_bound_and_keeps_its_first_and_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: bool
) -> None:
    most, kept = 1 << 20, 1 << 16
    monkeypatch.setattr(supervisor, "BoundLog", lambda path: BoundLog(path, most, kept))
    text = f"print('the first line')\n{LOOP}    sys.stdout.write(('x' * 999 + '\\n') * 1000)"
    (end,) = ended(tmp_path, text, fork=fork, warmup_steps=5, measured_steps=1000, explain=False)
    log = Path(end.log)
    lines = log.read_text().splitlines()
    assert end.what == "measured", end
    assert log.stat().st_size <= most
    assert lines[0] == "the first line"
    (cut,) = (line for line in lines if line.startswith("["))
    assert "MiB of this log were cut here" in cut
    assert 800 < float(re.search(r"[\d.]+", cut).group()) < 1000  # type: ignore[union-attr]


def test_a_daemon_that_a_script_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """Though it has a session of its own."""
    text = f"""
import os, subprocess, sys

started = "import os, time; os.setsid(); open('{tmp_path}/%s', 'w').write(str(os.getpid())); time.sleep(600)"
if os.fork() == 0:
    if os.fork() == 0:
        exec(started % "one")
    os._exit(0)
subprocess.Popen([sys.executable, "-c", started % "other"])
while not all(os.path.exists(f"{tmp_path}/{{name}}") for name in ("one", "other")):
    pass
{LOOP}"""
    (end,) = ended(tmp_path, text, **SHORT)
    assert end.what == "measured", end
    for name in ("one", "other"):
        assert not psutil.pid_exists(int((tmp_path / name).read_text()))


@BOTH
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{LOOP}    if n == 8: forked = os.fork()", "but this is a process that it forked"),
        (f"import os\nif not os.fork(): raise SystemExit(0)\n{LOOP}", ""),
    ],
)
def test_a_process_that_a_script_forks_is_no_rank(tmp_path: Path, text: str, said: str, fork: bool) -> None:
    """Whether it goes on with the loop, which its log refuses, or comes to its end, of which nothing is said."""
    (end,) = ended(tmp_path, text, fork=fork, **SHORT)
    assert end.what == "measured", end
    assert end.report
    assert end.report.images == 2 * 30
    log = Path(end.log).read_text()
    assert (said in log) if said else ("Traceback" not in log)


def test_one_process_of_a_script_takes_its_steps(tmp_path: Path) -> None:
    """Of two whichever comes first; where that is not the script's own, it ends with what the other was told."""
    (end,) = ended(tmp_path, f"import os; os.fork()\n{LOOP}", fork=False, **SHORT)
    assert end.what == "measured" or end.kind == "exited", end
    assert "a second process" in Path(end.log).read_text()


def test_a_script_whose_children_take_the_steps_is_told_so(tmp_path: Path) -> None:
    text = f"import os\nif os.fork():\n    os.wait()\n    raise SystemExit(0)\n{LOOP}"
    (end,) = ended(tmp_path, text, **SHORT)
    assert (end.what, end.kind) == ("failed", "no steps"), end
    assert "a process that it forked" in Path(end.log).read_text()


def test_a_program_that_ignores_sigterm_is_killed_with_what_it_started(tmp_path: Path) -> None:
    text = f"""
    import os, signal, subprocess, time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open("{tmp_path}/pids", "w").write(f"{{os.getpid()}} {{child.pid}}")
    for n in range(10_000):
        time.sleep(0.002)
        print("step", n)
    """
    (end,) = ended(tmp_path, text, lines=r"^step \d+", items=1, **SHORT)
    assert end.what == "measured", end
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert eventually(lambda: not any(map(psutil.pid_exists, pids)))


@BOTH
def test_a_script_that_changes_its_folder_has_the_fingerprint_of_its_files(tmp_path: Path, fork: bool) -> None:
    """Though the folder that it goes to has gone, and its command names it from where it was started."""
    found = []
    for comment in ("", "", "# edited"):
        text = f"import os, tempfile, shutil\nos.chdir(tempfile.mkdtemp())\nshutil.rmtree(os.getcwd())  {comment}\n"
        here = os.path.relpath(tmp_path / "script.py")
        (end,) = ended(tmp_path, f"{text}{LOOP}", run=f"python {here}", fork=fork, **SHORT)
        assert end.report, end
        found.append(end.report.software)
    assert found[0] == found[1] != found[2]


def test_items_of_each_batch_are_counted_as_they_are(tmp_path: Path) -> None:
    """Of epochs of three batches, whose last is smaller."""
    text = """
    import time
    import sweeps

    for epoch in range(100):
        for batch in sweeps.steps([range(8), range(8), range(2)], items=len):
            time.sleep(0.002)
    """
    (end,) = ended(tmp_path, text, items=8, warmup_steps=6, measured_steps=30, explain=False)
    assert end.report, end
    assert end.report.images == 10 * 18
    (end,) = ended(tmp_path, text, items=4, warmup_steps=6, measured_steps=30, explain=False)
    assert (end.what, end.kind) == ("failed", "items"), end
    (end,) = ended(tmp_path, text.replace("items=len", "items=lambda batch: 0.5"), **SHORT)
    assert (end.what, end.kind) == ("failed", "items"), end


def test_items_that_change_from_loop_to_loop_are_refused(tmp_path: Path) -> None:
    text = """
    import sweeps
    for epoch in range(100):
        for batch in sweeps.steps(range(20), items=4 + epoch): pass
    """
    (end,) = ended(tmp_path, text, **SHORT)
    assert (end.what, end.kind) == ("failed", "items"), end
    assert "4 until step 20, then 5" in end.message


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("last", "kind"), [(0, "no steps"), (3, "too few steps"), (20, "ranks apart")])
def test_a_rank_that_ends_before_the_others_is_named(tmp_path: Path, rank: int, last: int, kind: str) -> None:
    is_it = f"os.environ['SWEEP_RANK'] == '{rank}'"
    text = f"{LOOP}    if n == {last} and {is_it}: break"
    if not last:
        text = f"import os\nif {is_it}: raise SystemExit(0)\n{LOOP}"
    window = {"warmup_steps": 5, "measured_steps": 0, "ci": 0.001, "min_window": 100, "max_steps": 300}
    ends = ended(tmp_path, text, 2, deadlines=IMPATIENT, explain=False, **window)
    found = verdict.culprit(ends)
    assert found
    assert (found.what, found.kind) == ("failed", kind), ends
    if kind == "ranks apart":
        assert f"rank {rank} ended its loop after step 20" in found.message


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_takes_no_step_is_named_and_not_those_that_wait_for_it(tmp_path: Path, rank: int) -> None:
    text = f"import os, time\nif os.environ['SWEEP_RANK'] == '{rank}': time.sleep(600)\n{LOOP}"
    found = verdict.culprit(ended(tmp_path, text, 2, deadlines=AT_ONCE, **SHORT))
    assert found
    assert (found.what, found.kind, found.rank) == ("failed", "no steps", rank)
    assert "took no step" in found.message
