"""The packing over clusters, gangs and durations of any kind: nothing is oversubscribed, and all start at last."""

from __future__ import annotations

import dataclasses
import heapq
import random
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.scheduling import packing
from sweeps.scheduling.packing import PARTS, PATIENCE, Packing, Start
from sweeps.spec import arrangements
from sweeps.spec.arrangements import Node
from tests.examples import examples
from tests.unit.records import config
from workers.contract.messages import TrialConfig

LARGEST_FIRST = pytest.mark.usefixtures("largest_first")


@pytest.fixture
def largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coin that decides over the first part of a round falls so."""
    monkeypatch.setattr(packing, "_coin", lambda name: True)


TEMPLATE = dataclasses.replace(config(), device="gpu")
Predicted = Callable[[TrialConfig], float]


def gang(gpus: int, number: int, placement: str = "pack", isolation: str = "shared", repeat: int = 0) -> TrialConfig:
    """The seed tells cells apart."""
    fields = {"gpus": gpus, "placement": placement, "isolation": isolation, "seed": number, "repeat": repeat}
    return dataclasses.replace(TEMPLATE, **fields)  # type: ignore[arg-type]


def cluster(*gpus: int) -> list[Node]:
    return [Node(f"n{i}", cpus=8 * count, gpus=count) for i, count in enumerate(gpus)]


@dataclasses.dataclass
class Ran:
    start: Start
    order: int
    started_at: float
    ended_at: float


def unknown(trial: TrialConfig) -> float:
    return 1.0


def run(
    packing: Packing,
    trials: Sequence[tuple[TrialConfig, float]],
    predicted: Predicted = unknown,
    running: Sequence[tuple[float, str]] = (),
) -> list[Ran]:
    """Every trial as long as it says, in the order of the starts; what never starts is left."""
    order = {trial.trial: n for n, (trial, _) in enumerate(trials)}
    lasts = {trial.trial: seconds for trial, seconds in trials}
    for trial, _ in trials:
        packing.add(trial)
    now = 0.0
    ran: list[Ran] = []
    ends = list(running)
    while True:
        while start := packing.start(now, predicted):
            name = start.trial.trial
            heapq.heappush(ends, (now + lasts[name], name))
            ran.append(Ran(start, order[name], now, now + lasts[name]))
            check(packing)
        if not ends:
            return ran
        now, name = heapq.heappop(ends)
        packing.ended(name, now)


def check(packing: Packing) -> None:
    """Nothing runs on more than there is, and an exclusive trial alone on its nodes."""
    nodes = arrangements.idle(packing.nodes)
    users: dict[str, list[tuple[TrialConfig, int]]] = {name: [] for name in nodes}
    for start in packing.running.values():
        for name, ranks in start.seats:
            users[name].append((start.trial, ranks))
    for name, here in users.items():
        assert sum(ranks for _, ranks in here) <= nodes[name].gpus
        assert len(here) <= 1 or all(trial.isolation == "shared" for trial, _ in here)
        is_alone = any(trial.isolation == "exclusive" for trial, _ in here)
        assert packing.free[name].gpus == (0 if is_alone else nodes[name].gpus - sum(ranks for _, ranks in here))


PLACED = st.one_of(
    st.tuples(st.integers(1, 16), st.sampled_from(["pack", "spread"])),
    st.tuples(st.integers(1, 4), st.integers(1, 4)).map(lambda of: (of[0] * of[1], f"{of[0]}x{of[1]}")),
)
SWEEPS = st.lists(
    st.tuples(PLACED, st.sampled_from(["shared", "exclusive"]), st.integers(0, 2), st.sampled_from([0.0, 1.0, 5.0])),
    max_size=40,
).map(
    lambda rows: [
        (gang(gpus, number, placement, isolation, repeat), seconds)
        for number, ((gpus, placement), isolation, repeat, seconds) in enumerate(rows)
    ]
)
CLUSTERS = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(lambda gpus: cluster(*gpus))
SOME = examples(40)  # a whole sweep each
GUESSES = st.sampled_from([0.0, 0.5, 1.0, 100.0])


@SOME
@given(SWEEPS, CLUSTERS, st.lists(GUESSES, min_size=1, max_size=5))
def test_every_trial_that_an_idle_cluster_holds_starts_once(
    trials: list[tuple[TrialConfig, float]], nodes: list[Node], guesses: list[float]
) -> None:
    packing = Packing(nodes)
    ran = run(packing, trials, lambda trial: guesses[trial.seed % len(guesses)])
    possible = [trial.trial for trial, _ in trials if not arrangements.impossible(trial, nodes)]
    assert sorted(one.start.trial.trial for one in ran) == sorted(possible)
    assert {trial.trial for trial in packing.stranded} == {trial.trial for trial, _ in trials} - set(possible)
    assert packing.free == arrangements.idle(nodes)
    for one in ran:
        assert tuple(ranks for _, ranks in one.start.seats) == arrangements.arrangement(one.start.trial, nodes)


@SOME
@given(SWEEPS, CLUSTERS)
def test_the_same_events_give_the_same_decisions(trials: list[tuple[TrialConfig, float]], nodes: list[Node]) -> None:
    assert run(Packing(nodes), trials) == run(Packing(nodes), trials)


@SOME
@given(st.lists(st.integers(1, 4), max_size=30), st.sampled_from(["shared", "exclusive"]))
def test_where_nothing_can_run_beside_anything_the_plans_order_is_kept(sizes: list[int], isolation: str) -> None:
    sizes = [max(size, 3) for size in sizes] if isolation == "shared" else sizes
    equal = 3 if isolation == "shared" else 0
    trials = [(gang(equal or size, n, isolation=isolation), 1.0) for n, size in enumerate(sizes)]
    assert [one.order for one in run(Packing(cluster(4)), trials)] == list(range(len(sizes)))


@SOME
@given(SWEEPS, CLUSTERS)
def test_a_round_is_not_begun_while_one_of_the_round_before_would_fit(
    trials: list[tuple[TrialConfig, float]], nodes: list[Node]
) -> None:
    packing = Packing(nodes)
    for trial, _ in trials:
        packing.add(trial)
    start = packing.start(0, unknown)
    if start:
        rounds = [trial.repeat for trial, _ in trials if not arrangements.impossible(trial, nodes)]
        assert start.trial.repeat == min(rounds)


def test_in_the_first_part_the_largest_come_first_and_small_ones_fill_what_they_leave() -> None:
    first = [1, 3, 2, 3, 1, 2]
    trials = [(gang(gpus, n), 1.0) for n, gpus in enumerate([*first, *[4] * len(first) * (PARTS - 1)])]
    ran = {one.order: one.started_at for one in run(Packing(cluster(4)), trials) if one.order < len(first)}
    assert ran == {1: 0, 0: 0, 3: 1, 4: 1, 2: 2, 5: 2}


def test_a_part_begins_with_the_small_ones_after_one_that_began_with_the_large() -> None:
    sizes = [1, 8, 8, 1]  # two a part
    trials = [(gang(gpus, n, isolation="exclusive"), 1.0) for n, gpus in enumerate(sizes)]
    assert [one.order for one in run(Packing(cluster(4, 4)), trials)] == [1, 0, 3, 2]


@LARGEST_FIRST
def test_in_a_part_gangs_of_one_arrangement_run_in_a_row_in_the_order_of_the_plan() -> None:
    """In turns, the cluster would drain each time."""
    sizes = [5, 6, 5, 6] * PARTS  # 4 + 1 and 4 + 2
    trials = [(gang(gpus, n), 1.0) for n, gpus in enumerate(sizes)]
    assert [one.order for one in run(Packing(cluster(4, 4)), trials)][:4] == [1, 3, 0, 2]
    placed = ["pack", "spread", "pack", "spread"] * PARTS  # 4 + 1 and 3 + 2
    trials = [(gang(5, n, placement), 1.0) for n, placement in enumerate(placed)]
    assert [one.order for one in run(Packing(cluster(4, 4)), trials)][:4] == [0, 2, 1, 3]


def test_a_large_gang_is_passed_only_by_what_ends_before_its_seats_are_free() -> None:
    lasts = {3: 10.0, 4: 1.0, 1: 6.0}
    packing = Packing(cluster(4))
    packing.add(gang(3, 0))
    assert packing.start(0, lambda trial: lasts[trial.gpus])
    packing.add(gang(4, 1))
    packing.add(gang(1, 2))
    packing.add(gang(1, 3))
    start = packing.start(3, lambda trial: lasts[trial.gpus])
    assert start
    assert start.trial == gang(1, 2)
    packing.ended(gang(1, 2).trial, 9)
    assert packing.start(9, lambda trial: lasts[trial.gpus]) is None  # it would hold up the four
    packing.ended(gang(3, 0).trial, 10)
    start = packing.start(10, lambda trial: lasts[trial.gpus])
    assert start
    assert start.trial == gang(4, 1)


def test_predictions_that_are_always_wrong_hold_a_large_gang_up_only_so_often() -> None:
    """Many small ones are said to last no time; each lasts until the next one has started beside it."""
    packing = Packing(cluster(4))
    packing.add(gang(1, 0))
    assert packing.start(0, lambda trial: 0.0)
    for trial in [gang(4, 1), *(gang(1, number) for number in range(2, 500))]:
        packing.add(trial)
    running, started = [gang(1, 0)], 0
    for number in range(2, 500):
        if start := packing.start(number, lambda trial: 0.0):
            if start.trial.gpus == 4:
                break
            started += 1
            running.append(start.trial)
        if len(running) > 1 or not start:
            packing.ended(running.pop(0).trial, number)
    else:
        raise AssertionError("it never started")
    assert started == PATIENCE


def test_seats_once_kept_stay_where_they_are() -> None:
    """At each moment the other node's trials are said to end at once, so that the seats would never settle."""
    packing = Packing(cluster(4, 4))
    began: dict[str, int] = {}
    for number in range(2):  # one a node
        packing.add(gang(3, number))
        assert packing.start(0, unknown)
        began[gang(3, number).trial] = -number
    for trial in [gang(4, 2), *(gang(1, number) for number in range(3, 500))]:
        packing.add(trial)
    for moment in range(200):

        def predicted(trial: TrialConfig, favoured: str = f"n{moment % 2}") -> float:
            start = packing.running.get(trial.trial)
            return 0.0 if start and start.seats[0][0] == favoured else 1000.0

        for trial in [trial for trial, at in began.items() if moment - at >= 3 and trial in packing.running]:
            packing.ended(trial, moment)
        while start := packing.start(moment, predicted):
            began[start.trial.trial] = moment
        if gang(4, 2).trial in began:
            return
    raise AssertionError("the large gang never started")


