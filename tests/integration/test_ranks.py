"""Real ranks, forked by a real fork server and joined by Horovod, without Ray: how each can end."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.integration import bad_ranks
from tests.integration.gangs import KEY, end_of, gang
from tests.unit.records import config
from workers.contract import messages
from workers.contract.paths import fork_server_address
from workers.contract.ranks import Seat
from workers.launch import verdict
from workers.launch.supervisor import Order

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]


STOPPED = "stopped answering after step 3: no progress for 2 s; the process is stopped (SIGSTOP)"


def ranks_alive(fork_server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(fork_server.pid).children(recursive=True)


@pytest.mark.parametrize("size", [1, 2])
def test_a_sound_gang_measures_every_step(fork_server: subprocess.Popen[bytes], size: int, tmp_path: Path) -> None:
    outcome = verdict.outcome(gang(size, tmp_path), ())
    assert outcome.status == "completed"
    assert outcome.measurement
    assert [len(rank.steps) for rank in outcome.measurement.ranks] == [5] * size
    assert outcome.measurement.images == 5 * 8 * size
    assert not ranks_alive(fork_server)


def test_a_rank_that_starts_as_a_process_of_its_own_is_known_by_the_same_code_as_one_that_is_forked(
    fork_server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (forked,) = gang(1, tmp_path / "forked")
    (own,) = gang(1, tmp_path / "own", env={"OMP_WAIT_POLICY": "passive"})
    assert forked.report
    assert own.report
    assert own.report.software == forked.report.software
    assert own.report.in_force["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(
    ("how", "status", "kind", "message"),
    [
        (bad_ranks.RAISES, "failed", "raised", "ValueError: planted"),
        (bad_ranks.KILLED, "failed", "killed", "killed by signal 9 (SIGKILL)"),
        (bad_ranks.STOPPED, "failed", "stalled", STOPPED),
        (bad_ranks.NEVER_JOINS, "failed", "no rendezvous", "did not join the ring within 3 s"),
        (bad_ranks.EXITS, "failed", "exited", "ended with exit code 7 and no result"),
        (bad_ranks.NO_MEMORY, "infeasible", "host memory", "planted: 12 GiB"),
    ],
)  # fmt: skip
def test_a_rank_that_goes_wrong_is_the_cause_and_none_is_left(
    fork_server: subprocess.Popen[bytes], tmp_path: Path, how: int, status: str, kind: str, message: str
) -> None:
    outcome = verdict.outcome(gang(2, tmp_path, batch_size=how), ())
    assert (outcome.status, outcome.kind, outcome.message) == (status, kind, message)
    assert outcome.rank == bad_ranks.BAD_RANK
    assert outcome.log == str(tmp_path / "rank-1.log")
    assert not ranks_alive(fork_server)
    assert fork_server.poll() is None


def test_a_rank_s_log_holds_its_traceback(fork_server: subprocess.Popen[bytes], tmp_path: Path) -> None:
    gang(2, tmp_path, batch_size=bad_ranks.RAISES)
    log = (tmp_path / "rank-1.log").read_text()
    assert "Traceback" in log
    assert "ValueError: planted\nwith a second line" in log


def test_trials_do_not_taint_each_other(fork_server: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Each rank is a fresh process: what one sets or takes is gone with it."""
    before = psutil.Process(fork_server.pid).memory_info().rss
    for precision in ("bf16", "fp32", "bf16"):
        outcome = verdict.outcome(gang(1, tmp_path, precision=precision), ())
        assert outcome.status in ("completed", "infeasible")
    assert psutil.Process(fork_server.pid).memory_info().rss < before * 1.1


def test_an_unsupported_precision_is_infeasible(fork_server: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (end,) = gang(1, tmp_path, precision="tf32")
    assert (end.what, end.kind) == ("infeasible", "precision not supported here")
    assert "but not tf32" in end.message


def test_ranks_die_with_a_fork_server_that_is_killed(left_behind: Callable[[], list[str]], tmp_path: Path) -> None:
    key = f"{KEY}-doomed"
    command = [sys.executable, "-m", "workers.launch.fork_server", fork_server_address(key)[1:]]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seat = Seat(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1, host="127.0.0.1")
    trial = dataclasses.replace(config(), batch_size=bad_ranks.NEVER_JOINS, deadlines=messages.Deadlines())
    order = Order(config=trial, seat=seat, entry="tests.integration.bad_ranks:run", env={}, log=str(tmp_path / "log"))
    with ThreadPoolExecutor() as pool:
        run = pool.submit(end_of, order, key)
        while not Path(order.log).exists():  # an import may have children of its own for a moment
            time.sleep(0.05)
        (rank,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        end = run.result(timeout=10)
    assert (end.what, end.kind) == ("failed", "fork server gone")
    process.wait()
    psutil.wait_procs([rank], timeout=5)
    assert not rank.is_running()


def test_no_fork_server_is_a_failure_within_its_deadline() -> None:
    trial = dataclasses.replace(config(), deadlines=messages.Deadlines(fork_server_s=0.2))
    seat = Seat(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1, host="127.0.0.1")
    end = end_of(Order(config=trial, seat=seat, entry="x:y", env={}, log="/dev/null"), "nobody")
    assert (end.what, end.kind) == ("failed", "no fork server")
