"""How near the packing comes to the shortest possible sweep: 500 trials of mixed gangs on 4, 8 and 32 GPUs.

Each sweep has 125 cells of 4 repeats, in the order that `plan` gives them. A cell's gang has 1 to 32 ranks, as many as
the cluster holds at most, on nodes of 4, placed as pack, spread or NxM. Its seconds are log-normal around two minutes
(a third of the cells more than twice that, or less than half), its repeats vary by 10%. What runs is the engine of
every sweep, with the durations that it learns as trials end: it knows none of them beforehand.

The figure is the makespan over a lower bound (see `bound`) that takes the work as a fluid, or the longest trial where
that is more. Exclusive gangs have their nodes to themselves, shared ones their GPUs. Each cluster has a bound of its
own: the more nodes, the farther a fluid is from gangs that must start together.

Size and start must not go together over a round, or a drift of the machine looks like an effect of the size. `size` is
the mean over all rounds of Spearman's correlation of a trial's start with its GPUs, or with its nodes where that is
farther from zero; below zero large ones come first. What that costs is seen beside `largest first`, the same packing
with the largest of each round first and gangs of one GPU count in a row: it is done sooner and confounds the two.

Beside it, in the same sweeps and seats, a model of Tune's own order: trials in the order of its grid (the cells as they
were drawn, the whole grid once a repeat), the first 200 as pending placement groups, each of which starts as soon as it
fits; nothing is kept for those that do not. That is what Ray's scheduler does with pending groups, and 200 is Tune's
default. It keeps GPUs rather busy and lets large gangs wait to the end: `round 1` is the part of the makespan by which
every cell has been measured once, of four times. A small sweep of Tune itself (`tune_order`: 16 gangs on 8 slots that
only sleep) shows how far the model holds: the share of pairs of trials that start in the order that it says.

    python benchmarks/packing.py [SEEDS]
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scipy.stats import spearmanr

from bound import shortest
from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.packing import Packing, Start, _Waiting
from sweeps.scheduling.search import Listed
from sweeps.spec import arrangements, plan, sweep_file
from sweeps.spec.arrangements import Node
from verdicts import conclude
from workers.contract.messages import Isolation, TrialConfig, TrialOutcome

HERE = Path(__file__).parent
CLUSTERS, SLOTS = (4, 8, 32), 4
CELLS, REPEATS = 125, 4
TYPICAL_S, SPREAD, NOISE = 120.0, 0.7, 0.1
PENDING = 200
ISOLATIONS: tuple[Isolation, ...] = ("exclusive", "shared")
(TEMPLATE,) = plan.plan(
    sweep_file.parse(
        "{name: packing, model: tiny, device: gpu, repeats: 1, space: {batch_size: 1, gpus: 1}}", "packing"
    )
).trials


@dataclasses.dataclass(frozen=True)
class WorkItem:
    trial: TrialConfig
    cell: int
    seconds: float


def cluster(gpus: int, slots: int = SLOTS) -> list[Node]:
    return [Node(f"n{n}", cpus=8 * slots, gpus=slots) for n in range(gpus // slots)]


def grid(seed: int, gpus: int, isolation: Isolation) -> list[WorkItem]:
    """Return the cells as drawn, once a repeat."""
    drawn = random.Random(f"{seed} {gpus} {isolation}")
    cells = []
    for cell in range(CELLS):
        ranks = drawn.randint(1, min(32, gpus))
        exact = [f"{n}x{ranks // n}" for n in range(1, gpus // SLOTS + 1) if ranks % n == 0 and ranks // n <= SLOTS]
        placement = drawn.choice(["pack", "pack", "spread", *exact[:1]])
        fields = {"gpus": ranks, "placement": placement, "isolation": isolation, "seed": cell}
        trial = dataclasses.replace(TEMPLATE, **fields)  # type: ignore[arg-type]
        cells.append((trial, drawn.lognormvariate(math.log(TYPICAL_S), SPREAD)))
    return [
        WorkItem(dataclasses.replace(trial, repeat=repeat), cell, seconds * drawn.lognormvariate(0, NOISE))
        for repeat in range(REPEATS)
        for cell, (trial, seconds) in enumerate(cells)
    ]


def planned(works: Sequence[WorkItem], seed: int) -> list[WorkItem]:
    """Return the trials in rounds, each in random order, as `plan` has it."""
    drawn = random.Random(seed)
    rounds = ([work for work in works if work.trial.repeat == repeat] for repeat in range(REPEATS))
    return [work for these in rounds for work in drawn.sample(these, len(these))]


def in_blocks(works: Sequence[WorkItem], seed: int) -> list[WorkItem]:
    """Return the trials in rounds, in random order within blocks of one GPU count, themselves in random order."""
    drawn = random.Random(seed)
    ordered = []
    for repeat in range(REPEATS):
        blocks: dict[int, list[WorkItem]] = {}
        for work in works:
            if work.trial.repeat == repeat:
                blocks.setdefault(work.trial.gpus, []).append(work)
        for size in drawn.sample(list(blocks), len(blocks)):
            ordered += drawn.sample(blocks[size], len(blocks[size]))
    return ordered


class LargestFirst(Packing):
    """An order in which every round has the gangs with the most ranks on a node first, of these those on the most
    nodes."""

    def _order(self) -> list[_Waiting]:
        groups = [group for group in self._shapes.values() if group.queue and group.blocked]
        groups.sort(key=lambda group: (group.queue[0].round, *group.turn(is_largest_first=True)))
        return [group.queue[0] for group in groups]


@dataclasses.dataclass(frozen=True)
class Ran:
    work: WorkItem
    start: float
    end: float


def packed(nodes: Sequence[Node], works: Sequence[WorkItem], packing: Packing | None = None) -> list[Ran]:
    """Return what the engine makes of it, which learns durations from what has ended, with its own packing or
    another."""
    engine = Engine(
        lambda _: Listed([work.trial for work in works]), Durations(lambda _: TYPICAL_S), Feasibility(), Cache()
    )
    engine._packing = packing or engine._packing
    engine.nodes_are(nodes, {})
    by_trial = {work.trial.trial: work for work in works}

    def start(now: float) -> WorkItem | None:
        started = engine.next(now)
        return by_trial[started.trial.trial] if isinstance(started, Start) else None

    def end(work: WorkItem, now: float) -> None:
        completed = TrialOutcome(status="completed")
        engine.ended(
            TrialRecord(config=work.trial, outcome=completed, started_at=now - work.seconds, ended_at=now), now
        )

    return simulated(start, end, len(works))


def tuned(nodes: Sequence[Node], works: Sequence[WorkItem]) -> list[Ran]:
    """Return what Tune's own order makes of it, as a model has it."""
    pending = list(works)
    named = arrangements.idle(nodes)
    free = dict(named)
    seated: dict[int, arrangements.Seats] = {}

    def change(work: WorkItem, seats: arrangements.Seats, sign: int) -> None:
        for name, (cpus, gpus) in arrangements.taken(work.trial, seats, named).items():
            free[name] = Node(name, free[name].cpus + sign * cpus, free[name].gpus + sign * gpus)

    def start(now: float) -> WorkItem | None:
        for work in pending[:PENDING]:
            if seats := arrangements.place(work.trial, nodes, free):
                pending.remove(work)
                seated[id(work)] = seats
                change(work, seats, -1)
                return work
        return None

    return simulated(start, lambda work, now: change(work, seated.pop(id(work)), +1), len(works))


