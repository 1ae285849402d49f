"""Trials that take no time, on our whole control plane and on Tune alone: what `overhead` compares.

    python benchmarks/instant.py ours|plain TRIALS [EVERY]

Prints, as JSON, when each trial ended and when all was done, in seconds. With EVERY, since to look takes time, also the
memory of the process after each so many trials, in KB, and of ours how long a trial waited at most until it was in the
store. Both run on a Ray of one core with the same settings, one trial at a time, on one actor that is reused. Each must
be in a process of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from sweeps.cluster import ray_cluster
from sweeps.cluster.site import Simulated

SWEEP = """
name: instant
model: tiny
device: gpu
repeats: 1
explain: false
steps: {warmup: 1, measured: 2}
space: {batch_size: {range: [1, TRIALS]}, gpus: 1}
"""
SHAPE = "nodes=1,gpus=1,gpu=v100"
LOOK_EVERY_S = 0.1


class Clock:
    """Notes each trial's end, and what the process holds after every so many."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.ends: list[float] = []
        self.held_kb: list[float] = []
        self.waited_s = 0.0

    def tick(self) -> None:
        self.ends.append(time.perf_counter())
        if self.every and len(self.ends) % self.every == 0:
            self.held_kb.append(held_kb())

    def readings(self) -> dict[str, Any]:
        done = time.perf_counter()
        return {"ends": self.ends, "done": done, "held_kb": self.held_kb, "waited_s": self.waited_s}

    def watch(self, store: str) -> None:
        """Look again and again how long the first trial that is not in the store has been over."""
        with contextlib.closing(sqlite3.connect(store, timeout=20)) as database:
            while True:
                ((runs,),) = database.execute("SELECT max(rowid) FROM runs")
                stored = (runs or 1) - 1  # the sweep has a run too
                for ended_at in self.ends[stored : stored + 1]:
                    self.waited_s = max(self.waited_s, time.perf_counter() - ended_at)
                time.sleep(LOOK_EVERY_S)


def store_file() -> str:
    return os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///")


def held_kb() -> float:
    """Resident memory, without what is garbage or has been freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss / 1024


def ours(trials: int, clock: Clock) -> dict[str, Any]:
    """All that a sweep does, but for its table, through Tune. All hear of it that hear of a sweep on a cluster."""
    from rich.console import Console

    from sweeps.record import ownership
    from sweeps.run import executor, forecast
    from sweeps.run.metrics import Meter
    from sweeps.run.progress import SweepProgress
    from sweeps.run.ray_tune import RayTune
    from sweeps.run.status import StatusWriter
    from sweeps.run.tracker import Tracker
    from sweeps.scheduling.cache import Cache
    from sweeps.scheduling.engine import Engine
    from sweeps.scheduling.feasibility import Feasibility
    from sweeps.scheduling.observer import Observer
    from sweeps.scheduling.search import Listed
    from sweeps.simulator import cluster as simulated
    from sweeps.spec import plan, sweep_file

    class EndClock(Observer):
        def ready(self) -> None:
            if clock.every:
                threading.Thread(target=clock.watch, args=[store_file()], daemon=True).start()

        def ended(self, record: Any) -> None:
            clock.tick()

    text = SWEEP.replace("TRIALS", str(trials))
    planned = plan.plan(sweep_file.parse(text, "instant"))
    assert len(planned.trials) == trials
    machine = simulated.parse(SHAPE)
    with ray_cluster.connected(None, cpus=1):
        book = ownership.create(planned, text, simulated=SHAPE)
        durations = forecast.learned(machine, is_real=False)
        engine = Engine(lambda _: Listed(planned.trials), durations, Feasibility(), Cache())
        progress = SweepProgress(trials, plan.namer(planned.spec), Console(file=io.StringIO()), "GPU-hours")
        tracker = Tracker(book.facts)
        observers = [progress, tracker, StatusWriter(book.facts, book.paths, engine), Meter(book.facts, engine)]
        tune = RayTune(book.facts, book.paths, Simulated(machine.nodes))
        assert executor.carry_out(engine, book, tune, [*observers, EndClock()])
        assert not tracker.close(is_complete=True)
        found = clock.readings()
        with contextlib.closing(sqlite3.connect(store_file())) as database:
            ((stored,),) = database.execute("SELECT count(*) FROM runs WHERE status = 'FINISHED'")
        assert stored == trials + 1, f"the store has {stored} runs of {trials} trials and their sweep"
        return found


def plain(trials: int, clock: Clock) -> dict[str, Any]:
    """Tune as it comes, with the same settings."""
    from ray import tune

    class Trivial(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None: ...
        def reset_config(self, new_config: dict[str, Any]) -> bool:
            return True

        def step(self) -> dict[str, Any]:
            return {"images_per_s": 1.0, "done": True}

    class TuneEndClock(tune.Callback):
        def on_trial_complete(self, *_: Any, **__: Any) -> None:
            clock.tick()

    with ray_cluster.connected(None, cpus=1):
        for ours_alone in ("TUNE_MAX_PENDING_TRIALS_PG", "TUNE_GLOBAL_CHECKPOINT_S"):
            del os.environ[ours_alone]
        tuner = tune.Tuner(
            tune.with_resources(Trivial, tune.PlacementGroupFactory([{"CPU": 1.0}])),
            param_space={"batch_size": tune.grid_search(list(range(1, trials + 1)))},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(
                storage_path=os.getcwd(),
                verbose=0,
                callbacks=[TuneEndClock()],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        tuner.fit()
        return clock.readings()


def main(which: str, trials: int, every: int = 0) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ |= {"SWEEP_RESULTS": folder, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/store.db"}
        result = {"ours": ours, "plain": plain}[which](trials, Clock(every))
        print(json.dumps(result), flush=True)
        os.chdir(Path(__file__).parent)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
