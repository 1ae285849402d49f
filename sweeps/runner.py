"""Runs a plan through Ray Tune: the only place that knows it.

Tune schedules; it keeps no results. Each planned trial is a Tune trial with a placement group of its own, and
what its gang comes back with is written to the ledger before anyone else hears of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import ray
from ray import tune
from ray.air.execution._internal import RayActorManager
from ray.tune.execution import tune_controller
from ray.util.placement_group import get_current_placement_group

from sweeps import broom, shape
from sweeps.errors import RefusedError, SweepError
from sweeps.ledger import Ledger, TrialRecord
from sweeps.observer import Observer
from sweeps.plan import Plan
from sweeps.shape import Node
from workers import contract, sentinel
from workers.contract import TrialConfig, TrialOutcome
from workers.group import ENTRY, Group, Nurses
from workers.paths import SweepPaths

REPORT_EVERY_S = 5.0
LOOK_EVERY_S = 1.0
COVER_EVERY_S = 10.0
CUT_SHORT = ("killed", "exited", "stalled", "nursery gone")  # kinds of failure that say nothing against the trial
QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would end keepers; ranks have limits of their own
    "RAY_worker_niceness": "0",  # else ranks yield to everything: Ray starts its workers at 15
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "1",  # trials start in the order of the plan
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1e9",
}


# A Ray of our own shares its cores with the ranks that it measures: it reports what nobody reads less often.
SELDOM = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    "RAY_DASHBOARD_AGENT_CHECK_PARENT_INTERVAL_S": "5",
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
}


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[list[Node]]:
    """The Ray cluster at `address`, or one on this machine that ends with the block and leaves no file."""
    os.environ.update(QUIET)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what ends a trial is told by its outcome
    if address and address != "auto":
        _knock(address)
    with contextlib.ExitStack() as stack:
        here: dict[str, Any] = {"address": address}
        if not address:
            os.environ.update(SELDOM)
            folder = stack.enter_context(broom.swept())
            here = {"address": "local", "num_cpus": os.cpu_count(), "include_dashboard": False, "_temp_dir": folder}
        try:
            ray.init(**here, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, TimeoutError, ValueError) as error:
            where = address or "on this machine"
            raise RefusedError(f"Ray must answer {where}, but {str(error).splitlines()[0]}") from None
        stack.callback(ray.shutdown)
        yield [
            Node(node["NodeID"], int(node["Resources"].get("CPU", 0)), int(node["Resources"].get("GPU", 0)))
            for node in ray.nodes()
            if node["Alive"]
        ]


def _knock(address: str) -> None:
    """Ray itself would wait most of a minute for a head that isn't there."""
    host, _, port = address.rpartition("//")[-1].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RefusedError(f"a Ray head must answer at HOST:PORT, but {address} gives: {why}") from None


class Gang(tune.Trainable):
    """One planned trial at a time on the gang of ranks in its placement group; then the next of that shape."""

    def setup(self, config: dict[str, Any]) -> None:
        self._group = Group(get_current_placement_group(), config["planned"]["bundles"])
        self._probed_at = -math.inf
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._config = contract.trial_config(new_config["planned"]["trial"])
        self._paths = SweepPaths(new_config["sweep"], Path(new_config["root"]))
        self._entry = new_config["entry"]
        self._probe_every_s = new_config["probe_every_s"]
        self._is_running = False
        return True

    def step(self) -> dict[str, Any]:
        """A look at the trial: how far it has come, or how it ended."""
        if not self._is_running and 0 < self._probe_every_s < time.monotonic() - self._probed_at:
            self._probed_at = time.monotonic()
            return {"probes": json.dumps(self._group.probe(self._paths, self._probe_every_s, self._config))}
        if not self._is_running:
            self._started_at = time.time()
            self._group.start(self._config, self._paths, self._entry)
            self._is_running = True
        outcome = self._group.wait(REPORT_EVERY_S)
        if outcome and self._goes_on(outcome):
            self._is_running = False
        if not self._is_running or outcome is None:
            return {"progress": json.dumps(contract.to_json(self._group.progress))}
        return {"outcome": json.dumps(contract.to_json(outcome)), "done": True}

    def _goes_on(self, outcome: TrialOutcome) -> bool:
        """A trial that was cut short goes on from its checkpoint, if it has come to a new one since it started."""
        if outcome.kind not in CUT_SHORT:
            return False
        try:
            return self._paths.checkpoint(self._config.trial).stat().st_mtime > self._started_at
        except OSError:
            return False

    def cleanup(self) -> None:
        self._group.close()


