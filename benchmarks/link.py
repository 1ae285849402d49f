"""Two hosts with a slow link: what of a step communication takes, by the trial's own share and by ranks that train
alone.

Three hosts of network namespaces, a head and two nodes, train over a link that is throttled. How slow it is follows
from the step over a free link, so that the throttle takes a fifth, a third or half of a step. A run is near if the
trial's `comm_share` is within 5 points of what removing all communication saves: the same two ranks, each in a gang of
its own, at the same time. Nothing that the product says of another trial is in that, so an error of its share that is
the same in all trials shows too.

A virtual machine's speed may change by a fifth from one quarter of a minute to the next, so runs one after the other
would differ by that. Instead the trial over the free link, the trial over the throttled one and the ranks alone take
turns of seconds while the window of one trial lasts: the throttle is taken off and put on again, and while the ranks
train alone those of the trial are stopped (SIGSTOP). Of the trial those steps are timed that lie wholly in a turn. Then
the throttle stays on, while the trial looks for its shares.

What of the share is the throttle's is told and bounded too: a link that took little would show nothing.

    python benchmarks/link.py [RUNS]
"""

from __future__ import annotations

import dataclasses
import math
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import psutil

from sweeps.spec import plan, sweep_file
from tests.cluster import hosts
from tests.cluster.launched import Laptop, on_hosts
from tests.integration import turns
from tests.integration.gangs import fork_server
from tests.integration.turns import Gang, Side
from verdicts import conclude, skip
from workers.contract.messages import Deadlines, RankReport

WITHIN = 0.05
SHARES = (0.2, 0.35, 0.5)  # of a step that the link takes, about
HIDDEN = 0.5  # of a step that a reduction may take beside the backward pass, about
BURST_BYTES = 64e3  # that the throttle lets pass at once: see `Host.throttled`
SLOWEST_MBIT = 2  # Ray's own messages pass the link too
FREE_MBIT = 10_000  # sends all gradients in a thousandth of a second
TURNS = 12  # of each kind
TURN_S, STEPS_A_TURN = 2.0, 6  # at least: a turn's ends cut steps in two
WARM = 20  # steps of the ranks that train alone
PATIENT = Deadlines(step_s=3600)  # with ranks that stand still until their turn comes
ENTRY = "tests.integration.late_ranks:run"  # whose steps can be counted; nothing makes them late here
LONGER = 1.4  # is the window than its turns, should the machine become faster
RANKS, BATCH, WARMUP = 2, 16, 5
BOUNDS = {"near": ">= 0.9", "least_throttle": ">= 0.1"}
SWEEP = f"""
name: NAME
model: tiny
device: cpu
image_size: 128  # much to compute beside few gradients
classes: 10
space: {{batch_size: {BATCH}, gpus: [GPUS], placement: [PLACEMENT]}}
repeats: 1
steps: {{warmup: {WARMUP}, measured: STEPS}}
probe_every_min: 0
"""


Kind = Literal["free", "throttled", "alone"]


@dataclasses.dataclass(frozen=True)
class FreeTrial:
    """Over a free link: what a throttle is worked out from."""

    images_per_s: float
    parameters: float

    @property
    def step_s(self) -> float:
        return RANKS * BATCH / self.images_per_s


@dataclasses.dataclass(frozen=True)
class LinkRun:
    """What a trial over a throttled link says of it, and how long a step is of each kind of turn."""

    comm_share: float
    ms: Mapping[Kind, float]

    @property
    def removed(self) -> float:
        """The part of a step that removing all communication saves."""
        return 1 - self.ms["alone"] / self.ms["throttled"]

    @property
    def throttle(self) -> float:
        """The part of a step that removing the throttle alone saves."""
        return 1 - self.ms["free"] / self.ms["throttled"]

    @property
    def off(self) -> float:
        """How far the share is from what removing its cause saves, of a step."""
        return abs(self.comm_share - self.removed)

    def __str__(self) -> str:
        times = ", ".join(f"{ms:.0f} ms {kind}" for kind, ms in self.ms.items())
        of_it = f"removing it {self.removed:.1%}, of which the throttle {self.throttle:.1%}"
        return f"a step: {times}; communication {self.comm_share:.1%}, {of_it}"


def throttle_mbit(free: FreeTrial, share: float) -> int:
    """Return the rate at which sending all gradients takes as long as hides in a step, and so much that it takes this
    share of the longer one. Each of two ranks in a ring sends as much as there is."""
    sending_s = free.step_s * (HIDDEN + share / (1 - share))
    return max(round(8e-6 * (4 * free.parameters - BURST_BYTES) / sending_s), SLOWEST_MBIT)


@dataclasses.dataclass(frozen=True)
class LinkTurn:
    """A time in which one kind of steps was taken, by the wall clock; the steps, where they were counted meanwhile."""

    begin: float
    end: float
    kind: Kind
    steps: float = 0.0


def turn_s(free: FreeTrial, share: float) -> float:
    """How long a turn is, where the throttle takes this share of a step."""
    return max(TURN_S, STEPS_A_TURN * free.step_s / (1 - share))


def steps(free: FreeTrial, share: float) -> int:
    """Of a window that outlasts its turns."""
    of_a_pair = turn_s(free, share) * (1 / free.step_s + (1 - share) / free.step_s)
    return math.ceil(LONGER * TURNS * of_a_pair)


