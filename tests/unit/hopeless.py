"""An asha search on a simulated cluster, in which both kinds of stop fire on one GPU and on four.

Of each GPU count there are three cells: one whose learning rate is far too low, which falls behind at a rung; one that
learns best but goes through its images so slowly that time stops it; and one that comes to the target.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from sweeps.record import ledger, ownership
from sweeps.record.ledger import SweepRecord, TrialRecord
from sweeps.run import driver, executor, forecast
from sweeps.run.conductor import Conductor
from sweeps.run.in_process import InProcess
from sweeps.scheduling import asha, search
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.packing import Start
from sweeps.simulator import cluster as simulated
from sweeps.simulator.cluster import SimulatedCluster
from sweeps.simulator.group import SimulatedGroup
from sweeps.spec import plan, sweep_file
from workers.contract.messages import TrialConfig

LOW, SLOW, GOOD = "far too low a rate", "best, and slow", "comes to the target"
FILE = """
name: hopeless
model: resnet50_v1.5
data: images
device: gpu
protocol: convergence
epochs: 90
target: {top1: 0.74}
search: {method: asha, grace: 4, reduction: 2}
space:
  gpus: [1, 4]
  batch_size: [8, 128, 256]
  precision: [fp32, fp16]
  lr_schedule: ["0.1 scale=linear", "0.03 scale=linear", "0.001 scale=linear"]
where:
  - (batch_size == 8) == (precision == 'fp32')
  - (batch_size == 8) == (lr_schedule == '0.1 scale=linear')
  - (batch_size == 128) == (lr_schedule == '0.001 scale=linear')
repeats: 1
seed: 5  # of one trial at a time the good ones come first
"""


def part(config: TrialConfig) -> str:
    """That a trial was given."""
    return {8: SLOW, 128: LOW, 256: GOOD}[config.batch_size]


def in_order(batch: list[Start]) -> list[Start]:
    return batch


def run(text: str, shape: str, order: Callable[[list[Start]], list[Start]] = in_order) -> SweepRecord:
    """Run a sweep file on a simulated cluster without Tune; what runs at a time is computed in this `order`."""
    planned = plan.plan(sweep_file.parse(text, "hopeless.yaml"), "hopeless.yaml", simulated.parse(shape).nodes)
    book = ownership.create(planned, text, (), shape)
    return _run(book, order)


def go_on(name: str) -> SweepRecord:
    """As `sweep resume` does."""
    return _run(ownership.reopen(name), in_order)


def _run(book: ledger.Ledger, order: Callable[[list[Start]], list[Start]]) -> SweepRecord:
    before = book.before
    of, planned = book.facts.spec, plan.Plan(book.facts.spec, book.facts.trials)
    cluster = simulated.parse(book.facts.simulated)
    engine = Engine(
        functools.partial(search.strategy, planned),
        forecast.learned(cluster, is_real=False),
        Feasibility(of.seed),
        Cache(),
        rungs=driver._rungs(of),
        bases=driver._bases(of),
    )
    done = [record for record in before.trials if record.outcome.status not in driver.AGAIN]
    engine.resumed(done, before.attempts, [asha.arrival(noted) for noted in before.rungs], before.spent)
    if order is in_order:
        assert executor.carry_out(engine, book, InProcess(cluster, of.data.points()))
    else:
        _computed(engine, book, cluster, order)
    book.end("complete")
    book.close()
    return ledger.read(book.facts.name)


def _computed(
    engine: Engine, book: ledger.Ledger, cluster: SimulatedCluster, order: Callable[[list[Start]], list[Start]]
) -> None:
    engine.nodes_are(cluster.nodes, simulated.contents(cluster, book.facts.spec.data.points()))
    conductor = Conductor(engine, book, [], is_virtual=True)
    while not conductor.is_over:
        for start in order(list(iter(conductor.next, None))):
            group = SimulatedGroup(cluster, start.seats)
            group.start(start.trial, at=conductor.now, attempt=engine.attempts[start.trial.trial])
            conductor.answered(start.trial, group.wait(), group.took_s, group.timeline)


def verdicts(record: SweepRecord) -> dict[str, tuple[str, str, int]]:
    """How each trial ended, why, and at which attempt."""
    return {one.config.trial: (one.outcome.status, one.outcome.message, one.attempts) for one in record.trials}


def by_part(record: SweepRecord) -> dict[tuple[int, str], TrialRecord]:
    return {(one.config.gpus, part(one.config)): one for one in record.trials}
