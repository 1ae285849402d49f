"""A plain Horovod loop, which a trial is compared with: no sweep, no Ray, started by horovodrun. Which way of reducing
the gradients is the best one is for `parity` to find out.

    horovodrun -np 2 python benchmarks/plain.py CONFIG.json FOLDER each|grouped|tape

Same network, batch, data and threads as the trial whose config it is given. It shares with the trial how these are
made: the network is of `workers.frameworks.tensorflow.models`, and batches come from `workers.inputs`, by threads and
cores that it chooses.
What those cost is in both sides of the comparison, and does not show in it. The step, its reduction, the optimizer and
the loop around them are its own. Notes each step in FOLDER until it is killed.

It is a user's script too, which `parity` has a sweep run: started by hand, its `sweeps.steps` passes the batches on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

import sweeps
from step_counter import StepCounter
from workers.contract import messages
from workers.frameworks.tensorflow import models
from workers.inputs.opening import cores_here, open_source
from workers.inputs.source import MEAN_RGB, STDDEV_RGB
from workers.strategies.ring import Ring


def by_itself(gradients: Sequence[Any]) -> list[Any]:
    """Each as it appears, beside the backward pass."""
    return [hvd.allreduce(one, name=f"gradient.{n}", op=hvd.Average) for n, one in enumerate(gradients)]


def as_a_group(gradients: Sequence[Any]) -> list[Any]:
    """All in one operation, behind the backward pass."""
    return list(hvd.grouped_allreduce(list(gradients), op=hvd.Average))


REDUCED: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    "each": by_itself,
    "grouped": as_a_group,
    "tape": list,  # Horovod's hands out what is reduced
}
config = messages.trial_config(json.loads(Path(sys.argv[1]).read_text()))
how = sys.argv[3]
hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(config.cores_per_worker)
tf.config.threading.set_inter_op_parallelism_threads(1)


class RankPlace:
    rank, size, local_rank, local_size = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()


model = models.build(config.model, image_size=config.image_size, classes=config.classes)
optimizer = keras.optimizers.SGD(float(config.lr_schedule), momentum=config.momentum)
optimizer.build(model.trainable_variables)
hvd.broadcast_variables([v.value for v in [*model.variables, *optimizer.variables]], root_rank=0)
batches = open_source(config, cast(Ring, RankPlace), cores_here(config, hvd.local_size())).stream()
kernels = [v for v in model.trainable_variables if v.path.endswith("kernel")]


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def step(images: Any, labels: Any, _: Any) -> Any:
    images = (tf.cast(images, tf.float32) - tf.constant(MEAN_RGB)) / tf.constant(STDDEV_RGB)
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        decay = 1e-4 * tf.add_n([tf.nn.l2_loss(v.value) for v in kernels])
        total = loss + decay
    if how == "tape":
        tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(total, [v.value for v in model.trainable_variables])
    optimizer.apply(REDUCED[how](gradients))
    return loss


counter = StepCounter(Path(sys.argv[2]), hvd.rank())
for n, batch in enumerate(sweeps.steps(batches, items=config.batch_size)):
    step(*batch).numpy()
    counter.note(n + 1)
