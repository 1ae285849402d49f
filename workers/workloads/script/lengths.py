"""The time of a step of a program that says nothing of its steps: run for two numbers of them, `measure: {lengths:
[60, 120]}`.

What both runs have in common (starting, loading, compiling, saving) falls out of their difference. The first start of
all is not timed: it reads from disk what later ones find in memory. One difference has no interval: that comes from the
cell's repeats.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import tempfile
import time
from pathlib import Path

from workers.contract.messages import EpochRecord, RankReport, TrialConfig, Window
from workers.contract.ranks import Fault, Seat, Voice
from workers.inputs import storage
from workers.strategies import meeting, rendezvous
from workers.strategies.meeting import Meeting
from workers.workloads.script import code, joining
from workers.workloads.script.process import command, launched

BY_LENGTHS = "two lengths"
WITHHELD = "two lengths give one step time: the interval comes from the repeats"


def measured(config: TrialConfig, seat: Seat, voice: Voice) -> RankReport:
    """Run the program for its few steps twice, and then for its many, each from a barrier of all ranks to the next."""
    script = config.script
    assert script
    few, many = script.lengths
    ranks, entered_at, launch_s = meeting.joined(seat), time.time(), seat.launched_s()
    read_before = storage.read_mib()
    took, begins_at = [], time.time()
    for nth, steps in enumerate((few, few, many)):
        voice.beat("build", nth)
        begins_at = time.time()
        took.append(_timed(steps, nth, config, seat, voice, ranks))
    window_s = took[2][0] - took[1][0]
    if window_s <= 0:
        rule = f"{many} steps must take longer than {few}"
        said = f"but took {took[2][0]:.3g} s and {took[1][0]:.3g} s: take lengths that are further apart"
        raise Fault("no slope", f"{rule}, {said}")
    voice.beat("finish", many)
    is_first = seat.rank == 0
    return RankReport(
        rank=seat.rank,
        images=(many - few) * script.items // seat.size,
        window_s=window_s,
        window_at=(begins_at, time.time()),
        read_mib=storage.read_mib() - read_before,
        window=Window(warmup_steps=few, stopped_by="lengths", half_width_ms=None, withheld=WITHHELD)
        if is_first
        else None,
        entered_at=entered_at,
        launch_s=launch_s,
        build_s=took[0][0],
        peak_memory_mib=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        parameters=0,
        flops=0,
        software=code.digest(command(script, config, many), Path.cwd()),
        measured_by=BY_LENGTHS,
        epochs=took[2][1],
    )


def _timed(
    steps: int, nth: int, config: TrialConfig, seat: Seat, voice: Voice, ranks: Meeting
) -> tuple[float, tuple[EpochRecord, ...]]:
    """Return the time from a barrier before the start to one behind the end, and what the program has left."""
    script = config.script
    assert script
    os.environ.update(joining.environment(script.ranks, _anew(seat, nth)))
    with tempfile.TemporaryDirectory() as scratch:
        ranks.barrier()
        began = time.perf_counter()
        started = launched(command(script, config, steps), config, seat, voice, Path(scratch))
        started.check()
        ranks.barrier()
        return time.perf_counter() - began, started.epochs


def _anew(seat: Seat, nth: int) -> Seat:
    """Return the seat with a rendezvous in which nothing is told yet: a place of its own in the gang's."""
    if not seat.rendezvous:
        return seat
    _, port = rendezvous.place(seat.rendezvous)
    return dataclasses.replace(seat, rendezvous=f"{seat.rendezvous}:{port}/{nth}")
