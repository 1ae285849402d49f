"""Over a round, a gang's size and its start do not go together: a drift of the machine is no effect of the size."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from scipy.stats import rankdata, spearmanr

from sweeps.scheduling.packing import Packing
from sweeps.spec import arrangements
from tests.unit.test_packing import Ran, cluster, gang, run
from workers.contract.messages import Isolation, TrialConfig

SEEDS, REPEATS, CELLS = 20, 2, 8  # of a size
NEAR_ZERO = 0.15  # with the largest gangs first in each round it is -0.4 to -0.8
POWERS, MIXED = (1, 2, 4, 8, 16), (1, 2, 3, 5, 6, 8)


def played(sizes: Sequence[int], isolation: Isolation, nodes: int, seed: int) -> list[Ran]:
    """A sweep over sizes, its rounds in random order as they are planned; how long a cell takes nobody knows before."""
    drawn = random.Random(seed)
    cells = [(size, number) for number, size in enumerate(sizes * CELLS)]
    lasts = {number: drawn.lognormvariate(0, 0.5) for _, number in cells}
    trials = [
        (gang(size, number, isolation=isolation, repeat=repeat), lasts[number])
        for repeat in range(REPEATS)
        for size, number in drawn.sample(cells, len(cells))
    ]
    return run(Packing(cluster(*[4] * nodes)), trials)


def correlations(ran: Sequence[Ran], size: Callable[[TrialConfig], int]) -> list[float]:
    """Spearman's, of size and start in each round; above zero where small ones come first."""
    rounds = [[one for one in ran if one.start.trial.repeat == repeat] for repeat in range(REPEATS)]
    return [
        float(spearmanr([size(one.start.trial) for one in these], [one.started_at for one in these]).statistic)
        for these in rounds
    ]


def from_the_middle(ran: Sequence[Ran]) -> list[float]:
    """Spearman's, of GPUs and how far from the middle of its round a gang starts: a drift may rise and fall."""
    found = []
    for repeat in range(REPEATS):
        these = [one for one in ran if one.start.trial.repeat == repeat]
        places = rankdata([one.started_at for one in these])
        far = [abs(place - (len(these) + 1) / 2) for place in places]
        found.append(float(spearmanr([one.start.trial.gpus for one in these], far).statistic))
    return found


@pytest.mark.parametrize(
    ("sizes", "isolation", "nodes"),
    [
        (POWERS, "exclusive", 4),
        (POWERS, "shared", 4),
        (MIXED, "exclusive", 2),
        (MIXED, "shared", 2),
        ((1, 2, 4), "shared", 1),
    ],
)
def test_large_gangs_start_neither_before_small_ones_nor_after_them(
    sizes: tuple[int, ...], isolation: Isolation, nodes: int
) -> None:
    sweeps = [played(sizes, isolation, nodes, seed) for seed in range(SEEDS)]
    by_gpus = [one for ran in sweeps for one in correlations(ran, lambda trial: trial.gpus)]
    assert abs(statistics.fmean(by_gpus)) < NEAR_ZERO
    if nodes > 1:
        here = cluster(*[4] * nodes)
        by_nodes = [
            one for ran in sweeps for one in correlations(ran, lambda it: len(arrangements.arrangement(it, here)))
        ]
        assert abs(statistics.fmean(by_nodes)) < NEAR_ZERO
    apart = [one for ran in sweeps for one in from_the_middle(ran)]
    assert abs(statistics.fmean(apart)) < 2.5 * statistics.stdev(apart) / len(apart) ** 0.5 + NEAR_ZERO / 2
    assert statistics.pstdev(by_gpus) < 0.25  # nor is it so in one round this way and in the next one the other