class _Watcher(tune.Callback):
    """Tune's events as ours: to the ledger first, then to the observers."""

    def __init__(self, ledger: Ledger, observers: Sequence[Observer], nurses: Nurses) -> None:
        self._ledger = ledger
        self._observers = observers
        self._nurses = nurses
        self._covered_at = 0.0
        self._running: dict[str, float] = {}  # Tune's trial id: when it started
        self.finished = 0
        self._probes: list[dict[str, Any]] = []
        self._tested: set[str] = set()  # Tune's ids of the trials before which nodes were tested
        self.error: SweepError | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks to restore them; our state is the ledger

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() - self._covered_at > COVER_EVERY_S:
            self._nurses.cover()
            self._covered_at = time.monotonic()
            self.meet()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._running[trial.trial_id] = time.time()
        for observer in self._observers:
            observer.started(_planned(trial))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if "outcome" in result:
            self._end(trial, contract.trial_outcome(json.loads(result["outcome"])))
            return
        if "probes" in result:
            self._note_probes(trial, json.loads(result["probes"]))
            return
        progress = contract.progress(json.loads(result["progress"]))
        for observer in self._observers:
            observer.progressed(_planned(trial), progress)

    def _note_probes(self, trial: Any, probes: list[dict[str, Any]]) -> None:
        """Of nodes that were just tested: are they as fast as their peers, and as they were themselves?"""
        for probe in probes:
            latest = {one["node"]: one["figures"] for one in [*self._probes, *probes] if one["node"] != probe["node"]}
            self._judge(probe, list(latest.values()))
        self._tested.add(trial.trial_id)
        self._running[trial.trial_id] = time.time()  # the trial itself starts now

    def _note_link(self, config: TrialConfig, outcome: TrialOutcome) -> None:
        """Of a gang whose nodes were tested: does it add up as fast as before?"""
        measured = outcome.measurement
        if measured and (speed := measured.ranks[0].allreduce_mib_per_s):
            nodes = "+".join(sorted({place.node for place in outcome.granted}))
            figures = {"allreduce_mib_per_s": speed}
            self._judge({"node": f"{nodes} ×{config.gpus}", "at": time.time(), "figures": figures}, [])

    def _judge(self, probe: dict[str, Any], peers: list[dict[str, float]]) -> None:
        before = [one["figures"] for one in self._probes if one["node"] == probe["node"]]
        slow = sentinel.slow(probe["figures"], peers, before)
        self._probes.append(probe)
        self._note("probe", {**probe, "slow": slow})
        for observer in self._observers if slow else []:
            observer.warned(f"{probe['node']} is slow: {'; '.join(slow)}")

    def _note(self, kind: Literal["node", "probe"], facts: dict[str, Any]) -> None:
        try:
            self._ledger.note(kind, facts)
        except SweepError as error:
            self.error = error

    def meet(self) -> None:
        """Write down what the nodes are made of that have said so."""
        for facts in self._nurses.introductions():
            self._note("node", facts)
            for observer in self._observers:
                observer.met(facts)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        lines = str(trial.get_error() or "no message").strip().splitlines()
        self._end(trial, TrialOutcome(status="lost", kind="trial actor lost", message=lines[-1]))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        for trial in trials:
            if trial.trial_id in self._running:
                self._end(trial, TrialOutcome(status="cancelled", kind="stopped"))

    def _end(self, trial: Any, outcome: TrialOutcome) -> None:
        record = TrialRecord(
            config=_planned(trial),
            outcome=outcome,
            started_at=self._running.pop(trial.trial_id, time.time()),
            ended_at=time.time(),
        )
        try:
            self._ledger.write(record)
        except SweepError as error:
            self.error = error  # nothing more counts: the stopper ends the sweep
            return
        self.finished += outcome.status != "cancelled"
        if trial.trial_id in self._tested:
            self._note_link(record.config, outcome)
        for observer in self._observers:
            observer.ended(record)


class _WhenLedgerFails(tune.Stopper):
    def __init__(self, watcher: _Watcher) -> None:
        self._watcher = watcher

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._watcher.error is not None


class _Patient(RayActorManager):
    """Tune's loop looks ten times a second whether anything has happened; it wakes at once when something has."""

    def next(self, timeout: float | None = None) -> bool:
        return bool(super().next(timeout and max(timeout, LOOK_EVERY_S)))


def _planned(trial: Any) -> TrialConfig:
    return contract.trial_config(trial.config["planned"]["trial"])


def _bundles(config: TrialConfig, nodes: Sequence[Node]) -> list[dict[str, float]]:
    return shape.bundles(config, shape.place(config, nodes, shape.idle(nodes)) or (), nodes)


def _placement_group(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """The trial's own actor needs nothing; each rank has a bundle."""
    planned = config["planned"]
    return tune.PlacementGroupFactory([{}, *planned["bundles"]], strategy=planned["trial"]["placement"].upper())


def run(plan: Plan, ledger: Ledger, nodes: Sequence[Node], observers: Sequence[Observer], entry: str = ENTRY) -> bool:
    """Run every trial of a plan; False if it was interrupted before the last."""
    tune_controller.RayActorManager = _Patient
    nurses = Nurses(ledger.paths, plan.spec.sample_every_s)
    nurses.cover()
    watcher = _Watcher(ledger, observers, nurses)
    planned = [{"trial": contract.to_json(config), "bundles": _bundles(config, nodes)} for config in plan.trials]
    tuner = tune.Tuner(
        tune.with_resources(Gang, _placement_group),
        param_space={
            "planned": tune.grid_search(planned),
            "sweep": ledger.paths.name,
            "root": str(ledger.paths.folder.parent),
            "entry": entry,
            "probe_every_s": 60 * plan.spec.probe_every_min,
        },
        tune_config=tune.TuneConfig(reuse_actors=True, trial_dirname_creator=lambda trial: trial.trial_id),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(ledger.paths.folder),
            verbose=0,
            callbacks=[watcher],
            stop=_WhenLedgerFails(watcher),
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    try:
        for observer in observers:
            observer.ready()
        with _terminate_as_interrupt():
            tuner.fit()
        watcher.meet()
    finally:
        nurses.dismiss()
    if watcher.error:
        raise watcher.error
    return watcher.finished == len(plan.trials)


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does: ranks first, ledger closed."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
