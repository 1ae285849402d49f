"""Where a gang's ranks agree on what they measure, whatever joins them for their work: a star of lines to rank 0.

A user's script may join its ranks by Horovod, by torch.distributed, or not at all. To measure together they must begin
and end a window at the same steps, which none of these is asked for: so each rank has a line to rank 0 for that alone.
Rank 0 listens on its node's address, tells the gang's rendezvous where, and asks whoever comes for a proof that they
know the trial's word, before it reads anything else of what they say.

Between two steps nothing is said and nobody is waited for. Standard library and numpy only.
"""

from __future__ import annotations

import contextlib
import json
import queue
import selectors
import socket
import struct
import threading
from typing import Any

import numpy as np

from workers.contract import proof
from workers.contract.ranks import Fault, Seat
from workers.strategies import rendezvous

SCOPE = "meeting"
FIRST_WORD = struct.Struct(f"!{proof.BYTES}sI")  # of a rank that comes: its proof, and which it is
Numbers = np.ndarray[Any, Any]


class MeetingBroken(Exception):  # noqa: N818 — the echo of another rank's end
    """Another rank has gone."""


class Meeting:
    """The same names as a ring's, for what its ranks add up and wait for."""

    def __init__(self, seat: Seat) -> None:
        self.rank, self.size = seat.rank, seat.size
        self.last_step: int | None = None  # after which the window is over, once rank 0 has said so
        self.at = ("", 0)  # what this rank does, and after which step: ranks that meet must do the same

    def total(self, values: Numbers) -> Numbers:
        """Return the sum over all ranks, element by element."""
        return values

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.total(np.zeros(1))

    def end_after(self, step: int) -> None:
        """Of rank 0: tell everyone that this step is the last."""
        self.last_step = step

    def close(self) -> None:
        """Leave; no other rank is told."""


class _Line:
    """Words to one rank and from it, a JSON value a line."""

    def __init__(self, line: socket.socket) -> None:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._line, self._heard = line, b""

    def say(self, word: Any) -> None:
        self.send(json.dumps(word).encode() + b"\n")

    def send(self, said: bytes) -> None:
        try:
            self._line.sendall(said)
        except OSError as error:
            raise MeetingBroken(str(error)) from None

    def fileno(self) -> int:
        return self._line.fileno()

    def hear(self) -> Any:
        while b"\n" not in self._heard:
            self.listen()
        told, _, self._heard = self._heard.partition(b"\n")
        return json.loads(told)

    def take(self, size: int) -> bytes:
        """Return so many bytes, once they are there; none before."""
        if len(self._heard) < size:
            return b""
        taken, self._heard = self._heard[:size], self._heard[size:]
        return taken

    def listen(self) -> None:
        """Take what comes next, a part of a word or more than one."""
        try:
            some = self._line.recv(65536)
        except OSError as error:
            raise MeetingBroken(str(error)) from None
        if not some:
            raise MeetingBroken("its line is closed")
        self._heard += some

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()


class _Host(Meeting):
    """Rank 0's side."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        word = rendezvous.word(seat.rendezvous).encode()
        self._lines: dict[int, _Line] = {}
        with (
            socket.create_server((seat.host, 0), backlog=seat.size) as listener,
            selectors.DefaultSelector() as doors,
        ):
            rendezvous.tell(seat.rendezvous, f"{SCOPE}/0", f"{seat.host}:{listener.getsockname()[1]}".encode())
            doors.register(listener, selectors.EVENT_READ)
            while len(self._lines) < seat.size - 1:
                for door, _ in doors.select():
                    if isinstance(line := door.fileobj, _Line):
                        self._hear_out(line, word, door.data, doors)
                    else:
                        _ask(listener, doors)
            for door in doors.get_map().values():
                if isinstance(line := door.fileobj, _Line):
                    line.close()

    def _hear_out(self, line: _Line, word: bytes, asked: bytes, doors: selectors.BaseSelector) -> None:
        """Take in a rank that has proved that it knows the gang's word. Whoever says nothing holds nobody up."""
        try:
            line.listen()
            if not (said := line.take(FIRST_WORD.size)):
                return
            shown, rank = FIRST_WORD.unpack(said)
            if not proof.is_of(shown, word, asked, _claim(rank)):
                raise MeetingBroken("it is a stranger's")
            self._lines[rank] = line
        except MeetingBroken:
            doors.unregister(line)
            line.close()
        else:
            doors.unregister(line)

    def total(self, values: Numbers) -> Numbers:
        heard = {rank: line.hear() for rank, line in self._lines.items()}
        for rank, said in heard.items():
            self._check_together(rank, *said["at"])
        summed: Numbers = np.sum([np.asarray(values, float), *(said["values"] for said in heard.values())], axis=0)
        self._tell({"total": summed.tolist()})
        return summed

    def _check_together(self, rank: int, doing: str, step: int) -> None:
        if (doing, step) != self.at:
            rule = "ranks must step together, as those do that reduce their gradients at each step"
            found = f"rank {rank} {doing} after step {step}, and rank 0 {self.at[0]} after step {self.at[1]}"
            raise Fault("ranks apart", f"{rule}, but {found}")

    def end_after(self, step: int) -> None:
        super().end_after(step)
        self._tell({"last": step})

    def _tell(self, word: Any) -> None:
        for line in self._lines.values():
            line.say(word)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


class _Guest(Meeting):
    """Every other rank's: a thread hears what rank 0 says, which may be at any time."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        self._line = _Line(socket.create_connection(_host(seat)))
        while not (asked := self._line.take(proof.BYTES)):
            self._line.listen()
        word = rendezvous.word(seat.rendezvous).encode()
        self._line.send(FIRST_WORD.pack(proof.of(word, asked, _claim(seat.rank)), seat.rank))
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._hear, name="meeting", daemon=True).start()

    def _hear(self) -> None:
        try:
            while True:
                said = self._line.hear()
                if "last" in said:
                    self.last_step = said["last"]
                else:
                    self._told.put(said)
        except MeetingBroken as broken:
            self._told.put(broken)

    def total(self, values: Numbers) -> Numbers:
        self._line.say({"at": self.at, "values": np.asarray(values, float).tolist()})
        told = self._told.get()
        if isinstance(told, MeetingBroken):
            raise told
        return np.array(told["total"])

    def close(self) -> None:
        self._line.close()


def _ask(listener: socket.socket, doors: selectors.BaseSelector) -> None:
    """Ask whoever comes the question of their line."""
    with contextlib.suppress(OSError, MeetingBroken):  # they have gone again
        line, question = _Line(listener.accept()[0]), proof.question()
        doors.register(line, selectors.EVENT_READ, question)
        line.send(question)


def _claim(rank: int) -> bytes:
    """Return what a rank proves beside the word: that it is this one, here."""
    return f"{SCOPE}/{rank}".encode()


def _host(seat: Seat) -> tuple[str, int]:
    """Where rank 0 listens, once it does."""
    host, _, port = rendezvous.awaited(seat, f"{SCOPE}/0").decode().rpartition(":")
    return host, int(port)


def joined(seat: Seat) -> Meeting:
    """Come to the gang's meeting, once rank 0 is there."""
    if seat.size == 1:
        return Meeting(seat)
    return _Host(seat) if seat.rank == 0 else _Guest(seat)
