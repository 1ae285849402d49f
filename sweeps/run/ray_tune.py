"""Carries out trials through Ray Tune, which no one else knows but `private_tune`.

Tune schedules; it keeps no results. Each trial that the engine starts is a Tune trial with a placement group of its
own, its bundles bound to the nodes that the engine chose. What its gang comes back with goes to the conductor.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import schedulers
from ray.tune.search import SearchAlgorithm
from ray.util.placement_group import get_current_placement_group

from sweeps.cluster.site import Ask, Site
from sweeps.errors import RefusedError
from sweeps.record.ledger import SweepFacts
from sweeps.run import private_tune
from sweeps.run.conductor import Conductor
from sweeps.run.executor import folders
from sweeps.run.private_tune import PlacedTrial
from sweeps.scheduling import cache
from sweeps.scheduling.cache import NodeContents
from sweeps.scheduling.leases import LeaseTerms
from sweeps.scheduling.packing import Start
from sweeps.simulator import cluster as simulated
from sweeps.simulator.group import SimulatedGroup
from sweeps.spec.arrangements import bundles
from workers.contract import messages
from workers.contract.messages import EpochRecord, TrialConfig, TrialOutcome
from workers.contract.paths import SweepPaths
from workers.launch.gang import ENTRY, Group, NodeActors

REPORT_EVERY_S = 5.0
JUDGE_EVERY_S = 0.5  # where a search may stop a trial
INTRODUCED_WITHIN_S = 60.0
CUT_SHORT = ("killed", "exited", "stalled", "fork server gone")  # kinds of failure that say nothing against the trial
ONE_AT_A_TIME = '[{"CPU": 1.0}]'  # a simulated trial answers at once
Away = dict[str, tuple[TrialConfig, list[str]]]


class Gang(tune.Trainable):
    """One trial at a time on the gang of ranks in its placement group; then the next on the same nodes."""

    def setup(self, config: dict[str, Any]) -> None:
        order = json.loads(config["order"])
        if not order["simulated"]:
            ranks = [ranks for _, ranks in order["seats"]]
            self._group: Any = Group(get_current_placement_group(), ranks, order["node_ids"])
        self._probed_at = -math.inf
        self._has_waited = bool(order["simulated"]) or len(order["frameworks"]) < 2
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        order = json.loads(new_config["order"])
        if order["simulated"]:
            machine = simulated.parse(order["simulated"])
            self._group = SimulatedGroup(machine, order["seats"])
        else:
            self._group.stop()  # of a trial that was stopped halfway
            seats = [ranks for _, ranks in order["seats"]]
            if seats != self._group.seats and order["trial"]["device"] == "gpu":
                self._probed_at = -math.inf  # there may be GPUs among them that were not tested yet
            self._group.seats = seats
        self._config = messages.trial_config(order["trial"])
        self._paths = SweepPaths(order["sweep"], Path(order["root"]))
        self._entry, self._folder = order["entry"], order["folder"]
        self._probe_every_s, self._frameworks = order["probe_every_s"], order["frameworks"]
        self._is_judged = order["is_judged"]
        self._report_every_s = JUDGE_EVERY_S if self._is_judged else REPORT_EVERY_S
        self._at = order["at"], order["attempt"]
        self._is_running = False
        return True

    def follow(self, config: dict[str, Any]) -> dict[str, Any]:
        """Begin the next trial, and take the first look at it."""
        self.reset_config(config)
        return self.train()

    def train(self) -> dict[str, Any]:
        """Step without what Tune's own would add to a step's result: nobody reads that."""
        return {"done": False, **self.step()}

    def step(self) -> dict[str, Any]:
        """Look at the trial: how far it has come, or how it ended. Before the first, its nodes come to rest: a trial
        would wait for its own fork server alone, beside another that imports its framework."""
        if not self._has_waited:
            self._has_waited = True
            self._group.await_fork_servers(self._config, self._frameworks)
        if not self._is_running and 0 < self._probe_every_s < time.monotonic() - self._probed_at:
            self._probed_at = time.monotonic()
            return {
                "probes": json.dumps(
                    self._group.probe(self._paths, self._probe_every_s, self._config, self._frameworks)
                )
            }
        if not self._is_running:
            self._group.start(self._config, self._paths, self._entry, *self._at, folder=self._folder)
            self._is_running = True
            self._finished = 0  # epochs, of which has been told
        outcome = self._group.wait(self._report_every_s)
        if outcome and self._goes_on(outcome):
            self._is_running = False
        if not self._is_running or outcome is None:
            return self._progress()
        return {"outcome": json.dumps(messages.to_json(outcome)), **self._clock(), "done": True}

    def _clock(self) -> dict[str, Any]:
        """Return the virtual time that it has taken, on a cluster that has one, and its epochs on the way."""
        if not isinstance(self._group, SimulatedGroup):
            return {}
        timeline = self._group.timeline if self._is_judged else ()
        reached = [(after_s, messages.to_json(epoch)) for after_s, epoch in timeline]
        return {"took_s": self._group.took_s, "timeline": json.dumps(reached)}

    def _progress(self) -> dict[str, Any]:
        """How far it has come; where trials are judged, with the epochs that it has finished since it was last told."""
        report = {"progress": json.dumps(messages.to_json(self._group.progress))}
        finished = self._group.epochs[self._finished :] if self._is_judged else ()
        if finished:
            self._finished += len(finished)
            report["finished"] = json.dumps([messages.to_json(epoch) for epoch in finished])
        return report

    def _goes_on(self, outcome: TrialOutcome) -> bool:
        """Say whether a trial that was cut short goes on from its checkpoint. It must have come further than the one
        that it found: one that it did not take counts for nothing."""
        return outcome.kind in CUT_SHORT and bool(self._group.has_come_on())

    def cleanup(self) -> None:
        self._group.close()


class _Feed(SearchAlgorithm):
    """Tune asks it for trials; it asks the conductor, and keeps it informed of the nodes."""

    def __init__(
        self,
        conductor: Conductor,
        site: Site,
        ask: Ask | None,
        node_actors: NodeActors | None,
        same: dict[str, Any],
        made: Mapping[str, NodeContents],
    ) -> None:
        self._conductor = conductor
        self._ask = ask
        self._has_waited = False
        self._wanted: list[dict[str, float]] = []  # of a cluster that grows, for what waits for nodes that have gone
        self._site = site
        self._node_actors = node_actors
        self._same = same  # for all trials
        self.is_judged = bool(same["is_judged"])
        self._spec: Mapping[str, Any] = {}  # Tune's, of what all trials have in common
        self._made_of = dict(made)  # by node
        self.away: Away = {}  # by name, what Tune has: the trial, its nodes
        self.taken: dict[str, float] = {}  # nodes of other sweeps, and in how many seconds they may be free
        self._give_up = time.monotonic() + INTRODUCED_WITHIN_S

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles it to restore a run; our state is the ledger

    def add_configurations(self, experiments: Sequence[Any]) -> None:
        self._spec = private_tune.spec(experiments[0])

    def next_trial(self) -> PlacedTrial | None:
        self.look()
        if self._conductor.engine.asks_what_nodes_are_made_of and not self._are_all_known():
            return None
        if start := self._conductor.next():
            order = self._same | self._placed(start)
            self.away[start.trial.trial] = start.trial, order["node_ids"]
            return self._trial(start.trial.trial, order)
        if self._conductor.is_over:
            self.set_finished()
        return None

    def _trial(self, name: str, order: dict[str, Any]) -> PlacedTrial:
        config = {"name": name, "order": json.dumps(order)}  # Tune walks through what it sees inside of
        return PlacedTrial(self._spec, config, _placement_group(order))

    def held(self, trial: Any) -> None:
        """Tune has a placement group for it."""
        if one := self.away.get(_name(trial)):
            self._conductor.held(one[0])

    def waited(self, trial: Any, since: float) -> None:
        """Count what the gang of a trial that has ended has held of its GPUs since then, and until now."""
        self._conductor.waited(json.loads(trial.config["order"])["gpus_held"], since)

    def look(self) -> None:
        """Which nodes are there, which may be used, and what are they made of?"""
        self._look_at_others()
        for facts in (
            self._node_actors.introduced([self._site.id(node) for node in self.taken]) if self._node_actors else []
        ):
            self._conductor.met(facts)
            self._made_of[self._site.name(facts["id"])] = cache.contents(facts)
        self._conductor.engine.nodes_are(self._site.nodes, self._made_of)
        self._conductor.passed()

    def _look_at_others(self) -> None:
        if not self._ask or self._conductor.is_over:
            return
        engine, now = self._conductor.engine, self._conductor.now
        engine.nodes_are(self._site.nodes, self._made_of)
        busy = {node: until - now for node, until in engine.busy(now).items()}
        needs = engine.needs()
        self._want(engine.wanted())
        self.taken = self._ask(busy, needs)
        engine.others_have({node: now + seconds for node, seconds in self.taken.items()}, now)
        if not busy and len(self.taken) == len(self._site.nodes) > 0 and not self._has_waited:
            self._has_waited = True
            self._conductor.warn("other sweeps have every node: this one starts as soon as one of them is free")

    def _want(self, bundles: list[dict[str, float]]) -> None:
        """Ask for nodes, or for none any more. If nobody answers, that is told with the next question to the others."""
        if bundles != self._wanted:
            self._wanted = bundles
            with contextlib.suppress(RefusedError):
                self._site.ask_for(bundles)

    def _are_all_known(self) -> bool:
        usable = {node.name for node in self._site.nodes} - self.taken.keys()
        return usable <= self._made_of.keys() or time.monotonic() > self._give_up

    def _placed(self, start: Start) -> dict[str, Any]:
        return {
            "trial": messages.to_json(start.trial),
            "seats": start.seats,
            "bundles": bundles(start.trial, start.seats, self._conductor.engine.nodes),
            "gpus_held": self._conductor.engine.holds(start.trial),
            "node_ids": [self._site.id(node) for node, _ in start.seats],
            "at": self._conductor.now,
            "attempt": self._conductor.engine.attempts[start.trial.trial],
        }


def _placement_group(order: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Return a bundle for each of the trial's nodes, bound to it; the trial's own actor needs nothing."""
    if order["simulated"]:
        return _reserved(ONE_AT_A_TIME)
    return _reserved(json.dumps([{}, *order["bundles"]]), *order["node_ids"])


