"""Keeps one rank: has it forked by the node's nursery, listens to it, and says how it ended.

A rank can end in any way (it raises, is killed, stops answering, never joins the ring) and the keeper always
comes back with a `RankEnd`. Who wants the rank gone before that calls `stop`. Knows nothing of Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Literal

from workers import contract, paths
from workers.rank import BEAT, Beat, Seat

LOOK_EVERY_S = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended. An *echo* is a rank that failed because another had gone."""

    rank: int
    what: Literal["measured", "infeasible", "failed", "lost", "echo", "stopped"]
    kind: str = ""
    message: str = ""
    phase: contract.Phase = "start"
    step: int = 0
    at: float = 0.0
    log: str = ""
    report: contract.RankReport | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """What a nursery needs to fork a rank, and the rank to do its work."""

    config: contract.TrialConfig
    seat: Seat
    entry: str  # module:function of (config, seat, voice)
    env: Mapping[str, str]
    log: str
    ticket: int = 0  # tells this run of the keeper from its others
    cores: tuple[int, ...] = ()  # empty: wherever the system puts it


class Keeper:
    def __init__(self, nursery: str) -> None:
        self._nursery = nursery
        self._beat: Beat | None = None
        self._stopped = -1  # the last ticket that was called off

    def progress(self) -> tuple[contract.Phase, int]:
        return self._beat.read() if self._beat else ("start", 0)

    def stop(self, ticket: int) -> None:
        """End the run of this ticket, and no other: a late call finds nothing to do."""
        self._stopped = ticket

    def run(self, order: Order) -> RankEnd:
        """Start a rank and stay until it has ended, whatever way; afterwards no process of it is left."""
        # Where its temporary files go: a rank that is killed can't clear them away. Its nursery does, when the
        # rank has ended; this keeper does too, should the nursery be killed.
        scratch = tempfile.mkdtemp(prefix="sweep-rank-")
        beat_fd = os.memfd_create("beat")
        ours, theirs = socket.socketpair()
        try:
            os.ftruncate(beat_fd, BEAT.size)
            self._beat = Beat(beat_fd)
            nursery = self._connect(order)
            if nursery is None:
                return self._ended(order, **self._no_nursery(order))
            with nursery:
                socket.send_fds(nursery, [_encode(order, scratch)], [theirs.fileno(), beat_fd])
                theirs.close()
                return self._ended(order, **self._watch(order, nursery, ours))
        finally:
            ours.close()
            theirs.close()
            os.close(beat_fd)
            shutil.rmtree(scratch, ignore_errors=True)

    def _connect(self, order: Order) -> socket.socket | None:
        give_up = time.monotonic() + order.config.deadlines.nursery_s
        while time.monotonic() < give_up and self._stopped != order.ticket:
            nursery = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                nursery.connect(paths.nursery_address(self._nursery))
                return nursery
            except OSError:
                nursery.close()
                time.sleep(0.02)
        return None

    def _no_nursery(self, order: Order) -> dict[str, Any]:
        if self._stopped == order.ticket:
            return {"what": "stopped"}
        return {
            "what": "failed",
            "kind": "no nursery",
            "message": f"the node's nursery did not answer within {order.config.deadlines.nursery_s:.0f} s",
        }

    def _watch(self, order: Order, nursery: socket.socket, voice: socket.socket) -> dict[str, Any]:
        said: dict[str, Any] = {}
        heard = b""
        pid = 0
        seen, since = self.progress(), time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(nursery, selectors.EVENT_READ)
            selector.register(voice, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(LOOK_EVERY_S):
                    if key.fileobj is voice:
                        chunk = _receive(voice, 1 << 16)
                        heard += chunk
                        if not chunk:
                            selector.unregister(voice)
                        continue
                    message = json.loads(_receive(nursery, 1 << 16) or "{}")
                    if "pid" in message:
                        pid = message["pid"]
                        continue
                    heard += _drain(voice)
                    for line in heard.splitlines():
                        said.update(json.loads(line))
                    return _verdict(said, message.get("exit"))
                now = time.monotonic()
                if self.progress() != seen:
                    seen, since = self.progress(), now
                limit_s = order.config.deadlines.for_phase(seen[0])
                if now - since > limit_s:
                    why = _stalled(seen, limit_s, pid)
                    _hang_up(nursery)
                    return why
                if self._stopped == order.ticket:
                    _hang_up(nursery)
                    return {"what": "stopped"}

    def _ended(self, order: Order, **facts: Any) -> RankEnd:
        phase, step = self.progress()
        return RankEnd(rank=order.seat.rank, phase=phase, step=step, at=time.time(), log=order.log, **facts)


def _encode(order: Order, scratch: str) -> bytes:
    return json.dumps({**contract.to_json(order), "scratch": scratch}).encode()


def _receive(source: socket.socket, size: int) -> bytes:
    try:
        return source.recv(size)
    except OSError:
        return b""


def _drain(voice: socket.socket) -> bytes:
    """What the rank said before it ended and nobody has read yet."""
    voice.setblocking(False)
    heard = b""
    while chunk := _receive(voice, 1 << 16):
        heard += chunk
    return heard


def _hang_up(nursery: socket.socket) -> None:
    """Have the nursery kill the rank, and wait until it has."""
    with contextlib.suppress(OSError):
        nursery.shutdown(socket.SHUT_WR)
        nursery.settimeout(10)
        while nursery.recv(1 << 16):
            pass


def _verdict(said: dict[str, Any], exit_code: int | None) -> dict[str, Any]:
    if said.get("say") == "measured" and exit_code == 0:
        return {"what": "measured", "report": contract.rank_report(said["report"])}
    if "say" in said and said["say"] != "measured":
        return {"what": said["say"], "kind": said["kind"], "message": said["message"]}
    if exit_code is None:
        return {
            "what": "failed",
            "kind": "nursery gone",
            "message": "the node's nursery died, and the rank with it",
        }
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return {"what": "failed", "kind": "killed", "message": f"killed by signal {-exit_code} ({name})"}
    return {"what": "failed", "kind": "exited", "message": f"ended with exit code {exit_code} and no result"}


def _stalled(seen: tuple[contract.Phase, int], limit_s: float, pid: int) -> dict[str, Any]:
    phase, step = seen
    if phase in ("start", "ring"):
        return {
            "what": "failed",
            "kind": "no rendezvous",
            "message": f"did not join the ring within {limit_s:g} s{_state(pid)}",
        }
    where = "building" if phase == "build" else f"after step {step}"
    return {
        "what": "failed",
        "kind": "stalled",
        "message": f"stopped answering {where}: no progress for {limit_s:g} s{_state(pid)}",
    }


def _state(pid: int) -> str:
    """What the system says of a process that stands still, where that explains it."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            state = stat.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
    return {"T": "; the process is stopped (SIGSTOP)", "D": "; the process waits for a device"}.get(state, "")
