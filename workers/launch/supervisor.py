"""Supervises one rank: has it forked by the node's fork server, listens to it, and says how it ended.

A rank can end in any way (it raises, is killed, stops answering, never joins the ring) and the supervisor always
comes back with a `RankEnd`. Knows nothing of Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import importlib.util
import json
import math
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from workers.contract import environment, messages, paths, redact
from workers.contract.messages import Progress
from workers.contract.ranks import BEAT, Beat, Seat
from workers.frameworks import memory
from workers.launch.bound_log import BoundLog
from workers.measure import usage

LOOK_EVERY_S = 0.5
LAST_LINES, LONGEST_LINE = 8, 300  # of a log, that stand in the outcome
TELL_EVERY_S = 5.0
ASK_EVERY_S = 1.0
SCRATCH = "sweep-rank-"
YOUNG_S = 5.0  # a folder may just have been made, and not be held yet
SAID = ("kind", "message", "exit_code", "software", "data_files")  # by a rank that ends without a report


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended. An *echo* is a rank that failed because another had gone."""

    rank: int
    what: Literal["measured", "infeasible", "failed", "lost", "echo", "stopped"]
    kind: str = ""
    message: str = ""
    phase: messages.Phase = "start"
    step: int = 0
    at: float = 0.0
    log: str = ""
    exit_code: int | None = None  # of a user's program
    last_lines: tuple[str, ...] = ()  # of its log, where it ended badly
    report: messages.RankReport | None = None
    software: str = ""  # fingerprints of what it ran and read, where it could say so without a report
    data_files: str = ""
    host: str = ""  # the address of its machine
    usage: Mapping[str, float] | None = None  # of its node, nothing where nothing is known; from one rank a node


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """What a fork server needs to fork a rank, and the rank to do its work."""

    config: messages.TrialConfig
    seat: Seat
    entry: str  # module:function of (config, seat, voice)
    env: Mapping[str, str]
    log: str
    samples: str = ""  # what the node's sampler writes
    gpus: tuple[str, ...] = ()  # of the gang on this node


def supervise(order: Order, fork_server: str, is_called_off: Callable[[], bool]) -> Iterator[Progress | RankEnd]:
    """Start a rank and stay until it has ended, whatever way; afterwards no process of it is left.

    Yields its progress now and then and after each epoch, and its end last. Ends it early once `is_called_off` says so.
    """
    ordered_at = time.monotonic()
    # Where its temporary files go: a rank that is killed can't clear them away. Its fork server does, when the
    # rank has ended; its supervisor does too, should the fork server be killed.
    _clear_away_what_nobody_holds()
    scratch = tempfile.mkdtemp(prefix=SCRATCH)
    scratch_fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(scratch_fd, fcntl.LOCK_SH)
    beat_fd = os.memfd_create("beat")
    log = BoundLog(order.log)
    ours, theirs = socket.socketpair()
    try:
        log_begin = os.path.getsize(order.log) if os.path.exists(order.log) else 0
        os.ftruncate(beat_fd, BEAT.size)
        beat = Beat(beat_fd)
        ended: dict[str, Any] = {}
        if missing := _missing(order.config.framework):
            ended = missing
        elif not (line := _connected(order, fork_server, is_called_off)):
            ended = _no_fork_server(order, is_called_off)
        else:
            with line:
                socket.send_fds(line, [_encode(order, scratch, ordered_at)], [theirs.fileno(), beat_fd])
                theirs.close()
                for seen in _watched(order, line, ours, beat, log, is_called_off):
                    if isinstance(seen, Progress):
                        yield seen
                    else:
                        ended = seen
        log.look()
        if order.config.script and ended["what"] in ("failed", "infeasible"):
            ended["last_lines"] = _last_lines(order, log_begin)
        phase, step = beat.read()
        used = _usage(order, ended.get("report"))
        yield RankEnd(
            rank=order.seat.rank,
            phase=phase,
            step=step,
            at=time.time(),
            log=order.log,
            host=order.seat.host,
            usage=used,
            **ended,
        )
    finally:
        ours.close()
        theirs.close()
        os.close(beat_fd)
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(scratch_fd)


