"""The best plain Horovod loop, which a trial is compared with: no sweep, no Ray, started by horovodrun, each gradient
reduced as it appears.

    horovodrun -np 2 python benchmarks/plain.py CONFIG.json FOLDER

Same network, batch, data and threads as the trial whose config it is given. It shares with the trial how these are
made: the network is of `workers.frameworks.tensorflow.models`, and batches come from `workers.inputs`, by threads and
cores that it chooses.
What those cost is in both sides of the comparison, and does not show in it. The step, its reduction, the optimizer and
the loop around them are its own. Notes each step in FOLDER until it is killed.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any, cast

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from odometer import Odometer
from workers.contract import messages
from workers.frameworks.tensorflow import models
from workers.inputs.opening import cores_here, open_source
from workers.inputs.source import MEAN_RGB, STDDEV_RGB
from workers.strategies.ring import Ring

config = messages.trial_config(json.loads(Path(sys.argv[1]).read_text()))
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
    gradients = tape.gradient(total, [v.value for v in model.trainable_variables])
    reduced = [hvd.allreduce(one, name=f"gradient.{n}", op=hvd.Average) for n, one in enumerate(gradients)]
    optimizer.apply(reduced)
    return loss


odometer = Odometer(Path(sys.argv[2]), hvd.rank())
for n in itertools.count():
    step(*next(batches)).numpy()
    odometer.note(n + 1)
