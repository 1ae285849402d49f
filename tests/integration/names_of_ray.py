"""Names of Ray's that are private, or documented for nobody, and that we use: where Ray has each, what we count on, and
what breaks where it is another. A table that imports nothing of Ray, so that what is missing can be said in words."""

from __future__ import annotations

from typing import NamedTuple


class Name(NamedTuple):
    """Something that a module of Ray's has."""

    at: str  # module:name, or module:Class.name
    breaks: str  # what does, where Ray has it no more, or has something else by that name
    takes: str | None = None  # its parameters ("…": and others); None of what is no function
    asked_in: str = ""  # the function of Ray's that looks it up, where ours stands in its place


class Variable(NamedTuple):
    """A variable of the environment that a file of Ray's reads."""

    read_in: str
    breaks: str


_SDK = "ray.dashboard.modules.dashboard_sdk"
_WORKER, _STATE, _NODE = "ray._private.worker", "ray._private.state", "ray._private.node"
_BUSY = "a Ray of our own has processes that take a hundredth of a core from the ranks that it measures"
_DEAD = "the nodes of a driver that was killed, and its part of the autoscaler's request, stay taken"

OF_RAY = (
    Name("ray._raylet:GcsClient", "a head that was started anew at its address is taken for the one before"),
    Name(f"{_STATE}:jobs", _DEAD, takes=""),
    Name(
        f"{_WORKER}:print_to_stdstream",
        "Ray's news of nodes and retries stand amid our tables",
        takes="data, ignore_prefix",
        asked_in=f"{_WORKER}:listen_error_messages",
    ),
    Name(f"{_WORKER}:_global_node", _BUSY),
    Name(f"{_NODE}:Node.kill_log_monitor", _BUSY, takes="self, check_alive"),
    Name(f"{_NODE}:Node.kill_monitor", _BUSY, takes="self, check_alive"),
    Name(f"{_NODE}:Node.kill_dashboard", _BUSY, takes="self, check_alive"),
    Name(
        f"{_SDK}:SubmissionClient._server_ray_version",
        "no command to http://HEAD:8265 can say that the cluster has another version of Ray",
    ),
    Name(
        f"{_SDK}:SubmissionClient._do_request",
        "a question to a cluster waits for ever where the link to it is gone",
        takes="self, method, endpoint, …",
    ),
    Name(f"{_SDK}:SubmissionClient._headers", "a sweep's log can't be followed where the cluster asks for a token"),
)

_LOOP, _TRIAL = "ray.tune.execution.tune_controller:TuneController", "ray.tune.experiment:Trial"
_MANAGER = "ray.air.execution._internal:RayActorManager"
_CACHE = "ray.tune.execution.class_cache"
_IDLE = "with nothing to start, the driver stands still for minutes: no Ctrl-C, no node that comes, no other sweep"
_HELD = "gangs that wait for their next trial keep nodes that another sweep was promised, and GPUs that nobody uses"
_SLOW = "a trial's start takes two calls to its gang, where one does"
_MEMORY = "the driver keeps every trial that has ended: memory grows, and each look at them takes longer"
_ASKS = "Ray is asked for the class, and the actor for what it shows, at every trial"
_LATE = "the driver looks ten times a second whether anything has happened, beside the ranks that it measures"
_HOURS = "hours count from when ranks start: what a gang holds while it is brought together counts for nobody"
_WAITS = "what a gang holds between two trials, and before it is gone, counts for nobody"
_SECRETS = "AWS keys of the driver stand in a runtime environment, which Ray logs"
_NODES = "trials don't get the nodes that the engine chose"
_PRINTS = "Tune prints each trial's progress amid our tables, and keeps all trials"
_FIRST = "no trial is made"
_STOPS = "a search can't stop a trial, nor give up one whose node has gone"
_WHY = "a trial that Tune lost says nothing of why"

