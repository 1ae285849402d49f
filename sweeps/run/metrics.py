"""What sweeps do with a cluster, as metrics beside Ray's own: each node's agent exports them under `ray_` and the name.

They are of the driver that runs now. What a sweep has cost over days is the ledger's to tell.
"""

from __future__ import annotations

import time
from typing import Any

from sweeps.record import rows
from sweeps.record.ledger import SweepFacts, TrialRecord
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.observer import Observer

TRIALS, SECONDS, LAUNCH = "sweep_trials_total", "sweep_gpu_seconds_total", "sweep_launch_seconds"
NODES, HELD, IDLE = "sweep_nodes", "sweep_gpus_held", "sweep_gpus_idle"
METRICS = {
    TRIALS: "trials that have ended, by outcome",
    SECONDS: "seconds that ranks were held, by what they did (a rank of a CPU trial is a slot of cores)",
    LAUNCH: "from a trial's start until all its ranks stand in their loop",
    NODES: "nodes that the sweep may use",
    HELD: "GPUs that trials of the sweep run on",
    IDLE: "GPUs of the sweep's nodes that no trial of the sweep runs on; one of another sweep may",
}
# Ray keeps the buckets alone: its sum of a histogram is made of their middles.
LAUNCH_S = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0]
EVERY_S = 5.0


class Meter(Observer):
    def __init__(self, facts: SweepFacts, engine: Engine, make: Any = None) -> None:
        """Ray must be connected; `make` stands in for `ray.util.metrics`."""
        if make is None:
            from ray.util import metrics

            make = metrics
        self._sweep = {"sweep": facts.name}
        self._engine = engine
        self._said_at = 0.0
        self._trials = make.Counter(TRIALS, METRICS[TRIALS], ("sweep", "outcome"))
        self._seconds = make.Counter(SECONDS, METRICS[SECONDS], ("sweep", "device", "kind"))
        self._launch = make.Histogram(LAUNCH, METRICS[LAUNCH], LAUNCH_S, ("sweep",))
        self._gauges = {name: make.Gauge(name, METRICS[name], ("sweep",)) for name in (NODES, HELD, IDLE)}

    def tried_again(self, record: TrialRecord) -> None:
        self._count_seconds(record)

    def ended(self, record: TrialRecord) -> None:
        self._trials.inc(1, self._sweep | {"outcome": record.outcome.status})
        self._count_seconds(record)

    def passed(self) -> None:
        if time.monotonic() - self._said_at >= EVERY_S:
            self._said_at = time.monotonic()
            nodes = self._engine.nodes
            held = sum(start.trial.gpus for start in self._engine.seated if start.trial.device == "gpu")
            self._say(len(nodes), held, sum(node.gpus for node in nodes) - held)

    def close(self) -> None:
        """Set what the sweep holds to nothing: an agent goes on exporting what it heard last."""
        self._say(0, 0, 0)

    def _say(self, nodes: int, held: int, idle: int) -> None:
        for name, value in ((NODES, nodes), (HELD, held), (IDLE, max(0, idle))):
            self._gauges[name].set(value, self._sweep)

    def _count_seconds(self, record: TrialRecord) -> None:
        for kind, seconds in spent(record).items():
            if seconds > 0:  # a counter takes nothing else
                tags = self._sweep | {"device": record.config.device, "kind": kind}
                self._seconds.inc(seconds * record.config.gpus, tags)
        if record.outcome.measurement:
            self._launch.observe(max(0.0, rows.metrics(record)["launch_s"]), self._sweep)


def spent(record: TrialRecord) -> dict[str, float]:
    """Return the seconds that an attempt held its ranks, by what they went to; they add up even where nodes' clocks
    differ.

    Before it starts its gang is brought together and its nodes are tested: that is launching too."""
    if record.outcome.cached:
        return {}
    left = max(0.0, record.ended_at - record.started_at)
    figures = rows.metrics(record) if record.outcome.measurement else {}
    measuring = min(left, figures.get("window_s", 0.0))
    launching = min(left - measuring, max(0.0, figures.get("launch_s", 0.0)))
    return {
        "measuring": measuring,
        "launching": launching + max(0.0, record.held_s - left),
        "other": left - measuring - launching,
    }