@SOME
@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 5), GUESSES), max_size=60))
def test_a_gang_that_needs_every_node_waits_no_longer_than_patience(small: list[tuple[int, float, float]]) -> None:
    """Whatever was predicted: each that goes ahead of it lasts 5 at most, and then its seats are kept."""
    packing = Packing(cluster(4, 4))
    first = gang(1, 0)
    packing.add(first)
    assert packing.start(0, unknown)
    trials = [(gang(8, 1), 1.0), *((gang(gpus, n + 2), seconds) for n, (gpus, seconds, _) in enumerate(small))]
    guesses = [1.0, 1.0, *(guess for _, _, guess in small)]
    ran = run(packing, trials, lambda trial: guesses[trial.seed], running=[(5.0, first.trial)])
    large = next(n for n, one in enumerate(ran) if one.start.trial.gpus == 8)
    assert large <= PATIENCE
    assert ran[large].started_at <= max([5.0, *(one.ended_at for one in ran[:large])])


def test_what_is_added_later_waits_for_the_next_round() -> None:
    """So that larger ones that keep coming never starve a small one."""
    packing = Packing(cluster(4))
    packing.add(gang(4, 0))
    packing.add(gang(1, 1))
    for number in range(2, 100):
        start = packing.start(number, unknown)
        assert start
        packing.ended(start.trial.trial, number)
        if start.trial.gpus == 1:
            assert number == 3
            return
        packing.add(gang(4, number))
    raise AssertionError("it never started")


