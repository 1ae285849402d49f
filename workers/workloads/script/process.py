"""A user's program as a process of its own: its words, its start, and what it leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workers.contract import messages
from workers.contract.libc import die_with_parent
from workers.contract.messages import EpochRecord, Script, TrialConfig
from workers.contract.ranks import Fault, Seat, Voice
from workers.frameworks import memory
from workers.strategies.meeting import MeetingBroken
from workers.workloads.script import ends, here


def command(script: Script, config: TrialConfig, steps: int = 0) -> list[str]:
    """Return the words of the script's command line, with this trial's values; `steps` of a program that is run for
    several numbers of them."""
    values = {
        **config.own,
        "batch_size": config.batch_size,
        "global_batch": config.global_batch,
        "gpus": config.gpus,
        "seed": config.repeat_seed,
        "epochs": config.epochs,
        "steps": steps,
    }
    return [word.format_map(values) for word in shlex.split(script.run)]


@dataclasses.dataclass(frozen=True)
class Started:
    """A program that runs as a process of its own."""

    process: subprocess.Popen[bytes]
    report: Path  # in which it leaves what it has measured and reported, if it is one that does
    log_begin: int
    kills_before: int  # for want of memory, on this node

    def check(self) -> None:
        """Wait for its end; raise what a bad one comes to."""
        exit_code = self.process.wait()
        if fault := self.left("fault"):
            raise Fault(*fault)
        if broken := self.left("broken"):
            raise MeetingBroken(broken)
        if exit_code and not self.left("stands"):
            lines = memory.own_log(self.log_begin).splitlines()
            raise ends.why(exit_code, lines, memory.kernel_kills() > self.kills_before)
        if missing := self.left("missing"):
            raise Fault(*missing)

    def left(self, what: str) -> Any:
        """Return what it has left of this; None where it has left nothing."""
        return json.loads(self.report.read_text()).get(what) if self.report.exists() else None

    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """Return what it has reported."""
        return tuple(EpochRecord(**one) for one in self.left("epochs") or ())


def launched(
    words: Sequence[str], config: TrialConfig, seat: Seat, voice: Voice, scratch: Path, stdout: int | None = None
) -> Started:
    script = config.script
    assert script
    report, order, parent = scratch / "report", scratch / "order", os.getpid()
    said = {"config": messages.to_json(config), "seat": messages.to_json(seat), "report": str(report)}
    is_timed = bool(script.lines or script.lengths)
    said |= {"folder": os.getcwd()}
    fds = {"beat": voice.beat_fd, "voice": voice.channel_fd}
    order.write_text(json.dumps({**said, **fds, "is_timed": is_timed}))
    variables = {here.RANK: str(order), "PYTHONUNBUFFERED": "1"}
    before = memory.log_size(), memory.kernel_kills()
    try:
        process = subprocess.Popen(
            list(words),
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            pass_fds=[*fds.values()],
            preexec_fn=lambda: die_with_parent(parent),
        )
    except OSError as error:
        where = f"{words[0]} can't be started on {os.uname().nodename}"
        raise Fault("no program", f"{where}: {error.strerror}") from None
    return Started(process, report, *before)
