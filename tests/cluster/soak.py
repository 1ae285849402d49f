"""Forty minutes of short trials on three hosts, with a fault every three minutes; then: what is doubled, lost, left?

`python -m tests.cluster.soak [--minutes 40] [--seed 1]` makes the hosts, runs sweep after sweep on them and prints a
line for each thing that must hold, with pass or fail; it exits with 1 if one fails. From forty minutes on what could
not be judged fails too. Four minutes are enough to have each fault once, closer together and shorter. Nothing else
should run on this machine meanwhile: /tmp and /dev/shm are looked at before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from sweeps.cli import gc
from sweeps.errors import SweepError
from sweeps.record import ledger, ownership, rows
from sweeps.spec.arrangements import slots_of
from sweeps.store import tracking
from tests.cluster import clocks, database, hosts, verdicts
from tests.cluster.clocks import Clock
from tests.cluster.database import Postgres
from tests.cluster.hosts import Host
from tests.cluster.launched import Laptop
from tests.cluster.schedule import ENDS_THE_DRIVER, KINDS, SHORTEST_MIN, Fault, Kind, schedule
from tests.cluster.verdicts import FILES, MEMORY, Content, Duration, Line, Reading, Run, Seen, Stray, Swept, Timed

SWEEP = """
name: soak
model: tiny
device: cpu
image_size: 32
classes: 10
space: {batch_size: {range: [1, 25]}, gpus: [1, 2], placement: [spread], precision: fp32}
repeats: REPEATS
steps: {warmup: 1, measured: 3}
explain: false
probe_every_min: 0
wait_for_nodes_min: 5
"""
HOSTS = 3  # the head is none that a fault befalls: after its death a user calls `ray up`
CELLS = 50
MOST_REPEATS = 20
TRIAL_S = 4.8  # five hundred in forty minutes, until it is known how long one takes here
DISK_MIB = 512  # of the results
READ_EVERY_S = 10.0  # memory and open files
LOOK_EVERY_S = 1.0
PASSING_S = 10.0  # between two looks; what is in one of them only passes through
BACK_WITHIN_S = 180.0  # a host, in Ray
GONE_WITHIN_S = 180.0  # all of a sweep, after its end
OUTLIVED_S = 60.0  # a fault, by a driver that it has not ended
COMPLETE_WITHIN_S = 1800.0  # the last sweep, after the last fault
TRIES = 5  # to submit or to resume
FAILURES = (AssertionError, OSError, ValueError, subprocess.SubprocessError, SweepError)  # of what is called here
JUDGED = {  # by their command line, whose memory and open files must not grow
    "driver": r"^\S*python\S* -m sweeps\.cli (run|resume)",
    "tracker": r"^\S*python\S* -m sweeps\.run\.tracker",
    "fork server": r"\bworkers\.launch\.fork_server\b",  # and its ranks, which live too short to be judged
    "telemetry": r"^\S*python\S* -m workers\.node\.telemetry",
    "NodeActor": r"^ray::NodeActor\b",
    "LeaseActor": r"^ray::LeaseActor\b",
    "Ray's raylet": r"/raylet/raylet ",
    "Ray's dashboard agent": r"^ray::DashboardAgent|dashboard/agent\.py",
    "Ray's runtime environment agent": r"^ray::RuntimeEnvAgent|runtime_env/agent/main\.py",
    "Ray's log monitor": r"/log_monitor\.py",
}
TOLD = {  # they keep what has been: jobs, actors, requests
    "Ray's GCS": r"/gcs/gcs_server ",
    "Ray's dashboard": r"/dashboard/dashboard\.py",
    "MLflow's server": r" -m uvicorn .*mlflow\.server",
}
GROUPS = "[group['state'] for group in ray.util.placement_group_table().values()]"
KEPT = ("__pycache__", ".cache", ".config", ".keras", "mlflow")  # folders at home that are meant to grow
# What the soak's processes may make in the folder for temporary files, by how it begins: Python's tempfile, MLflow,
# Ray, what runs in ranks. Others' files there are not ours to judge.
TEMPORARY = ("sweep-", "tmp", "mlflow", "ray", "torch", "tf", "tensorflow", "__autograph", "keras", "pymp-", "nccl")
# What Ray keeps in its folder on purpose, for as long as a session lasts: logs, sockets, Tune's state of each driver,
# and a cache of what ended jobs ran in, up to 10 GB. A package there that is still packed is none of it: Ray deletes it
# once it is unpacked.
OF_RAY = ("session_latest", "ray_current_cluster", "prom_metrics_service_discovery.json")
RESOURCES = "runtime_resources"
OF_A_SESSION = ("logs", "sockets", "metrics", "artifacts", RESOURCES)
PACKED = (".zip", ".tar.gz", ".whl")
LOOK = """
import json, os, psutil
me = psutil.Process()
mine = {me.pid, *(parent.pid for parent in me.parents() if parent.pid != 1)}
listening = [one for one in psutil.net_connections('tcp') if one.status == 'LISTEN']
found = []
for one in psutil.process_iter():
    try:
        name = one.name()
        command = [] if one.status() == psutil.STATUS_ZOMBIE else one.cmdline()
    except psutil.Error:
        continue
    if one.pid not in mine:
        found.append([one.pid, name, command, [at.laddr.port for at in listening if at.pid == one.pid]])