@pytest.mark.parametrize("isolation", ["exclusive", "shared"])
@pytest.mark.parametrize("sizes", [[1], [4], [1, 2, 4], [1, 2, 4, 8, 16, 32]])
def test_on_several_nodes_few_repeats_meet_what_their_cell_has_shown_there(sizes: list[int], isolation: str) -> None:
    """Three repeats on 8 nodes of 4 GPUs, as docs/read-the-numbers.md says: a trial that comes to the nodes of an
    earlier one of its cell measures for a shorter time."""
    draw = random.Random(0)
    cells = [(gpus, number, draw.uniform(20, 60)) for number, gpus in enumerate(sizes * 10)]
    trials = [
        (gang(gpus, number, isolation=isolation, repeat=repeat), seconds * draw.uniform(0.9, 1.1))
        for repeat in range(3)
        for gpus, number, seconds in draw.sample(cells, len(cells))
    ]
    ran = [one.start for one in run(Packing(cluster(*[4] * 8)), trials)]
    places = {(start.trial.cell, frozenset(name for name, _ in start.seats)) for start in ran}
    assert len(ran) - len(places) <= 0.3 * len(ran)


def test_a_trial_goes_elsewhere_if_there_is_an_elsewhere() -> None:
    packing = Packing(cluster(4, 4))
    one, both = gang(2, 0), gang(8, 1)
    packing.add(one)
    start = packing.start(0, unknown, {one.trial: {"n0"}})
    assert start
    assert start.seats == (("n1", 2),)
    packing.ended(one.trial, 1)
    packing.add(both)
    start = packing.start(1, unknown, {both.trial: {"n0"}})
    assert start
    assert start.seats == (("n0", 4), ("n1", 4))