@functools.lru_cache(1024)  # Tune compares them all the time, and is quick where they are the same
def _reserved(bundles: str, *node_ids: str) -> tune.PlacementGroupFactory:
    nodes = [{"ray.io/node-id": node} for node in node_ids]
    return tune.PlacementGroupFactory(json.loads(bundles), bundle_label_selector=nodes or None)


class _Watcher(private_tune.Events):
    """Tune's events, told to the conductor."""

    def __init__(self, conductor: Conductor, site: Site, away: Away) -> None:
        self._conductor = conductor
        self._site = site
        self._away = away
        self.stopped_for: dict[str, TrialOutcome] = {}  # by trial: why we have had Tune stop it

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._conductor.begun(self._config(trial))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        config = self._config(trial)
        if ended := result.pop("outcome", None):  # Tune would keep it
            outcome = messages.trial_outcome(json.loads(ended))
            if outcome.status == "lost":
                self._site.look_again()
            timeline = json.loads(result.pop("timeline", "[]"))
            epochs = [(after_s, EpochRecord(**epoch)) for after_s, epoch in timeline]
            self._conductor.answered(config, outcome, result.get("took_s"), epochs)
        elif probes := result.pop("probes", None):
            self._conductor.tested(config, json.loads(probes))
            self._conductor.begun(config)
        elif progress := result.pop("progress", None):
            result.pop("finished", None)
            self._conductor.progressed(config, messages.progress(json.loads(progress)))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        lines = private_tune.error(trial).strip().splitlines()
        self._site.look_again()
        kind = "node lost" if _has_gone(self._away[_name(trial)][1], self._site) else "trial actor lost"
        self._over(trial, TrialOutcome(status="lost", kind=kind, message=lines[-1]))
        self._away.pop(_name(trial), None)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if outcome := self.stopped_for.pop(_name(trial), None):
            self._over(trial, outcome)
        self._away.pop(_name(trial), None)

    def _config(self, trial: Any) -> TrialConfig:
        return self._away[_name(trial)][0]

    def _over(self, trial: Any, outcome: TrialOutcome) -> None:
        config = self._config(trial)
        if self._conductor.is_running(config):
            self._conductor.answered(config, outcome)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self._conductor.stopped()


