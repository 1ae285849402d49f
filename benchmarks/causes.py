"""Real causes of waiting: what a trial says that each takes of a step, and what removing it gives in a run of its own.

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

    python benchmarks/causes.py [RUNS [NAME ...]]
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sweeps.record import bottleneck
from sweeps.record.bottleneck import Share, Shares, Verdict
from tests.integration import turns
from tests.integration.gangs import KEY
from tests.integration.late_ranks import DELAY_S
from tests.unit.records import config
from verdicts import conclude
from workers.contract.paths import fork_server_address
from workers.inputs import dataset
from workers.launch import verdict

WITHIN = 0.05
ENTRY = "tests.integration.late_ranks:run"
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

    def share_of_part(self, found: Shares) -> Share:
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
    def off(self) -> float:
        """How far the share is from that."""
        return abs(self.share.value - self.removed)

    def __str__(self) -> str:
        steps = f"{self.planted}; {self.with_ms:.1f} ms a step, {self.without_ms:.1f} without"
        share = f"{self.share.value:.1%} ± {self.share.half_width:.1%}"
        return f"{steps}: share {share}, removing it {self.removed:.1%}; {bottleneck.in_short(self.said)}"


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
    shares = bottleneck.shares(outcome.measurement, trial)
    assert shares
    planted = str(having.get("env") or having.get("cycle_ms"))
    return Found(planted, cause.share_of_part(shares), bottleneck.verdict(shares), with_ms, without_ms)


def make_images(folder: Path) -> None:
    recipe = dataset.Recipe(images=512, shards=4, width_px=96, height_px=96, classes=10, seed=0)
    dataset.make(folder / "images", recipe)


@contextmanager
def fork_server() -> Iterator[None]:
    """That forks the ranks."""
    command = [sys.executable, "-m", "workers.launch.fork_server", fork_server_address(KEY)[1:]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(10)


def main(runs: int, names: Sequence[str]) -> int:
    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as at, fork_server():
        folder = Path(at)
        make_images(folder)
        for _ in range(runs):
            for name in names:  # one after the other: a bad minute of the machine falls on one run of each
                one = found(CAUSES[name], folder)
                errors.setdefault(name, []).append(one.off)
                print(f"{name}: {one}; load {os.getloadavg()[0]:.1f}", flush=True)
    near = {name: statistics.fmean(error <= WITHIN for error in errors[name]) for name in names}
    for name, share in near.items():
        print(f"{name}: within {WITHIN:.0%} in {share:.0%} of {runs}")
    every = [error for of_one in errors.values() for error in of_one]
    figures = {
        "causes": len(near),
        "runs": runs,
        "least_near": min(near.values()),
        "most_near": max(near.values()),
        "median_off": statistics.median(every),
        "worst_off": max(every),
    }
    return conclude("causes", figures, bounds={"least_near": ">= 0.9"})


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, sys.argv[2:] or [*CAUSES]))