def test_nodes_join_and_leave() -> None:
    packing = Packing(cluster(4))
    large, small = gang(8, 0), gang(2, 1)
    packing.add(large)
    packing.add(small)
    assert packing.stranded == [large]
    start = packing.start(0, unknown)
    assert start
    assert start.trial == small  # what cannot start holds up nobody
    packing.nodes = cluster(4, 4, 4)
    assert packing.stranded == []
    start = packing.start(1, unknown)
    assert start
    assert start.seats == (("n1", 4), ("n2", 4))
    packing.nodes = cluster(4, 4)  # n2 left under it
    assert packing.free["n0"].gpus == 2
    assert packing.free["n1"].gpus == 0
    packing.ended(large.trial, 2)
    packing.add(large)
    assert packing.start(2, unknown) is None
    packing.ended(small.trial, 3)
    start = packing.start(3, unknown)
    assert start
    assert start.seats == (("n0", 4), ("n1", 4))


@LARGEST_FIRST
def test_a_node_in_other_hands_is_kept_like_one_whose_trial_ends_when_it_is_expected_back() -> None:
    packing = Packing(cluster(4, 4))
    packing.taken = {"n1": 10.0}
    lasts = {8: 5.0, 1: 20.0, 2: 9.0}
    for number, gpus in enumerate(lasts):
        packing.add(gang(gpus, number))
    assert packing.stranded == []
    start = packing.start(0, lambda trial: lasts[trial.gpus])
    assert start
    assert start.trial.gpus == 2  # one that lasts longer would hold up the gang on both
    assert packing.start(0, lambda trial: lasts[trial.gpus]) is None
    assert packing.busy(0, lambda trial: lasts[trial.gpus]) == {"n0": 9.0}
    packing.ended(start.trial.trial, 9)
    packing.taken = {}
    start = packing.start(9, lambda trial: lasts[trial.gpus])
    assert start
    assert start.trial.gpus == 8


