"""Real causes of waiting, and what removing each gives in a run of its own.

`python -m tests.integration.causes 10` runs each cause (or those named) ten times and prints what was found beside what
removing it gave; it exits with 1 if a share is farther off than 5 points in more than one run of ten.

How large a cause is depends on the machine: the step without it is timed first, and then so much is planted as should
take the share that is aimed at. An input is slow in its decode threads, which prefetch: the batches' time in the
threads must be longer than the step, and what it is longer by is waited for. A reduction is slow by Horovod's cycle:
gradients wait for its next look at them.

Computing has no cause of its own here: a rank that waits for nothing computes all the time by definition, and computing
that is saved behind an input saves nothing. It is what is left of a step without its waits, so it is held against ranks
that each train alone on images in memory (`waits`).

What removing gives must not hold the machine's own changes of speed, which come to a fifth within seconds. So the run
with the cause and the one without train by turns of a second, and the shares of the run with it are those of the very
steps behind these turns (the product compares them in rounds, by turns too).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from sweeps import limits
from sweeps.limits import Share, Shares, Verdict
from tests.integration import turns
from tests.integration.gangs import KEY
from tests.unit.records import config
from workers import dataset, train, verdict
from workers.contract import TrialConfig
from workers.inputs import images
from workers.paths import nursery_address
from workers.ranks import Seat, Voice

DELAY_S = "HOROVOD_DELAY_AN_IMAGE_S"  # a name that a trial's environment may have
WITHIN = 0.05
ENTRY = "tests.integration.causes:run"
BATCH = 16
WARM = 60  # steps that empty what was made ahead, though each takes little more than is made meanwhile
PROBED_S = 0.001  # a delay with which the images of a batch take longer than a step's work
TIMED_S = 3.0
SMALL: dict[str, object] = {"image_size": 64, "batch_size": BATCH, "decode_threads": 1, "classes": 10}
IN_MEMORY: dict[str, object] = {"data": "synthetic"}

Part = Literal["input", "comm", "waits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause:
    """What something real takes of a step."""

    part: Part  # waits: input and reduction together, all that is not computing
    share: float  # of a step, that is aimed at
    ranks: int = 1
    steps: int = 600
    having: Callable[[Path, Cause, float], dict[str, object]]  # the trial's fields, by its step without the cause
    is_joined: bool = True  # without the cause, too, ranks reduce their gradients

    def told(self, found: Shares) -> Share:
        """What the trial says of the part."""
        if self.part == "waits":
            return Share(1 - found.compute.value, found.compute.half_width)
        return getattr(found, self.part)  # type: ignore[no-any-return]


def delayed(folder: Path, cause: Cause, step_ms: float) -> dict[str, object]:
    """Images that come late out of their decode thread, of which each rank has one."""
    image_s = step_ms / 1e3 / (1 - cause.share) / BATCH
    delay_s = max(image_s - decoding_s(folder, cause.ranks), 0.0)
    return {"data": str(folder / "images"), "env": {DELAY_S: f"{delay_s:.6f}"}}


def seldom(folder: Path, cause: Cause, step_ms: float) -> dict[str, object]:
    """Gradients that Horovod looks for once in a time that is longer than a step's work."""
    return IN_MEMORY | {"cycle_ms": round(step_ms / (1 - cause.share), 1)}


CAUSES = {
    "delayed images, a sixth": Cause(part="input", share=0.15, having=delayed),
    "delayed images, a third": Cause(part="input", share=0.3, having=delayed),
    "delayed images, three fifths": Cause(part="input", share=0.6, having=delayed),
    "delayed images, two ranks": Cause(part="input", share=0.3, ranks=2, having=delayed),
    "a long cycle": Cause(part="comm", share=0.35, ranks=2, having=seldom, is_joined=False),
    "delayed images and all reduction": Cause(part="waits", share=0.4, ranks=2, having=delayed, is_joined=False),
}


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
    train.run(config, seat, turns.Seen(voice, seat))


