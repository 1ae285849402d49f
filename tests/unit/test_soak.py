"""A soak's parts that need no hosts: which fault when, what its verdicts find in planted data, a clock that is off."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.record import ledger, ownership
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.cluster import clocks, soak, verdicts
from tests.cluster.schedule import EVERY_S, KINDS, OFF_BY_S, SHORTEST_MIN, Fault, schedule
from tests.cluster.verdicts import (
    FILES,
    FLAT_FILES_PER_H,
    FLAT_MIB_PER_H,
    FULL_MIN,
    Content,
    Duration,
    Line,
    Reading,
    Run,
    Seen,
    Stray,
    Swept,
    Timed,
)
from tests.unit.records import config, record
from workers.contract.messages import TrialConfig, TrialOutcome
from workers.node import start_from_source

MINUTES = st.floats(SHORTEST_MIN, 600)
SEEDS = st.integers(0, 2**32)

# ── Which fault when ─────────────────────────────────────────────────────────────────────────────────────────────────


@given(MINUTES, SEEDS, st.sets(st.sampled_from(KINDS), min_size=1))
def test_every_fault_happens_once_before_any_happens_again(minutes: float, seed: int, kinds: set[Any]) -> None:
    drawn = [fault.kind for fault in schedule(minutes, sorted(kinds), 2, seed)]
    assert len(drawn) >= len(kinds)
    for first in range(0, len(drawn), len(kinds)):
        round_ = drawn[first : first + len(kinds)]
        assert len({*round_}) == len(round_)
    assert {*drawn} == kinds


@given(MINUTES, SEEDS)
def test_a_fault_is_over_before_the_next_and_before_the_end(minutes: float, seed: int) -> None:
    faults = schedule(minutes, KINDS, 2, seed)
    ends = [*(fault.at_s for fault in faults[1:]), minutes * 60 + EVERY_S / 3]
    assert all(fault.at_s + fault.lasts_s < end for fault, end in zip(faults, ends, strict=True))
    assert all(0 < fault.at_s < minutes * 60 and fault.worker in (0, 1) for fault in faults)


def test_forty_minutes_have_a_fault_every_three_and_four_have_each_once() -> None:
    faults = schedule(40, KINDS, 2, seed=1)
    assert [fault.at_s for fault in faults] == [180.0 * n for n in range(1, 14)]
    assert {fault.lasts_s for fault in faults if fault.kind in ("disk full", "clock off")} == {60.0}
    assert sorted(fault.kind for fault in schedule(4, KINDS, 2, seed=1)) == sorted(KINDS)


def test_a_seed_is_an_order_and_others_are_others() -> None:
    assert schedule(40, KINDS, 2, seed=3) == schedule(40, KINDS, 2, seed=3)
    assert len({tuple(fault.kind for fault in schedule(40, KINDS, 2, seed)) for seed in range(20)}) > 15


def test_clocks_that_are_off_are_now_ahead_and_now_behind() -> None:
    for seed in range(20):
        off = [fault.off_by_s for fault in schedule(120, KINDS, 2, seed) if fault.kind == "clock off"]
        first = OFF_BY_S if seed % 2 else -OFF_BY_S
        assert off == [first * (-1) ** n for n in range(len(off))]
        assert len(off) > 4
    assert not any(fault.off_by_s for fault in schedule(120, KINDS, 2, 1) if fault.kind != "clock off")
    assert str(Fault(60, "clock off", 0, 60, -30)) == "minute  1.0  clock off of node1, 30 s behind, for 60 s"


# ── What is found in what was gathered ───────────────────────────────────────────────────────────────────────────────

TRIALS = ("a-0", "a-1", "b-0", "b-1")
CONTENT = Content("FINISHED", 1_700_000_000_250, 0.1 + 0.2)
ON_A_HOST = (
    *(Seen(1, "sshd", (22,)), Seen(7, "raylet", (40001, 40002))),
    *(Seen(8, "ray::DashboardAgent", (40003, 40004, 40005)), Seen(9, "bash node")),
)
FAULTS = schedule(40, KINDS, 2, seed=1)
SAYS = "every run says what the ledger says"


@dataclasses.dataclass
class Gathered:
    """At the end of a soak in which all went well."""

    ended: list[tuple[str, str]] = dataclasses.field(default_factory=lambda: [(one, "completed") for one in TRIALS])
    runs: list[Run] = dataclasses.field(default_factory=lambda: [Run("soak", one, CONTENT) for one in ("", *TRIALS)])
    contents: dict[str, Content] = dataclasses.field(default_factory=lambda: dict.fromkeys(TRIALS, CONTENT))
    processes: list[Seen] = dataclasses.field(default_factory=lambda: [*ON_A_HOST])
    groups: list[str] = dataclasses.field(default_factory=lambda: ["REMOVED"] * len(TRIALS))
    strays: list[Stray] = dataclasses.field(default_factory=list)
    power_cuts: list[float] = dataclasses.field(default_factory=lambda: [1000.0])
    happened: list[Fault] = dataclasses.field(default_factory=lambda: [*FAULTS])
    ended_by: list[str] = dataclasses.field(default_factory=lambda: ["driver killed", "disk full"])
    durations: list[Duration] = dataclasses.field(
        default_factory=lambda: [Duration("a-0", "trial_s", 4.0), Duration("a-0", "launch_s", 1.0, 4.0)]
    )
    gpu_hours: float = 0.02
    is_read_to_the_end: bool = True

    def lines(self) -> list[Line]:
        sweeps = [Swept("soak", TRIALS, self.ended, self.contents)]
        return [
            *verdicts.of_ledgers(sweeps),
            verdicts.of_trials(sweeps, minutes=0.4),
            *verdicts.of_times([Timed("soak", 60.0, self.durations, self.gpu_hours, slots=4)]),
            *verdicts.of_mlflow(sweeps, self.runs),
            *verdicts.of_processes({"node1": ON_A_HOST}, {"node1": self.processes}),
            verdicts.of_groups(self.groups),
            verdicts.of_files(self.strays, self.power_cuts),
            verdicts.of_faults(FAULTS, self.happened),
            verdicts.of_drivers(self.ended_by),
            verdicts.of_reader(self.is_read_to_the_end, readings([(0.0, 1.0)], 0)),
        ]


def failed(gathered: Gathered) -> dict[str, str]:
    return {line.what: line.told for line in gathered.lines() if line.verdict == "fail"}


def test_where_all_went_well_every_line_passes() -> None:
    lines = Gathered().lines()
    assert {line.verdict for line in lines} == {"pass"}
    assert not verdicts.has_failed(lines)
    assert len({line.what for line in lines}) == len(lines) == 15


def lose(of: Gathered) -> None:
    of.ended.pop()


def repeat(of: Gathered) -> None:
    of.ended.append(("a-1", "completed"))


def cancel_afterwards(of: Gathered) -> None:
    of.ended.append(("a-1", "cancelled"))


def add_another(of: Gathered) -> None:
    of.ended.append(("c-0", "completed"))


def fail_one(of: Gathered) -> None:
    of.ended[2] = ("b-0", "failed")


def lose_run(of: Gathered) -> None:
    of.runs.pop()


def lose_own_run(of: Gathered) -> None:
    of.runs.pop(0)


def double_run(of: Gathered) -> None:
    of.runs.append(Run("soak", "a-1", CONTENT))


def double_own_run(of: Gathered) -> None:
    of.runs.append(Run("soak", "", CONTENT))


def add_a_run_of_nobody(of: Gathered) -> None:
    of.runs.append(Run("", "", CONTENT))


def leave_run_open(of: Gathered) -> None:
    of.runs[3] = Run("soak", "b-0", Content("RUNNING"))


def alter(of: Gathered, **changes: Any) -> None:
    of.runs[2] = Run("soak", "a-1", dataclasses.replace(CONTENT, **changes))


def alter_rate(of: Gathered) -> None:
    alter(of, images_per_s=0.3001)


def lose_rate(of: Gathered) -> None:
    alter(of, images_per_s=None)


def alter_status(of: Gathered) -> None:
    alter(of, status="FAILED")


def alter_end(of: Gathered) -> None:
    alter(of, ended_ms=CONTENT.ended_ms + 1 if CONTENT.ended_ms else 1)


def have_a_rate_of_an_earlier_attempt(of: Gathered) -> None:
    of.contents["a-1"] = dataclasses.replace(CONTENT, images_per_s=None)


def leave_rank(of: Gathered) -> None:
    of.processes.append(Seen(99, "python workers.launch.fork_server"))


def leave_second_agent(of: Gathered) -> None:
    of.processes.append(Seen(99, "ray::DashboardAgent", (1, 2, 3)))


def leave_port(of: Gathered) -> None:
    of.processes[1] = Seen(7, "raylet", (40001, 40002, 40009))


def leave_group(of: Gathered) -> None:
    of.groups.append("PENDING")


def leave_file(of: Gathered) -> None:
    of.strays.append(Stray("/tmp/sweep-rank-x", 2000.0))


def leave_out_a_fault(of: Gathered) -> None:
    of.happened.pop(4)


def end_a_driver(of: Gathered) -> None:
    of.ended_by.append("")


def launch_before_the_start(of: Gathered) -> None:
    of.durations.append(Duration("a-1", "launch_s", -28.5, 4.0))


def launch_after_the_end(of: Gathered) -> None:
    of.durations.append(Duration("a-1", "launch_s", 31.5, 4.0))


def wait_longer_than_the_sweep(of: Gathered) -> None:
    of.durations.append(Duration("a gang", "waited", 61.0))


def build_for_no_number(of: Gathered) -> None:
    of.durations.append(Duration("a-1", "build_s", float("nan"), 4.0))


def lose_times(of: Gathered) -> None:
    of.durations.clear()


def hold_more_than_there_is(of: Gathered) -> None:
    of.gpu_hours = 4 * 61.0 / 3600


def hold_less_than_nothing(of: Gathered) -> None:
    of.gpu_hours = -0.001


def end_the_reader(of: Gathered) -> None:
    of.is_read_to_the_end = False


TIMES, HELD = "every duration is possible", "no more GPU-hours are held than there are"


@pytest.mark.parametrize(
    ("plant", "found", "named"),
    [
        (lose, {"every trial once in the ledger"}, "b-1 missing"),
        (repeat, {"every trial once in the ledger"}, "a-1 twice"),
        (cancel_afterwards, {"every trial once in the ledger", "every trial completed"}, "a-1 twice"),
        (add_another, {"every trial once in the ledger"}, "c-0 not planned"),
        (fail_one, {"every trial completed"}, "1 failed"),
        (lose_run, {"every trial once in MLflow"}, "b-1 missing"),
        (lose_own_run, {"every trial once in MLflow"}, "soak's own run missing"),
        (double_run, {"every trial once in MLflow"}, "soak/a-1 2 times"),
        (double_own_run, {"every trial once in MLflow"}, "soak's own run 2 times"),
        (add_a_run_of_nobody, {"every trial once in MLflow"}, "of no sweep"),
        (leave_run_open, {"no run is left open", SAYS}, "b-0 RUNNING"),
        (alter_rate, {SAYS}, "soak/a-1 images_per_s 0.3001 in MLflow, 0.30000000000000004 in the ledger"),
        (lose_rate, {SAYS}, "soak/a-1 images_per_s None in MLflow"),
        (have_a_rate_of_an_earlier_attempt, {SAYS}, "soak/a-1 images_per_s 0.30000000000000004 in MLflow, None"),
        (alter_status, {SAYS}, "soak/a-1 status FAILED in MLflow, FINISHED in the ledger"),
        (alter_end, {SAYS}, "soak/a-1 ended_ms 1700000000251 in MLflow, 1700000000250 in the ledger"),
        (leave_rank, {"no process is left"}, "1 python workers.launch.fork_server on node1"),
        (leave_second_agent, {"no process is left", "no port is left"}, "ray::DashboardAgent"),
        (leave_port, {"no port is left"}, "1 raylet on node1"),
        (leave_group, {"no placement group is left"}, "PENDING"),
        (leave_file, {"no file is left"}, "/tmp/sweep-rank-x"),
        (leave_out_a_fault, {"every fault happened"}, str(FAULTS[4])),
        (end_a_driver, {"no driver ends but by its fault"}, "1 of 3"),
        (launch_before_the_start, {TIMES}, "soak/a-1 launch_s -28.50 of 4.00 s"),
        (launch_after_the_end, {TIMES}, "soak/a-1 launch_s 31.50 of 4.00 s"),
        (wait_longer_than_the_sweep, {TIMES}, "soak/a gang waited 61.00 of 60.00 s"),
        (build_for_no_number, {TIMES}, "soak/a-1 build_s nan"),
        (lose_times, {TIMES}, "there is none"),
        (hold_more_than_there_is, {HELD}, "soak 0.068 GPU-hours of 0.067"),
        (hold_less_than_nothing, {HELD}, "soak -0.001 GPU-hours"),
        (end_the_reader, {"memory and open files are read to the end"}, "minute 0.8"),
    ],
)
def test_what_is_doubled_lost_or_left_fails_its_line_and_is_named(
    plant: Callable[[Gathered], None], found: set[str], named: str
) -> None:
    gathered = Gathered()
    plant(gathered)
    assert failed(gathered).keys() == found
    assert any(named in told for told in failed(gathered).values())
    assert verdicts.has_failed(gathered.lines())


def test_a_trial_that_a_resumed_sweep_ran_again_is_once_in_the_ledger() -> None:
    gathered = Gathered()
    gathered.ended[:0] = [("a-1", "cancelled"), ("b-0", "lost")]
    assert not failed(gathered)


def test_a_full_soak_fails_what_it_had_nothing_to_judge_by_and_a_short_one_does_not() -> None:
    few = [Swept("soak", TRIALS, [(f"{n}-0", "completed") for n in range(50)], {})]
    others = [dataclasses.replace(one, role="driver") for one in readings([(0, 40)], 0)]
    missing = {"clock off": "no C compiler is installed"}
    for minutes, verdict in ((4.0, "not judged"), (FULL_MIN, "fail"), (120.0, "fail")):
        for what in (verdicts.MEMORY, FILES):
            assert verdicts.of_growth("tracker", others, True, what, minutes).verdict == verdict
            assert verdicts.of_growth("driver", others, True, what, minutes).verdict == "pass"
            assert verdicts.of_growth("Ray's GCS", [], False, what, minutes).verdict == "not judged"
        (line,) = verdicts.of_left_out(missing, minutes)
        assert (line.what, line.verdict) == ("clock off", verdict)
        assert verdicts.has_failed([line]) == (verdict == "fail")
    assert verdicts.of_trials(few, 40).verdict == "fail"
    assert verdicts.of_trials(few, 4).verdict == "pass"
    assert verdicts.of_trials(few, 6).verdict == "not judged"


def test_a_trial_that_ended_twice_is_one_of_those_that_are_enough() -> None:
    twice = [Swept("soak", (), [(f"{n % 200}-0", "completed") for n in range(400)], {})]
    assert verdicts.of_trials(twice, 40).verdict == "fail"
    assert verdicts.of_trials([*twice, *twice], 40).verdict == "pass"  # two sweeps have trials of the same names


def test_a_host_that_was_started_again_has_left_nothing() -> None:
    gathered = Gathered()
    gathered.processes = [dataclasses.replace(one, pid=one.pid + 1000) for one in reversed(gathered.processes)]
    assert not failed(gathered)


def test_what_ranks_had_open_when_the_power_went_is_no_file_that_was_left() -> None:
    gathered = Gathered(strays=[Stray("/tmp/sweep-rank-x", 990.0)])
    assert not failed(gathered)
    gathered.strays += [Stray("/tmp/sweep-rank-y", 1001.0), Stray("/tmp/sweep-rank-z", 900.0)]
    assert failed(gathered) == {"no file is left": "/tmp/sweep-rank-y, /tmp/sweep-rank-z"}
    of_results = Gathered(strays=[Stray("/tmp/sweep-hosts-x/shared/results/soak/.ledger.7", 990.0)])
    assert failed(of_results).keys() == {"no file is left"}


def test_no_trial_at_all_is_no_pass() -> None:
    none = [Swept("soak", (), (), {})]
    (line, _) = verdicts.of_ledgers(none)
    assert line.verdict == "fail"
    *_, line = verdicts.of_mlflow(none, [Run("soak", "", CONTENT)])
    assert line.verdict == "fail"
    assert verdicts.of_groups([]).verdict == "fail"


def test_a_run_is_due_what_the_stores_own_readers_make_of_the_ledger_and_told_as_mlflow_answers() -> None:
    made = config()
    assert soak.due(record(made, images_per_s=120.0)).images_per_s == pytest.approx(120.0)
    ended = dataclasses.replace(record(made), ended_at=1_700_000_000.25)
    assert soak.due(ended) == soak.told_by("FINISHED", "1700000000250", soak.due(ended).images_per_s)
    for status, told in (("failed", "FAILED"), ("lost", "FAILED"), ("cancelled", "KILLED"), ("infeasible", "FINISHED")):
        outcome = TrialOutcome(status=status, kind="killed")  # type: ignore[arg-type]
        assert soak.due(dataclasses.replace(ended, outcome=outcome)) == Content(told, 1_700_000_000_250)
    assert soak.told_by("RUNNING", None, None) == Content("RUNNING")


def test_only_what_stays_counts_as_a_process() -> None:
    first = [Seen(1, "raylet"), Seen(2, "sleep"), Seen(3, "python workers.launch.fork_server"), Seen(4, "ray::IDLE")]
    then = [Seen(1, "raylet"), Seen(2, "sleep"), Seen(5, "python workers.launch.fork_server"), Seen(4, "ray::IDLE")]
    assert verdicts.settled(first, then) == [Seen(1, "raylet")]


@pytest.mark.parametrize(
    ("command", "kind", "role"),
    [
        (["python", "-m", "sweeps.cli", "run", "soak.yaml", "--address", "auto"], "python sweeps.cli", "driver"),
        (["/root/.venv/bin/python", "-m", "sweeps.cli", "resume", "soak"], "python sweeps.cli", "driver"),
        (["/bin/sh", "-c", "python -m sweeps.cli run soak.yaml"], "sh python", ""),
        (["/root/.venv/bin/python", "-m", "sweeps.run.tracker", "soak", "17"], "python sweeps.run.tracker", "tracker"),
        (["/x/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=/y"], "raylet", "Ray's raylet"),
        (["ray::DashboardAgent"], "ray::DashboardAgent", "Ray's dashboard agent"),
        (["ray::RuntimeEnvAgent"], "ray::RuntimeEnvAgent", "Ray's runtime environment agent"),
        (["python", "-u", "/x/ray/_private/log_monitor.py", "--port=1"], "python log_monitor.py", "Ray's log monitor"),
        (["/x/ray/core/src/ray/gcs/gcs_server", "--port=1"], "gcs_server", "Ray's GCS"),
        (["python", "-m", "workers.launch.fork_server", "key"], "python workers.launch.fork_server", "fork server"),
        (start_from_source.command("workers.launch.fork_server", "main", "key", "torch")[-6:], "start_from_source.py",
         "fork server"),
        (start_from_source.command("workers.launch.rank", "main", "0")[-5:], "start_from_source.py", ""),
        (["python", "-m", "workers.node.telemetry", "n.jsonl", "--every", "1"], "python workers.node.telemetry",
         "telemetry"),
        (["ray::NodeActor.tend"], "ray::NodeActor.tend", "NodeActor"),
        (["ray::LeaseActor"], "ray::LeaseActor", "LeaseActor"),
        (["ray::LeaseActor.review"], "ray::LeaseActor.review", "LeaseActor"),
        (["bash", "scripts/node", "watch", "10.77.0.10"], "bash node", ""),
        (["sshd: /usr/sbin/sshd -D [listener] 0 of 100-100 startups"], "sshd", ""),
        (["sshd: root@notty"], "sshd: root@notty", ""),
        ([], "dead python", ""),
    ],
)  # fmt: skip
def test_a_process_is_known_by_its_command(command: Sequence[str], kind: str, role: str) -> None:
    assert verdicts.kind(command, "python") == kind
    assert soak.role(" ".join(command)) == role


# ── Memory and open files ────────────────────────────────────────────────────────────────────────────────────────────


def readings(
    lives: Sequence[tuple[float, float]], mib_per_h: float, host: str = "node0", files_per_h: float = 0.0
) -> list[Reading]:
    """Make readings of processes that each lived from one minute to another, loaded for a minute, and grew from
    there."""
    noise = random.Random(7)
    found = []
    for pid, (first, last) in enumerate(lives):
        for second in range(round(first * 60), round(last * 60), 10):
            age_s = second - first * 60
            mib = 100 * min(1, age_s / 60) + 40 * pid + mib_per_h * age_s / 3600 + noise.gauss(0, 0.3)
            found.append(Reading(second, "tracker", host, pid, mib, 20 + round(files_per_h * age_s / 3600)))
    return found


@pytest.mark.parametrize("mib_per_h", [-20.0, 0.0, 10.0, 120.0])
@pytest.mark.parametrize("lives", [[(0, 40)], [(0, 12), (12, 25), (26, 40)]])
def test_growth_is_that_of_a_process_not_of_its_start_nor_of_the_next(
    lives: Sequence[tuple[float, float]], mib_per_h: float
) -> None:
    grown = verdicts.growth(readings(lives, mib_per_h))
    assert grown
    assert grown.per_h == pytest.approx(mib_per_h, abs=3)


def test_memory_that_grows_beyond_the_tolerance_fails_and_says_how_fast() -> None:
    lives = [(0.0, 40.0)]
    assert verdicts.of_growth("tracker", readings(lives, FLAT_MIB_PER_H - 10), True).verdict == "pass"
    line = verdicts.of_growth("tracker", readings(lives, FLAT_MIB_PER_H + 10), True)
    assert line.verdict == "fail"
    assert "MiB/h on node0" in line.told
    assert "at most 30" in line.told


def test_a_leak_on_one_of_the_hosts_is_found() -> None:
    lives = [(0.0, 40.0)]
    flat = [one for host in ("node0", "node2") for one in readings(lives, 0, host)]
    line = verdicts.of_growth("tracker", flat + readings(lives, 120, "node1"), True)
    assert line.verdict == "fail"
    assert "node1" in line.told


def test_open_files_that_grow_fail_and_say_how_fast_though_the_memory_is_flat() -> None:
    lives = [(0.0, 40.0)]
    assert (
        verdicts.of_growth("tracker", readings(lives, 0, files_per_h=FLAT_FILES_PER_H - 9), True, FILES).verdict
        == "pass"
    )
    grown = readings(lives, 0, files_per_h=FLAT_FILES_PER_H + 15)
    line = verdicts.of_growth("tracker", grown, True, FILES)
    assert (line.what, line.verdict) == ("open files of tracker are flat", "fail")
    assert "files/h on node0" in line.told
    assert "at most 15" in line.told
    assert verdicts.of_growth("tracker", grown, True).verdict == "pass"
    assert verdicts.of_growth("tracker", grown, False, FILES).verdict == "not judged"
    leaks_one_a_trial = readings([(0, 14), (15, 30)], 0, files_per_h=500)
    assert verdicts.of_growth("tracker", leaks_one_a_trial, True, FILES).verdict == "fail"


def test_growth_that_was_not_watched_for_long_is_not_judged() -> None:
    for lives in ([(0.0, 4.0)], [(0.0, 11.0)], [(0.0, 5.0), (5.0, 10.0), (10.0, 15.0)], []):
        assert verdicts.of_growth("tracker", readings(lives, 500), True).verdict == "not judged"
    assert verdicts.of_growth("tracker", readings([(0, 40)], 500), False).verdict == "not judged"


# ── What is run, what is read, and what is moved ─────────────────────────────────────────────────────────────────────


def test_forty_minutes_are_begun_with_five_hundred_trials_and_what_is_left_with_what_fits() -> None:
    text = soak.SWEEP.replace("REPEATS", str(soak.repeats(2400, soak.TRIAL_S)))
    assert plan.plan(sweep_file.parse(text, "soak")).most == 500
    assert [soak.repeats(left_s, 2.0) for left_s in (9000, 1200, 290, 20, -5)] == [20, 12, 3, 1, 1]


def test_ledgers_are_read_up_to_a_line_that_was_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    text = "{name: soak, model: tiny, device: cpu, repeats: 3, space: {batch_size: 8, gpus: 1}}"
    made = plan.plan(sweep_file.parse(text, "soak"))
    book = ownership.create(made, text)
    first, second, _ = made.trials
    book.write(record(first))
    book.write_attempt(record(second))
    book.write(record(second, outcome=TrialOutcome(status="failed", kind="killed")))
    book.close()
    with book.paths.ledger.open("a") as file:
        file.write('{"kind":"trial","trial":"torn')
    told = soak.swept("soak")
    assert told.planned == [trial.trial for trial in made.trials]
    assert told.ended == [(first.trial, "completed"), (second.trial, "failed")]
    assert {trial: content.status for trial, content in told.contents.items()} == {
        first.trial: "FINISHED",
        second.trial: "FAILED",
    }


def test_times_are_those_of_every_attempt_and_wait_and_stay_below_the_trials_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    text = "{name: soak, model: tiny, device: cpu, repeats: 2, space: {batch_size: 8, gpus: 1}}"
    made = dataclasses.replace(plan.plan(sweep_file.parse(text, "soak")), nodes=(Node("a", 2, 0), Node("b", 2, 0)))
    book = ownership.create(made, text)
    began = time.time() - 60
    book.facts = dataclasses.replace(book.facts, created_at=began)
    book.begin()
    first, second = made.trials

    def ran(trial: TrialConfig, launch_s: float, **changes: Any) -> ledger.TrialRecord:
        made = record(trial)
        outcome = made.outcome
        assert outcome.measurement
        ranks = tuple(dataclasses.replace(one, entered_at=began + launch_s) for one in outcome.measurement.ranks)
        outcome = dataclasses.replace(outcome, measurement=dataclasses.replace(outcome.measurement, ranks=ranks))
        return dataclasses.replace(made, **{"started_at": began, "ended_at": began + 4, "outcome": outcome} | changes)

    book.write_attempt(ran(first, 31.0))
    book.write(ran(first, 1.0, outcome=TrialOutcome(status="lost")))
    book.write(ran(first, -29.0))
    book.write(ran(second, 1.0, held_since=began + 5))
    book.wait(1, since=began + 9, at=began + 8)
    book.close()
    found = soak.timed("soak", workers=2)
    assert found.slots == 4
    assert found.length_s == pytest.approx(60, abs=5)
    wrong = [line for line in verdicts.of_times([found]) if line.verdict == "fail"]
    assert [line.what for line in wrong] == [TIMES]
    bad = [(one.of, one.what, round(one.seconds)) for one in found.durations if not 0 <= one.seconds <= one.most_s]
    assert sorted(bad) == sorted(
        [
            (first.trial, "launch_s", 31),
            (first.trial, "launch_s", -29),
            (second.trial, "held_s", -1),
            ("a gang", "waited", -1),
        ]
    )
    assert {one.what for one in found.durations} >= {"trial_s", "build_s", "window_s", "step_ms_mean"}
    assert not any(one.what.endswith("_per_s") for one in found.durations)
    assert sum(one.what == "trial_s" for one in found.durations) == 4


def test_what_processes_of_a_soak_leave_among_temporary_files_is_found_and_others_files_are_not(
    tmp_path: Path,
) -> None:
    for name in ("tmpabc1x_y", "mlflow-up", "sweep-rank-1", "ray-up-ssh-1.txt", "torchinductor_root"):
        (tmp_path / name).mkdir()
    for name in ("pytest-of-root", "own-notes", "apt.log"):
        (tmp_path / name).mkdir()
    found = {path.name for path in soak.temporary(tmp_path)}
    assert found == {"tmpabc1x_y", "mlflow-up", "sweep-rank-1", "ray-up-ssh-1.txt", "torchinductor_root"}


def test_what_ray_keeps_in_its_folder_is_not_left_but_a_package_that_is_still_packed_is(tmp_path: Path) -> None:
    session = "session_2026-01-01_00-00-00_1_1"
    cache = f"{session}/runtime_resources/working_dir_files"
    kept = (
        *("ray_current_cluster", f"{session}/node_ip_address.json", f"{session}/logs/raylet.out"),
        *(f"{session}/sockets/raylet", f"{session}/artifacts/soak/tune/driver_artifacts/state.json"),
        *(f"{cache}/_ray_pkg_1/soak.yaml", f"{cache}/_ray_pkg_1.zip.lock"),
    )
    left = (f"{cache}/_ray_pkg_2.zip", f"{session}/ray_spilled_objects_1/one", "tmp-1", "core.17")
    for name in (*kept, *left):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "session_latest").symlink_to(tmp_path / session)
    assert {str(path.relative_to(tmp_path)) for path in soak.in_ray(tmp_path)} == {*left}


def machines(tmp_path: Path, processes: Callable[[], list[psutil.Process]] = list, minutes: float = 4.0) -> soak.Soak:
    """Make a soak of hosts that there are not."""
    hosts = [SimpleNamespace(name=f"node{n}", home=tmp_path / f"node{n}/home", processes=processes) for n in range(3)]
    for host in hosts:
        (host.home.parent / "ray").mkdir(parents=True)
        host.home.mkdir()
    laptop: Any = SimpleNamespace(head=hosts[0], workers=hosts[1:], home=tmp_path)
    return soak.Soak(laptop, tmp_path / "sweep-hosts", minutes, None)


@pytest.mark.parametrize("minutes", [4.0, FULL_MIN])
def test_a_soak_judges_by_its_own_length_what_nobody_has_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    made = machines(tmp_path, minutes=minutes)
    made._results = tmp_path / "results"
    made._results.mkdir()
    made.is_read_to_the_end = True
    made.readings += readings([(0.0, 40.0)], 0)  # of the tracker alone
    for asked in ("_cleared", "_runs", "_absent"):
        monkeypatch.setattr(made, asked, lambda *_: [])
    lines = {line.what: line for line in made.lines([], soak.Before({}, frozenset(made._files())))}
    assert not [line for line in lines.values() if "can't be asked" in line.told]
    due = "fail" if minutes == FULL_MIN else "not judged"
    assert lines["enough trials ended"].verdict == due
    for what in ("memory of {} is flat", "open files of {} are flat"):
        assert lines[what.format("tracker")].verdict == "pass"
        assert {lines[what.format(role)].verdict for role in soak.JUDGED if role != "tracker"} == {due}
        assert {lines[what.format(role)].verdict for role in soak.TOLD} == {"not judged"}


def test_files_are_looked_for_in_the_whole_temporary_folder_and_in_rays_of_each_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verdicts, "SHARED", (str(tmp_path),))
    made = machines(tmp_path)
    (tmp_path / "shared").mkdir()
    made._results = tmp_path / "shared"
    (tmp_path / "tmpolder").mkdir()
    (tmp_path / "sweep-hosts").mkdir()
    before = soak.Before({}, frozenset(made._files()))
    (tmp_path / "tmpabc").mkdir()
    packed = tmp_path / "node1/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_2.zip"
    packed.parent.mkdir(parents=True)
    packed.touch()
    found = [*made._strays(before)]
    known = {one.path for one in found if not one.path.startswith("/dev/shm")}
    assert known == {str(tmp_path / "tmpabc"), str(packed)}
    cut = next(one.made_at for one in found if one.path == str(tmp_path / "tmpabc")) + 5
    own = [one for one in found if one.path in known]
    assert verdicts.of_files(own, []).told == ", ".join(one.path for one in own)
    assert verdicts.of_files(own, [cut]).told == str(packed)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("error", "is_alive"), [(psutil.AccessDenied(1), True), (OSError("no file is left"), False)])
def test_a_reader_that_dies_is_told_and_one_whom_a_host_escapes_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_alive: bool
) -> None:
    asked = threading.Event()

    def processes() -> list[psutil.Process]:
        asked.set()
        raise error

    made = machines(tmp_path, processes)

    def go_on(_: Sequence[Fault]) -> None:
        assert asked.wait(5)
        made._reader.join(0.2)

    monkeypatch.setattr(soak, "READ_EVERY_S", 0.01)
    monkeypatch.setattr(made, "_run", go_on)
    assert made.run([]).verdict == "pass"
    assert made.is_read_to_the_end == is_alive
    assert verdicts.of_reader(made.is_read_to_the_end, made.readings).verdict == "fail"  # there is no reading either


@pytest.mark.parametrize(
    ("kind", "outlived_s", "blamed"),
    [
        ("disk full", 30, "disk full"),
        ("disk full", 61, ""),
        ("driver killed", 5, "driver killed"),
        ("MLflow killed", 5, ""),
    ],
)
def test_a_fault_is_blamed_for_the_end_of_a_driver_that_has_not_outlived_it_by_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, outlived_s: float, blamed: str
) -> None:
    made = machines(tmp_path)
    made.sweeps.append("soak")
    is_driven = True
    monkeypatch.setattr(soak.ownership, "is_driven", lambda _: is_driven)
    monkeypatch.setattr(soak, "swept", lambda _: Swept("soak", (), (), {}))
    monkeypatch.setattr(soak.ledger, "read", lambda _: SimpleNamespace(is_complete=False))
    monkeypatch.setattr(made, "_until_it_works", lambda *_: "")
    monkeypatch.setattr(made._laptop, "sweep", lambda *_: "its log", raising=False)
    for cause in ("_fill_disk", "_kill_driver", "_kill_mlflow"):
        monkeypatch.setattr(made, cause, lambda _: "done")
    made._cause(Fault(0, kind, 0))
    made._began -= outlived_s
    assert made._keep_driven()
    is_driven = False
    assert made._keep_driven()
    assert made.ended_by == [blamed]
    assert made._keep_driven()  # and once only
    assert made.ended_by == [blamed, ""]


def test_parts_of_files_and_bulletins_are_left_but_not_what_a_sweep_keeps(tmp_path: Path) -> None:
    kept = ("ledger.jsonl", "report.html", "logs/a-0/rank-0.log", "telemetry/n.jsonl", "tune/.validate_storage_marker")
    left = ("status.json", ".status.json.17", "windows/.a.json.17", "core.17")
    for name in (*kept, *left):
        path = tmp_path / "soak" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert {str(path.relative_to(tmp_path / "soak")) for path in soak.strays(tmp_path)} == {*left}


def test_what_is_no_sweep_and_a_folder_without_a_file_are_left(tmp_path: Path) -> None:
    (tmp_path / "soak/logs/b-0").mkdir(parents=True)
    (tmp_path / "soak/tune/0f0f").mkdir(parents=True)
    (tmp_path / "soak/ledger.jsonl").touch()
    for name in ("soak-2", ".soak.abcd", ".stores"):
        (tmp_path / name).mkdir()
    (tmp_path / "loose.tmp").touch()
    found = {str(path.relative_to(tmp_path)) for path in soak.strays(tmp_path)}
    assert found == {"soak/logs/b-0", "soak-2", ".soak.abcd", "loose.tmp"}


CLOCKS = """
import ctypes, datetime, sys, time
libc = ctypes.CDLL(None)
class At(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
def waits():
    until, began = time.time() + 0.05, time.monotonic()
    at = At(int(until), int(until % 1 * 1e9))
    libc.sem_timedwait(ctypes.create_string_buffer(32), ctypes.byref(at))
    yield time.monotonic() - began
    mutex = ctypes.create_string_buffer(40)
    libc.pthread_mutex_lock(mutex)
    began = time.monotonic()
    until = time.time() + 0.05
    at = At(int(until), int(until % 1 * 1e9))
    libc.pthread_cond_timedwait(ctypes.create_string_buffer(48), mutex, ctypes.byref(at))
    yield time.monotonic() - began
for line in sys.stdin:
    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic(), *waits(), flush=True)
"""


@pytest.mark.skipif(not clocks.compiler(), reason="no C compiler is installed")
def test_a_clock_is_moved_under_processes_that_run_and_no_wait_lasts_longer(tmp_path: Path) -> None:
    library, shift = tmp_path / clocks.LIBRARY, tmp_path / clocks.SHIFT
    clocks.build(library)
    clocks.move(shift, 0)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", CLOCKS],
        env=os.environ | {"LD_PRELOAD": str(library), "SWEEP_CLOCK": str(shift)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        for by_s in (0, 30, -30.5, 0):
            clocks.move(shift, by_s)
            before, counted = time.time(), time.monotonic()
            process.stdin.write("\n")
            process.stdin.flush()
            *times, monotonic, semaphore, condition = map(float, process.stdout.readline().split())
            assert all(before <= at - by_s + 1e-3 and at - by_s <= time.time() + 1e-3 for at in times), by_s
            assert counted <= monotonic <= time.monotonic()
            assert 0.045 < semaphore < 5, by_s
            assert 0.045 < condition < 5, by_s
