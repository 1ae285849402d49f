"""Sweeps that share nodes: no node twice, no cap passed, GPU time by priority, and nobody starves."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.leases import SILENT_S, Leases, LeaseTerms, Need
from sweeps.scheduling.packing import Start
from sweeps.scheduling.search import Listed
from sweeps.spec.arrangements import Node
from tests.examples import examples
from tests.unit.records import config, record
from workers.contract.messages import TrialConfig

SOME = examples(12)  # a long time each
ASKS_EVERY_S = 1.0


@dataclasses.dataclass
class Greedy:
    """A sweep with trials for ever; each is some nodes for some seconds."""

    name: str
    trials: Sequence[tuple[int, float]]
    terms: LeaseTerms = dataclasses.field(default_factory=LeaseTerms)
    joins_at: float = 0.0
    used: float = 0.0  # node-seconds
    started: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    running: dict[str, float] = dataclasses.field(default_factory=dict)  # nodes, and until when

    def turn(self, leases: Leases, nodes: dict[str, int], now: float) -> None:
        """Ask and start, as often as something can be started."""
        self.running = {node: until for node, until in self.running.items() if until > now}
        while True:
            count, seconds = self.trials[len(self.started) % len(self.trials)]
            busy = {node: until - now for node, until in self.running.items()}
            taken = leases.ask(self.name, self.terms, busy, [need(count, nodes)], nodes, now)
            check(leases, {self.name: self.terms})
            usable = sorted(nodes.keys() - taken.keys() - self.running.keys())
            room = (self.terms.max_nodes or len(nodes)) - len(self.running)
            if len(usable) < count or room < count:
                return
            self.running |= dict.fromkeys(usable[:count], now + seconds)
            self.started.append((now, count))
            self.used += count * seconds


def need(count: int, nodes: dict[str, int]) -> Need:
    return (frozenset(nodes),) * count


def check(leases: Leases, terms: dict[str, LeaseTerms]) -> None:
    """No node is leased twice, and nobody has more than it may."""
    held = leases.by_sweep
    assert max(Counter(itertools.chain(*held.values())).values(), default=0) <= 1
    for name, its in terms.items():
        assert its.max_nodes is None or len(held.get(name, ())) <= its.max_nodes


def played(nodes: dict[str, int], sweeps: Sequence[Greedy], until_s: float) -> None:
    """Each asks when it starts, once a second, and when a trial of its own ends."""
    leases, number = Leases(), itertools.count()
    known: dict[str, set[float]] = {sweep.name: set() for sweep in sweeps}
    asks = [(sweep.joins_at + 0.01 * n, next(number), sweep, True) for n, sweep in enumerate(sweeps)]
    heapq.heapify(asks)
    while asks[0][0] < until_s:
        now, _, sweep, is_regular = heapq.heappop(asks)
        before = len(sweep.started)
        sweep.turn(leases, nodes, now)
        if len(sweep.started) > before:
            for end in set(sweep.running.values()) - known[sweep.name]:
                heapq.heappush(asks, (end, next(number), sweep, False))
                known[sweep.name].add(end)
        if is_regular:
            heapq.heappush(asks, (now + ASKS_EVERY_S, next(number), sweep, True))


def four(gpus: int = 4) -> dict[str, int]:
    return {f"n{n}": gpus for n in range(4)}


@SOME
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 4), st.sampled_from([3.0, 10.0, 40.0])), min_size=1, max_size=4),
            st.sampled_from([0.5, 1.0, 3.0]),
            st.sampled_from([None, 4, 5]),
            st.sampled_from([0.0, 5.0, 90.0]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(4, 6),
)
def test_no_node_is_leased_twice_no_cap_is_passed_and_everybody_starts_again_and_again(
    drawn: list[tuple[list[tuple[int, float]], float, int | None, float]], count: int
) -> None:
    sweeps = [
        Greedy(str(n), trials, LeaseTerms(priority, cap), joins)
        for n, (trials, priority, cap, joins) in enumerate(drawn)
    ]
    played(dict.fromkeys((f"n{n}" for n in range(count)), 1), sweeps, 500.0)
    for sweep in sweeps:
        starts = [sweep.joins_at, *(at for at, _ in sweep.started), 500.0]
        # Every other's largest start, at 6 times the priority, may come before its own, and each is waited for.
        longest = max(after - before for before, after in itertools.pairwise(starts))
        assert longest <= 40.0 + len(sweeps) * 7 * (4 * 40.0 + 60.0) / count


@SOME
@given(st.integers(1, 6), st.sampled_from([2.0, 5.0, 11.0]), st.sampled_from([2.0, 7.0, 13.0]))
def test_two_that_want_all_they_can_get_have_equal_gpu_seconds(count: int, one_s: float, other_s: float) -> None:
    one, other = Greedy("one", [(1, one_s)]), Greedy("other", [(1, other_s)])
    played(dict.fromkeys((f"n{n}" for n in range(count)), 4), [one, other], 500.0)
    assert abs(one.used - other.used) <= count * max(one_s, other_s) + 60.0
    assert one.used + other.used >= 0.7 * count * 500.0  # a second until the other asks


def test_one_of_twice_the_priority_has_twice_the_gpu_seconds() -> None:
    one, other = Greedy("one", [(1, 10.0)], LeaseTerms(priority=2.0)), Greedy("other", [(1, 10.0)])
    played(four(), [one, other], 2000.0)
    assert 1.9 <= one.used / other.used <= 2.1


def test_a_gang_of_every_node_starts_beside_a_stream_of_small_trials() -> None:
    gang, stream = Greedy("gang", [(4, 10.0)], joins_at=95.0), Greedy("stream", [(1, 10.0)])
    played(four(), [gang, stream], 1000.0)
    first, _ = gang.started[0]
    assert first <= 95.0 + 2 * 10.0 + 2 * ASKS_EVERY_S  # what ran has ended, and what had its turn
    assert abs(gang.used - (stream.used - 4 * 95.0)) <= 2 * 4 * 10.0 + 60.0


def test_a_sweep_alone_gets_every_node_and_gives_back_what_it_does_not_use() -> None:
    leases = Leases()
    assert not leases.ask("a", LeaseTerms(), {}, [], four(), 0.0)
    taken = leases.ask("b", LeaseTerms(), {}, [need(2, four())], four(), 0.1)
    assert len(taken) == 4  # leased until it asks again
    assert len(leases.ask("a", LeaseTerms(), {"n0": 5.0}, [need(1, four())], four(), 0.2)) == 3 - 1
    assert len(leases.ask("b", LeaseTerms(), {}, [need(2, four())], four(), 0.3)) == 2


def test_it_is_told_when_what_others_use_comes_free() -> None:
    leases = Leases()
    leases.ask("a", LeaseTerms(), {"n0": 30.0}, [], four(), 0.0)
    leases.ask("a", LeaseTerms(max_nodes=1), {"n0": 20.0}, [], four(), 10.0)
    assert leases.ask("b", LeaseTerms(), {}, [need(1, four())], four(), 15.0) == {"n0": 15.0}


def test_what_is_beyond_a_gangs_need_others_may_use() -> None:
    leases, nodes = Leases(), four()
    large, small = frozenset({"n0", "n1", "n2"}), frozenset(nodes)
    leases.ask("stream", LeaseTerms(), {"n0": 100.0}, [], nodes, 0.0)
    leases.ask("stream", LeaseTerms(), {"n0": 100.0}, [(small,)], nodes, 0.0)
    taken = leases.ask("gang", LeaseTerms(), {}, [(large, large, large)], nodes, 1.0)
    leases.ask("stream", LeaseTerms(), {"n0": 99.0}, [(small,)], nodes, 2.0)
    taken = leases.ask("gang", LeaseTerms(), {}, [(large, large, large)], nodes, 3.0)
    assert nodes.keys() - taken.keys() <= {"n1", "n2"}
    kept = nodes.keys() - leases.ask("stream", LeaseTerms(), {"n0": 96.0}, [(small,)], nodes, 4.0).keys()
    assert kept == {"n0", "n3"}


def test_one_that_came_late_gets_its_part_from_now_on_and_nothing_for_the_time_before() -> None:
    early, late = Greedy("early", [(1, 10.0)]), Greedy("late", [(1, 10.0)], joins_at=1000.0)
    played(four(), [early, late], 2000.0)
    assert abs((early.used - 4000.0) - late.used) <= 2 * 4 * 10.0 + 60.0


def test_a_sweep_that_is_silent_has_gone() -> None:
    leases = Leases()
    leases.ask("a", LeaseTerms(), dict.fromkeys(four(), 1000.0), [], four(), 0.0)
    assert len(leases.ask("b", LeaseTerms(), {}, [need(1, four())], four(), SILENT_S)) == 4
    assert not leases.ask("b", LeaseTerms(), {}, [need(1, four())], four(), SILENT_S + 1)
    # It is back: what another has by now stays the other's.
    taken = leases.ask("a", LeaseTerms(), dict.fromkeys(four(), 900.0), [], four(), SILENT_S + 2)
    assert len(taken) == 4
    check(leases, {})


def test_one_that_was_lost_first_hears_what_is_in_use() -> None:
    leases = Leases(opens_at=10.0)
    assert len(leases.ask("b", LeaseTerms(), {}, [need(1, four())], four(), 1.0)) == 4
    assert leases.ask("a", LeaseTerms(), {"n1": 50.0}, [], four(), 2.0).keys() == {"n0", "n2", "n3"}
    assert leases.ask("b", LeaseTerms(), {}, [need(3, four())], four(), 11.0).keys() == {"n1"}


def test_a_sweep_that_is_over_leaves_its_nodes() -> None:
    leases = Leases()
    leases.ask("a", LeaseTerms(), {"n0": 50.0}, [], four(), 0.0)
    leases.ask("b", LeaseTerms(), {}, [], four(), 0.0)
    assert leases.release("a")
    assert not leases.ask("b", LeaseTerms(), {}, [need(4, four())], four(), 1.0)
    assert not leases.release("b")


def test_what_waits_for_nodes_that_have_gone_holds_up_nobody() -> None:
    leases = Leases()
    leases.ask("gang", LeaseTerms(), {}, [need(5, four() | {"n4": 4})], four(), 0.0)
    assert not leases.ask("b", LeaseTerms(), {}, [need(1, four())], four(), 2.0) or leases.by_sweep["gang"]
    assert len(leases.ask("gang", LeaseTerms(), {}, [need(5, four() | {"n4": 4})], four(), 3.0)) == 4


NODES = [Node(f"n{n}", 4, 0) for n in range(4)]


@dataclasses.dataclass
class Driver:
    """An engine as the runner drives it: it asks, starts what it may, and tells of the ends."""

    name: str
    engine: Engine
    lasts_s: float
    terms: LeaseTerms
    away: list[tuple[float, float, Start]] = dataclasses.field(default_factory=list)  # end, begin
    ended: list[TrialRecord] = dataclasses.field(default_factory=list)
    spans: list[tuple[str, float, float]] = dataclasses.field(default_factory=list)  # of each node of each trial

    def turn(self, leases: Leases, now: float) -> None:
        for end, begin, start in [one for one in self.away if one[0] <= now]:
            ended = dataclasses.replace(record(start.trial), started_at=begin, ended_at=end)
            self.ended += [final] if (final := self.engine.ended(ended, now)) else []
            self.spans += [(node, begin, end) for node, _ in start.seats]
        self.away = [one for one in self.away if one[0] > now]
        while not self.engine.is_over:
            self.engine.nodes_are(NODES, {})
            busy = {node: until - now for node, until in self.engine.busy(now).items()}
            gpus = {node.name: node.gpus for node in NODES}
            taken = leases.ask(self.name, self.terms, busy, self.engine.needs(), gpus, now)
            self.engine.others_have({node: now + seconds for node, seconds in taken.items()})
            check(leases, {self.name: self.terms})
            found = self.engine.next(now)
            if isinstance(found, Start):
                assert not {node for node, _ in found.seats} & taken.keys()
                self.away.append((now + self.lasts_s, now, found))
            elif found:
                self.ended.append(found)
            else:
                return
        leases.release(self.name)


def driver(name: str, trials: Sequence[TrialConfig], lasts_s: float, terms: LeaseTerms | None = None) -> Driver:
    terms = terms or LeaseTerms()
    made = Engine(
        lambda _: Listed(trials),
        Durations(lambda _: lasts_s),
        Feasibility(),
        Cache(),
        wait_for_nodes_s=20.0,
        max_nodes=terms.max_nodes,
    )
    return Driver(name, made, lasts_s, terms)


def driven(*drivers: Driver, until_s: float = 5000.0) -> float:
    """To the end; when that was."""
    leases, now = Leases(), 0.0
    while not all(one.engine.is_over for one in drivers):
        for one in drivers:
            one.turn(leases, now)
        now += 0.5
        assert now < until_s, {one.name: len(one.ended) for one in drivers}
    spans = sorted(span for one in drivers for span in one.spans)
    for (node, _, end), (other, begin, _) in itertools.pairwise(spans):
        assert node != other or end <= begin, "two trials at once on a node"
    assert all(final.outcome.status == "completed" for one in drivers for final in one.ended)
    return now


def gangs(gpus: int, count: int) -> list[TrialConfig]:
    """CPU ranks, four to a node."""
    return [config(batch_size=size, gpus=gpus) for size in range(1, count + 1)]


def test_two_sweeps_go_on_beside_each_other_and_no_trial_is_lost_for_want_of_a_node() -> None:
    """Each waits for the other's nodes longer than it would for such as have gone."""
    large, small = driver("large", gangs(16, 6), 50.0), driver("small", gangs(1, 40), 30.0)
    driven(small, large)
    assert (len(large.ended), len(small.ended)) == (6, 40)
    first, last = small.spans[0][1], small.spans[-1][2]
    assert sum(first < begin < last for _, begin, _ in large.spans) >= 4 * 3


def test_a_capped_sweep_leaves_the_rest_and_its_own_gangs_do_not_starve() -> None:
    trials = [*gangs(1, 10), *gangs(8, 3)]
    capped, free = driver("capped", trials, 10.0, LeaseTerms(max_nodes=2)), driver("free", gangs(1, 20), 10.0)
    driven(capped, free)
    assert (len(capped.ended), len(free.ended)) == (13, 20)
    for _, begin, _ in capped.spans:
        assert len({node for node, at, end in capped.spans if at <= begin < end}) <= 2


def test_a_sweep_alone_keeps_every_node_busy() -> None:
    alone = driver("alone", gangs(1, 40), 30.0)
    assert driven(alone) <= 40 / 4 * 30.0 + 10.0
