"""Where a gang's ranks agree on what they measure, whatever joins them for their work: a star of lines to rank 0.

A user's script may join its ranks by Horovod, by torch.distributed, or not at all. To measure together they must begin
and end a window at the same steps, which none of these is asked for: so each rank has a line to rank 0 for that alone.
Rank 0 listens on its node's address, tells the gang's rendezvous where, and hears ranks that know the trial's word.

Between two steps nothing is said and nobody is waited for. Standard library and numpy only.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import queue
import selectors
import socket
import threading
from typing import Any

import numpy as np

from workers.contract.ranks import Fault, Seat
from workers.strategies import rendezvous

SCOPE = "meeting"
FIRST_WORD_BYTES = 4096  # at most, of a rank that comes
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
        try:
            self._line.sendall(json.dumps(word).encode() + b"\n")
        except OSError as error:
            raise MeetingBroken(str(error)) from None

    def fileno(self) -> int:
        return self._line.fileno()

    def hear(self) -> Any:
        while not self.has_word:
            self.listen()
        told, _, self._heard = self._heard.partition(b"\n")
        return json.loads(told)

    def listen(self) -> None:
        """Take what comes next, a part of a word or more than one."""
        try:
            some = self._line.recv(65536)
        except OSError as error:
            raise MeetingBroken(str(error)) from None
        if not some:
            raise MeetingBroken("its line is closed")
        self._heard += some

    @property
    def has_word(self) -> bool:
        return b"\n" in self._heard

    @property
    def is_long_winded(self) -> bool:
        """Has more come than the first word of a rank is long?"""
        return len(self._heard) > FIRST_WORD_BYTES

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()


class _Host(Meeting):
    """Rank 0's side."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        word = rendezvous.word(seat.rendezvous)
        self._lines: dict[int, _Line] = {}
        with (
            socket.create_server((seat.host, 0), backlog=seat.size) as listener,
            selectors.DefaultSelector() as doors,
        ):
            rendezvous.tell(seat.rendezvous, f"{SCOPE}/0", f"{seat.host}:{listener.getsockname()[1]}".encode())
            doors.register(listener, selectors.EVENT_READ)
            come: list[_Line] = []
            while len(self._lines) < seat.size - 1:
                for door, _ in doors.select():
                    if door.fileobj is listener:
                        come.append(_Line(listener.accept()[0]))
                        doors.register(come[-1], selectors.EVENT_READ)
                    elif isinstance(line := door.fileobj, _Line):
                        self._hear_out(line, word, doors)
            for line in come:
                if line not in self._lines.values():
                    line.close()

    def _hear_out(self, line: _Line, word: str, doors: selectors.BaseSelector) -> None:
        """Take in a rank that has said the gang's word. Whoever says nothing holds nobody up."""
        try:
            line.listen()
            if not line.has_word:
                if line.is_long_winded:
                    raise MeetingBroken("no rank says so much")
                return
            said = line.hear()
            if not hmac.compare_digest(str(said["word"]).encode(), word.encode()):
                raise MeetingBroken("it is a stranger's")
            self._lines[int(said["rank"])] = line
        except (MeetingBroken, ValueError, TypeError, KeyError):
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
        self._line.say({"word": rendezvous.word(seat.rendezvous), "rank": seat.rank})
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


def _host(seat: Seat) -> tuple[str, int]:
    """Where rank 0 listens, once it does."""
    host, _, port = rendezvous.awaited(seat, f"{SCOPE}/0").decode().rpartition(":")
    return host, int(port)


def joined(seat: Seat) -> Meeting:
    """Come to the gang's meeting, once rank 0 is there."""
    if seat.size == 1:
        return Meeting(seat)
    return _Host(seat) if seat.rank == 0 else _Guest(seat)