def simulated(
    start: Callable[[float], WorkItem | None], end: Callable[[WorkItem, float], None], count: int
) -> list[Ran]:
    """Whatever starts at each moment, until all have ended."""
    ran: list[Ran] = []
    ends: list[tuple[float, int]] = []
    now = 0.0
    while True:
        while work := start(now):
            heapq.heappush(ends, (now + work.seconds, len(ran)))
            ran.append(Ran(work, now, now + work.seconds))
        if not ends:
            break
        now, number = heapq.heappop(ends)
        end(ran[number].work, now)
    assert len(ran) == count
    return ran


def makespan(ran: Sequence[Ran]) -> float:
    return max(one.end for one in ran)


def first_round(ran: Sequence[Ran]) -> float:
    """Return the part of the makespan by which every cell has been measured."""
    ends: dict[int, float] = {}
    for one in ran:
        ends[one.work.cell] = min(one.end, ends.get(one.work.cell, math.inf))
    return max(ends.values()) / makespan(ran)


def size_and_start(sweeps: Sequence[Sequence[Ran]], nodes: Sequence[Node]) -> float:
    """Return the mean correlation of a trial's size with its start over all rounds: of two sizes the one farther from
    zero."""
    sizes: list[Callable[[TrialConfig], int]] = [lambda trial: trial.gpus]
    if len(nodes) > 1:
        sizes.append(lambda trial: len(arrangements.arrangement(trial, nodes)))
    return max((statistics.fmean(_correlations(sweeps, size)) for size in sizes), key=abs)


def _correlations(sweeps: Sequence[Sequence[Ran]], size: Callable[[TrialConfig], int]) -> Iterator[float]:
    for ran, repeat in itertools.product(sweeps, range(REPEATS)):
        these = [one for one in ran if one.work.trial.repeat == repeat]
        yield float(spearmanr([size(one.work.trial) for one in these], [one.start for one in these]).statistic)


def _first_rounds(sweeps: Sequence[Sequence[Ran]]) -> str:
    return f"{statistics.median(map(first_round, sweeps)):.0%}"


