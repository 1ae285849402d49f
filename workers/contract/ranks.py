"""A rank and whoever started it: where it sits, what it says, how it ends before its time. Standard library only.

It speaks to its supervisor in two ways. Its *voice* is a socket for the few things worth a message; its *beat* is
sixteen bytes of shared memory that say how far it has come, written once a step without a system call, so that
the measured loop stays clean and a rank that stands still is noticed from outside.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

from workers.contract import messages

BEAT = struct.Struct("<qq")  # index of the phase, steps done


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
    folder: str = ""  # in which a user's program runs
    checkpoint: str = ""  # the file that the gang goes on from, and leaves its checkpoints in
    made: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what says with what they were measured
    history: str = ""  # the file in which the cell's trials leave what their windows have shown
    ordered_at: float = 0.0  # when its node was told of the rank, by the node's clock that nobody sets

    def launched_s(self) -> float | None:
        """Return how long ago its node was told of the rank; None where that is not known."""
        return time.monotonic() - self.ordered_at if self.ordered_at else None


class Beat:
    """How far a rank has come, readable by another process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, BEAT.size)

    def write(self, phase: messages.Phase, step: int) -> None:
        BEAT.pack_into(self._memory, 0, messages.PHASES.index(phase), step)

    def read(self) -> tuple[messages.Phase, int]:
        phase, step = BEAT.unpack_from(self._memory)
        return messages.PHASES[phase], step


class Infeasible(Exception):  # noqa: N818 — a finding, not an error
    """This trial can't run here, and trying again won't change that."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Fault(Exception):  # noqa: N818
    """This trial fails for a reason that its user can mend."""

    def __init__(self, kind: str, message: str, exit_code: int | None = None) -> None:
        """`exit_code`: with which a user's program ended."""
        super().__init__(message)
        self.kind, self.exit_code = kind, exit_code


class Voice:
    """What a rank says while it lives; a process that it forks says nothing."""

    def __init__(self, channel: socket.socket, beat: Beat) -> None:
        self._channel = channel
        self._beat = beat
        self._pid = os.getpid()
        self.sign: Callable[[messages.RankReport], messages.RankReport] = lambda report: report
        self.own_code: Callable[[], str] = lambda: ""  # the fingerprint of the user's, as far as it is loaded

    def beat(self, phase: messages.Phase, step: int = 0) -> None:
        self._beat.write(phase, step)

    @property
    def beat_fd(self) -> int:
        """For a process of its own, which may beat too."""
        return self._beat.fd

    @property
    def channel_fd(self) -> int:
        """For a process of its own, which may say how far it has come."""
        return self._channel.fileno()

    def progress(self) -> tuple[messages.Phase, int]:
        """Return what was beaten last."""
        return self._beat.read()

    @property
    def is_of_a_fork(self) -> bool:
        """Whether this is a process that the rank has forked."""
        return os.getpid() != self._pid

    def say(self, what: str, **facts: Any) -> None:
        """One of `measured`, `infeasible`, `failed`, `echo`, once, as its last; before that any number of `epoch`, and
        a `note` or none."""
        if not self.is_of_a_fork:
            self._channel.sendall(json.dumps({"say": what, **facts}).encode() + b"\n")

    def epoch(self, record: messages.EpochRecord) -> None:
        self.say("epoch", record=messages.to_json(record))

    def note(self, words: str) -> None:
        """Tell what the trial's user should know at once."""
        self.say("note", words=words)

    def report(self, report: messages.RankReport) -> None:
        self.say("measured", report=messages.to_json(self.sign(report)))
