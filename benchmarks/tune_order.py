"""A sweep of Ray Tune itself, to hold a model of its order against: gangs on 8 slots that only sleep.

Every trial is a placement group of a bundle a slot, all pending at once, in the order given:

    python benchmarks/tune_order.py '[[GPUS, SECONDS], ...]'

prints when each trial's sleep began and ended, as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from typing import Any

GPUS = 8
os.environ |= {
    "CUDA_VISIBLE_DEVICES": "-1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
}


def slept(trials: list[tuple[int, float]]) -> list[tuple[float, float]]:
    import ray
    from ray import tune

    def trainable(config: dict[str, Any]) -> None:
        began = time.time()
        time.sleep(trials[config["trial"]][1])
        tune.report({"began": began, "ended": time.time()})

    def group(config: dict[str, Any]) -> Any:
        return tune.PlacementGroupFactory([{"CPU": 0}, *[{"slot": 1}] * trials[config["trial"]][0]])

    ray.init(
        num_cpus=GPUS,
        resources={"slot": GPUS},
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        with tempfile.TemporaryDirectory() as storage:
            results = tune.Tuner(
                tune.with_resources(trainable, group),
                param_space={"trial": tune.grid_search(list(range(len(trials))))},
                run_config=tune.RunConfig(storage_path=storage, verbose=0),
            ).fit()
    finally:
        ray.shutdown()
    if results.errors:
        raise results.errors[0]
    times = {result.config["trial"]: (result.metrics["began"], result.metrics["ended"]) for result in results}
    return [times[n] for n in range(len(trials))]


if __name__ == "__main__":
    print(json.dumps(slept(json.loads(sys.argv[1]))))
