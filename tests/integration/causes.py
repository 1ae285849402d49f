"""Real causes of waiting and of work, and what removing each gives in a run of its own.

`python -m tests.integration.causes 10` runs each cause (or those named) ten times and prints what was found beside what
removing it gave; it exits with 1 if a share is farther off than 5 points in more than one run of ten.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeps import limits
from sweeps.limits import Part, Share, Verdict
from tests.integration.gangs import KEY, gang
from tests.unit.records import config
from workers import dataset, train, verdict
from workers.contract import Measurement, TrialConfig
from workers.inputs import images
from workers.paths import nursery_address
from workers.rank import Seat, Voice

DELAY_S = "HOROVOD_DELAY_AN_IMAGE_S"  # a name that a trial's environment may have
WITHIN = 0.05


@dataclasses.dataclass(frozen=True)
class Cause:
    """A part of a step that something real makes long; the trial with it and without it."""

    part: Part
    ranks: int
    having: dict[str, object]
    without: dict[str, object]


SMALL: dict[str, object] = {"image_size": 64, "batch_size": 16, "decode_threads": 1}
SLOW, QUICK = {"warmup_steps": 5, "measured_steps": 45}, {"warmup_steps": 10, "measured_steps": 100}
IN_MEMORY = SMALL | QUICK | {"data": "synthetic"}
CAUSES = {
    # images come late out of the threads of a pipeline that prefetches; the rank's own thread only waits
    "delayed images": Cause("input", 1, SMALL | SLOW | {"env": {DELAY_S: "0.008"}}, IN_MEMORY),
    "delayed images, two ranks": Cause("input", 2, SMALL | SLOW | {"env": {DELAY_S: "0.012"}}, IN_MEMORY),
    # so heavy that what the light one computes in its place is 2% to 3% of it
    "a heavy network": Cause(
        "compute",
        1,
        SMALL | {"model": "resnet101", "batch_size": 8, "warmup_steps": 2, "measured_steps": 16},
        SMALL | {"model": "tiny", "batch_size": 8} | QUICK,
    ),
}  # fmt: skip


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """A rank whose decode threads are held up for a while at each image, if the trial's environment says so."""
    import tensorflow as tf

    delay_s, for_training = float(os.environ.get(DELAY_S, 0)), images.for_training

    def late(*asked: Any) -> Any:
        image, label = for_training(*asked)
        waited = tf.numpy_function(lambda: time.sleep(delay_s) or 0, [], tf.int64)
        with tf.control_dependencies([waited]):
            return tf.identity(image), label

    if delay_s:
        images.for_training = late
    train.run(config, seat, voice)


def measured(folder: Path, ranks: int, **fields: object) -> tuple[TrialConfig, Measurement]:
    asked: dict[str, object] = {"data": str(folder / "images"), "classes": 1000}
    asked |= {"explain": True} | fields
    outcome = verdict.outcome(gang(ranks, folder, "tests.integration.causes:run", **asked), ())
    assert outcome.measurement, outcome
    return dataclasses.replace(config(gpus=ranks), **asked), outcome.measurement  # type: ignore[arg-type]


def removing(with_it: float, without: float) -> float:
    """The part of a step that removing a cause saves, from the images/s of two runs with the same batches."""
    return 1 - with_it / without


def found_and_removed(cause: Cause, folder: Path) -> tuple[Share, float, Verdict]:
    """A cause's share as its trial tells it, what removing it gives in a run of its own, and the trial's verdict."""
    trial, with_it = measured(folder, cause.ranks, **cause.having)
    _, without = measured(folder, cause.ranks, **cause.without | {"explain": False})
    found = limits.shares(with_it, trial)
    assert found
    return getattr(found, cause.part), removing(with_it.images_per_s, without.images_per_s), limits.verdict(found)


def make_images(folder: Path) -> None:
    recipe = dataset.Recipe(images=512, shards=4, width_px=96, height_px=96, classes=1000, seed=0)
    dataset.make(folder / "images", recipe)


def main(runs: int, names: Sequence[str]) -> int:
    is_met = True
    command = [sys.executable, "-m", "workers.nursery", nursery_address(KEY)[1:]]
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        make_images(folder)
        nursery = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for name in names or CAUSES:
            cause, near = CAUSES[name], 0
            for _ in range(runs):
                share, removed, said = found_and_removed(cause, folder)
                near += abs(share.value - removed) <= WITHIN
                told = f"{share.value:6.1%} ± {share.half_width:5.1%}, removing it {removed:6.1%}"
                print(f"{name}: {told}; {limits.in_short(said)}; load {os.getloadavg()[0]:.1f}", flush=True)
            print(f"{name}: within {WITHIN:.0%} in {near} of {runs}", flush=True)
            is_met &= near >= 0.9 * runs
        assert nursery.stdin
        nursery.stdin.close()
        nursery.wait(10)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
