"""Real causes of waiting: what a trial says that each takes of a step, and what removing it gives in a run of its own.

How large a cause is depends on the machine: the step without it is timed first, and then so much is planted as should
take the share that is aimed at.

- An input is slow in its decode threads, which prefetch: the batches' time in the threads must be longer than the step,
  and what it is longer by is waited for. They wait for images that come late, or decode large ones: then they take the
  processor's time too, from ranks that have no core of their own.
- A reduction is slow by Horovod's cycle: gradients wait for its next look at them.
- A network is heavier by larger images. Its weights stay as they are, and so does what is reduced.
- A user's script has a loader and reductions of its own (`tests/integration/late_script.py`): its loader's thread takes
  longer for a batch than a step does, or its reductions wait for Horovod's cycle.

A rank that waits for nothing computes all the time by definition, and computing that is saved behind an input saves
nothing. So a network is heavier in two ranks that reduce: what the shares say that it computes more than the lighter
one, each in a trial of its own, is held against what the lighter one saves. That finds an error in proportion to
computing, and none that is the same in both trials. Such a one is found by `waits`: what computing leaves of a step is
held against ranks that each train alone on images in memory.

Whatever the shares are, the part that a trial names must be the one that is planted, or none: see `Found.is_misnamed`.

What removing gives must not hold the machine's own changes of speed, which come to a fifth within seconds. So the run
with the cause and the one without train by turns of a second, and the shares of the run with it are those of the very
steps behind these turns (the product compares them in rounds, by turns too).

    python benchmarks/causes.py [RUNS [NAME ...]]
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from sweeps.record import bottleneck
from sweeps.record.bottleneck import Share, Shares, Verdict
from tests.integration import turns
from tests.integration.gangs import fork_server
from tests.integration.late_ranks import DELAY_S
from tests.unit.records import config
from verdicts import conclude
from workers.contract.messages import Script
from workers.inputs import dataset
from workers.launch import verdict

WITHIN = 0.05
ENTRY = "tests.integration.late_ranks:run"
BATCH = 16
WARM = 60  # steps that empty what was made ahead, though each takes little more than is made meanwhile
PROBED_S = 0.002  # a delay, for each thread, with which the images of a batch take longer than a step's work
TIMED_S = 3.0
SIDE, OF_8 = 64, 8  # of an image that the network takes; its pooling leaves multiples of eight alike
STORED_SIDE, OF_32 = 96, 32  # of an image of the set, in pixels; of larger ones
SMALL: dict[str, object] = {"image_size": SIDE, "batch_size": BATCH, "decode_threads": 1, "classes": 10}
IN_MEMORY: dict[str, object] = {"data": "synthetic"}
SCRIPT = Script(
    run=f"python {Path(turns.__file__).with_name('late_script.py')} --late-s {{late_s}}",
    ranks="horovod",
    items=0,
    unit="items",
    fork=True,
)
BOUNDS = {"least_near": ">= 0.9", "misnamed": "<= 0"}

Part = Literal["input", "comm", "compute", "waits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause:
    """What something real takes of a step."""

    part: Part  # waits: input and reduction together, all that is not computing
    share: float  # of a step, that is aimed at
    ranks: int = 1
    threads: int = 1  # of each rank, that decode
    steps: int = 600
    having: Callable[[Path, Cause, float], dict[str, object]]  # the trial's fields, by its step without the cause
    is_joined: bool = True  # without the cause, too, ranks reduce their gradients
    is_pinned: bool = True  # where there are cores enough
    is_script: bool = False  # of a user's own; else the built-in training

    @property
    def planted(self) -> bottleneck.Part:
        """The part that may be named."""
        return "input" if self.part == "waits" else self.part

    def share_of_part(self, found: Shares) -> Share:
        """Return what the trial says of the part."""
        if self.part == "waits":
            return Share(1 - found.compute.value, found.compute.half_width)
        return getattr(found, self.part)  # type: ignore[no-any-return]


def delayed(folder: Path, cause: Cause, step_ms: float) -> dict[str, object]:
    """Images that come late out of their decode threads."""
    image_s = cause.threads * step_ms / 1e3 / (1 - cause.share) / BATCH
    delay_s = max(image_s - decoding_s(folder, cause.ranks, cause.threads), 0.0)
    return {"data": str(images_in(folder)), "env": {DELAY_S: f"{delay_s:.6f}"}}


def large(folder: Path, cause: Cause, step_ms: float) -> dict[str, object]:
    """Images that take long to decode, on any core that the ranks leave or do not."""
    image_s = step_ms / 1e3 / (1 - cause.share) / BATCH
    side = STORED_SIDE * math.sqrt(max(image_s / decoding_s(folder, cause.ranks, cause.threads), 1))
    return {"data": str(make_images(folder, OF_32 * math.ceil(side / OF_32)))}


def heavier(folder: Path, cause: Cause, step_ms: float) -> dict[str, object]:
    """Return a network that computes more for each of its weights."""
    return IN_MEMORY | {"image_size": OF_8 * round(SIDE / math.sqrt(1 - cause.share) / OF_8)}


def seldom(folder: Path, cause: Cause, step_ms: float) -> dict[str, object]:
    """Gradients that Horovod looks for once in a time that is longer than a step's work."""
    return IN_MEMORY | {"cycle_ms": round(step_ms / (1 - cause.share), 1)}