OF_TUNE = (
    Name("ray.tune.tune:TuneController", _IDLE, asked_in="ray.tune.tune:run"),
    Name(f"{_LOOP}._actor_manager", _LATE),
    Name(f"{_LOOP}._search_alg", _HELD),
    Name(f"{_LOOP}._update_trial_queue", _IDLE, takes="self, blocking, timeout"),
    Name(f"{_LOOP}._maybe_add_actors", _SLOW, takes="self"),
    Name(f"{_LOOP}._pending_trials", _HELD),
    Name(f"{_LOOP}._cleanup_cached_actors", _HELD, takes="self, force_all"),
    Name(f"{_LOOP}._actor_cache", _HELD),
    Name("ray.tune.utils.object_cache:_ObjectCache.num_cached_objects", _HELD),
    Name(f"{_LOOP}._schedule_trial_reset", _SLOW, takes="self, trial, new_config, new_experiment_tag"),
    Name(f"{_LOOP}._on_trial_reset", _SLOW, takes="self, trial, success"),
    Name(f"{_LOOP}._resetting_trials", _SLOW),
    Name(f"{_LOOP}._schedule_trial_train", _SLOW, takes="self, trial"),
    Name(f"{_LOOP}._schedule_trial_task", _SLOW, takes="self, trial, method_name, args, on_result, on_error, …"),
    Name(f"{_LOOP}._on_training_result", _SLOW, takes="self, trial, result"),
    Name(f"{_LOOP}._trial_task_failure", _SLOW, takes="self, trial, exception"),
    Name(f"{_LOOP}.get_live_trials", _STOPS, takes="self"),
    Name(f"{_LOOP}.stop_trial", f"{_MEMORY}; {_STOPS}", takes="self, trial"),
    Name(f"{_LOOP}._trials", _MEMORY),
    Name(f"{_LOOP}._stopped_trials", _MEMORY),
    Name(f"{_LOOP}._trials_to_cache", _MEMORY),
    Name(f"{_LOOP}._trial_metadata", _MEMORY),
    Name(f"{_LOOP}._resources_to_pending_trials", _MEMORY),
    Name(_MANAGER, _LATE, takes="resource_manager"),
    Name(f"{_MANAGER}._resource_manager", _LATE),
    Name(f"{_MANAGER}.next", _LATE, takes="self, timeout"),
    Name(f"{_MANAGER}.num_total_actors", _LATE),
    Name(f"{_MANAGER}._enqueue_cached_actor_tasks", _HOURS, takes="self, tracked_actor"),
    Name(f"{_MANAGER}._live_actors_to_ray_actors_resources", _WAITS),
    Name(f"{_MANAGER}._cleanup_actor", _WAITS, takes="self, tracked_actor"),
    Name(f"{_MANAGER}.cleanup", _WAITS, takes="self"),
    Name(f"{_LOOP}._actor_to_trial", _HOURS),
    Name(f"{_LOOP}._trial_to_actor", _WAITS),
    Name(f"{_CACHE}:ENV_VARS_TO_PROPAGATE", _SECRETS, asked_in=f"{_CACHE}:_ActorClassCache.get"),
    Name("ray.tune.experiment:Experiment.spec", _FIRST),
    Name(
        _TRIAL,
        _FIRST,
        takes="trainable_name, config, placement_group_factory, stopping_criterion, checkpoint_config, "
        "trial_dirname_creator, storage, stub, …",
    ),
    Name(f"{_TRIAL}.stub", _ASKS),
    Name(f"{_TRIAL}._default_placement_group_factory", _NODES),
    Name(f"{_TRIAL}.placement_group_factory", _NODES),
    Name(f"{_TRIAL}.create_placement_group_factory", _NODES, takes="self"),
    Name(f"{_TRIAL}.temporary_state", _ASKS),
    Name("ray.tune.experiment.trial:_TemporaryTrialState.ray_actor", _ASKS),
    Name(f"{_TRIAL}.set_ray_actor", _ASKS, takes="self, ray_actor"),
    Name(f"{_TRIAL}.update_last_result", _MEMORY, takes="self, result"),
    Name(f"{_TRIAL}.trial_id", _MEMORY),
    Name(f"{_TRIAL}.status", _MEMORY),
    Name(f"{_TRIAL}.TERMINATED", _MEMORY),
    Name(f"{_TRIAL}.get_error", _WHY, takes="self"),
    Name("ray.tune.progress_reporter:TrialProgressCallback", _PRINTS),
)

