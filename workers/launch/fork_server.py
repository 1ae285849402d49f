"""A process that imports a framework once on a node and forks a clean process for each rank.

    python -m workers.launch.fork_server ADDRESS [tensorflow|torch] [whole]

It listens on one Unix socket, for its own user only. A connection asks for one rank: it sends the order and two
file descriptors (the rank's voice and its beat), gets the rank's pid, and later how the rank ended. Who hangs up
has its rank killed. The fork server ends, and every rank with it, when its standard input closes.

Keras is imported as if some of what it looks for were not installed (`preload.without_unused`), which no rank of ours
needs; `whole` imports it as it is, for scripts of a user's own.

It runs no op of its framework and lists no device: a fork would inherit half of what that starts. It has one thread.

Its ranks run what it has loaded, and it tells each the fingerprint of that. So it starts once more by
`workers.node.start_from_source`, which loads no `.pyc` of the project.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from workers.contract import files
from workers.contract.libc import adopt_orphans, die_with_parent
from workers.contract.messages import Framework

LARGEST_ORDER = 1 << 17


def preloaded(framework: Framework, is_whole: bool = False) -> dict[str, Any]:
    """Import what every rank needs, and nothing that starts a thread or touches a device; return facts of it all."""
    from workers.launch import preload
    from workers.node import fingerprint

    facts = fingerprint.software(framework=framework)  # under the variables that it was started with
    if framework == "torch":
        return _torch(facts)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with contextlib.nullcontext() if is_whole else preload.without_unused():
        import horovod.tensorflow
        import keras
        import tensorflow as tf

        keras.optimizers.SGD  # noqa: B018 — Keras and TensorFlow load parts of themselves at first use
        tf.data.TFRecordDataset  # noqa: B018
    facts = preload.loaded(facts)
    del horovod
    from tensorflow.python.eager import context

    if context.context()._initialized:
        raise RuntimeError("TensorFlow has started in the fork server; a fork of it would not be clean")
    return facts


def _torch(facts: dict[str, Any]) -> dict[str, Any]:
    from workers.launch import preload

    with preload.without_unused():
        import torch
        import torch._dynamo  # DistributedDataParallel and optimizers load it at first use: 2 s of every trial

        facts = preload.loaded(facts, "torch")
    if torch.cuda.is_initialized():
        raise RuntimeError("torch has started a device in the fork server; a fork of it would not be clean")
    return facts


def peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def children() -> set[int]:
    """Return the processes that have this one as their parent."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update(map(int, files.text(task / "children").split()))
    return found


class Child(NamedTuple):
    pid: int
    pidfd: int
    scratch: str


class ForkServer:
    def __init__(self, address: str, software: Mapping[str, Any]) -> None:
        self._software = software
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(64)
        self._ranks: dict[socket.socket, Child] = {}  # by connection

    def serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._close)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj in self._selector.get_map():  # an earlier event may have ended this one
                    key.data(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if peer_uid(connection) != os.getuid():
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, self._hear)

    def _hear(self, connection: socket.socket) -> None:
        """Hear the order of a new rank, or the end of a connection, which is the end of its rank."""
        try:
            message, fds, _, _ = socket.recv_fds(connection, LARGEST_ORDER, 2)
        except OSError:
            message, fds = b"", []
        if message and connection not in self._ranks:
            self._fork(connection, json.loads(message), fds)
            return
        for fd in fds:
            os.close(fd)
        self._selector.unregister(connection)
        if connection in self._ranks:
            self._end(self._ranks.pop(connection))
        connection.close()

    def _fork(self, connection: socket.socket, order: dict[str, Any], fds: list[int]) -> None:
        parent, scratch = os.getpid(), order["scratch"]
        order["software"] = self._software
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                adopt_orphans()  # they end with this rank, and with no other
                os.environ["TMPDIR"] = tempfile.tempdir = scratch
                from workers.contract import environment
                from workers.launch import rank

                if environment.needs_own_process(order["config"]["env"]):
                    rank.start_from_nothing(order, *fds)
                rank.main(order, *fds)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)  # rank.main does not return
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._ranks[connection] = Child(pid, pidfd, scratch)
        self._selector.register(pidfd, selectors.EVENT_READ, lambda _: self._report(connection))
        self._send(connection, {"pid": pid})

    def _report(self, connection: socket.socket) -> None:
        child = self._ranks.pop(connection)
        self._selector.unregister(connection)
        self._send(connection, {"exit": self._end(child)})
        connection.close()

    def _end(self, child: Child) -> int:
        """Kill what is left of a rank and its children; its exit code, or minus the signal that ended it."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        for kill in (os.kill, os.killpg):  # the rank leads a process group of its own
            with contextlib.suppress(ProcessLookupError):
                kill(child.pid, signal.SIGKILL)
        status = os.waitpid(child.pid, 0)[1]
        self._end_orphans()
        shutil.rmtree(child.scratch, ignore_errors=True)
        return os.waitstatus_to_exitcode(status)

    def _end_orphans(self) -> None:
        """End what ranks that are gone have left running in a session of its own: by now it is this process's child."""
        ranks = {child.pid for child in self._ranks.values()}
        while orphans := children() - ranks:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _send(self, connection: socket.socket, message: dict[str, int]) -> None:
        with contextlib.suppress(OSError):
            connection.send(json.dumps(message).encode())

    def _close(self, _: object) -> None:
        for child in self._ranks.values():
            self._end(child)
        sys.exit(0)


def main(address: str, framework: Framework = "tensorflow", *how: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    software = preloaded(framework, "whole" in how)
    gc.collect()
    gc.freeze()  # what is here now stays shared with the ranks
    ForkServer("\0" + address, software).serve()


if __name__ == "__main__":
    from workers.node import start_from_source

    os.execv(sys.executable, start_from_source.command("workers.launch.fork_server", "main", *sys.argv[1:]))