@functools.cache  # once a process
def _clear_away_what_nobody_holds() -> None:
    """Such folders of supervisors that were killed together with their fork server: as a whole machine is."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError), _taken_from_nobody(folder):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _taken_from_nobody(folder: Path) -> Iterator[None]:
    """Take a folder within the block; raises BlockingIOError where a supervisor holds it, or may be about to."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if time.time() - os.fstat(held).st_mtime < YOUNG_S:
            raise BlockingIOError(folder)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def is_answering(fork_server: str, framework: messages.Framework = "tensorflow") -> bool:
    """Say whether a node's fork server of a framework is there; if not, ask for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        is_there = line.connect_ex(paths.fork_server_address(fork_server, framework)) == 0
    if not is_there:
        ask_for(fork_server, framework)
    return is_there


def await_all(fork_server: str, frameworks: Iterable[messages.Framework], patience_s: float) -> None:
    """Wait until a node has the fork servers of these frameworks, but for those of which it has no package. While one
    imports its framework the node is slow."""
    wanted, give_up = [one for one in frameworks if is_installed(one)], time.monotonic() + patience_s
    while time.monotonic() < give_up and not all(is_answering(fork_server, one) for one in wanted):
        time.sleep(0.1)


def ask_for(fork_server: str, framework: messages.Framework) -> None:
    """Tell the node that a fork server of this framework is wanted: it starts one where none runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line, contextlib.suppress(OSError):
        line.setblocking(False)
        line.sendto(framework.encode(), paths.wanted_address(fork_server))


def _connected(order: Order, fork_server: str, is_called_off: Callable[[], bool]) -> socket.socket | None:
    framework = order.config.framework
    give_up, ask_at = time.monotonic() + order.config.deadlines.fork_server_s, 0.0
    while (now := time.monotonic()) < give_up and not is_called_off():
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            line.connect(paths.fork_server_address(fork_server, framework))
            return line
        except OSError:
            line.close()
            if now >= ask_at:
                ask_for(fork_server, framework)
                ask_at = now + ASK_EVERY_S
            time.sleep(0.02)
    return None


def is_installed(framework: messages.Framework) -> bool:
    """Say whether this node has a framework. TensorFlow is no extra: every node has it."""
    return framework == "tensorflow" or importlib.util.find_spec(framework) is not None


def _missing(framework: messages.Framework) -> dict[str, Any]:
    """Return how a rank ends for which its node lacks the framework; nothing where it has it."""
    if is_installed(framework):
        return {}
    rule = f"framework: {framework} needs {framework} on every node, but {os.uname().nodename} has none"
    return {"what": "failed", "kind": f"no {framework}", "message": f"{rule}: make setup TORCH=1 installs it"}


def _no_fork_server(order: Order, is_called_off: Callable[[], bool]) -> dict[str, Any]:
    if is_called_off():
        return {"what": "stopped"}
    of = "" if order.config.framework == "tensorflow" else f" of {order.config.framework}"
    message = f"the node's fork server{of} did not answer within {order.config.deadlines.fork_server_s:g} s"
    return {"what": "failed", "kind": "no fork server", "message": message}


