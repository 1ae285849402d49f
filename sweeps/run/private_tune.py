"""Ray Tune's private names: its loop made to wake at once, to follow one trial by the next, and to keep nothing.

`ray_tune` uses what stands here, and public Tune. tests/integration/test_private_names.py goes through the names on the
Ray that is installed, and says in words what breaks where one has changed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ray import tune
from ray.air.execution._internal import RayActorManager
from ray.tune import tune as tune_module
from ray.tune.execution import class_cache
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Experiment, Trial
from ray.tune.progress_reporter import TrialProgressCallback

from workers.contract import redact

LOOK_EVERY_S = 1.0
IDLE_S = 0.2  # between two looks while nothing of ours runs
IDLE_GANG_S = 2.0  # a gang for which no trial comes holds its nodes, and what it holds is paid for


@contextlib.contextmanager
def our_loop() -> Iterator[None]:
    """While the block lasts, Tune runs trials by `Loop`, and tells their actors no secret of the driver's environment.

    It would give the driver's AWS keys to every trial's actor, in a runtime environment that Ray logs."""
    theirs, variables = TuneController, class_cache.ENV_VARS_TO_PROPAGATE
    tune_module.TuneController = Loop
    class_cache.ENV_VARS_TO_PROPAGATE = {name for name in variables if not redact.is_secret(name)}
    try:
        yield
    finally:
        tune_module.TuneController, class_cache.ENV_VARS_TO_PROPAGATE = theirs, variables


class Loop(TuneController):
    """Tune's loop. It would stand still for minutes while none of its trials can start, and hold what it has: a gang
    stays in its placement group for whatever comes next, maybe on a node that is another sweep's now, and on GPUs that
    nobody uses. It would tell a gang of its next trial in one call and start that in another, and keep all trials that
    have ended.

    Its search algorithm says which nodes are `taken` by other sweeps and whether trials are judged (`is_judged`), and
    is told once a trial's gang has its placement group (`held`): Tune itself tells of none until its actor stands. It
    is told, too, since when a gang has kept that without a trial (`waited`), at the next one or at its own end. Its
    trainable has a method `follow`, which is reset and train in one."""

    _actor_manager: Patient

    def __init__(self, *args: Any, **options: Any) -> None:
        self._following: list[Trial] = []  # on gangs that are there, to be started
        self._wanted_at = 0.0  # that a trial was there last for the gangs that wait for one
        super().__init__(*args, **options)
        self._actor_manager = Patient(self._actor_manager._resource_manager)
        self._actor_manager.tell_placed = self._placed
        self._actor_manager.tell_freed = self._waited
        self._actor_manager.left = {}

    def _placed(self, actor: Any) -> None:
        if trial := self._actor_to_trial.get(actor):
            self._search_alg.held(trial)

    def _waited(self, actor: Any) -> None:
        if left := self._actor_manager.left.pop(actor, None):
            self._search_alg.waited(*left)

    def _update_trial_queue(self, blocking: bool = False, timeout: int = 0) -> bool:
        return bool(super()._update_trial_queue(blocking=False))

    def _maybe_add_actors(self) -> None:
        now = time.monotonic()
        if self._pending_trials or not self._actor_cache.num_cached_objects:
            self._wanted_at = now
        elif self._search_alg.taken or now - self._wanted_at > IDLE_GANG_S:
            self._cleanup_cached_actors(force_all=True)
        super()._maybe_add_actors()
        for trial in self._following:
            self._on_trial_reset(trial, success=True)
        self._following.clear()

    def _schedule_trial_reset(self, trial: Trial, new_config: dict[str, Any], new_experiment_tag: str) -> None:
        self._waited(self._trial_to_actor.get(trial))
        self._search_alg.held(trial)  # what was the gang's stays with it
        # The gang's last trial may have been stopped: that takes time, and not of this one's.
        if self._search_alg.is_judged:
            super()._schedule_trial_reset(trial, new_config, new_experiment_tag)
        else:
            self._resetting_trials.add(trial)
            self._following.append(trial)

    def _schedule_trial_train(self, trial: Trial) -> None:
        if trial not in self._following:
            super()._schedule_trial_train(trial)
        else:
            heard, failed = self._on_training_result, self._trial_task_failure
            self._schedule_trial_task(trial, "follow", (trial.config,), on_result=heard, on_error=failed)

    def stop_trial(self, trial: Trial) -> None:
        gang = self._trial_to_actor.get(trial)
        super().stop_trial(trial)
        if gang in self._actor_manager.holding:
            self._actor_manager.left[gang] = trial, time.time()
        if trial.status == Trial.TERMINATED and trial in self._trials:
            self._trials.remove(trial)
            self._stopped_trials.discard(trial)
            self._trials_to_cache.discard(trial)
            self._trial_metadata.pop(trial.trial_id, None)
            if not self._resources_to_pending_trials[trial.placement_group_factory]:
                del self._resources_to_pending_trials[trial.placement_group_factory]


class Patient(RayActorManager):
    """Tune's loop looks ten times a second whether anything has happened; it wakes at once when something has.

    It tells of an actor once its placement group is there, and once that is given back. (Ray begins a manager anew in
    the end, in its own way.)"""

    tell_placed: Callable[[Any], None]
    tell_freed: Callable[[Any], None]
    left: dict[Any, tuple[Trial, float]]  # by actor without a trial: its last one, and when that ended

    @property
    def holding(self) -> Collection[Any]:
        """The actors that have a placement group."""
        actors: Collection[Any] = self._live_actors_to_ray_actors_resources
        return actors

    def _enqueue_cached_actor_tasks(self, tracked_actor: Any) -> None:
        """Ray calls this of each actor, as soon as it is asked for in a placement group that is there."""
        self.tell_placed(tracked_actor)
        super()._enqueue_cached_actor_tasks(tracked_actor)

    def _cleanup_actor(self, tracked_actor: Any) -> None:
        """Ray calls this of each actor that has ended, however it did."""
        super()._cleanup_actor(tracked_actor)
        self.tell_freed(tracked_actor)

    def cleanup(self) -> None:
        held = [*self.holding]
        super().cleanup()
        for actor in held:
            self.tell_freed(actor)

    def next(self, timeout: float | None = None) -> bool:
        if not self.num_total_actors:  # nothing can happen here
            time.sleep(IDLE_S)
            return False
        return bool(super().next(timeout and max(timeout, LOOK_EVERY_S)))


def spec(experiment: Experiment) -> Mapping[str, Any]:
    """Return what all trials of an experiment have in common."""
    common: dict[str, Any] = experiment.spec
    return common


class PlacedTrial(Trial):
    """One whose class is known to be there and whose nodes were chosen: Tune would ask Ray for the class each time.

    What it has come to is for the conductor to keep."""

    def __init__(self, common: Mapping[str, Any], config: dict[str, Any], nodes: tune.PlacementGroupFactory) -> None:
        """Make a trial as Tune itself makes one of `spec`, but for what it works out anew each time and is the same for
        all."""
        super().__init__(
            common["run"],
            config=config,
            placement_group_factory=nodes,
            stopping_criterion=common["stop"],
            checkpoint_config=common["checkpoint_config"],
            trial_dirname_creator=common["trial_dirname_creator"],
            storage=common["storage"],
            stub=True,
        )
        self.stub = False

    def create_placement_group_factory(self) -> None:
        self.placement_group_factory = self._default_placement_group_factory

    def set_ray_actor(self, ray_actor: Any) -> None:
        """Tune would ask it, as a call of its own, for what to show until its first result."""
        self.temporary_state.ray_actor = ray_actor

    def update_last_result(self, result: dict[str, Any]) -> None:
        """Tune would keep it, and statistics of it."""


def error(trial: Trial) -> str:
    """Return what Tune has kept of why a trial failed."""
    return str(trial.get_error() or "no message")


class Events(TrialProgressCallback):
    """A callback that stands where Tune would put one that prints trials' progress and keeps them all.

    It does not begin as that one does; whoever makes one of it says what becomes of all that that one hears of."""

    def __init__(self) -> None: ...
