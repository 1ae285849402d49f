"""A training script of somebody's own, in which causes of waiting are planted: a thread loads ahead and may be late,
and Horovod's reductions may wait for a long cycle of the trial's.

Ranks that it is run in alone reduce nothing.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import sweeps

AHEAD = 4  # batches
BATCH, FEATURES, WIDTH, CLASSES = 64, 512, 1024, 10

parser = argparse.ArgumentParser()
parser.add_argument("--late-s", type=float, default=0.0, help="that a batch takes to load, beside the steps")
given = parser.parse_args()
hvd.init()
rng = np.random.default_rng(hvd.rank())
weights = [tf.Variable(rng.normal(0, 0.01, shape).astype("float32")) for shape in ((FEATURES, WIDTH), (WIDTH, CLASSES))]


def load(ready: queue.Queue[Any]) -> None:
    while True:
        batch = rng.random((BATCH, FEATURES), np.float32), rng.integers(0, CLASSES, BATCH)
        time.sleep(given.late_s)
        ready.put(batch)


def batches() -> Iterator[Any]:
    ready: queue.Queue[Any] = queue.Queue(AHEAD)
    threading.Thread(target=load, args=[ready], daemon=True).start()
    while True:
        yield ready.get()


@tf.function  # type: ignore[untyped-decorator]
def computed(x: Any, y: Any) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        logits = tf.nn.relu(x @ weights[0]) @ weights[1]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    return loss, tape.gradient(loss, weights)


for x, y in sweeps.steps(batches(), items=BATCH):
    loss, gradients = computed(x, y)
    if hvd.size() > 1 and not sweeps.alone():
        gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.assign_sub(0.1 * gradient)
    loss.numpy()