def _watched(
    order: Order,
    fork_server: socket.socket,
    voice: socket.socket,
    beat: Beat,
    log: BoundLog,
    is_called_off: Callable[[], bool],
) -> Iterator[Progress | dict[str, Any]]:
    """Yield a rank's progress while it lives; at last, how it ended."""
    heard = b""
    epoch, note = None, ""
    pid = 0
    seen, since = beat.read(), time.monotonic()
    tell_at = since + TELL_EVERY_S
    may_hold = memory.limit(order.config, order.seat.local_size)
    kills_before = memory.kernel_kills()
    log_begin = os.path.getsize(order.log) if os.path.exists(order.log) else 0
    with selectors.DefaultSelector() as selector:
        selector.register(fork_server, selectors.EVENT_READ)
        selector.register(voice, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(LOOK_EVERY_S):
                if key.fileobj is voice:
                    chunk = _receive(voice)
                    heard += chunk
                    finished, noted, heard = _news(heard)
                    note = noted or note
                    for epoch in finished:
                        yield Progress(*beat.read(), epoch, note)
                    if not chunk:
                        selector.unregister(voice)
                    continue
                message = json.loads(_receive(fork_server) or "{}")
                if "pid" in message:
                    pid = message["pid"]
                    continue
                was_killed_for_memory = memory.kernel_kills() > kills_before
                exit_code = message.get("exit")
                aborted = order.config.device == "gpu" and exit_code == -signal.SIGABRT
                refused, alone = (
                    said(order.log, log_begin) if aborted else "" for said in (memory.fatal_refusal, memory.fatal_echo)
                )
                yield _verdict(heard + _drained(voice), exit_code, was_killed_for_memory, refused, alone)
                return
            log.look()
            now = time.monotonic()
            if beat.read() != seen:
                seen, since = beat.read(), now
            held = (memory.held if order.config.script else memory.resident)(pid) if pid else 0
            if held > may_hold:
                _hang_up(fork_server)
                yield _too_much(held, may_hold, order.config)
                return
            limit_s = _limit_s(order, seen[0])
            if now - since > limit_s:
                why = _stalled(order.config, seen, limit_s, pid)
                _hang_up(fork_server)
                yield why
                return
            if is_called_off():
                _hang_up(fork_server)
                yield {"what": "stopped"}
                return
            if now >= tell_at:
                tell_at = now + TELL_EVERY_S
                yield Progress(*seen, epoch, note)


def _limit_s(order: Order, phase: messages.Phase) -> float:
    """How long a rank may stay in a phase. One that has TensorFlow to import starts as slowly as a fork server. Of a
    script that tells no steps only the first rank says how far it has come."""
    config, deadlines = order.config, order.config.deadlines
    if config.script and config.protocol == "convergence" and phase == "build" and order.seat.rank:
        return math.inf
    if phase == "start" and environment.needs_own_process(config.env):
        return deadlines.fork_server_s
    return deadlines.for_phase(phase)


def _news(heard: bytes) -> tuple[list[messages.EpochRecord], str, bytes]:
    """Return the epochs told of, a note, and what has been heard besides."""
    finished, note, kept = [], "", b""
    for line in heard.splitlines(keepends=True):
        if line.endswith(b"\n") and line.startswith(b'{"say": "epoch"'):
            finished.append(messages.EpochRecord(**json.loads(line)["record"]))
        elif line.endswith(b"\n") and line.startswith(b'{"say": "note"'):
            note = json.loads(line)["words"]
        else:
            kept += line
    return finished, note, kept


def _usage(order: Order, report: messages.RankReport | None) -> dict[str, float] | None:
    """Return what the node did during the window, on the gang's GPUs and no other; told by the first of its ranks."""
    if not report or not order.samples or order.seat.local_rank:
        return None
    return usage.summary(Path(order.samples), *report.window_at, gpus=order.gpus)


def _last_lines(order: Order, begin: int) -> tuple[str, ...]:
    """Return what this attempt printed last, without secrets."""
    said = redact.masked(memory.logged(order.log, begin), redact.secrets(os.environ, order.config.env_from))
    return tuple(line.rstrip()[:LONGEST_LINE] for line in said.splitlines() if line.strip())[-LAST_LINES:]


def _too_much(held: int, limit: float, config: messages.TrialConfig) -> dict[str, Any]:
    whose = "worker_memory_gib" if config.worker_memory_gib else "its part of the node's memory"
    message = f"held {held / memory.GIB:.2f} GiB, more than {whose} ({limit / memory.GIB:.2f} GiB)"
    return {"what": "infeasible", "kind": "host memory", "message": message}


def _encode(order: Order, scratch: str, ordered_at: float) -> bytes:
    told = messages.to_json(order)
    told["seat"]["ordered_at"] = ordered_at
    return json.dumps({**told, "scratch": scratch}).encode()


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 16)
    except OSError:
        return b""