print(json.dumps(found))
"""
RUNS = """
import json, urllib.request
def ask(path, body):
    at = 'http://127.0.0.1:5000/api/2.0/mlflow/' + path
    asked = urllib.request.Request(at, json.dumps(body).encode(), {'Content-Type': 'application/json'})
    return json.load(urllib.request.urlopen(asked, timeout=60))
ids = [one['experiment_id'] for one in ask('experiments/search', {'max_results': 1000})['experiments']]
found, page = [], {}
while True:
    told = ask('runs/search', {'experiment_ids': ids, 'max_results': 200, 'run_view_type': 'ACTIVE_ONLY', **page})
    for run in told.get('runs', []):
        tags = {tag['key']: tag['value'] for tag in run['data'].get('tags', [])}
        figures = {one['key']: one['value'] for one in run['data'].get('metrics', [])}
        content = run['info']['status'], run['info'].get('end_time'), figures.get('images_per_s')
        found.append([tags.get('sweep.name', ''), tags.get('sweep.trial', ''), content])
    if not told.get('next_page_token'):
        break
    page = {'page_token': told['next_page_token']}
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class Before:
    """What there was before the first sweep."""

    processes: Mapping[str, Sequence[Seen]]
    files: frozenset[Path]


class Soak:
    """The cluster while sweeps run on it and faults happen to it."""

    def __init__(self, laptop: Laptop, folder: Path, minutes: float, postgres: Postgres | None) -> None:
        self._laptop, self._folder, self._postgres = laptop, folder, postgres
        self._hosts = [laptop.head, *laptop.workers]
        self._minutes = minutes
        self.clocks: list[Clock] = []
        self._results = folder / "shared/results"
        self._began = time.monotonic()
        self._coming: Fault | None = None
        self._suspect: Fault | None = None  # that may have ended the driver, should it end
        self._outlived_at_s = 0.0
        self.is_read_to_the_end = False
        self._is_over = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.sweeps: list[str] = []
        self.ended_by: list[str] = []  # each driver that was resumed
        self.happened: list[Fault] = []
        self.late: list[str] = []  # hosts that did not come back in time
        self.power_cuts: list[float] = []
        self.readings: list[Reading] = []

    # ── While it goes on ─────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, faults: Sequence[Fault]) -> Line:
        """Until the last sweep is complete, or it can't go on: whatever is left is judged then."""
        what = "it came to its end"
        self._began = time.monotonic()
        self._reader.start()
        try:
            self._run(faults)
        except FAILURES as error:
            return Line(what, "fail", last_line(error))
        finally:
            self.is_read_to_the_end = self._reader.is_alive()
            self._is_over.set()
            self._reader.join()
        return Line(what, "pass", f"after {self.passed_s / 60:.1f} minutes")

    def _run(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._coming = fault
            while self.passed_s < fault.at_s:
                self._keep_driven()
                time.sleep(LOOK_EVERY_S)
            self._await_hosts()
            self._keep_driven()
            self._cause(fault)
        self._coming = None
        give_up = self._minutes * 60 + COMPLETE_WITHIN_S
        while self._keep_driven():
            assert self.passed_s < give_up, f"{self.sweeps[-1]} is not complete {COMPLETE_WITHIN_S / 60:.0f} min later"
            time.sleep(LOOK_EVERY_S)
        self._await_hosts()

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        print(f"minute {self.passed_s / 60:4.1f}  {text}", flush=True)

    def _keep_driven(self) -> bool:
        """Resume the sweep whose driver has ended; submit another while there is time, or a fault to come. Is there
        one?"""
        if self.sweeps and ownership.is_driven(self.sweeps[-1]):
            if self.passed_s > self._outlived_at_s:
                self._suspect = None
            return True
        if self.sweeps and not ledger.read(self.sweeps[-1]).is_complete:
            return self._resume(self.sweeps[-1])
        left_s = self._minutes * 60 - self.passed_s
        if left_s <= 0 and not self._coming:
            return False
        done = sum(len(one.ended) for one in self._swept())
        trial_s = self.passed_s / done if done else TRIAL_S
        file = self._laptop.home / "soak.yaml"
        file.write_text(SWEEP.replace("REPEATS", str(repeats(left_s, trial_s))))
        name = self._until_it_works("submit", file, "--fresh")
        self.sweeps.append(name)
        self._suspect = None
        self.say(f"{name} has begun: {len(swept(name).planned)} trials")
        return True

    def _resume(self, name: str) -> bool:
        blamed = self._suspect.kind if self._suspect else ""
        self._suspect = None
        self.ended_by.append(blamed)
        if not blamed:
            with contextlib.suppress(*FAILURES):
                said = self._laptop.sweep("logs", name).splitlines()[-3:]
                self.say(f"a driver has ended that no fault had ended: {' | '.join(said)}")
        self._until_it_works("resume", name)
        self.say(f"{name} is resumed: {len(swept(name).ended)} of its trials stand in the ledger")
        return True

    def _until_it_works(self, *arguments: object) -> str:
        for n in range(1, TRIES + 1):
            try:
                return self._laptop.sweep(*arguments).strip()
            except FAILURES as error:
                self.say(f"sweep {arguments[0]}, try {n} of {TRIES}: {last_line(error)}")
                time.sleep(10)
        raise AssertionError(f"sweep {arguments[0]} must work within {TRIES} tries, but did not")

    def _await_hosts(self) -> None:
        """Until each has Ray again, whatever happened to it before."""
        give_up = time.monotonic() + BACK_WITHIN_S
        while (absent := [host.name for host in self._hosts if not has_ray(host)]) and time.monotonic() < give_up:
            self._keep_driven()
            time.sleep(LOOK_EVERY_S)
        if absent:
            self.late += absent
            self.say(f"not back within {BACK_WITHIN_S:.0f} s: {', '.join(absent)}")

    def _read(self) -> None:
        while not self._is_over.wait(READ_EVERY_S):
            for host in self._hosts:
                with contextlib.suppress(psutil.Error):  # it is being killed
                    self._read_host(host)

    def _read_host(self, host: Host) -> None:
        for process in host.processes():
            with contextlib.suppress(psutil.Error):
                if named := role(" ".join(process.cmdline())):
                    has = process.memory_info()
                    mib, files = (has.rss - has.shared) / 2**20, process.num_fds()
                    self.readings.append(Reading(self.passed_s, named, host.name, process.pid, mib, files))

    # ── Faults ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _cause(self, fault: Fault) -> None:
        how: dict[Kind, Callable[[Fault], str]] = {
            "host killed": self._kill_host,
            "link cut": self._cut_link,
            "MLflow killed": self._kill_mlflow,
            "PostgreSQL restarted": self._restart_postgres,
            "disk full": self._fill_disk,
            "clock off": self._move_clock,
            "driver killed": self._kill_driver,
        }
        try:
            told = how[fault.kind](fault)
        except FAILURES as error:
            self.say(f"{fault.kind}: did not happen, {last_line(error)}")
            return
        self.happened.append(fault)
        self._suspect = fault if fault.kind in ENDS_THE_DRIVER else None
        self._outlived_at_s = self.passed_s + OUTLIVED_S
        self.say(f"{fault.kind}: {told}; {len(swept(self.sweeps[-1]).ended)} trials of {self.sweeps[-1]} have ended")

    def _kill_host(self, fault: Fault) -> str:
        host = self._laptop.workers[fault.worker]
        host.kill()
        self.power_cuts.append(time.time())
        time.sleep(fault.lasts_s)
        host.start()
        return f"{host.name} was without power for {fault.lasts_s:.0f} s"

    def _cut_link(self, fault: Fault) -> str:
        host = self._laptop.workers[fault.worker]
        with host.cut_off():
            time.sleep(fault.lasts_s)
        return f"{host.name} was cut off for {fault.lasts_s:.0f} s"

    def _kill_mlflow(self, _: Fault) -> str:
        count = self._laptop.head.run("pkill -9 -c -f '[m]lflow server'").strip()
        return f"{count} processes of its server"

    def _restart_postgres(self, fault: Fault) -> str:
        assert self._postgres
        self._postgres.crash()
        try:
            time.sleep(fault.lasts_s)
        finally:
            self._postgres.start()
        return f"it crashed, and was away for {fault.lasts_s:.0f} s"

    def _fill_disk(self, fault: Fault) -> str:
        filler, give_up = self._folder / "shared/filler", time.monotonic() + fault.lasts_s
        try:
            while time.monotonic() < give_up:
                fill(filler)  # what becomes free meanwhile, too
                time.sleep(LOOK_EVERY_S)
            size = filler.stat().st_size
        finally:
            filler.unlink(missing_ok=True)
        return f"{size / 2**20:.0f} of {DISK_MIB} MiB were another's for {fault.lasts_s:.0f} s"

    def _move_clock(self, fault: Fault) -> str:
        clock, host = self.clocks[fault.worker], self._laptop.workers[fault.worker]
        try:
            count = clock.move(fault.off_by_s)
            time.sleep(fault.lasts_s)
        finally:
            clock.move(0)
        assert count, f"no process of {host.name} has a clock that can be moved"
        return f"that of {host.name} was {fault.off_by_s:+.0f} s off for {fault.lasts_s:.0f} s, in {count} processes"

    def _kill_driver(self, _: Fault) -> str:
        driver = ownership.holder(self.sweeps[-1])
        assert driver, "none had signed"
        self._laptop.head.run(f"kill -9 {driver['pid']}")
        return f"process {driver['pid']} of node0"

    # ── Before and after ─────────────────────────────────────────────────────────────────────────────────────────────

    def before(self) -> Before:
        """Look at a cluster that has been asked something: with its first job Ray's agent on the head becomes a client
        of Ray's too, and listens on one port more from then on."""
        self._laptop.sweep("list")
        return Before(self._settled(), frozenset(self._files()))

    def lines(self, planned: Sequence[Fault], before: Before) -> Iterator[Line]:
        """One for each thing that must hold. What can't be asked does not hold."""
        watched = [(named, self.readings, named in JUDGED, what) for what in (MEMORY, FILES) for named in JUDGED | TOLD]
        looks: dict[str, Callable[[], Iterable[Line]]] = {
            "the ledgers": lambda: verdicts.of_ledgers(self._swept()),
            "how many trials": lambda: [verdicts.of_trials(self._swept(), self._minutes)],
            "times": lambda: verdicts.of_times([timed(name, len(self._laptop.workers)) for name in self.sweeps]),
            "MLflow": lambda: verdicts.of_mlflow(self._swept(), self._runs()),
            "what is left in Ray and on the hosts": lambda: self._cleared(before),
            "files": lambda: [verdicts.of_files([*self._strays(before)], self.power_cuts)],
            "memory and open files": lambda: [
                verdicts.of_reader(self.is_read_to_the_end, self.readings),
                *(verdicts.of_growth(*one, self._minutes) for one in watched),
            ],
            "faults": lambda: [verdicts.of_faults(planned, self.happened), verdicts.of_drivers(self.ended_by)],
            "hosts": lambda: [verdicts.none_of("every host comes back", [*self.late, *self._absent()], "in time")],
        }
        for what, asked in looks.items():
            try:
                yield from [*asked()]
            except FAILURES as error:
                yield Line(what, "fail", f"can't be asked: {last_line(error)}")

    def figures(self) -> str:
        texts = [ledger.paths(name).ledger.read_text() for name in self.sweeps]
        trials = sum(len(one.ended) for one in self._swept())
        attempts = sum(text.count('\n{"kind":"attempt"') for text in texts)
        store = "PostgreSQL" if self._postgres else "SQLite"
        return (
            f"{self.passed_s / 60:.1f} minutes, {trials} trials, {attempts} attempts that did not count, "
            f"{len(self.happened)} faults, {len(self.ended_by)} drivers resumed, MLflow on {store}"
        )

    def _swept(self) -> list[Swept]:
        return [swept(name) for name in self.sweeps]

    def _runs(self) -> list[Run]:
        told = json.loads(self._laptop.head.run(python(RUNS), timeout_s=300))
        return [Run(sweep, trial, told_by(*content)) for sweep, trial, content in told]

    def _cleared(self, before: Before) -> list[Line]:
        """Once what is under way has had its time to go."""
        give_up = time.monotonic() + GONE_WITHIN_S
        while True:
            seen, states = self._settled(), self._laptop.ask(GROUPS)
            found = [*verdicts.of_processes(before.processes, seen), verdicts.of_groups(states)]
            if not verdicts.has_failed(found) or time.monotonic() > give_up:
                return found

    def _absent(self) -> list[str]:
        there = {node["NodeManagerAddress"] for node in self._laptop.nodes()}
        return [host.name for host in self._hosts if host.address not in there]

    def _settled(self) -> dict[str, list[Seen]]:
        first = {host.name: look(host) for host in self._hosts}
        time.sleep(PASSING_S)
        found = {host.name: verdicts.settled(first[host.name], look(host)) for host in self._hosts}
        return found | {"the laptop": [*self._on_laptop()]}

    def _on_laptop(self) -> Iterator[Seen]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HOME") == str(self._laptop.home):
                    yield Seen(process.pid, verdicts.kind(process.cmdline(), process.name()))

    def _files(self) -> Iterator[Path]:
        """Where all that runs may leave some: this machine's folders for such, the hosts' homes, and Ray's folder of
        each."""
        yield from (path for path in temporary(Path(tempfile.gettempdir())) if path != self._folder)
        yield from (path for path in Path("/dev/shm").iterdir() if not path.name.startswith("PostgreSQL."))
        for host in self._hosts:
            yield from in_ray(host.home.parent / "ray")
            for at, folders, files in os.walk(host.home):
                folders[:] = [name for name in folders if name not in KEPT]
                yield from (Path(at, name) for name in files)

    def _strays(self, before: Before) -> Iterator[Stray]:
        found = [path for path in self._files() if path not in before.files]
        for path in (*found, *strays(self._results)):
            with contextlib.suppress(FileNotFoundError):
                yield Stray(str(path), path.lstat().st_mtime)


def repeats(left_s: float, trial_s: float) -> int:
    """Return the repeats of every cell, for as long as there is time: of the short trials, which come first, more seem
    to fit than do."""
    return min(MOST_REPEATS, max(1, round(left_s / trial_s / CELLS)))


def temporary(folder: Path) -> Iterator[Path]:
    """Return what processes of a soak may have made in a folder for temporary files."""
    return (path for path in folder.iterdir() if path.name.startswith(TEMPORARY))


def in_ray(folder: Path) -> Iterator[Path]:
    """Yield what is in a host's folder of Ray but not kept there on purpose: of a session, what stands in it directly
    (addresses, ports) and what `OF_A_SESSION` names are."""
    for path in folder.iterdir():
        if path.name in OF_RAY:
            continue
        if not path.name.startswith("session_"):
            yield path
            continue
        for at in (one for one in path.iterdir() if one.is_dir()):
            found = (Path(below, name) for below, _, files in os.walk(at) for name in files)
            if at.name == RESOURCES:
                yield from (one for one in found if one.name.endswith(PACKED))
            elif at.name not in OF_A_SESSION:
                yield from found


def strays(results: Path) -> Iterator[Path]:
    """What does not belong there once all sweeps are over: what is no sweep's folder and no store's copy, and in the
    folder of a sweep parts of files, a driver's bulletin, empty folders, others' things."""
    known = (*gc.PARTS, "ledger.jsonl", "report.html")
    folders = [path.parent for path in results.glob("*/ledger.jsonl")]
    yield from (path for path in results.iterdir() if path not in folders and path.name != ".stores")
    for folder in folders:
        empty = (path for path in folder.glob("*/**") if path.is_dir() and not any(path.iterdir()))
        yield from (path for path in empty if path.relative_to(folder).parts[0] != "tune")  # Tune makes one a trial
        yield from (path for path in folder.iterdir() if path.name not in known)
        own = (part for part in known if part != "tune")  # Tune keeps hidden files of its own
        yield from (path for part in own for path in (folder / part).rglob(".*"))


def swept(name: str) -> Swept:
    facts = ledger.facts(name)
    lines = ledger.paths(name).ledger.read_text().rpartition("\n")[0].splitlines()  # the last may be torn
    ended = [json.loads(line) for line in lines if line.startswith('{"kind":"trial"')]
    ends = [(entry["trial"], entry["outcome"]["status"]) for entry in ended]
    contents = {one.config.trial: due(one) for one in ledger.read(name).trials}
    return Swept(name, [config.trial for config in facts.trials], ends, contents)


def timed(name: str, workers: int) -> Timed:
    """Return the times of a sweep. How long it was its file tells, whose times no fault moves."""
    read, at = ledger.read(name), ledger.paths(name).ledger
    ended = [one for one in ledger.Tail(name).news() if isinstance(one, ledger.TrialRecord)]  # each of its ends
    found = [duration for record in (*ended, *read.attempts) for duration in durations(record)]
    waits = [entry for entry in ledger.entries(at) if entry["kind"] == "wait"]
    found += [Duration("a gang", "waited", entry["at"] - entry["since"]) for entry in waits]
    spec = read.facts.spec
    slots = max((slots_of(spec.device, spec.cores_per_worker, node) for node in read.facts.nodes), default=0)
    return Timed(name, at.stat().st_mtime - read.facts.created_at, found, read.spent, workers * slots)


def durations(record: ledger.TrialRecord) -> Iterator[Duration]:
    """Yield how long an attempt took, each part of it, and how long it held its slots."""
    trial, took_s = record.config.trial, record.ended_at - record.started_at
    since = record.started_at if record.held_since is None else record.held_since
    yield Duration(trial, "held_s", record.ended_at - since)
    for name, figure in rows.metrics(record).items():
        if name.endswith("_s") and not name.endswith("_per_s"):
            yield Duration(trial, name, figure, math.inf if name == "trial_s" else took_s)
        elif name.startswith("step_ms_"):
            yield Duration(trial, name, figure / 1e3, took_s)


def due(record: ledger.TrialRecord) -> Content:
    """Return what the run of a trial must say."""
    status = tracking.run_status(record.outcome)
    return Content(status, tracking.in_ms(record.ended_at), rows.metrics(record).get("images_per_s"))


def told_by(status: str, ended_ms: str | int | None, images_per_s: float | None) -> Content:
    """Return what a run says, as MLflow answers it: a long number is a text in JSON."""
    return Content(status, int(ended_ms) if ended_ms else None, images_per_s)


def role(command: str) -> str:
    """Return the role of those whose memory and open files are watched; empty of all others."""
    return next((named for named, like in (JUDGED | TOLD).items() if re.search(like, command)), "")


def has_ray(host: Host) -> bool:
    for process in host.processes():
        with contextlib.suppress(psutil.Error):
            if role(" ".join(process.cmdline())) == "Ray's raylet":
                return True
    return False


def look(host: Host) -> list[Seen]:
    """By the host itself, whose ports only it sees."""
    found = json.loads(host.run(python(LOOK)))
    return [Seen(pid, verdicts.kind(command, name), tuple(ports)) for pid, name, command, ports in found]


def last_line(error: Exception) -> str:
    return next(iter(reversed(str(error).strip().splitlines())), type(error).__name__)


def python(script: str) -> str:
    return f"~/ray-sweeps/.venv/bin/python -c {shlex.quote(script)}"


def fill(path: Path) -> None:
    """Until the disk takes no byte more."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(file, bytes(size))
    finally:
        os.close(file)


def left_out() -> dict[Kind, str]:
    """Faults that can't be caused here, and why."""
    out: dict[Kind, str] = {}
    if not database.programs():
        out["PostgreSQL restarted"] = "PostgreSQL's server is not installed (apt-get install postgresql)"
    if not clocks.compiler():
        out["clock off"] = "no C compiler is installed (apt-get install gcc)"
    return out


def main(minutes: float, seed: int) -> int:
    if why := hosts.lacking():
        sys.exit(f"a soak needs hosts, but {why}")
    out = left_out()
    kinds = [kind for kind in KINDS if kind not in out]
    faults = schedule(minutes, kinds, HOSTS - 1, seed)
    print(f"{minutes:g} minutes, seed {seed}", *faults, sep="\n", flush=True)
    for kind, why in out.items():
        print(f"left out: {kind}, since {why}", flush=True)
    with hosts.made(HOSTS, shared_mib=DISK_MIB) as (machines, folder):
        os.environ["SWEEP_RESULTS"] = str(folder / "shared/results")
        programs = database.programs()
        postgres = Postgres(machines[0], folder, programs) if programs else None
        laptop = Laptop(machines, folder, Postgres.store if postgres else "")
        soak = Soak(laptop, folder, minutes, postgres)
        if "clock off" in kinds:
            soak.clocks = [Clock(host) for host in laptop.workers]
        with laptop.cluster():
            laptop.wait_for_nodes()
            before = soak.before()
            lines = [soak.run(faults)]
            print(soak.figures(), lines[0], sep="\n", flush=True)
            for line in soak.lines(faults, before):
                print(line, flush=True)
                lines.append(line)
            for line in verdicts.of_left_out(out, minutes):
                print(line, flush=True)
                lines.append(line)
    return 1 if verdicts.has_failed(lines) else 0


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m tests.cluster.soak", description=__doc__)
    options.add_argument("--minutes", type=float, default=40)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    if given.minutes < SHORTEST_MIN:
        options.error(f"--minutes must be {SHORTEST_MIN:g} or more, to have every fault, but is {given.minutes:g}")
    sys.exit(main(given.minutes, given.seed))