def loaded_late(folder: Path, cause: Cause, step_ms: float) -> dict[str, object]:
    """Batches for which a script's loader takes longer than a step does."""
    return {"own": {"late_s": round(step_ms / 1e3 / (1 - cause.share), 6)}}


CAUSES = {
    "delayed images, a fourteenth": Cause(part="input", share=0.07, having=delayed),
    "delayed images, a sixth": Cause(part="input", share=0.15, having=delayed),
    "delayed images, a sixth, four threads": Cause(part="input", share=0.15, threads=4, having=delayed),
    "delayed images, a third": Cause(part="input", share=0.3, having=delayed),
    "delayed images, three fifths": Cause(part="input", share=0.6, having=delayed),
    "delayed images, two ranks": Cause(part="input", share=0.3, ranks=2, having=delayed),
    "large images": Cause(part="input", share=0.5, ranks=2, having=large, is_pinned=False),
    "a heavier network": Cause(part="compute", share=0.75, ranks=2, steps=300, having=heavier),
    "a long cycle": Cause(part="comm", share=0.35, ranks=2, having=seldom, is_joined=False, is_pinned=False),
    "delayed images and all reduction": Cause(
        part="waits", share=0.4, ranks=2, having=delayed, is_joined=False, is_pinned=False
    ),
    "a script's slow loader": Cause(part="input", share=0.3, having=loaded_late, is_script=True),
    "a script's slow reduction": Cause(
        part="comm", share=0.35, ranks=2, having=seldom, is_joined=False, is_pinned=False, is_script=True
    ),
}


@functools.cache
def decoding_s(folder: Path, ranks: int, threads: int) -> float:
    """Return what a decode thread takes for an image that is not held up."""
    probed_s = threads * PROBED_S
    asked = SMALL | {"data": str(images_in(folder)), "env": {DELAY_S: str(probed_s)}, "explain": False}
    asked["decode_threads"] = ranks * threads
    probed = turns.Gang(ranks, new(folder), ENTRY, warmup_steps=1, measured_steps=1_000_000, **asked)
    with turns.side(probed) as side:
        side.train_until(20)
        return threads * side.timed(TIMED_S) / 1e3 / BATCH - probed_s


@dataclasses.dataclass(frozen=True)
class Found:
    """What a trial with a cause tells, and how long its step is with the cause and without it."""

    cause: Cause
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

    @property
    def is_misnamed(self) -> bool:
        """Another part than the planted one is named; of a wait that saves less than a tenth, computing is right."""
        may_compute = self.said.part == "compute" and self.removed < bottleneck.CLEARLY
        return self.said.part not in (self.cause.planted, None) and not may_compute

    def __str__(self) -> str:
        steps = f"{self.planted}; {self.with_ms:.1f} ms a step, {self.without_ms:.1f} without"
        share = f"{self.share.value:.1%} ± {self.share.half_width:.1%}"
        return f"{steps}: share {share}, removing it {self.removed:.1%}; {bottleneck.in_short(self.said)}"


def new(folder: Path) -> Path:
    return folder / f"gang-{time.monotonic_ns()}"


