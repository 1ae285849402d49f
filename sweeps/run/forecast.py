"""What a sweep will cost: the trials packed on a cluster as they would run, each as long as is predicted.

Pure but for what earlier sweeps in this folder have taken, from which it is predicted where there are some.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
from collections import Counter
from collections.abc import Callable, Sequence

from sweeps.scheduling import durations
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.packing import Packing
from sweeps.simulator import trial_time
from sweeps.simulator.cluster import SimulatedCluster
from sweeps.spec import arrangements, plan
from sweeps.spec.arrangements import Node, Seats
from sweeps.spec.keys import RANK, SweepSpec
from sweeps.text import gantt, tables
from workers.contract.messages import TrialConfig


@dataclasses.dataclass(frozen=True)
class Slot:
    """When a trial runs, and where."""

    config: TrialConfig
    seats: Seats
    begin: float
    end: float
    gpus: int  # that its gang holds meanwhile

    @property
    def gpu_hours(self) -> float:
        return self.gpus * (self.end - self.begin) / 3600


@dataclasses.dataclass(frozen=True)
class Forecast:
    slots: tuple[Slot, ...]

    @property
    def hours(self) -> float:
        return max((slot.end for slot in self.slots), default=0.0) / 3600

    @property
    def gpu_hours(self) -> float:
        return sum(slot.gpu_hours for slot in self.slots)


def learned(machine: SimulatedCluster, is_real: bool) -> Durations:
    """Return durations learned from the trials of this folder's sweeps, and a model of such a cluster."""
    made = Durations(functools.partial(trial_time.expected_s, cluster=machine))
    for record in durations.earlier(simulated=not is_real):
        made.learn(record)
    return made


def unit(spec: SweepSpec) -> str:
    """Return the unit of what a sweep costs."""
    return f"{RANK[spec.device]}-hours"


def summary_lines(spec: SweepSpec, trials: Sequence[TrialConfig], nodes: Sequence[Node], known: Durations) -> list[str]:
    """Hours, GPU-hours, from what they are predicted, and when each trial would run where."""
    name = plan.namer(spec)
    made = forecast(trials, nodes, lambda config: known.predict(config).seconds, spec.max_nodes)
    sources = Counter(_source(slot.config, known) for slot in made.slots)
    predicted = ", ".join(f"{count} {source}" for source, count in sources.items())
    cost = f"{tables.number(made.gpu_hours, 3)} {unit(spec)} in {tables.duration(3600 * made.hours)}"
    where = f"on {arrangements.described(nodes)}"
    budget = spec.budget.gpu_hours if spec.budget else None
    over = f", of a budget of {budget:g}" if budget else ""
    bars = [gantt.Bar(name(slot.config), slot.seats, slot.begin, slot.end) for slot in made.slots]
    slots = {node.name: arrangements.slots(trials[0], node) for node in nodes}
    drawn = gantt.gantt(bars, slots) if len(slots) <= gantt.MOST_ROWS else []
    alone = [slot.gpu_hours for slot in made.slots if budget and slot.gpu_hours > budget]
    cheapest = f"the cheapest of them about {tables.number(min(alone), 3)} {unit(spec)}" if alone else ""
    refused = [f"! {len(alone)} trials need more than the whole budget, {cheapest}: they won't run"] if alone else []
    return [f"about {cost}{over} {where} (predicted: {predicted})", *refused, *drawn]


def _source(config: TrialConfig, known: Durations) -> str:
    """Say from what a trial's duration is predicted."""
    if known.predict(config).source == "trials":
        return "from earlier trials"
    is_foreign = config.framework != "tensorflow"
    return f"of {config.framework} from a model that knows TensorFlow's pace alone" if is_foreign else "from a model"


def forecast(
    trials: Sequence[TrialConfig],
    nodes: Sequence[Node],
    predicted_s: Callable[[TrialConfig], float],
    max_nodes: int | None = None,
) -> Forecast:
    """Every trial once, none of them failing; those that the cluster can't hold are left out."""
    packing = Packing(nodes, max_nodes)
    for config in trials:
        packing.add(config)
    now, slots, ends = 0.0, [], [(0.0, "")]
    while ends:
        now, ended = heapq.heappop(ends)
        if ended:
            packing.ended(ended, now)
        while start := packing.start(now, predicted_s):
            slot = Slot(start.trial, start.seats, now, now + predicted_s(start.trial), packing.held(start))
            slots.append(slot)
            heapq.heappush(ends, (slot.end, start.trial.trial))
    return Forecast(tuple(slots))
