"""The work of one rank in a trial: take its place, join the ring, train in the trial's protocol, report."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from workers.contract import functions, paths, quota
from workers.contract.messages import TrialConfig
from workers.contract.ranks import Fault, Seat, Voice
from workers.frameworks import framework
from workers.inputs.opening import cores_here
from workers.inputs.source import Cores
from workers.node import fingerprint, pinning, topology
from workers.workloads.images.convergence import converge
from workers.workloads.images.throughput import measure
from workers.workloads.images.work import Work
from workers.workloads.script import code


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    cores = pinned(config, seat)
    body = framework.of_trial(config)
    body.place(config)
    voice.beat("ring")
    with body.joined(seat, config) as ring, body.shortage_is_a_finding(config):
        voice.beat("build")
        if config.own_code:
            own_code_from(seat.folder)
            functions.check_imported(config)
            seat = knowing(seat, code.digest((), Path.cwd()))
        launch_s = seat.launched_s()
        work = Work(config, ring, voice, cores)
        is_converging = config.protocol == "convergence"
        report = converge(work, seat) if is_converging else measure(work, seat.history)
        voice.report(dataclasses.replace(report, launch_s=launch_s))


def own_code_from(folder: str) -> None:
    """Have this process find its user's modules and files where the sweep was begun."""
    if not Path(folder).is_dir():
        rule = f"code of your own must lie on every node in the folder in which the sweep is begun, {folder}"
        raise Fault("no folder", f"{rule}, but {os.uname().nodename} has none: sweep submit takes it along")
    os.chdir(folder)
    sys.path.insert(0, folder)


def knowing(seat: Seat, own: str) -> Seat:
    """Windows and checkpoints of other code of the user's say nothing of this one."""
    history = seat.history and str(paths.history_of(Path(seat.history), own, ""))
    software = fingerprint.digest({"software": seat.made.get("software", ""), "own": own})
    return dataclasses.replace(seat, history=history, made={**seat.made, "software": software})


def pinned(config: TrialConfig, seat: Seat) -> Cores:
    """Keep this rank to cores of its own where there are enough for all; what is left to its decoding."""
    found = topology.here()
    cores = cores_here(config, seat.local_size, found)
    pins, note = pinning.of_rank(config, seat, found, cores.decode_threads, quota=quota.quota())
    if pins is None:
        return dataclasses.replace(cores, pinning_note=note)
    pinning.keep(pinning.threads_here(), pins.compute)  # and so every thread that is started from here on
    return dataclasses.replace(cores, decode=pins.decode, is_pinned=True, pinning_note=note)
