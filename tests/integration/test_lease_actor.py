"""What the lease actor asks of the autoscaler, on a stand-in for Ray: the sum of what lives, from whatever state it
starts in. `test_nodes` has the same on a cluster that grows."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from sweeps.cluster import lease_actor
from sweeps.cluster.site import Simulated
from sweeps.errors import RefusedError
from sweeps.run import ray_tune
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.leases import LeaseTerms
from sweeps.scheduling.search import Listed
from sweeps.spec.arrangements import Node
from tests.unit.records import config

ONE, TWO = [{"GPU": 1.0}], [{"GPU": 1.0}] * 2


class Ray:
    """Its jobs, its clock, and the one request that its autoscaler has."""

    def __init__(self) -> None:
        self.request: list[dict[str, float]] = []
        self.requests = 0
        self.ended: set[str] = set()
        self.now = 1000.0
        self.is_back = False

    def lease_actor(self, is_back: bool = False) -> lease_actor.LeaseActor:
        self.is_back = is_back
        return lease_actor.LeaseActor()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    made = Ray()

    def request_resources(bundles: list[dict[str, float]]) -> None:
        made.request = bundles
        made.requests += 1

    def context() -> Any:
        return types.SimpleNamespace(was_current_actor_reconstructed=made.is_back)

    monkeypatch.setattr(lease_actor.ray, "get_runtime_context", context)
    monkeypatch.setattr(lease_actor.sdk, "request_resources", request_resources)
    monkeypatch.setattr(lease_actor.private_ray, "ended_drivers", lambda: made.ended)
    monkeypatch.setattr(lease_actor.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(lease_actor, "_look_after", lambda: None)
    return made


def asked(of: lease_actor.LeaseActor, job: str) -> None:
    """By a driver whose nodes are there."""
    of.ask(job, (1.0, None), {}, [[["n0"]]], {"n0": 4})


def test_a_request_of_somebody_who_has_gone_does_not_outlive_the_next_sweep_s_first_seconds(ray: Ray) -> None:
    """Such as a driver of an earlier version, or one whose lease actor went with it: its nodes cost."""
    ray.request = TWO
    made = ray.lease_actor()
    asked(made, "a")
    assert made.review(), "somebody is there"
    assert ray.request == []


def test_what_is_wanted_is_the_sum_of_those_that_live(ray: Ray) -> None:
    made = ray.lease_actor()
    made.want("a", ONE)
    made.want("b", TWO)
    assert ray.request == ONE + TWO
    made.want("a", TWO)
    assert ray.request == TWO + TWO
    ray.ended = {"a"}
    assert made.review()
    assert ray.request == TWO
    assert not made.release("b")
    assert ray.request == []


def test_one_that_was_lost_leaves_the_request_as_it_is_until_the_living_have_told_what_they_want(ray: Ray) -> None:
    first = ray.lease_actor()
    first.want("a", ONE)
    first.want("gone", TWO)
    back = ray.lease_actor(is_back=True)
    assert back.review(), "whoever is there has not spoken yet"
    ray.now += lease_actor.REPORTED_WITHIN_S / 2
    back.want("a", ONE)
    assert ray.request == ONE + TWO, "others may want them still: no node goes for a lease actor that was lost"
    ray.now += lease_actor.REPORTED_WITHIN_S
    assert back.review()
    assert ray.request == ONE, "the one that died meanwhile has not told it"
    ray.ended = {"a"}
    assert not back.review()
    assert ray.request == []


def test_a_request_is_made_once_for_each_change_however_often_it_is_looked_at(ray: Ray) -> None:
    made = ray.lease_actor()
    for _ in range(3):
        made.want("a", ONE)
        assert made.review()
    assert (ray.request, ray.requests) == (ONE, 1)
    made.want("a", TWO)
    assert (ray.request, ray.requests) == (TWO, 2)


def test_after_a_head_s_restart_which_forgets_the_request_is_made_anew(ray: Ray) -> None:
    """The actor's end comes with the head's: Ray starts another, or the drivers of the next head do."""
    ray.lease_actor().want("a", ONE)
    for is_back in (False, True):
        ray.request = []
        made = ray.lease_actor(is_back)
        ray.now += lease_actor.REPORTED_WITHIN_S
        made.want("a", ONE)
        assert ray.request == ONE


def test_a_request_that_the_head_did_not_take_is_made_again(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ray.lease_actor()
    taken = lease_actor.sdk.request_resources

    def refuses(bundles: object) -> None:
        raise ConnectionError("the head is busy")

    monkeypatch.setattr(lease_actor.sdk, "request_resources", refuses)
    with pytest.raises(ConnectionError):
        made.want("a", ONE)
    monkeypatch.setattr(lease_actor.sdk, "request_resources", taken)
    made.review()
    assert ray.request == ONE


class Head:
    """Has the one actor by that name; what is called waits until it is asked for. Each call comes from a job."""

    def __init__(self) -> None:
        self.living: Handle | None = None
        self.job = ""
        self.before_a_kill: list[Callable[[], object]] = []

    def found(self) -> Handle:
        if self.living is None:
            self.living = Handle(lease_actor.LeaseActor())
        return self.living

    def get(self, call: Callable[[], Any], timeout: float = 0.0) -> Any:
        return call()

    def kill(self, handle: Handle) -> None:
        while self.before_a_kill:
            self.before_a_kill.pop()()
        handle.is_dead = True
        if self.living is handle:
            self.living = None

    def member(self, job: str) -> lease_actor.Member:
        self.job = job
        return lease_actor.Member()


class Handle:
    def __init__(self, of: lease_actor.LeaseActor) -> None:
        self._of = of
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        def remote(*given: Any) -> Callable[[], Any]:
            return lambda: self._call(name, *given)

        return types.SimpleNamespace(remote=remote)

    def _call(self, name: str, *given: Any) -> Any:
        if self.is_dead:
            raise lease_actor.ray.exceptions.RayActorError
        try:
            return getattr(self._of, name)(*given)
        except Exception as error:
            raise lease_actor.ray.exceptions.RayTaskError(name, "", error).as_instanceof_cause() from None


@pytest.fixture
def head(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> Head:
    made = Head()

    def context() -> Any:
        return types.SimpleNamespace(was_current_actor_reconstructed=False, get_job_id=lambda: made.job)

    monkeypatch.setattr(lease_actor.ray, "get_runtime_context", context)
    monkeypatch.setattr(lease_actor.ray, "get", made.get)
    monkeypatch.setattr(lease_actor.ray, "kill", made.kill)
    monkeypatch.setattr(lease_actor, "_lease_actor", made.found)
    return made


NODES = {"n0": 4, "n1": 4}


def holds(one: lease_actor.Member, node: str) -> Mapping[str, float]:
    return one.ask(LeaseTerms(), {node: 60.0}, [], NODES)


def test_a_sweep_that_joins_as_the_last_other_leaves_keeps_its_nodes_and_what_it_wants(ray: Ray, head: Head) -> None:
    """Between the lease actor's word that nobody is left and the end that is made of it."""
    last, joins, later = head.member("a"), head.member("b"), head.member("c")
    holds(last, "n1")
    head.before_a_kill.append(lambda: (joins.want(ONE), holds(joins, "n0")))
    last.leave()
    assert not head.before_a_kill, "it has joined in between"
    assert "n0" in later.ask(LeaseTerms(), {}, [(frozenset(["n0"]),)], NODES), "another sweep's trial runs there"
    assert ray.request == ONE