def measure(cause: Cause, folder: Path) -> Found:
    """Run a trial with a cause, and one without beside it."""
    if cause.having in (delayed, large):
        decoding_s(folder, cause.ranks, cause.threads)  # while nothing else runs
    alike = SMALL | {
        "decode_threads": cause.ranks * cause.threads,
        "isolation": "exclusive" if cause.is_pinned else "shared",  # ranks alone share the cores, too
    }
    if cause.is_script:
        alike |= IN_MEMORY | {"script": SCRIPT, "own": {"late_s": 0.0}}
    bare = alike | IN_MEMORY | {"explain": False, "warmup_steps": 1, "measured_steps": 1_000_000}
    sizes = [cause.ranks] if cause.is_joined else [1] * cause.ranks
    told = {"explain": True, "warmup_steps": WARM, "measured_steps": cause.steps}
    with turns.side(*(turns.Gang(size, new(folder), ENTRY, **bare) for size in sizes)) as without:
        without.train_until(20)
        having = alike | cause.having(folder, cause, without.timed(TIMED_S))
        with turns.side(turns.Gang(cause.ranks, new(folder), ENTRY, **having | told)) as with_it:
            with_it.train_until(WARM)
            without.keep_to_cores_of(with_it)
            with_ms, without_ms = turns.step_ms(with_it, without, WARM + cause.steps)
            of_trial = shares(with_it.gangs[0], cause.ranks, having | told)
    share = cause.share_of_part(of_trial)
    if cause.part == "compute":
        lighter = alike | IN_MEMORY | told
        with turns.side(turns.Gang(cause.ranks, new(folder), ENTRY, **lighter)) as side:
            of_lighter = shares(side.gangs[0], cause.ranks, lighter)
        share = more(share, of_lighter.compute, without_ms / with_ms)
    of_script = having.get("own") if cause.having is loaded_late else None
    planted = of_script or having.get("env") or having.get("cycle_ms") or (having["data"], having["image_size"])
    return Found(cause, str(planted), share, bottleneck.verdict(of_trial), with_ms, without_ms)


def shares(gang: turns.Gang, ranks: int, asked: Mapping[str, object]) -> Shares:
    """Return what a trial says of its steps, once it has ended."""
    outcome = verdict.outcome(gang.ends(), ())
    assert outcome.measurement, outcome
    trial = dataclasses.replace(config(gpus=ranks), **asked)  # type: ignore[arg-type]
    told = bottleneck.shares(outcome.measurement, trial)
    assert told
    return told


def more(share: Share, of_shorter: Share, shorter: float) -> Share:
    """How much more of a step a part takes than in a step that is this much shorter; as a share of the longer one."""
    half_width = math.hypot(share.half_width, of_shorter.half_width * shorter)
    return Share(share.value - of_shorter.value * shorter, half_width)


def make_images(folder: Path, side: int = STORED_SIDE) -> Path:
    """Return a set of images of this size, made if it is not there."""
    recipe = dataset.Recipe(images=512, shards=4, width_px=side, height_px=side, classes=10, seed=0)
    dataset.make(images_in(folder, side), recipe)
    return images_in(folder, side)


def images_in(folder: Path, side: int = STORED_SIDE) -> Path:
    return folder / f"images-{side}"


def figures(every: Mapping[str, Sequence[Found]]) -> dict[str, float]:
    """Of the runs of each cause."""
    near = [statistics.fmean(one.off <= WITHIN for one in of_cause) for of_cause in every.values()]
    all_runs = [one for of_cause in every.values() for one in of_cause]
    return {
        "causes": len(every),
        "runs": len(all_runs) / len(every),
        "least_near": min(near),
        "most_near": max(near),
        "median_off": statistics.median(one.off for one in all_runs),
        "worst_off": max(one.off for one in all_runs),
        "named": statistics.fmean(one.said.part == one.cause.planted for one in all_runs),
        "misnamed": sum(one.is_misnamed for one in all_runs),
    }


def main(runs: int, names: Sequence[str]) -> int:
    every: dict[str, list[Found]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as at, fork_server():
        folder = Path(at)
        make_images(folder)
        for _ in range(runs):
            for name in names:  # one after the other: a bad minute of the machine falls on one run of each
                every[name].append(measure(CAUSES[name], folder))
                print(f"{name}: {every[name][-1]}; load {os.getloadavg()[0]:.1f}", flush=True)
    for name, of_cause in every.items():
        near = statistics.fmean(one.off <= WITHIN for one in of_cause)
        misnamed = sum(one.is_misnamed for one in of_cause)
        print(f"{name}: within {WITHIN:.0%} in {near:.0%} of {runs}, another part named in {misnamed}")
    return conclude("causes", figures(every), BOUNDS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, sys.argv[2:] or [*CAUSES]))
