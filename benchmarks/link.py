"""Two hosts with a slow link: what of a step the link takes, by the trial's own shares and by a trial without it.

Three hosts of network namespaces, a head and two nodes, train with a throttled link and with a free one in turn. How
slow the link is follows from the step that is measured first, so that it takes a fifth, a third or half of a step. A
run is near if what the shares say is within 5 points of what removing the throttle gives.

Ranks wait for each other and reduce over a free link too, so `comm_share` of the throttled trial holds more than the
throttle. What a free trial still spends on communication is taken off, in the throttled trial's steps.

    python benchmarks/link.py [RUNS]
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import statistics
import sys
from collections.abc import Mapping
from typing import Any

from tests.cluster import hosts
from tests.cluster.launched import Laptop, on_hosts
from verdicts import conclude, skip

WITHIN = 0.05
SHARES = (0.2, 0.35, 0.5)  # of a step that the link takes, about
HIDDEN = 0.5  # of a step that a reduction may take beside the backward pass, about
BURST_BYTES = 64e3  # that the throttle lets pass at once: see `Host.throttled`
SLOWEST_MBIT = 2  # Ray's own messages pass the link too
RANKS, BATCH = 2, 16
SWEEP = f"""
name: NAME
model: tiny
device: cpu
image_size: 128  # much to compute beside few gradients
classes: 10
space: {{batch_size: {BATCH}, gpus: [{RANKS}], placement: [spread]}}
repeats: 1
steps: {{warmup: 5, measured: 64}}
probe_every_min: 0
"""


@dataclasses.dataclass(frozen=True)
class LinkTrial:
    images_per_s: float
    comm_share: float
    parameters: float

    @property
    def step_s(self) -> float:
        return RANKS * BATCH / self.images_per_s


def throttle_mbit(free: LinkTrial, share: float) -> int:
    """The rate at which sending all gradients takes as long as hides in a step, and so much that it takes this share of
    the longer one. Each of two ranks in a ring sends as much as there is."""
    sending_s = free.step_s * (HIDDEN + share / (1 - share))
    return max(round(8e-6 * (4 * free.parameters - BURST_BYTES) / sending_s), SLOWEST_MBIT)


def removed(throttled: LinkTrial, free: LinkTrial) -> float:
    """The part of a step that removing the throttle saves."""
    return 1 - free.step_s / throttled.step_s


def attributed(throttled: LinkTrial, free: LinkTrial) -> float:
    """The part of a step that the throttle takes, by the shares of both."""
    return throttled.comm_share - free.comm_share * free.step_s / throttled.step_s


def off(throttled: LinkTrial, free: LinkTrial) -> float:
    """How far the one is from the other, of a step."""
    return abs(attributed(throttled, free) - removed(throttled, free))


def of_row(row: Mapping[str, Any]) -> LinkTrial:
    return LinkTrial(row["images_per_s"], row["comm_share"], row["parameters"])


def trained(laptop: Laptop, name: str, mbit: int = 0) -> LinkTrial:
    """A trial on two hosts, over a link of this rate if one is given."""
    with laptop.workers[0].throttled(mbit) if mbit else contextlib.nullcontext():
        (row,) = laptop.swept(SWEEP.replace("NAME", name))
    return of_row(row)


def main(runs: int) -> int:
    if why := hosts.lacking():
        return skip(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no host stays behind
    errors = []
    with on_hosts() as laptop:
        first = trained(laptop, "link")  # which also warms the nodes
        for n in range(runs):
            mbit = throttle_mbit(first, SHARES[n % len(SHARES)])
            rates = (mbit, 0) if n % 2 else (0, mbit)  # a drift of the machine falls on either in turn
            found = {rate: trained(laptop, f"link-{n}-{rate}", rate) for rate in rates}
            slow, free = found[mbit], found[0]
            errors.append(off(slow, free))
            shares = f"communication {slow.comm_share:.1%}, {free.comm_share:.1%} without the throttle"
            of_link = f"the throttle {attributed(slow, free):.1%}, removing it {removed(slow, free):.1%}"
            print(f"{mbit} Mbit/s: {1e3 * slow.step_s:.0f} ms a step; {shares}; {of_link}", flush=True)
    figures = {
        "runs": runs,
        "near": statistics.fmean(error <= WITHIN for error in errors),
        "median_off": statistics.median(errors),
        "worst_off": max(errors),
    }
    return conclude("link", figures, bounds={"near": ">= 0.9"})


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
