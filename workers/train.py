"""One rank's training, top to bottom: build, warm up, measure, report.

The throughput protocol: `warmup_steps` steps that don't count, a barrier, `measured_steps` steps, a barrier. A
step is input, forward, backward, reduction over all ranks and update, and ends when its loss is known.
"""

from __future__ import annotations

import resource
import time
from typing import Any

from workers import inputs, models, precision
from workers.contract import RankReport, StepRecord, TrialConfig
from workers.rank import Seat, Voice
from workers.ring import Ring, joined

WEIGHT_DECAY = 1e-4
MOMENTUM = 0.9


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """The work of one rank in a trial."""
    place(config)
    voice.beat("ring")
    with joined(seat) as ring:
        voice.beat("build")
        voice.report(train(config, ring, voice))


def place(config: TrialConfig) -> None:
    """Set TensorFlow to this trial's device and precision, before its first op."""
    import tensorflow as tf

    tf.random.set_seed(config.seed)
    if config.device == "cpu":
        tf.config.threading.set_intra_op_parallelism_threads(config.cores_per_worker)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        native = precision.native_on_cpu(precision.cpu_flags())
    else:
        gpus = tf.config.list_physical_devices("GPU")
        if not gpus:
            raise RuntimeError("device is gpu, but TensorFlow sees no GPU in this rank")
        tf.config.experimental.set_memory_growth(gpus[0], True)
        native = precision.native_on_gpu(tf.config.experimental.get_device_details(gpus[0])["compute_capability"])
    precision.require(config.precision, native, config.device)
    precision.apply(config.precision)


def train(config: TrialConfig, ring: Ring, voice: Voice) -> RankReport:
    entered_at, began = time.time(), time.perf_counter()
    step, parameters = training_step(config, ring)
    batches = inputs.open_input(config, ring, cores=inputs.cores_here())

    for n in range(config.warmup_steps):
        float(step(*next(batches)))
        voice.beat("step", n + 1)
    build_s = time.perf_counter() - began

    ring.barrier()
    start = time.perf_counter()
    ends, losses = [start], []
    for n in range(config.warmup_steps, config.steps):
        losses.append(float(step(*next(batches))))
        ends.append(time.perf_counter())
        voice.beat("step", n + 1)
    ring.barrier()
    window_s = time.perf_counter() - start

    voice.beat("finish", config.steps)
    return RankReport(
        rank=ring.rank,
        images=config.measured_steps * config.batch_size,
        window_s=window_s,
        steps=tuple(
            StepRecord(step=n, step_ms=1e3 * (ends[n + 1] - ends[n]), loss=losses[n])
            for n in range(config.measured_steps)
        ),
        entered_at=entered_at,
        build_s=build_s,
        peak_memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        parameters=parameters,
    )


def training_step(config: TrialConfig, ring: Ring) -> tuple[Any, int]:
    """The network and its optimiser as one compiled step from a batch to its loss; and the network's size."""
    import keras
    import tensorflow as tf

    model = models.build(config.model, image_size=config.image_size, classes=config.classes)
    optimizer = precision.loss_scaled(keras.optimizers.SGD(config.learning_rate, momentum=MOMENTUM), config.precision)
    optimizer.build(model.trainable_variables)
    ring.spread([*model.variables, *optimizer.variables])
    decayed = [v for v in model.trainable_variables if v.path.endswith("kernel")]  # no biases, no batch norm

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.cast(model(images, training=True), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            decay = WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(v.value) for v in decayed])
            scaled = optimizer.scale_loss(loss + decay)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_variables])
        optimizer.apply(ring.average(gradients))
        return loss

    return tf.function(step, autograph=False), model.count_params()
