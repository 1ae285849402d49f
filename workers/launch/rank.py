"""What a forked rank does from its first instruction to its last."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from workers.contract import datafiles, environment, messages, paths, redact
from workers.contract.libc import flush_c_output
from workers.contract.ranks import Beat, Fault, Infeasible, Seat, Voice
from workers.launch import preload
from workers.node import fingerprint, start_from_source

PRECEDENCE = -10  # as a niceness
LINES = 4  # to each other rank: Horovod joins all, those of a node and those across nodes, and a script's ranks meet
FILES_BESIDE = 1024
# How a rank hears that another has gone: from Horovod or torch.distributed, or from what carries its reductions.
IN_USER_CODE = "in user code:"  # begins what TensorFlow says of an error in a function that it traced
RING_BROKEN = (
    "HorovodInternalError",
    "Horovod has been shut down",
    "/gloo/",
    "ncclCommGetAsyncError",
    "MeetingBroken",
    "DistBackendError",
    "DistNetworkError",
)


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What a rank measures with."""

    software: str = ""  # fingerprints: of what its process has loaded,
    data_files: str = ""  # and of the files that it reads

    def stamp(self, report: messages.RankReport, config: messages.TrialConfig) -> messages.RankReport:
        """Return the report with these; data that changed while it was read has two, and is like no other."""
        now = datafiles.of_trial(config)
        files = self.data_files if now == self.data_files else f"{self.data_files}>{now}"
        return dataclasses.replace(report, software=self.with_own(report.software), data_files=files)

    def with_own(self, code: str) -> str:
        """Return the fingerprint of this software with a user's own code, if there is any."""
        return fingerprint.digest({"software": self.software, "own": code}) if code else self.software


def main(order: dict[str, Any], channel_fd: int, beat_fd: int) -> NoReturn:
    if os.getpid() != os.getsid(0):
        os.setsid()
    _take_precedence()
    _be_first_to_go()
    _redirect(Path(order["log"]), keep=(channel_fd, beat_fd))
    may_open_lines(order["seat"]["size"])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    voice = Voice(socket.socket(fileno=channel_fd), Beat(beat_fd))
    code, made = 0, Provenance()
    try:
        config = messages.trial_config(order["config"])
        os.environ.update(order["env"] | environment.environment(config))
        _check_variables(config)
        made = Provenance(_software(order["software"], config.framework), datafiles.of_trial(config))
        voice.sign = lambda report: made.stamp(report, config)
        module, function = order["entry"].split(":")
        entry = getattr(importlib.import_module(module), function)
        entry(config, _remembering(Seat(**order["seat"]), made), voice)
    except BaseException as error:
        secrets = redact.secrets(os.environ, order["config"]["env_from"])
        said = describe(error)
        said["message"] = redact.masked(said["message"], secrets)
        if not (isinstance(error, Fault | Infeasible) and order["config"].get("script")):  # these say all in words
            print(redact.masked(traceback.format_exc(), secrets), file=sys.stderr)
        elif voice.is_of_a_fork:  # whose words nobody else hears
            print(said["message"], file=sys.stderr)
        with contextlib.suppress(OSError):  # a file of the user's has gone
            made = dataclasses.replace(made, software=made.with_own(voice.own_code()))
        voice.say(**said, **dataclasses.asdict(made))
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a user's script may have closed it, or put another in its place
            stream.flush()
    flush_c_output()
    os._exit(code)  # nothing is worth the seconds that TensorFlow takes to unwind


def _check_variables(config: messages.TrialConfig) -> None:
    if unset := [name for name in config.env_from if not os.environ.get(name)]:
        rule = f"must be set on {os.uname().nodename} where Ray is started"
        raise Fault("variable not set", f"{', '.join(unset)} {rule}: env_from names what a node has to give")


def _software(facts: Mapping[str, Any], framework: messages.Framework) -> str:
    """Return the fingerprint of what this process has loaded: what its fork server had, or, started by itself, what is
    there."""
    return fingerprint.digest(facts if facts.get("code") else preload.loaded(facts, framework))


def _remembering(seat: Seat, made: Provenance) -> Seat:
    """Windows that other code or other data have shown say nothing of these; nor do their checkpoints."""
    history = seat.history and str(paths.history_of(Path(seat.history), made.software, made.data_files))
    return dataclasses.replace(seat, history=history, made={**seat.made, **dataclasses.asdict(made)})


def may_open_lines(size: int) -> None:
    """Have as many files as a line to each other rank needs; 1,024, which Linux gives, are too few for as many
    ranks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LINES * size + FILES_BESIDE
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _take_precedence() -> None:
    """Go before what only looks after the ranks, where the system lets us: one rank that has to wait for a core
    holds up all. At the least, lose the niceness that Ray gives its workers and whoever they start."""
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as session:  # Linux weighs sessions first
        session.write(str(PRECEDENCE))
    for niceness in (PRECEDENCE, 0):
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            return


def _be_first_to_go() -> None:
    """Have the kernel, should it want memory back, take a rank before what looks after it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def start_from_nothing(order: dict[str, Any], channel_fd: int, beat_fd: int) -> NoReturn:
    """Become a new Python process that imports everything under the order's environment, and then `main`."""
    order = {**order, "software": {**order["software"], "code": ""}}  # it imports the files as they are now
    order_fd = os.memfd_create("order", 0)  # survives what comes
    os.write(order_fd, json.dumps(order).encode())
    for fd in (channel_fd, beat_fd):
        os.set_inheritable(fd, True)
    arguments = (f"/proc/self/fd/{order_fd}", str(channel_fd), str(beat_fd))
    run = start_from_source.command("workers.launch.rank", "begin", *arguments)
    os.execve(sys.executable, run, os.environ | order["config"]["env"])


def begin(order: str, channel_fd: str, beat_fd: str) -> NoReturn:
    """Run `main` in a process that has just started."""
    main(json.loads(Path(order).read_bytes()), int(channel_fd), int(beat_fd))


def describe(error: BaseException) -> dict[str, Any]:
    """Is this a finding, the echo of another rank's end, or the rank's own fault?"""
    name = type(error).__name__
    text = str(error).encode(errors="replace").decode()  # a file's name may hold what no store takes
    lines = text.strip().splitlines() or [name]
    message = lines[-1].strip() if lines[0] == IN_USER_CODE else lines[0]
    if isinstance(error, Infeasible):
        return {"what": "infeasible", "kind": error.kind, "message": message}
    if isinstance(error, Fault):
        ended = {} if error.exit_code is None else {"exit_code": error.exit_code}
        return {"what": "failed", "kind": error.kind, "message": message, **ended}
    if isinstance(error, MemoryError):
        return {"what": "infeasible", "kind": "host memory", "message": message}
    if any(sign in f"{name} {error}" for sign in RING_BROKEN):
        return {"what": "echo", "kind": "ring broken", "message": message}
    return {"what": "failed", "kind": "raised", "message": f"{name}: {message}"}


def _redirect(log: Path, keep: tuple[int, ...]) -> None:
    """Everything the rank prints goes to its log; every descriptor of the fork server's is closed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    kept = sorted({0, 1, 2, *keep})
    for low, high in zip([-1, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
        if low + 1 < high:  # closerange(0, 0) closes everything in Python 3.11
            os.closerange(low + 1, high)