class _Scheduler(schedulers.FIFOScheduler):
    """Stops trials that are hopeless, and gives up those that wait for a placement group on nodes that have gone.

    Who is hopeless is decided outside of Tune: it hands no scheduler the result with which a trial ends, and what was
    known before the driver stopped must count. On a simulated cluster a trial comes with its whole course, and the
    conductor cuts it short where its virtual clock has come to.
    """

    def __init__(self, conductor: Conductor, watcher: _Watcher, feed: _Feed, site: Site) -> None:
        super().__init__()
        self._conductor, self._watcher, self._feed, self._site = conductor, watcher, feed, site

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if finished := result.get("finished"):
            epochs = [EpochRecord(**epoch) for epoch in json.loads(finished)]
            if outcome := self._conductor.judged(self._feed.away[_name(trial)][0], epochs):
                self._watcher.stopped_for[_name(trial)] = outcome
                return str(self.STOP)
        return str(self.CONTINUE)

    def choose_trial_to_run(self, controller: Any) -> Any:
        for trial in list(controller.get_live_trials()):  # one that is stopped leaves them
            if trial.status == "PENDING" and _has_gone(self._feed.away[_name(trial)][1], self._site):
                message = "a node of its placement group had gone before it started"
                outcome = TrialOutcome(status="lost", kind="node lost", message=message)
                self._watcher.stopped_for[_name(trial)] = outcome
                controller.stop_trial(trial)
        return super().choose_trial_to_run(controller)


