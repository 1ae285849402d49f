"""Ranks whose decode threads are held up for a while at each image, if the trial's environment says so; or that run a
script, which may hold itself up.

Like those of `turns`, they leave beside their logs how far they have come.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tests.integration.turns import Seen
from workers.contract.messages import TrialConfig
from workers.contract.ranks import Seat, Voice
from workers.inputs import images
from workers.workloads.images import train
from workers.workloads.script import run as script_run

DELAY_S = "HOROVOD_DELAY_AN_IMAGE_S"  # a name that a trial's environment may have


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    seen = Seen(voice, seat)
    if config.script:
        script_run.run(config, seat, seen)
    else:
        hold_up()
        train.run(config, seat, seen)


def hold_up() -> None:
    """From now on, each image for as long as the environment says."""
    import tensorflow as tf

    delay_s, for_training = float(os.environ.get(DELAY_S, 0)), images.for_training

    def late(*asked: Any) -> Any:
        image, label = for_training(*asked)
        waited = tf.numpy_function(lambda: time.sleep(delay_s) or 0, [], tf.int64)
        with tf.control_dependencies([waited]):
            return tf.identity(image), label

    if delay_s:
        images.for_training = late