def agreement() -> tuple[float, float]:
    """Pairs of trials of a real sweep of Tune that start in the order of its model, and in that of its grid."""
    drawn = random.Random(1)
    gangs = [(drawn.randint(1, 8), round(drawn.uniform(1, 6), 1)) for _ in range(16)]
    called = [sys.executable, str(HERE / "tune_order.py"), json.dumps(gangs)]
    ran = subprocess.run(called, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"Tune did not run:\n{ran.stderr[-2000:]}")
    real = [began for began, _ in json.loads(ran.stdout.splitlines()[-1])]
    fields = {"isolation": "shared", "placement": "pack"}
    works = [
        WorkItem(dataclasses.replace(TEMPLATE, gpus=gpus, seed=n, **fields), n, seconds)  # type: ignore[arg-type]
        for n, (gpus, seconds) in enumerate(gangs)
    ]
    model = {one.work.cell: one.start for one in tuned(cluster(8, slots=8), works)}
    pairs = [(a, b) for a, b in itertools.combinations(range(len(gangs)), 2) if model[a] != model[b]]
    agreed = statistics.fmean((model[a] < model[b]) == (real[a] < real[b]) for a, b in pairs)
    return agreed, statistics.fmean(real[a] < real[b] for a, b in pairs)


def least(nodes: Sequence[Node], works: Sequence[WorkItem]) -> float:
    """Return the time that any schedule takes at least."""
    seconds: Counter[tuple[int, ...]] = Counter()
    for work in works:
        ranks = arrangements.arrangement(work.trial, nodes)
        blocked = (SLOTS,) * len(ranks) if work.trial.isolation == "exclusive" else ranks
        seconds[blocked] += work.seconds  # type: ignore[assignment]
    return max(shortest(len(nodes), SLOTS, seconds), max(work.seconds for work in works))


HEADINGS = (
    *("packing: median", "worst", "round 1", "size"),
    *("largest first: median", "worst", "size"),
    *("Tune: median", "worst", "round 1"),
)
WIDTHS = [max(10, len(heading) + 2) for heading in HEADINGS]


def main(seeds: int) -> int:
    ours: list[float] = []
    by_cluster: dict[int, list[float]] = {gpus: [] for gpus in CLUSTERS}
    largest: list[float] = []
    tunes: list[float] = []
    sizes: list[float] = []
    print(
        f"{'makespan ÷ bound':<18}" + "".join(f"{name:>{width}}" for name, width in zip(HEADINGS, WIDTHS, strict=True))
    )
    for gpus, isolation in itertools.product(CLUSTERS, ISOLATIONS):
        nodes = cluster(gpus)
        grids = [grid(seed, gpus, isolation) for seed in range(seeds)]
        bounds = [least(nodes, works) for works in grids]

        def ratio_texts(
            ratios: list[float], sweeps: Sequence[Sequence[Ran]], bounds: Sequence[float] = bounds
        ) -> list[str]:
            these = [makespan(ran) / bound for ran, bound in zip(sweeps, bounds, strict=True)]
            ratios += these
            return [f"{statistics.median(these):.3f}", f"{max(these):.3f}"]

        mine = [packed(nodes, planned(works, seed)) for seed, works in enumerate(grids)]
        other = [packed(nodes, in_blocks(works, seed), LargestFirst(nodes)) for seed, works in enumerate(grids)]
        tune = [tuned(nodes, works) for works in grids]
        sizes.append(size_and_start(mine, nodes))
        of_ours = ratio_texts(ours, mine)
        by_cluster[gpus] += ours[-seeds:]
        texts = [*of_ours, _first_rounds(mine), f"{sizes[-1]:+.2f}"]
        texts += [*ratio_texts(largest, other), f"{size_and_start(other, nodes):+.2f}"]
        texts += [*ratio_texts(tunes, tune), _first_rounds(tune)]
        line = "".join(f"{text:>{width}}" for text, width in zip(texts, WIDTHS, strict=True))
        print(f"{gpus:>2} GPUs {isolation:<10}{line}", flush=True)
    cost = statistics.median(one / other for one, other in zip(ours, largest, strict=True)) - 1
    print(f"a sweep lasts {cost:.1%} longer in the median than with the largest first")
    agreed, in_order = agreement()
    print(f"real Tune: {agreed:.0%} of pairs of trials start in the order of its model, {in_order:.0%} in its grid's")
    figures = {
        "seeds": seeds,
        **{f"median_{gpus}": statistics.median(ratios) for gpus, ratios in by_cluster.items()},
        "worst": max(ours),
        "size": max(map(abs, sizes)),
        "over_largest_first": cost,
        "largest_first_median": statistics.median(largest),
        "largest_first_worst": max(largest),
        "tune_median": statistics.median(tunes),
        "tune_worst": max(tunes),
        "tune_agrees": agreed,
    }
    medians = {f"median_{gpus}": f"<= {most}" for gpus, most in zip(CLUSTERS, (1.05, 1.05, 1.1), strict=True)}
    return conclude("packing", figures=figures, bounds=medians | {"worst": "<= 1.15", "size": "<= 0.15"})


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
