"""The work of one rank in a trial: take its place, join the ring, train in the trial's protocol, report."""

from __future__ import annotations

import dataclasses
import os

from workers.contract import quota
from workers.contract.messages import TrialConfig
from workers.contract.ranks import Seat, Voice
from workers.frameworks.tensorflow import memory, precision
from workers.inputs.opening import cores_here
from workers.inputs.source import Cores
from workers.node import gpus, pinning, topology
from workers.strategies.ring import joined
from workers.workloads.images.convergence import converge
from workers.workloads.images.throughput import measure
from workers.workloads.images.work import Work


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    cores = pinned(config, seat)
    place(config)
    voice.beat("ring")
    with joined(seat, config.compression, config.reduction) as ring, memory.shortage_is_a_finding(config):
        voice.beat("build")
        work = Work(config, ring, voice, cores)
        is_converging = config.protocol == "convergence"
        voice.report(converge(work, seat) if is_converging else measure(work, seat.history))


def pinned(config: TrialConfig, seat: Seat) -> Cores:
    """Keep this rank to cores of its own where there are enough for all; what is left to its decoding."""
    found = topology.here()
    cores = cores_here(config, seat.local_size, found)
    pins, note = pinning.of_rank(config, seat, found, cores.decode_threads, quota=quota.quota())
    if pins is None:
        return dataclasses.replace(cores, pinning_note=note)
    pinning.keep(pinning.threads_here(), pins.compute)  # and so every thread that is started from here on
    return dataclasses.replace(cores, decode=pins.decode, is_pinned=True, pinning_note=note)


def place(config: TrialConfig) -> None:
    """Set TensorFlow to this trial's device and precision, before its first op."""
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
    precision.apply(config.precision)
