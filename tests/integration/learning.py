"""What ranks do in the proofs that they train right: an entry each, as `module:function`."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract import messages
from workers.contract.messages import EpochRecord, TrialConfig
from workers.contract.ranks import Seat, Voice
from workers.frameworks.tensorflow import body, models
from workers.inputs import opening
from workers.strategies.horovod import joined
from workers.workloads.images import checkpoint, train
from workers.workloads.images.work import Work

NORMED = "HOROVOD_PLANTED_NORMED"  # a variable with which `tiny` is a network with batch norm and dropout
RATE = 0.1
SLOWLY_S = 0.7


def loss_curve(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Tells the loss of every global batch of two epochs."""
    body.place(config)
    with joined(seat, config.compression, config.reduction) as ring:
        work = Work(config, ring, voice, opening.cores_here(config, 1))
        work.learner.set_rate(float(config.lr_schedule))
        losses = [work.learner.learn(*batch).loss for epoch in (1, 2) for batch in work.source.epoch(epoch)]
        means = ring.total(np.array(losses)) / ring.size
    tell(voice, means.tolist())


def what_xla_compiles(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Tells whether a part of the step is handed to XLA, as its graph has it."""
    body.place(config)
    with joined(seat, config.compression, config.reduction) as ring:
        work = Work(config, ring, voice, opening.cores_here(config, 1))
        graph = work.learner._step.get_concrete_function(*next(work.source.stream())).graph.as_graph_def()
    tell(voice, any(function.attr["_XlaMustCompile"].b for function in graph.library.function))


def weights_after_a_step(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Tells the first kernel and bias before a step and after it, and the gradients in between."""
    body.place(config)
    with joined(seat, config.compression, config.reduction) as ring:
        work = Work(config, ring, voice, opening.cores_here(config, 1))
        learner = work.learner
        learner.set_rate(RATE)
        batch = next(work.source.stream())
        kernel, bias = learner.network.trainable_variables[-2:]
        before = [kernel.numpy().tolist(), bias.numpy().tolist()]
        slopes = [g.numpy().tolist() for g in learner._differentiate(*batch)[0][-2:]]
        loss = learner.learn(*batch).loss
        after = [kernel.numpy().tolist(), bias.numpy().tolist()]
    tell(voice, {"before": before, "slopes": slopes, "after": after, "loss": loss})


def normed(image_size: int, classes: int) -> Any:
    from keras import Input, Model, layers

    images = Input((image_size, image_size, 3))
    x = layers.Conv2D(16, 3, strides=4, use_bias=False)(images)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.4)(layers.Flatten()(x))
    return Model(images, layers.Dense(classes, dtype="float32")(x))


def trains(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    if os.environ.get(NORMED):
        models.NETWORKS["tiny"] = normed
    train.run(config, seat, voice)


class DyingVoice(Voice):
    """Kills its rank in the midst of the second epoch."""

    def __init__(self, voice: Voice) -> None:
        super().__init__(voice._channel, voice._beat)
        self._epochs = 0  # that it has learnt itself, not those of before its checkpoint
        self._has_learnt = False

    def epoch(self, record: EpochRecord) -> None:
        super().epoch(record)
        self._epochs = record.epoch if self._has_learnt else 0

    def beat(self, phase: messages.Phase, step: int = 0) -> None:
        super().beat(phase, step)
        self._has_learnt |= phase == "step"
        if phase == "step" and self._epochs == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def dies_in_the_second_epoch(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    trains(config, seat, DyingVoice(voice) if seat.rank == 0 else voice)


def writes_checkpoints_slowly(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    save = checkpoint.save

    def slow(*what: Any) -> None:
        time.sleep(SLOWLY_S)
        save(*what)

    checkpoint.save = slow
    train.run(config, seat, voice)


def shows_its_environment(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Tells what is in force, and whether TensorFlow was imported after that."""
    import tensorflow as tf

    asked = {name: os.environ.get(name) for name in config.env}
    is_own_process = b"workers.launch.rank" in Path("/proc/self/cmdline").read_bytes().split(
        b"\0"
    )  # else the fork server's
    tell(voice, {"asked": asked, "is_own_process": is_own_process, "version": tf.__version__})


def tell(voice: Voice, what: Any) -> None:
    voice.beat("finish")
    voice.say("failed", kind="told", message=json.dumps(what))