@functools.cache
def decoding_s(folder: Path, ranks: int) -> float:
    """What a decode thread takes for an image that is not held up."""
    asked = SMALL | {"data": str(folder / "images"), "env": {DELAY_S: str(PROBED_S)}, "explain": False}
    probed = turns.Gang(ranks, new(folder), ENTRY, warmup_steps=1, measured_steps=1_000_000, **asked)
    with turns.side(probed) as side:
        side.train_until(20)
        return side.timed(TIMED_S) / 1e3 / BATCH - PROBED_S


@dataclasses.dataclass(frozen=True)
class Found:
    """What a trial with a cause tells, and how long its step is with the cause and without it."""

    planted: str
    share: Share
    said: Verdict
    with_ms: float
    without_ms: float

    @property
    def removed(self) -> float:
        """The part of a step that removing the cause saves."""
        return 1 - self.without_ms / self.with_ms

    @property
    def is_near(self) -> bool:
        return abs(self.share.value - self.removed) <= WITHIN

    def __str__(self) -> str:
        steps = f"{self.planted}; {self.with_ms:.1f} ms a step, {self.without_ms:.1f} without"
        share = f"{self.share.value:.1%} ± {self.share.half_width:.1%}"
        return f"{steps}: share {share}, removing it {self.removed:.1%}; {limits.in_short(self.said)}"


def new(folder: Path) -> Path:
    return folder / f"gang-{time.monotonic_ns()}"


def found(cause: Cause, folder: Path) -> Found:
    """A trial with a cause, and beside it a run without."""
    if cause.having is delayed:
        decoding_s(folder, cause.ranks)  # while nothing else runs
    alike = SMALL | {"isolation": "exclusive" if cause.is_joined else "shared"}  # ranks by themselves share the cores
    bare = alike | IN_MEMORY | {"explain": False, "warmup_steps": 1, "measured_steps": 1_000_000}
    sizes = [cause.ranks] if cause.is_joined else [1] * cause.ranks
    with turns.side(*(turns.Gang(size, new(folder), ENTRY, **bare) for size in sizes)) as without:
        without.train_until(20)
        having = alike | cause.having(folder, cause, without.timed(TIMED_S))
        asked = having | {"explain": True, "warmup_steps": WARM, "measured_steps": cause.steps}
        with turns.side(turns.Gang(cause.ranks, new(folder), ENTRY, **asked)) as with_it:
            with_it.train_until(WARM)
            without.keep_to_cores_of(with_it)
            with_ms, without_ms = turns.step_ms(with_it, without, WARM + cause.steps)
            outcome = verdict.outcome(with_it.gangs[0].ends(), ())
    assert outcome.measurement, outcome
    trial = dataclasses.replace(config(gpus=cause.ranks), **asked)  # type: ignore[arg-type]
    shares = limits.shares(outcome.measurement, trial)
    assert shares
    planted = str(having.get("env") or having.get("cycle_ms"))
    return Found(planted, cause.told(shares), limits.verdict(shares), with_ms, without_ms)


def make_images(folder: Path) -> None:
    recipe = dataset.Recipe(images=512, shards=4, width_px=96, height_px=96, classes=10, seed=0)
    dataset.make(folder / "images", recipe)


def main(runs: int, names: Sequence[str]) -> int:
    is_met = True
    command = [sys.executable, "-m", "workers.nursery", nursery_address(KEY)[1:]]
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        make_images(folder)
        nursery = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for name in names or CAUSES:
            near = 0
            for _ in range(runs):
                one = found(CAUSES[name], folder)
                near += one.is_near
                print(f"{name}: {one}; load {os.getloadavg()[0]:.1f}", flush=True)
            print(f"{name}: within {WITHIN:.0%} in {near} of {runs}", flush=True)
            is_met &= near >= 0.9 * runs
        assert nursery.stdin
        nursery.stdin.close()
        nursery.wait(10)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
