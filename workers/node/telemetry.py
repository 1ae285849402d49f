"""Telemetry beside the trials of a node, not in them: one sampler a node.

    python -m workers.node.telemetry FILE [--every SECONDS]

appends a JSON line a sample to FILE until its standard input closes. Start it from a thread that stays: it dies with
the thread that started it. A line has the wall clock (`at`), the monotonic clock, and by quantity and part what
`readings` tells. What can't be read is named once, in a line with `missing` and `why`, and left out from then on.
Processes aren't told apart: a trial has its nodes to itself. `measure.usage` reads the file.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

from workers.contract.libc import die_with_parent
from workers.node import readings


def sample(path: str, every_s: float) -> None:
    """Append samples until standard input closes."""
    out = _opened(path)
    sources, missing = readings.sources()
    due = time.monotonic()
    while True:
        now = time.monotonic()
        head = {"at": round(time.time(), 6), "monotonic": round(now, 6), "every_s": every_s}
        values, gone = take(sources)
        values["sampler_cpu_s"] = {"": time.process_time()}
        notes = [{"at": head["at"], "missing": it.name, "why": it.why} for it in (*missing, *gone)]
        lines = (json.dumps(line, separators=(",", ":")) + "\n" for line in (*notes, {**head, **values}))
        os.write(out, "".join(lines).encode())
        missing = []
        due = max(due + every_s, time.monotonic())  # one that is late doesn't catch up
        if _is_closed_by(due):
            return


def take(sources: list[readings.ReadingSource]) -> tuple[readings.Values, list[readings.Missing]]:
    """Return what the sources say now. Those that can't be read are taken off the list."""
    values: readings.Values = {}
    gone = []
    for source in tuple(sources):
        try:
            for quantity, parts in source.read().items():
                values.setdefault(quantity, {}).update(parts)
        except (OSError, ValueError, LookupError) as error:
            sources.remove(source)
            gone.append(readings.Missing(source.name, str(error) or type(error).__name__))
    return values, gone


def _opened(path: str) -> int:
    """Return the file to append to; a line that an earlier sampler left unfinished is ended."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    out = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    size = os.fstat(out).st_size
    if size and os.pread(out, 1, size - 1) != b"\n":
        os.write(out, b"\n")
    return out


def _is_closed_by(due: float) -> bool:
    """Wait until then, or until standard input closes."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while poll.poll(max(0.0, due - time.monotonic()) * 1000):
        if not os.read(0, readings.CHUNK):
            return True
    return False


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workers.node.telemetry", description="Samples this node's counters."
    )
    parser.add_argument("file", help="samples are appended to it")
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS")
    asked = parser.parse_args(arguments)
    if not asked.every > 0:
        parser.error(f"--every must be more than 0, but got {asked.every:g}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(os.getppid())
    sample(asked.file, asked.every)


if __name__ == "__main__":
    main(sys.argv[1:])
