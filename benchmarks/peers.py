"""How long two other ways to run Horovod ranks under Ray Tune take to launch a trial.

The peers are `horovod.ray.RayExecutor` inside a function trainable, and Ray Train's V1 `HorovodTrainer`:
2 ranks on the CPUs of a local Ray, one trial at a time. A figure is the time from Tune's `on_trial_start`
(the trial's own actor is up by then, and later trials reuse it) until the last rank has left its first
allreduce, TensorFlow imported and started. It covers no training, data, teardown, GPU or second host.

Nothing in Horovod or Ray is patched. Import this before anything imports ray.train, or in a process of its
own: it sets the environment that both peers run in, Ray Train's V2 off.
"""

import logging
import os
import statistics
import tempfile
import time
from typing import Any

RANKS = 2
RANK_NAMES = ("ray::BaseHorovo", "ray::RayTrainWo")  # the kernel keeps 15 letters of a process title

os.environ |= {
    "CUDA_VISIBLE_DEVICES": "-1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_TRAIN_V2_ENABLED": "0",  # HorovodTrainer is V1 only
    "RAY_USAGE_STATS_ENABLED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
}


def first_allreduce() -> float:
    """Return what every rank of both peers runs: when the last of them had TensorFlow and Horovod at work."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    tf.zeros([]).numpy()
    hvd.allreduce(tf.zeros([]))
    ready = time.time()
    assert hvd.size() == RANKS
    return float(hvd.allreduce(tf.constant(ready, tf.float64), op=hvd.Max))


def ray_executor(trials: int) -> list[float]:
    from horovod.ray import RayExecutor
    from ray import tune

    def trainable(_config: dict[str, Any]) -> None:
        executor = RayExecutor(RayExecutor.create_settings(), num_workers=RANKS, cpus_per_worker=1)
        executor.start()
        tune.report({"ready": max(executor.run(first_allreduce))})
        executor.shutdown()

    # The ranks inherit the trial's placement group; its first bundle, the trainable's own, is empty.
    bundles = tune.PlacementGroupFactory([{}] + [{"CPU": 1}] * RANKS)
    return _launch(tune.with_resources(trainable, bundles), trials)


def horovod_trainer(trials: int) -> list[float]:
    from ray import train
    from ray.train.horovod import HorovodTrainer

    def rank() -> None:
        train.report({"ready": first_allreduce()})

    scaling = train.ScalingConfig(num_workers=RANKS, resources_per_worker={"CPU": 1}, trainer_resources={"CPU": 0})
    return _launch(HorovodTrainer(rank, scaling_config=scaling), trials)


def _launch(trainable: Any, trials: int) -> list[float]:
    import psutil
    import ray
    from ray import tune

    class Starts(tune.Callback):
        def __init__(self) -> None:
            self.at: dict[str, float] = {}

        def on_trial_start(self, trial: Any, **_: Any) -> None:
            self.at[trial.trial_id] = time.time()

        def on_trial_complete(self, **_: Any) -> None:
            # A trial's ranks, exiting, would slow the launch of the next: hold Tune until they are gone.
            ours = set(psutil.Process().children(recursive=True))
            named = {p for p in psutil.process_iter(["name"]) if p.info["name"].startswith(RANK_NAMES)}
            alive = psutil.wait_procs(ours & named, timeout=30)[1]
            assert not alive, alive

    starts = Starts()
    ray.init(num_cpus=RANKS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as storage:
            results = tune.Tuner(
                trainable,
                tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=1, reuse_actors=True),
                run_config=tune.RunConfig(storage_path=storage, callbacks=[starts], verbose=0),
            ).fit()
    finally:
        ray.shutdown()
    if results.errors:
        raise results.errors[0]
    return [result.metrics["ready"] - starts.at[result.metrics["trial_id"]] for result in results]


if __name__ == "__main__":
    for peer in (ray_executor, horovod_trainer):
        figures = peer(3)
        print(peer.__name__, f"median {statistics.median(figures):.2f} s of", [round(s, 2) for s in figures])