_CORE = "_raylet.so"
_OFTEN = "a Ray of our own reports what nobody reads, on the cores of the ranks that it measures"

VARIABLES = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": Variable(
        "_private/accelerators/accelerator.py",
        "Ray may hide every GPU from a process of its own that asks for none, such as a node's own actor",
    ),
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": Variable(
        "train/constants.py", "Tune's words on the next Ray Train stand amid our tables"
    ),
    "RAY_worker_niceness": Variable(_CORE, "ranks yield to everything: Ray starts its workers at 15"),
    "RAY_enable_metrics_collection": Variable(_CORE, _OFTEN),
    "RAY_task_events_report_interval_ms": Variable(_CORE, _OFTEN),
    "RAY_event_stats": Variable(_CORE, _OFTEN),
    "RAY_raylet_report_resources_period_milliseconds": Variable(_CORE, _OFTEN),
    "RAY_gcs_pull_resource_loads_period_milliseconds": Variable(_CORE, _OFTEN),
    "RAY_enable_pipe_based_agent_to_parent_health_check": Variable("dashboard/consts.py", _OFTEN),
    "RAY_DASHBOARD_AGENT_CHECK_PARENT_INTERVAL_S": Variable("dashboard/consts.py", _OFTEN),
    "REPORTER_UPDATE_INTERVAL_MS": Variable("dashboard/modules/reporter/reporter_consts.py", _OFTEN),
    "LOG_NAME_UPDATE_INTERVAL_S": Variable("_private/log_monitor.py", _OFTEN),
    "RAY_JOB_STOP_WAIT_TIME_S": Variable(
        "dashboard/modules/job/job_supervisor.py",
        "a driver that is told to stop is killed after three seconds, its ranks and its ledger as they are",
    ),
}

# Of what our own code replaces, or counts on line by line, the digest of its text in the Ray that we know: where Ray's
# has changed under its old name, someone must read both.
READ = {
    f"{_LOOP}.step": "a4bba20298ad",
    f"{_LOOP}.stop_trial": "362b288d56ec",
    f"{_LOOP}._update_trial_queue": "a1b3b46ea9a4",
    f"{_LOOP}._maybe_add_actors": "1f5f91df20f1",
    f"{_LOOP}._maybe_reuse_cached_actor": "349d7a53d3cc",
    f"{_LOOP}._schedule_trial_reset": "6cd667a2844a",
    f"{_LOOP}._on_trial_reset": "5f4a898d509c",
    f"{_LOOP}._schedule_trial_train": "323ec4f11c7a",
    f"{_LOOP}._schedule_trial_stop": "f43d39d1aa81",
    f"{_LOOP}._process_trial_result": "d9ad008da5f8",
    f"{_LOOP}._set_trial_status": "1788583bec76",
    f"{_TRIAL}.create_placement_group_factory": "02f377425ec3",
    f"{_TRIAL}.set_ray_actor": "e92163ac4cd7",
    f"{_TRIAL}.update_last_result": "0c2083ed46d3",
    f"{_MANAGER}.next": "2845ef1758a0",
    f"{_MANAGER}._try_start_actors": "c5d348f41efb",
    f"{_MANAGER}._enqueue_cached_actor_tasks": "50f0c1ea2e7b",
    f"{_MANAGER}._cleanup_actor": "0919e37bbcdc",
    f"{_MANAGER}.cleanup": "231765ef7f07",
    "ray.tune.experiment.config_parser:_create_trial_from_spec": "c3e1e8fd5627",
    "ray.tune.trainable:Trainable.train": "22ae4fe44d9f",
}
