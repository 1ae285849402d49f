"""TensorFlow, as a workload knows its framework (`frameworks.framework`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import cast

from workers.contract.messages import Phase, TrialConfig
from workers.contract.ranks import Seat
from workers.frameworks import precision
from workers.frameworks.learning import Learner
from workers.frameworks.tensorflow import memory
from workers.frameworks.tensorflow import precision as formats
from workers.frameworks.tensorflow import readback as in_force
from workers.frameworks.tensorflow.learner import KerasLearner
from workers.inputs import opening
from workers.inputs.source import Cores, Source
from workers.node import gpus
from workers.strategies import horovod
from workers.strategies.ring import ReducingRing, Ring

shortage_is_a_finding, device_peak_mib = memory.shortage_is_a_finding, memory.device_peak_mib
readback = in_force.of_tensorflow


def place(config: TrialConfig) -> None:
    import tensorflow as tf

    if config.device == "cpu":
        tf.config.threading.set_intra_op_parallelism_threads(config.cores_per_worker)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        native = precision.native_on_cpu(precision.cpu_flags())
    else:
        devices = tf.config.list_physical_devices("GPU")
        if not devices:
            raise RuntimeError("device is gpu, but TensorFlow sees no GPU in this rank")
        gpus.check(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        tf.config.experimental.set_memory_growth(devices[0], True)
        native = precision.native_on_gpu(tf.config.experimental.get_device_details(devices[0])["compute_capability"])
    precision.require(config, native)
    formats.apply(config.precision)


def joined(seat: Seat, config: TrialConfig) -> AbstractContextManager[Ring]:
    return horovod.joined(seat, config.compression, config.reduction)


def learner(config: TrialConfig, ring: Ring) -> Learner:
    return KerasLearner(config, cast(ReducingRing, ring))


def open_source(config: TrialConfig, ring: Ring, cores: Cores, beat: Callable[[Phase, int], None]) -> Source:
    return opening.open_source(config, ring, cores, beat)
