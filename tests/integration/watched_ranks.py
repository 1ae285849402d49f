"""Ranks that train and tell what the kernel says of each of their threads, with their cores and the time they spent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from workers.contract import messages
from workers.contract.ranks import Seat, Voice
from workers.inputs import opening
from workers.inputs.source import Source
from workers.workloads.images import train


def run(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    told: dict[str, Any] = {"pid": os.getpid()}
    beat, open_source = voice.beat, opening.open_source

    def watched(phase: messages.Phase, step: int = 0) -> None:
        beat(phase, step)
        if phase == "finish":  # the decode threads of a throughput trial still run
            told["finish"] = threads()
            Path(seat.checkpoint).with_name(f"threads-{seat.rank}.json").write_text(json.dumps(told))

    def opened(*arguments: Any) -> Source:
        told["before input"] = threads()  # the network is built: TensorFlow and the ring have theirs
        return open_source(*arguments)

    voice.beat = watched  # type: ignore[method-assign]
    opening.open_source = opened
    train.run(config, seat, voice)


def threads() -> dict[str, Any]:
    return {thread: facts(thread) for thread in os.listdir("/proc/self/task")}


def facts(thread: str) -> dict[str, Any]:
    own = Path("/proc/self/task") / thread
    cpus = next(line for line in (own / "status").read_text().splitlines() if line.startswith("Cpus_allowed_list"))
    return {"cpus": cpus.split()[1], "ms": int((own / "schedstat").read_text().split()[0]) / 1e6}
