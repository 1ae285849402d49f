"""Ranks whose decode threads note when each image was decoded: the pipeline's rate by its own clock.

Their images come late (`late_ranks`), their steps take as long as is planted (`bottlenecks`).
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

from tests.integration import bottlenecks, late_ranks
from workers.contract.messages import TrialConfig
from workers.contract.ranks import Seat, Voice
from workers.inputs import images

NOTE = struct.Struct("d")


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    import tensorflow as tf

    file, for_training = os.open(notes(Path(seat.checkpoint).parent), os.O_WRONLY | os.O_CREAT), images.for_training

    def noted(*asked: Any) -> Any:
        image, label = for_training(*asked)
        with tf.control_dependencies([image]):
            done = tf.numpy_function(lambda: os.write(file, NOTE.pack(time.time())), [], tf.int64)
        with tf.control_dependencies([done]):
            return tf.identity(image), label

    images.for_training = noted
    late_ranks.hold_up()
    bottlenecks.run(config, seat, voice)


def notes(folder: Path) -> Path:
    return folder / "decoded"


def decoded(folder: Path, begin: float, end: float) -> int:
    """How many images were, within these seconds."""
    return sum(begin < at <= end for (at,) in NOTE.iter_unpack(notes(folder).read_bytes()))