def test_what_it_needs_is_nodes_that_are_large_enough_beside_those_in_use() -> None:
    packing = Packing(cluster(4, 2, 2))
    packing.add(gang(5, 0))
    packing.add(gang(1, 1))
    assert packing.needs() == [
        (frozenset({"n0"}), frozenset({"n0", "n1", "n2"})),
        (frozenset({"n0", "n1", "n2"}),),
    ]
    packing.add(gang(2, 2))
    packing.taken = dict.fromkeys(["n0", "n1"], 5.0)
    start = packing.start(0, lambda trial: 0.0)
    assert start
    assert start.seats == (("n2", 1),)
    assert packing.needs()[0] == (frozenset({"n0"}),)  # a second rank has room beside the one that runs


@SOME
@given(SWEEPS, CLUSTERS, st.integers(1, 4))
def test_a_cap_is_never_passed_and_strands_only_what_is_larger(
    trials: list[tuple[TrialConfig, float]], nodes: list[Node], most: int
) -> None:
    ran = run(Packing(nodes, most), trials)
    possible = [trial.trial for trial, _ in trials if not arrangements.impossible(trial, nodes, most)]
    assert sorted(one.start.trial.trial for one in ran) == sorted(possible)
    assert most_in_use(ran) <= most


def most_in_use(ran: Sequence[Ran]) -> int:
    """Nodes at a time."""
    beside = ([it for it in ran if it.started_at <= one.started_at < it.ended_at] for one in ran)
    return max((len({name for it in here for name, _ in it.start.seats}) for here in beside), default=0)


def test_a_node_that_is_kept_for_a_gang_and_not_yet_in_use_counts_against_the_cap() -> None:
    """A search found three nodes in use: a small trial had started on one that was kept for the gang of two."""
    rows = [*[(1, "pack", 0.0)] * 7, (1, "pack", 1.0), (2, "spread", 1.0), (3, "pack", 1.0)]
    in_one_part = [*rows, *[(1, "pack", 0.0)] * len(rows) * (PARTS - 1)]
    for these in (rows, in_one_part):
        trials = [(gang(gpus, n, placement), seconds) for n, (gpus, placement, seconds) in enumerate(these)]
        ran = run(Packing(cluster(1, 1, 2), 2), trials)
        assert len(ran) == len(trials)
        assert most_in_use(ran) == 2


@LARGEST_FIRST
def test_a_gang_that_a_cap_holds_up_is_not_passed_for_ever_on_other_nodes() -> None:
    """Small ones fill a third node that a cap of two forbids beside the gang's: what keeps it in use counts as well."""
    packing = Packing(cluster(4, 4, 2), 2)
    packing.add(gang(1, 0))
    assert packing.start(0, lambda trial: 0.0)
    for trial in [gang(8, 1), *(gang(1, number) for number in range(2, 500))]:
        packing.add(trial)
    running, started = [gang(1, 0)], 0
    for number in range(2, 500):
        if start := packing.start(number, lambda trial: 0.0):
            if start.trial.gpus == 8:
                break
            started += 1
            running.append(start.trial)
        if len(running) > 1 or not start:
            packing.ended(running.pop(0).trial, number)
    else:
        raise AssertionError("it never started")
    assert started <= PATIENCE


def test_a_trial_that_was_removed_never_starts() -> None:
    packing = Packing(cluster(4))
    for number in range(3):
        packing.add(gang(2, number))
    packing.remove(gang(2, 1).trial)
    assert packing.waiting == 2
    assert [packing.start(0, unknown), packing.start(0, unknown)] == [
        Start(gang(2, 0), (("n0", 2),)),
        Start(gang(2, 2), (("n0", 2),)),
    ]
    assert packing.start(0, unknown) is None


def test_a_decision_among_2000_takes_well_under_a_millisecond() -> None:
    packing = Packing(cluster(*[4] * 8))
    trials = [gang(1 + n % 32, n, isolation="exclusive" if n % 2 else "shared") for n in range(2000)]
    for trial in trials:
        packing.add(trial)
    began, decisions, now = time.process_time(), 0, 0.0
    while packing.waiting:
        now += 1
        while packing.start(now, lambda trial: 10.0):
            decisions += 1
        decisions += 1
        packing.ended(next(iter(packing.running)), now)
    assert (time.process_time() - began) / decisions < 0.001