def _drained(voice: socket.socket) -> bytes:
    """Return what the rank said before it ended and nobody has read yet."""
    voice.setblocking(False)
    heard = b""
    while chunk := _receive(voice):
        heard += chunk
    return heard


def _hang_up(fork_server: socket.socket) -> None:
    """Have the fork server kill the rank, and wait until it has."""
    with contextlib.suppress(OSError):
        fork_server.shutdown(socket.SHUT_WR)
        fork_server.settimeout(10)
        while fork_server.recv(1 << 16):
            pass


def _verdict(
    heard: bytes, exit_code: int | None, was_killed_for_memory: bool = False, refused: str = "", alone: str = ""
) -> dict[str, Any]:
    """Return what a rank said last, if that and its exit agree; else what its exit says."""
    said: dict[str, Any] = json.loads(heard.splitlines()[-1]) if heard.endswith(b"\n") else {}
    if said.get("say") == "measured" and exit_code == 0:
        return {"what": "measured", "report": messages.rank_report(said["report"])}
    if "say" in said and said["say"] != "measured":
        return {"what": said["say"], **{name: said[name] for name in SAID if name in said}}
    if exit_code is None:
        return {
            "what": "failed",
            "kind": "fork server gone",
            "message": "the node's fork server died, and the rank with it",
        }
    if exit_code == -signal.SIGKILL and was_killed_for_memory:
        message = "the kernel ended it because the node had no memory left"
        return {"what": "infeasible", "kind": "host memory", "message": message}
    if refused:
        return {"what": "infeasible", "kind": "device memory", "message": refused}
    if alone:
        return {"what": "echo", "kind": "ring broken", "message": alone}
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return {"what": "failed", "kind": "killed", "message": f"killed by signal {-exit_code} ({name})"}
    return {"what": "failed", "kind": "exited", "message": f"ended with exit code {exit_code} and no result"}


def _stalled(
    config: messages.TrialConfig, seen: tuple[messages.Phase, int], limit_s: float, pid: int
) -> dict[str, Any]:
    phase, step = seen
    if phase in ("start", "ring"):
        return {
            "what": "failed",
            "kind": "no rendezvous",
            "message": f"did not join the ring within {limit_s:g} s{_state(pid)}",
        }
    if config.script and not _state(pid) and (said := _stalled_script(config, phase, step, limit_s)):
        return said
    where = {"build": "building", "count": f"while it counted the data's records, {step:,} so far"}.get(
        phase, f"after step {step}"
    )
    return {
        "what": "failed",
        "kind": "stalled",
        "message": f"stopped answering {where}: no progress for {limit_s:g} s{_state(pid)}",
    }


def _stalled_script(config: messages.TrialConfig, phase: messages.Phase, step: int, limit_s: float) -> dict[str, Any]:
    """Return how a user's script stands still where that is of its own making; nothing elsewhere."""
    if phase == "build" and config.script and config.script.lengths:
        message = f"the program must come to its end within {limit_s:g} s for each of its lengths, but did not"
        return {"what": "failed", "kind": "never ended", "message": message}
    if phase == "build" and config.protocol == "convergence":
        rule = "the script must take steps, on all ranks, or report, on the first"
        message = f"{rule}, but did not for {limit_s:g} s"
        return {"what": "failed", "kind": "stalled", "message": message}
    if phase == "build" and not step:
        message = f"the script must {messages.TOLD_STEPS}, but took no step within {limit_s:g} s"
        return {"what": "failed", "kind": "no steps", "message": message}
    if phase == "build":
        message = f"ranks must step together, but this one waited {limit_s:g} s for the first step of the others"
        return {"what": "failed", "kind": "no steps", "message": message}
    if phase == "finish":
        rule = "the script must end by the SystemExit that its loop raises once enough is measured"
        message = f"{rule}, but went on for {limit_s:g} s behind step {step}"
        return {"what": "failed", "kind": "never ended", "message": message}
    return {}


def _state(pid: int) -> str:
    """Return what the system says of a process that stands still, where that explains it."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            state = stat.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
    return {"T": "; the process is stopped (SIGSTOP)", "D": "; the process waits for a device"}.get(state, "")
