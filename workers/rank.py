"""What a forked rank does from its first instruction to its last.

It speaks to its keeper in two ways. Its *voice* is a socket for the few things worth a message; its *beat* is
sixteen bytes of shared memory that say how far it has come, written once a step without a system call, so that
the measured loop stays clean and a rank that stands still is noticed from outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import mmap
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from workers import contract, datafiles, fingerprint, knobs, paths, preload, redact, sources

PRECEDENCE = -10  # as a niceness
BEAT = struct.Struct("<qq")  # index of the phase, steps done
# How a rank hears that another has gone: from Horovod, or through TensorFlow from what carries its reductions.
RING_BROKEN = ("HorovodInternalError", "Horovod has been shut down", "/gloo/", "ncclCommGetAsyncError")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """A rank's place in its gang, and where the gang meets."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str
    interface: str = ""
    shares_machine: bool = False  # with another of Ray's nodes, whose ranks it knows nothing of
    gpus: tuple[str, ...] = ()  # of the gang's ranks on this node, by local rank; empty words where they have none
    rendezvous: str = dataclasses.field(default="", repr=False)  # address:port/word
    checkpoint: str = ""  # the file that the gang goes on from, and leaves its checkpoints in
    made: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what says with what they were measured
    history: str = ""  # the file in which the cell's trials leave what their windows have shown


class Beat:
    """How far a rank has come, readable by another process."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, BEAT.size)

    def write(self, phase: contract.Phase, step: int) -> None:
        BEAT.pack_into(self._memory, 0, contract.PHASES.index(phase), step)

    def read(self) -> tuple[contract.Phase, int]:
        phase, step = BEAT.unpack_from(self._memory)
        return contract.PHASES[phase], step


class Infeasible(Exception):  # noqa: N818 — a finding, not an error
    """This trial can't run here, and trying again won't change that."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Fault(Exception):  # noqa: N818
    """This trial fails for a reason that its user can mend."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclasses.dataclass(frozen=True)
class Made:
    """What a rank measures with."""

    software: str = ""  # fingerprints: of what its process has loaded,
    data_files: str = ""  # and of the files that it reads

    def told(self, report: contract.RankReport, config: contract.TrialConfig) -> contract.RankReport:
        """Return the report with these; data that changed while it was read has two, and is like no other."""
        now = datafiles.of_trial(config)
        files = self.data_files if now == self.data_files else f"{self.data_files}>{now}"
        return dataclasses.replace(report, software=self.software, data_files=files)


class Voice:
    """What a rank says while it lives."""

    def __init__(self, channel: socket.socket, beat: Beat) -> None:
        self._channel = channel
        self._beat = beat
        self.sign: Callable[[contract.RankReport], contract.RankReport] = lambda report: report

    def beat(self, phase: contract.Phase, step: int = 0) -> None:
        self._beat.write(phase, step)

    def say(self, what: str, **facts: Any) -> None:
        """One of `measured`, `infeasible`, `failed`, `echo`, once, as its last; before that any number of `epoch`, and
        a `note` or none."""
        self._channel.sendall(json.dumps({"say": what, **facts}).encode() + b"\n")

    def epoch(self, record: contract.EpochRecord) -> None:
        self.say("epoch", record=contract.to_json(record))

    def note(self, words: str) -> None:
        """What the trial's user should know at once."""
        self.say("note", words=words)

    def report(self, report: contract.RankReport) -> None:
        self.say("measured", report=contract.to_json(self.sign(report)))


def main(order: dict[str, Any], channel_fd: int, beat_fd: int) -> NoReturn:
    if os.getpid() != os.getsid(0):
        os.setsid()
    _take_precedence()
    _be_first_to_go()
    _redirect(Path(order["log"]), keep=(channel_fd, beat_fd))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    voice = Voice(socket.socket(fileno=channel_fd), Beat(beat_fd))
    code, made = 0, Made()
    try:
        config = contract.trial_config(order["config"])
        os.environ.update(order["env"] | knobs.environment(config))
        _check_variables(config)
        made = Made(_software(order["software"]), datafiles.of_trial(config))
        voice.sign = lambda report: made.told(report, config)
        module, function = order["entry"].split(":")
        entry = getattr(importlib.import_module(module), function)
        entry(config, _remembering(Seat(**order["seat"]), made), voice)
    except BaseException as error:
        secrets = _secrets(order["config"]["env_from"])
        print(redact.masked(traceback.format_exc(), secrets), file=sys.stderr)
        said = describe(error)
        voice.say(**said | {"message": redact.masked(said["message"], secrets)}, **dataclasses.asdict(made))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    flush_c_output()
    os._exit(code)  # nothing is worth the seconds that TensorFlow takes to unwind


def _check_variables(config: contract.TrialConfig) -> None:
    if unset := [name for name in config.env_from if not os.environ.get(name)]:
        rule = f"must be set on {os.uname().nodename} where Ray is started"
        raise Fault("variable not set", f"{', '.join(unset)} {rule}: env_from names what a node has to give")


def _secrets(named: Iterable[str]) -> list[str]:
    """Return the values in this process's environment that nothing may say."""
    return [value for name, value in os.environ.items() if name in named or redact.is_secret(name, value)]


def _software(facts: Mapping[str, Any]) -> str:
    """The fingerprint of what this process has loaded: what its nursery had, or, started by itself, what lies there."""
    return fingerprint.digest(facts if facts.get("code") else preload.loaded(facts))


def _remembering(seat: Seat, made: Made) -> Seat:
    """Windows that other code or other data have shown say nothing of these; nor do their checkpoints."""
    history = seat.history and str(paths.history_of(Path(seat.history), made.software, made.data_files))
    return dataclasses.replace(seat, history=history, made={**seat.made, **dataclasses.asdict(made)})


def flush_c_output() -> None:
    """Write what C libraries still hold of standard output: NCCL tells there why it failed."""
    libc = ctypes.CDLL(None)
    libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))


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
    """Should the kernel want memory back, a rank goes before what looks after it."""
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
    run = sources.command("workers.rank", "begin", *arguments)
    os.execve(sys.executable, run, os.environ | order["config"]["env"])


def begin(order: str, channel_fd: str, beat_fd: str) -> NoReturn:
    """Run `main` in a process that has just started."""
    main(json.loads(Path(order).read_bytes()), int(channel_fd), int(beat_fd))


def describe(error: BaseException) -> dict[str, str]:
    """Is this a finding, the echo of another rank's end, or the rank's own fault?"""
    name = type(error).__name__
    text = str(error).encode(errors="replace").decode()  # a file's name may hold what no store takes
    message = next(iter(text.strip().splitlines()), name)
    if isinstance(error, Infeasible):
        return {"what": "infeasible", "kind": error.kind, "message": message}
    if isinstance(error, Fault):
        return {"what": "failed", "kind": error.kind, "message": message}
    if isinstance(error, MemoryError):
        return {"what": "infeasible", "kind": "host memory", "message": message}
    if any(sign in f"{name} {error}" for sign in RING_BROKEN):
        return {"what": "echo", "kind": "ring broken", "message": message}
    return {"what": "failed", "kind": "raised", "message": f"{name}: {message}"}


def _redirect(log: Path, keep: tuple[int, ...]) -> None:
    """Everything the rank prints goes to its log; every descriptor of the nursery's is closed."""
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