def take_turns(
    set_rate: Callable[[int], None], mbit: int, each_s: float, trial: Sequence[psutil.Process], alone: Side
) -> Iterator[LinkTurn]:
    """Let the trial train over the free link and over the throttled one, and stand still while ranks train alone; so
    often. The throttle stays on."""
    for _ in range(TURNS):
        for kind in get_args(Kind):
            if kind == "alone":
                signal_all(trial, signal.SIGSTOP)
                begin = time.time()
                seconds, steps = alone.turn(each_s)
                yield LinkTurn(begin, begin + seconds, kind, steps)
                signal_all(trial, signal.SIGCONT)
            else:
                set_rate(mbit if kind == "throttled" else FREE_MBIT)
                begin = time.time()
                time.sleep(each_s)
                yield LinkTurn(begin, time.time(), kind)


def signal_all(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        process.send_signal(number)


def step_ms(report: RankReport, taken: Sequence[LinkTurn], kind: Kind) -> float:
    """Return the mean of a kind's steps: of the trial's those that lie wholly in one of its turns."""
    of_kind = [turn for turn in taken if turn.kind == kind]
    if kind == "alone":
        return 1e3 * sum(turn.end - turn.begin for turn in of_kind) / sum(turn.steps for turn in of_kind)
    end, found = report.window_at[0], []
    for step in report.steps:
        begin, end = end, end + step.step_ms / 1e3
        if any(turn.begin <= begin and end <= turn.end for turn in of_kind):
            found.append(step.step_ms)
    return statistics.fmean(found)


def trained(laptop: Laptop, name: str) -> FreeTrial:
    """Return a trial on two hosts, over a free link."""
    (row,) = laptop.swept(sweep(name, 64))
    return FreeTrial(row["images_per_s"], row["parameters"])


def sweep(name: str, measured: int, gpus: int = RANKS, placement: str = "spread") -> str:
    words = {"NAME": name, "STEPS": str(measured), "GPUS": str(gpus), "PLACEMENT": placement}
    text = SWEEP
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def alone_fields() -> dict[str, object]:
    """Of the config of a rank that trains alone: all that a rank of the trial has, without end. Its node is no other's,
    but here all nodes share the machine's cores: none is pinned there either."""
    (planned,) = plan.plan(sweep_file.parse(sweep("alone", 1_000_000, gpus=1, placement="pack"), "alone")).trials
    return vars(planned) | {"explain": False, "isolation": "shared", "deadlines": PATIENT}


def ranks_on(machines: Sequence[hosts.Host]) -> list[psutil.Process]:
    """Return the ranks of the trial that runs there: forks of a node's fork server."""
    return [
        process
        for machine in machines
        for process in machine.processes()
        if is_fork_server(process) and (parent := process.parent()) and is_fork_server(parent)
    ]


def is_fork_server(process: psutil.Process) -> bool:
    """Or one of its forks, which have its command line."""
    return "workers.launch.fork_server" in process.cmdline()


def throttled(laptop: Laptop, name: str, free: FreeTrial, share: float, folder: Path) -> LinkRun:
    """Return a trial over a link of which the throttle takes this share, beside ranks that train alone."""
    mbit = throttle_mbit(free, share)
    gangs = [Gang(1, folder / f"{name}-{n}", ENTRY, **alone_fields()) for n in range(RANKS)]
    with turns.side(*gangs) as alone, laptop.workers[0].throttled(mbit) as set_rate:
        alone.train_until(WARM)
        alone.stop()
        submitted = laptop.submitted(sweep(name, steps(free, share)))
        wait_until_it_steps(laptop, submitted)
        trial = ranks_on(laptop.workers)
        assert len(trial) == RANKS, trial
        taken = list(take_turns(set_rate, mbit, turn_s(free, share), trial, alone))
        (row,) = laptop.ended(submitted)
    (record,) = laptop.record(submitted).trials
    assert record.outcome.measurement
    report = record.outcome.measurement.ranks[0]
    assert report.window_at[0] < taken[0].begin, "the turns began before the window"
    assert taken[-1].end < report.window_at[1], "the turns were not over when the window was"
    return LinkRun(row["comm_share"], {kind: step_ms(report, taken, kind) for kind in get_args(Kind)})


def wait_until_it_steps(laptop: Laptop, name: str, within_s: float = 300) -> None:
    """Until its one trial's window has begun."""
    give_up = time.monotonic() + within_s
    while not any(map(is_in_window, laptop.look(name).get("running", ()))):
        assert time.monotonic() < give_up, laptop.logs()
        time.sleep(0.5)


def is_in_window(running: dict[str, str]) -> bool:
    step, _, _ = running["stage"].removeprefix("step ").partition("/")
    return step.isdigit() and int(step) > WARMUP


def main(runs: int) -> int:
    if why := hosts.lacking():
        return skip(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no host stays behind
    found: list[LinkRun] = []
    with on_hosts() as laptop, fork_server(), tempfile.TemporaryDirectory() as folder:
        free = trained(laptop, "link")  # which also warms the nodes
        for n in range(runs):
            found.append(throttled(laptop, f"link-{n}", free, SHARES[n % len(SHARES)], Path(folder)))
            print(found[-1], flush=True)
    return conclude("link", figures(found), BOUNDS)


def figures(found: Sequence[LinkRun]) -> dict[str, float]:
    errors = [run.off for run in found]
    return {
        "runs": len(found),
        "near": statistics.fmean(error <= WITHIN for error in errors),
        "median_off": statistics.median(errors),
        "worst_off": max(errors),
        "least_throttle": min(run.throttle for run in found),
        "most_throttle": max(run.throttle for run in found),
    }


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