class _WhenLedgerFails(tune.Stopper):
    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._conductor.error is not None

    def __getstate__(self) -> dict[str, Any]:
        return {}


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """Behind the block Ctrl-C is what it was: Tune gives it back only if it was pressed."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _has_gone(node_ids: Sequence[str], site: Site) -> bool:
    """One of the nodes that a trial was to run on."""
    return not set(node_ids) <= {site.id(node.name) for node in site.nodes}


def _name(trial: Any) -> str:
    return str(trial.config["name"])


class RayTune:
    """Ranks on the nodes of a Ray cluster. Of a simulated one each trial is computed by an actor of Tune's: it shows
    that the engine and Tune fit together, and how fast."""

    def __init__(self, facts: SweepFacts, paths: SweepPaths, site: Site, entry: str = "") -> None:
        """`entry`: what a rank runs, if not the training."""
        self._facts, self._paths, self._site, self._entry = facts, paths, site, entry or ENTRY
        self.is_virtual = bool(facts.simulated)

    def run(self, conductor: Conductor) -> None:
        spec, simulation = self._facts.spec, self._facts.simulated
        data = folders(spec)
        node_actors = (
            NodeActors(
                self._paths,
                spec.sample_every_s,
                data,
                env_from=spec.env_from,
                has_scripts=bool(spec.run),
                frameworks=spec.space.framework.points(),
            )
            if not simulation
            else None
        )
        made = simulated.contents(simulated.parse(simulation), data) if simulation else {}
        folder = self._paths.code if self._paths.code.is_dir() else Path.cwd()
        same = {
            "sweep": self._facts.name,
            "simulated": simulation,
            "root": str(self._paths.folder.parent),
            "entry": self._entry,
            "folder": str(folder),  # where the user's own code runs; Tune's trials have folders of their own
            "probe_every_s": 0.0 if simulation else 60 * spec.probe_every_min,
            "frameworks": spec.space.framework.points(),
            "is_judged": conductor.engine.is_judging,
        }
        with self._site.shared(LeaseTerms(spec.priority, spec.max_nodes)) as ask:
            feed = _Feed(conductor, self._site, ask, node_actors, same, made)
            try:
                feed.look()
                conductor.ready()
                with private_tune.our_loop(), _own_interrupt():
                    self._tuner(feed, conductor).fit()
                feed.look()
            finally:
                if node_actors:
                    node_actors.dismiss()

    def _tuner(self, feed: _Feed, conductor: Conductor) -> tune.Tuner:
        watcher = _Watcher(conductor, self._site, feed.away)
        return tune.Tuner(
            Gang,
            tune_config=tune.TuneConfig(
                search_alg=feed,
                scheduler=_Scheduler(conductor, watcher, feed, self._site),
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(self._paths.folder),
                verbose=0,
                callbacks=[watcher],
                stop=_WhenLedgerFails(conductor),
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