def test_a_lease_actor_that_is_over_and_that_nobody_has_ended_holds_nobody_up(ray: Ray, head: Head) -> None:
    """The last to leave was killed before it could end it."""
    holds(head.member("a"), "n0")
    over = head.living
    assert over
    assert not over._of.release("a")
    assert "n1" not in holds(head.member("b"), "n0")
    assert head.living is not over
    assert over.is_dead


def test_what_a_lost_lease_actor_has_forgotten_is_told_again_by_the_next_question(ray: Ray, head: Head) -> None:
    """What is wanted, and that nothing is any more."""
    one = head.member("a")
    for bundles in (TWO, []):
        one.want(bundles)
        assert head.living
        head.living.is_dead, head.living = True, None
        ray.request = ONE  # what another has asked for meanwhile
        holds(one, "n0")
        assert head.living
        head.living._of.review()
        assert ray.request == bundles


def test_that_nothing_is_wanted_any_more_is_told_once_the_lease_actor_answers_again(
    ray: Ray, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = head.member("a")
    one.want(TWO)
    answers = head.get
    monkeypatch.setattr(lease_actor.ray, "get", lost)
    with pytest.raises(RefusedError):
        one.want([])
    monkeypatch.setattr(lease_actor.ray, "get", answers)
    assert ray.request == TWO
    holds(one, "n0")
    assert ray.request == []


def lost(*_: object, **__: object) -> None:
    raise lease_actor.ray.exceptions.RayActorError


class Site(Simulated):
    """Notes what is asked of it, which does not always get there."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self.asked: list[Sequence[dict[str, float]]] = []

    def ask_for(self, bundles: Sequence[dict[str, float]]) -> None:
        self.asked.append(bundles)
        raise RefusedError("the head must answer")


def test_a_sweep_whose_nodes_go_asks_for_them_once_and_no_more_when_they_have_come() -> None:
    two = [Node(f"n{n}", 4, 0) for n in range(2)]
    trial = dataclasses.replace(config(gpus=2, placement="spread"), arrangement=(1, 1))
    engine = Engine(lambda _: Listed([trial]), Durations(lambda _: 10.0), Feasibility(), Cache())
    site = Site(two)
    conductor: Any = types.SimpleNamespace(engine=engine, is_over=False, now=0.0, passed=lambda: None)
    feed = ray_tune._Feed(conductor, site, lambda *_: {}, None, {"is_judged": False}, {})
    seen = []
    for nodes in (two, two[:1], two[:1], two):
        site.nodes = nodes
        feed.look()
        seen.append([*site.asked])
    whole = [{"CPU": 4.0}] * 2
    assert seen == [[], [whole], [whole], [whole, []]]
